"""Intervals over training seeds whose values have an error in common: by hand, by their limits, and how often they cover."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from sage_rlvr.verdicts.stats.curves import seeds_curve
from sage_rlvr.verdicts.stats.intervals import seeds_reach
from sage_rlvr.verdicts.stats.paired import paired_seed_counts, paired_seeds


def test_the_two_half_widths_add_up_in_quadrature() -> None:
    gaps = np.array([0.02, 0.05, 0.01, 0.04, 0.03])
    scatter, t, z = gaps.std(ddof=1) / 5**0.5, stats.t.ppf(0.975, 4), stats.norm.ppf(0.975)
    found = paired_seeds(gaps, np.zeros(5), shared=0.01)
    half = math.hypot(t * scatter, z * 0.01)
    assert (found.difference.low, found.difference.high) == pytest.approx((0.03 - half, 0.03 + half))
    curve = seeds_curve(gaps[:, None, None], np.zeros((5, 1, 1)), [1], fixed=True, shared=[0.01])
    assert curve.high[0] - curve.low[0] == pytest.approx(2 * max(half, -math.log(0.025) / 5))


@example(seeds=3, sd=0.5, shared=0.0, mean=1e-13)  # both values of p are 1 but for rounding
@given(st.integers(3, 12), st.floats(1e-4, 1.0), st.floats(0.0, 1.0), st.floats(-2.0, 2.0))
def test_an_interval_ends_at_0_where_p_is_one_minus_its_level(seeds: int, sd: float, shared: float, mean: float) -> None:
    gaps = mean + sd * np.linspace(-1, 1, seeds)
    found = paired_seeds(gaps, np.zeros(seeds), shared=shared)
    assert 0 <= found.p <= 1
    if 1e-6 < found.p < 0.7:  # above 0.8 no detectable difference is defined
        at = paired_seeds(gaps, np.zeros(seeds), shared=shared, level=1 - found.p).difference
        assert min(abs(at.low), abs(at.high)) == pytest.approx(0, abs=1e-6)
    wider = paired_seeds(gaps, np.zeros(seeds), shared=shared + 0.1)
    assert wider.difference.low < found.difference.low and wider.mde > found.mde
    assert wider.p >= found.p - 1e-9  # up to rounding: a mean of about 0 has p = 1 under any error


def test_the_limits_are_students_and_normal() -> None:
    gaps = [0.1, 0.3, 0.2]
    plain = paired_seeds(gaps, np.zeros(3))
    assert plain.p == pytest.approx(float(stats.ttest_1samp(gaps, 0).pvalue))
    assert paired_seeds([0.2, 0.2, 0.2], np.zeros(3), shared=0.05).outcome == "unknown"  # seeds that agree show no scatter
    same = paired_seeds([0.2, 0.2, 0.2], np.zeros(3), shared=0.05, least=1e-6)  # from samples: only the common error is left
    assert same.p == pytest.approx(float(2 * stats.norm.sf(4))) and same.difference.high == pytest.approx(0.2 + 1.959964 * 0.05)
    assert paired_seeds([1e3, 1e3 + 1e-3, 1e3 - 1e-3], np.zeros(3), shared=1e-4).p < 1e-6


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("ratio", [0.25, 1.0, 4.0])
def test_intervals_cover_at_least_as_often_as_they_say_and_hardly_more(seeds: int, ratio: float) -> None:
    """shared = ratio times the error of the mean from seeds; beside one t quantile for both, and Welch's degrees of freedom."""
    rng, many = np.random.default_rng(0), 40_000
    draws = rng.normal(size=(many, seeds))
    shared = ratio / seeds**0.5
    means = draws.mean(1) + rng.normal(0, shared, many)
    scatter = draws.std(1, ddof=1) / seeds**0.5
    covered = float((np.abs(means) < seeds_reach(scatter, stats.norm.ppf(0.975) * shared, seeds, 0.975)).mean())
    assert 0.948 < covered < 0.98
    error = np.hypot(scatter, shared)
    one_t = float((np.abs(means) < stats.t.ppf(0.975, seeds - 1) * error).mean())
    assert one_t > covered and (one_t > 0.985 or ratio < 1)
    freedom = (seeds - 1) * (error / scatter) ** 4
    welch = float((np.abs(means) < stats.t.ppf(0.975, freedom) * error).mean())
    assert welch < covered and (welch < 0.945 or seeds > 3 or ratio > 1)


def test_the_detectable_difference_is_found_four_times_in_five() -> None:
    rng, many, seeds, shared = np.random.default_rng(1), 40_000, 5, 0.03
    gap = paired_seeds(0.05 * np.sqrt(5 / 2) * np.array([-1, 0.0, 0, 0, 1]) / np.sqrt(2.5 / 2), np.zeros(5), shared=shared)
    draws = rng.normal(gap.mde, np.std([-1, 0, 0, 0, 1], ddof=1) * 0.05 * np.sqrt(5 / 2) / np.sqrt(2.5 / 2), size=(many, seeds))
    means = draws.mean(1) + rng.normal(0, shared, many)
    scatter = draws.std(1, ddof=1) / seeds**0.5
    assert 0.75 < float((means > seeds_reach(scatter, stats.norm.ppf(0.975) * shared, seeds, 0.975)).mean()) < 0.85


@pytest.mark.parametrize("shared", [1e-4, 0.0023, 0.0024, 0.0051, 0.0052])
def test_no_detectable_difference_is_below_the_half_width(shared: float) -> None:
    found = paired_seeds([1e-6, 0.0, -1e-6], np.zeros(3), shared=shared, least=0.01)
    assert found.mde > found.difference.width / 2 >= 0.01


def test_a_control_that_was_sampled_once_is_such_an_error() -> None:
    rng = np.random.default_rng(2)
    runs, base = rng.binomial(64, 0.1, (5, 50)), rng.binomial(64, 0.1, (1, 50))
    once = paired_seed_counts(64, runs, base, 8, fixed=True)
    assert once.difference.over == "training seeds and the control's samples"
    assert once.difference.width > paired_seed_counts(64, runs, np.repeat(base, 5, 0), 8, fixed=True).difference.width


@pytest.mark.parametrize("seeds", [3, 4, 6, 12])
def test_seeds_that_agree_leave_the_noise_of_their_control(seeds: int) -> None:
    """Where the scatter is 0, an infinite quantile of Student's law adds nothing."""
    assert seeds_reach(0.0, 0.1, seeds, 1e-300) == 0.1 == seeds_reach([0.0], [0.1], seeds, 1 - 1e-300)[0]
    found = paired_seed_counts(64, np.full((seeds, 30), 60), np.full((1, 30), 20), 1, fixed=True)
    assert found.outcome == "better" and 0 < found.p < 1e-3
