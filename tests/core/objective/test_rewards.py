"""DAPO's price on length by hand: limit 20480, buffer 4096."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sage_rlvr.contrib.methods.mara import Mara
from sage_rlvr.contrib.methods.outcomes import OutcomeCounts, OutcomeRepeats
from sage_rlvr.contrib.methods.right_entropy import RightEntropy
from sage_rlvr.contrib.methods.unlikeliness import Unlikeliness
from sage_rlvr.core import GroupNormalized, OverlongShaping
from sage_rlvr.core.advantages import GroupSignals, ZeroVariance
from sage_rlvr.core.extras import EXTRAS
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.testing import check_extra

LENGTHS = torch.tensor([[10_000, 16_384, 18_432, 20_480, 22_000]])


def paid(shaping, rewards, lengths):
    return shaping.after_rewards(rewards, GroupSignals(lengths, torch.zeros(lengths.shape)), {})


PRICES = (0.0, 0.0, 0.5, 1.0, 1.0)  # the last is beyond the limit, where verl's formula would go on to 1.371


@pytest.mark.parametrize("factor", [1.0, 0.25, 0.0])
def test_dapo_by_hand(factor):
    shaping = OverlongShaping(20_480, 4096, factor)
    for reward, signed in ((1.0, 1.0), (0.0, -1.0), (0.5, 0.0)):
        found = paid(shaping, torch.full((1, 5), reward), LENGTHS)
        assert found.dtype == torch.float32 and found.tolist() == [[signed - factor * price for price in PRICES]]


def test_unsigned_leaves_the_reward():
    rewards = torch.tensor([[1.0, 0.0, 3.0, -2.0, 1.0]])
    found = paid(OverlongShaping(20_480, 4096, signed=False), rewards, LENGTHS)
    assert found.tolist() == [[1.0, 0.0, 2.5, -3.0, 0.0]]


def test_the_whole_length_may_be_the_buffer():
    found = paid(OverlongShaping(4, 4, signed=False), torch.zeros(1, 4), torch.tensor([[0, 1, 2, 4]]))
    assert found.tolist() == [[0.0, -0.25, -0.5, -1.0]]


@given(
    st.integers(1, 60).flatmap(lambda top: st.tuples(st.just(top), st.integers(1, top))),
    st.lists(st.integers(0, 80), min_size=2, max_size=6),
)
def test_the_price_rises_with_the_length_and_ends_at_the_factor(limits, lengths):
    top, buffer = limits
    shaping, sorted_lengths = OverlongShaping(top, buffer, 0.5), torch.tensor([sorted(lengths)])
    prices = 1.0 - paid(shaping, torch.ones(1, len(lengths)), sorted_lengths)[0]
    assert bool((prices.diff() >= 0).all()) and float(prices.min()) >= 0.0 and float(prices.max()) <= 0.5
    free = sorted_lengths[0] <= top - buffer
    assert not prices[free].any() and bool((prices[sorted_lengths[0] >= top] == 0.5).all())


def test_the_sign_alone_cancels_under_the_groups_std_and_with_a_price_it_does_not():
    rewards, lengths = torch.tensor([[1.0, 0.0, 1.0, 0.0]]), torch.tensor([[3, 4, 8, 8]])
    plain = GroupNormalized(1e-9)(rewards)
    free, priced = (GroupNormalized(1e-9)(paid(OverlongShaping(8, 4, factor), rewards, lengths)) for factor in (0.0, 1.0))
    assert torch.allclose(free, plain, atol=1e-6) and (priced - plain).abs().max() > 0.1


def test_equation_is_filled_in():
    assert OverlongShaping(24, 16).equation == "2 R - 1 - min(1, max(0, |y| - 8) / 16)"
    assert OverlongShaping(24, 4, 0.5, signed=False).equation == "R - 0.5 * min(1, max(0, |y| - 20) / 4)"


def test_no_gradient():
    rewards = torch.ones(1, 2, requires_grad=True)
    assert not paid(OverlongShaping(8, 4), rewards, torch.tensor([[1, 8]])).requires_grad


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"max_tokens": 0, "buffer": 1}, "max_tokens = 0.*whole number >= 1"),
        ({"max_tokens": 24.0, "buffer": 1}, "max_tokens = 24.0"),
        ({"max_tokens": True, "buffer": 1}, "max_tokens = True"),
        ({"max_tokens": 24, "buffer": 0}, "buffer = 0"),
        ({"max_tokens": 24, "buffer": 25}, "buffer = 25 is longer than max_tokens = 24"),
        ({"max_tokens": 24, "buffer": 4, "factor": -1.0}, "factor = -1.0"),
        ({"max_tokens": 24, "buffer": 4, "factor": float("nan")}, "factor = nan"),
    ],
)
def test_refusals(arguments, said):
    with pytest.raises(ConfigError, match=said):
        OverlongShaping(**arguments)


def test_data_that_does_not_fit():
    for reward in (-1.0, 1.5, float("nan")):
        rewards = torch.tensor([[1.0, 0.0], [0.0, reward]])
        with pytest.raises(DataError, match=rf"\(1, 1\).*is {reward:g}.*signed=False"):
            paid(OverlongShaping(8, 4), rewards, torch.ones(2, 2, dtype=torch.long))


TRANSFORMS = (
    Mara(), RightEntropy(), RightEntropy(0.0), Unlikeliness(), Unlikeliness(0.0), Unlikeliness(per_token=True),
    OutcomeCounts(), OutcomeCounts(0.0), OutcomeCounts(bonus_on="correct"), OutcomeCounts(0.0, "correct"), OutcomeRepeats(),
    OutcomeRepeats(bonus_on="correct"),
    OutcomeRepeats(0.0), OverlongShaping(8, 4), OverlongShaping(8, 4, signed=False), OverlongShaping(8, 4, 0.0),
    OverlongShaping(8, 4, 0.0, signed=False),
)  # fmt: skip


@pytest.mark.parametrize("transform", TRANSFORMS, ids=str)
def test_the_laws_of_a_transform_and_what_it_declares_of_groups_with_nothing_to_compare(transform):
    assert transform.dead(4) is not None
    check_extra(transform)


def test_every_transform_stands_in_that_battery_and_a_wrong_declaration_is_found(monkeypatch):
    assert {type(one) for one in TRANSFORMS} == {part for part in EXTRAS.values() if "after_rewards" in vars(part)}
    monkeypatch.setattr(Mara, "dead", lambda part, size: ZeroVariance(1.0, 0.0, "refused"))
    with pytest.raises(AssertionError, match=r"all right earns .* 1\.0 is declared"):
        check_extra(Mara())
