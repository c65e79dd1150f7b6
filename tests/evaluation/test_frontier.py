"""The temperature frontier: interpolation by hand, gaps, arms beyond the base's reach."""

from __future__ import annotations

import numpy as np
import pytest

from sage_rlvr.errors import DataError
from sage_rlvr.evaluation import FrontierPoint, at_equal_pass1, best_pass1, frontier, gap_to_frontier, passk_at


def points(*triples: tuple[float, float, float]) -> list[FrontierPoint]:
    return [FrontierPoint(temperature=t, pass1=x, passk=y) for t, x, y in triples]


BASE = points((0.1, 0.40, 0.70), (0.4, 0.30, 0.90), (1.0, 0.20, 1.00))


def test_points_are_means_over_problems():
    p = np.array([0.0, 0.5])
    (only,) = frontier({1.0: p}, k=2)
    assert (only.pass1, only.passk, only.temperature) == pytest.approx((0.25, 0.375, 1.0))
    assert best_pass1(BASE).temperature == 0.1
    with pytest.raises(DataError, match="empty"):
        best_pass1([])


def test_interpolation_by_hand():
    assert passk_at(0.35, BASE) == pytest.approx((0.80, 0.25))
    assert passk_at(0.20, BASE) == pytest.approx((1.00, 1.0))
    assert passk_at(0.41, BASE) is None and passk_at(0.19, BASE) is None


def test_a_frontier_that_turns_back_counts_at_its_best():
    turning = points((0.0, 0.30, 0.5), (0.2, 0.40, 0.6), (1.0, 0.20, 1.0))
    assert passk_at(0.35, turning)[0] == pytest.approx(0.70)  # not 0.55 on the cold branch


def test_mean_gap_over_the_common_range():
    above = points((0.5, 0.35, 0.85), (1.0, 0.25, 1.00))  # gaps 0.05, 0.025 (where the base bends), 0.05
    gap = gap_to_frontier(above, BASE)
    assert gap.value == pytest.approx(0.0375, abs=1e-9)
    assert (gap.low, gap.high) == pytest.approx((0.25, 0.35))
    assert gap_to_frontier(BASE, BASE).value == pytest.approx(0.0, abs=1e-12)
    assert gap_to_frontier(points((1.0, 0.35, 0.90)), BASE).value == pytest.approx(0.10)


def test_no_common_range():
    gap = gap_to_frontier(points((0.5, 0.6, 0.8), (1.0, 0.5, 0.9)), BASE)
    assert gap.value is None and gap.reason == "no common range"
    assert gap_to_frontier([], BASE).reason == "no common range"


def world(rng, shift, n=200):
    z = rng.normal(size=n)
    return {t: 1 / (1 + np.exp(1.5 - shift - (2 / t**0.6) * z - 0.8 * (1 - t))) for t in (0.2, 0.5, 1.0)}


def test_the_base_at_another_temperature_lies_on_its_own_frontier():
    base = world(np.random.default_rng(0), 0.0)
    here = at_equal_pass1(base[0.5], base, resamples=500)
    assert here.difference.value == pytest.approx(0.0, abs=1e-9) and here.difference.contains(0.0)
    assert here.temperature == pytest.approx(0.5)


def test_an_arm_above_the_frontier_has_an_interval_over_problems():
    base = world(np.random.default_rng(0), 0.0)
    arm = np.clip(base[1.0] + 0.04, 0, 1)
    here = at_equal_pass1(arm, base, k=16, resamples=500)
    assert here.difference.low > 0 and here.difference.over == "problems" and here.difference.n == 200
    assert 0.2 < here.temperature < 1.0


def test_what_the_comparison_at_equal_pass1_could_have_seen():
    """Arms on the base's frontier but for noise: the interval's half-width and the difference lie below the answer."""
    rng = np.random.default_rng(3)
    base = world(rng, 0.0)
    for _ in range(5):
        here = at_equal_pass1(np.clip(base[0.5] + rng.normal(0, 0.05, 200), 0, 1), base, k=8, resamples=500)
        gap = here.difference
        assert here.detectable >= max(gap.value - gap.low, gap.high - gap.value, abs(gap.value))
        assert here.detectable < 2 * gap.width
    few = at_equal_pass1([0.5, 0.2, 0.3], {1.0: [0.1, 0.2, 0.3], 0.5: [0.6, 0.7, 0.8]})
    assert few.difference is None and few.reason == "cannot be told: too few problems (3)"


def test_beyond_and_below_say_where_the_base_ends():
    base = world(np.random.default_rng(0), 0.0)
    beyond = at_equal_pass1(np.full(200, 0.99), base)
    assert beyond.base_passk is None and beyond.reason.startswith("beyond the base's frontier (its best pass@1 is 0.")
    assert "at T = 0.2" in beyond.reason
    assert at_equal_pass1(np.full(200, 0.01), base).reason.startswith("below")


def test_at_the_end_of_the_frontier_the_interval_is_withheld():
    base = world(np.random.default_rng(0), 0.0)
    cold = base[0.2]
    arm = (
        np.random.default_rng(1).permutation(cold) - 1e-9
    )  # same mean, other problems: half of the resamples fall outside
    here = at_equal_pass1(np.clip(arm, 0, 1), base, resamples=500)
    assert here.difference is None and "too close to the end" in here.reason


def test_unpaired_problems_are_refused():
    with pytest.raises(DataError, match="different numbers of problems"):
        at_equal_pass1([0.5, 0.2], {1.0: [0.1, 0.2, 0.3], 0.5: [0.6, 0.7, 0.8]})
