"""Dynamic sampling: which groups are kept, on rewards written out and against a brute-force twin."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sage_rlvr.core import DynamicSampling, GroupNormalized, GroupSignals, OverlongShaping, RolloutPlan
from sage_rlvr.errors import ConfigError, DataError


def test_groups_with_both_right_and_wrong_are_kept():
    rewards = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
    kept = DynamicSampling().keeps(rewards)
    assert kept.dtype == torch.bool and kept.tolist() == [True, False, False, True]


@given(st.lists(st.lists(st.sampled_from([0.0, 1.0, 0.1, -0.3]), min_size=4, max_size=4), min_size=1, max_size=6))
def test_what_is_kept_is_what_has_an_advantage(rows):
    """Each group by itself, and exactly those whose advantages are not all 0."""
    rewards = torch.tensor(rows)
    kept = DynamicSampling().keeps(rewards)
    assert kept.tolist() == [len(set(row)) > 1 for row in rows]
    assert torch.equal(kept, GroupNormalized()(rewards).any(dim=1))
    assert torch.equal(kept, torch.cat([DynamicSampling().keeps(row[None]) for row in rewards]))


def test_an_all_right_group_is_dropped_although_a_price_on_length_gives_it_advantages():
    """verl's filter by `acc` has it so, and so here: the plan sees the verifier's rewards, before an extra changes them."""
    rewards, seen = torch.ones(1, 2), GroupSignals(torch.tensor([[4, 8]]), torch.zeros(1, 2))
    assert GroupNormalized()(OverlongShaping(8, 4).after_rewards(rewards, seen, {})).any()
    assert not DynamicSampling().keeps(rewards).any()


def test_it_is_a_rollout_plan_and_says_its_equation():
    assert isinstance(DynamicSampling(), RolloutPlan) and DynamicSampling().max_refills == 9
    assert DynamicSampling(3).equation.endswith("at most 3 times") and DynamicSampling(1).equation.endswith("1 time")
    assert "draw nothing" in DynamicSampling(0).equation
    assert all("0 < #right < G" in DynamicSampling(n).equation for n in (0, 1, 9))


@pytest.mark.parametrize("refills", [-1, 1.5, True, None])
def test_refusals(refills):
    with pytest.raises(ConfigError, match=r"max_refills = .*whole number >= 0"):
        DynamicSampling(refills)


def test_rewards_come_in_groups():
    with pytest.raises(DataError, match="completions per prompt"):
        DynamicSampling().keeps(torch.ones(4))


@pytest.mark.parametrize("p", [0.02, 0.5, 0.97])
def test_a_kept_group_has_one_over_k_of_the_force_so_prompts_keep_their_weights(p: float):
    """Every group of 4 listed: chance of being kept times expected force of a kept one = expected force of any."""
    rewards = torch.tensor(list(itertools.product((0.0, 1.0), repeat=4)))
    chance = torch.where(rewards == 1, p, 1 - p).prod(dim=1)
    force = (GroupNormalized()(rewards) * (rewards - p)).mean(dim=1)
    kept = DynamicSampling().keeps(rewards)
    k = chance[kept].sum()
    of_a_kept_one = (chance[kept] / k * force[kept]).sum()
    assert float(k) == pytest.approx(1 - p**4 - (1 - p) ** 4, rel=1e-5)
    assert float(k * of_a_kept_one) == pytest.approx(float((chance * force).sum()), rel=1e-5)
    assert float(of_a_kept_one) > float((chance * force).sum()) > 0
