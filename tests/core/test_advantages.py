"""Advantages by hand: rewards (1, 0, 0, 1) and (1, 0, 0, 0)."""

from __future__ import annotations

import math

import pytest
import torch

from sage_rlvr.core import GroupCentred, GroupNormalised, LeaveOneOut
from sage_rlvr.errors import ConfigError, DataError

KINDS = [GroupNormalised, GroupCentred, LeaveOneOut]
REWARDS = torch.tensor([[1.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0]])


def test_group_centred():
    assert GroupCentred()(REWARDS).tolist() == [[0.5, -0.5, -0.5, 0.5], [0.75, -0.25, -0.25, -0.25]]


def test_leave_one_out_by_brute_force():
    wanted = [row[i] - (sum(row) - row[i]) / 3 for row in REWARDS.tolist() for i in range(4)]
    assert LeaveOneOut()(REWARDS).flatten().tolist() == pytest.approx(wanted)


def test_group_normalised_divides_by_the_sample_std():
    """std of (1,0,0,1) with 3 in the denominator = sqrt(1/3); of (1,0,0,0) = sqrt(.75/3) = .5."""
    found = GroupNormalised()(REWARDS)
    assert found[0].tolist() == pytest.approx([s * 0.5 / (math.sqrt(1 / 3) + 1e-4) for s in (1, -1, -1, 1)])
    assert found[1].tolist() == pytest.approx([0.75 / 0.5001] + [-0.25 / 0.5001] * 3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 1 / 3, -7.3])
def test_equal_rewards_give_exactly_zero(kind, reward):
    assert not kind()(torch.full((2, 7), reward)).any()


@pytest.mark.parametrize("kind", KINDS)
def test_groups_do_not_mix_and_order_follows(kind):
    advantages, order = kind()(REWARDS), torch.tensor([2, 0, 3, 1])
    assert torch.allclose(kind()(REWARDS[:, order]), advantages[:, order])
    assert torch.allclose(kind()(REWARDS[1:]), advantages[1:])
    assert torch.allclose(advantages.sum(dim=1), torch.zeros(2), atol=1e-6)


def test_refusals():
    with pytest.raises(DataError, match="completions a prompt"):
        GroupCentred()(REWARDS[0])
    for kind in (GroupNormalised, LeaveOneOut):
        with pytest.raises(DataError, match="at least 2"):
            kind()(torch.ones(3, 1))
    with pytest.raises(ConfigError, match="eps"):
        GroupNormalised(eps=0.0)
