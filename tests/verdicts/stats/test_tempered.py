"""Tempering whole completions: worked by hand, by listing everything, and by what sampling the tempered policy gives."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.stats.frontier import best_pass1, passk_at
from sage_rlvr.verdicts.stats.tempered import LEAST_ESS, MOST_UNSEEN, power_frontier, reweighted, tempered

# Problem 1: completions 0.4 (right), 0.3, 0.2 (right), 0.1. Problem 2: 0.5, 0.5 (right).
ALL = [np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.5, 0.5])]
RIGHT = [np.log([0.4, 0.2]), np.log([0.5])]


def norms_of(power: float) -> np.ndarray:
    z = np.array([math.log(np.sum(law**power)) for law in ALL])
    return np.stack([z, z], axis=1)


def test_by_hand_at_power_two() -> None:
    # squares: 0.16 + 0.09 + 0.04 + 0.01 = 0.30, right 0.20 -> 2/3; 0.25 of 0.50 -> 1/2
    (one,) = tempered(RIGHT, {2.0: norms_of(2.0)})
    assert one.p == pytest.approx([2 / 3, 1 / 2]) and one.bound == pytest.approx([0, 0], abs=1e-12)
    assert one.known and one.point(2).pass1 == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert one.point(2).passk == pytest.approx((1 - 1 / 9 + 1 - 1 / 4) / 2) and one.point(2).temperature == 0.5
    # distinct in one sample is p; in two: 1 - (1 - 0.16/0.3)^2 + 1 - (1 - 0.04/0.3)^2, and 3/4
    first = 2 - (1 - 16 / 30) ** 2 - (1 - 4 / 30) ** 2
    assert one.distinct(2) == pytest.approx((first + 0.75) / 2)


def test_power_one_is_the_policy_itself_and_infinity_its_likeliest_completion() -> None:
    one, sharp = tempered(RIGHT, {1.0: np.zeros((2, 2)), 200.0: norms_of(200.0)})
    assert one.p == pytest.approx([0.6, 0.5]) and one.power == 1.0
    assert sharp.p == pytest.approx([1.0, 0.5])  # 0.4 is right and likeliest; a tie stays a tie


def test_bounds_of_the_normalizer_are_bounds_of_p() -> None:
    z = norms_of(2.0)[:, 0]
    (wide,) = tempered(RIGHT, {2.0: np.stack([z - 0.5, z + 0.25], axis=1)})
    low, high = wide.p - wide.bound, wide.p + wide.bound
    assert low == pytest.approx(np.array([2 / 3, 1 / 2]) * math.exp(-0.25))
    # 2/3 * e^0.5 would exceed 1: the right completions are themselves part of the sum
    assert high == pytest.approx([1.0, 0.5 * math.exp(0.5)])
    assert not wide.known and power_frontier(RIGHT, {2.0: np.stack([z - 0.5, z + 0.25], axis=1)}) == ()


def test_the_frontier_reads_like_one_over_temperature() -> None:
    line = power_frontier(RIGHT, {p: norms_of(p) for p in (1.0, 2.0, 4.0)}, k=4)
    assert [point.temperature for point in line] == [0.25, 0.5, 1.0]
    assert best_pass1(line).temperature == 0.25 and passk_at(line[1].pass1, line) == (line[1].passk, 0.5)


@pytest.mark.slow
@given(st.lists(st.floats(0.01, 1.0), min_size=2, max_size=8), st.floats(1.0, 12.0), st.integers(1, 6))
def test_it_is_the_listed_law(weights: list[float], power: float, right: int) -> None:
    law = np.array(weights) / np.sum(weights)
    listed = law**power / np.sum(law**power)
    marks = np.arange(len(law)) < min(right, len(law))
    z = math.log(np.sum(law**power))
    (one,) = tempered([np.log(law[marks])], {power: np.array([[z, z]])})
    assert one.p[0] == pytest.approx(listed[marks].sum(), abs=1e-9)
    assert np.exp(one.logps[0]) == pytest.approx(listed[marks], abs=1e-9)


def test_problems_without_a_right_completion() -> None:
    (one,) = tempered([np.zeros(0)], {3.0: np.array([[-1.0, -0.9]])})
    assert one.p.tolist() == [0.0] and one.bound.tolist() == [0.0] and one.distinct(8) == 0.0


def test_refusals() -> None:
    with pytest.raises(DataError, match=r"shape \(1, 2\) for 2 problems at power 2"):
        tempered(RIGHT, {2.0: np.zeros((1, 2))})
    with pytest.raises(DataError, match="lower and upper"):
        tempered(RIGHT, {2.0: np.array([[0.0, -1.0], [0.0, 0.0]])})
    with pytest.raises(DataError, match="problem 1: "):
        reweighted([[-1.0], [math.nan]], [[1], [0]], [["a"], ["b"]], 2.0)


def test_reweighted_samples_find_the_tempered_share() -> None:
    rng, n, problems = np.random.default_rng(0), 4000, 40
    law = ALL[0]
    drawn = [rng.choice(4, size=n, p=law) for _ in range(problems)]
    found = reweighted(
        [np.log(law)[d] for d in drawn], [np.isin(d, (0, 2)) for d in drawn], [d.tolist() for d in drawn], 2.0
    )
    assert found.pass1 is not None and found.pass1.low <= 2 / 3 <= found.pass1.high
    assert found.pass1.width < 0.02 and not found.pass1.contains(0.6)  # 0.6 is the untempered share
    # (sum p^2)^2 / sum p^3 of n samples: 0.3^2 / 0.1 = 0.9
    assert found.ess == pytest.approx(0.9 * n, rel=0.02)


def test_too_few_effective_samples_are_said_and_not_used() -> None:
    rng = np.random.default_rng(1)
    logps = [rng.normal(-200, 30, size=64) for _ in range(20)]  # long completions: one sample has all the weight
    found = reweighted(logps, [rng.random(64) < 0.5 for _ in logps], [range(64) for _ in logps], 4.0)
    assert found.pass1 is None and found.ess < LEAST_ESS and found.reason.startswith("not available: 1.")


def test_a_likely_completion_that_no_sample_showed_is_not_taken_for_absent() -> None:
    """One right completion of 0.01 and 9,900 wrong ones of 1e-4: at power 4 the right one has nearly all, and half of the problems
    have not drawn it in 64 samples. There the weights are all equal, and the effective sample size is at its largest."""
    rng, n = np.random.default_rng(2), 64
    drawn = [np.where(rng.random(n) < 0.01, 0, 1 + rng.integers(9900, size=n)) for _ in range(60)]
    logps = [np.log(np.where(d == 0, 0.01, 1e-4)) for d in drawn]
    for power in (2.0, 4.0):
        found = reweighted(logps, [d == 0 for d in drawn], [d.tolist() for d in drawn], power)
        assert found.ess > LEAST_ESS and found.unseen > MOST_UNSEEN
        assert found.pass1 is None and "unsampled completions may have" in found.reason


def test_what_may_be_unseen_bounds_what_is_missed() -> None:
    """With enough samples it is given, and the truth lies within the interval and the bound."""
    rng, n = np.random.default_rng(3), 6000
    law = np.array([0.01, *[1e-4] * 9900])
    drawn = [rng.choice(len(law), size=n, p=law) for _ in range(20)]
    found = reweighted([np.log(law[d]) for d in drawn], [d == 0 for d in drawn], [d.tolist() for d in drawn], 4.0)
    truth = law[0] ** 4 / np.sum(law**4)
    assert found.pass1 is not None and abs(found.pass1.value - truth) <= found.unseen + found.pass1.width
