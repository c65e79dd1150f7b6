"""Intervals: coverage by simulation, known values, degenerate data."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.stats import intervals
from sage_rlvr.verdicts.stats.intervals import (
    Interval,
    bootstrap_means,
    bootstrap_sees,
    carried_by,
    column_intervals,
    mean_interval,
    passk_interval,
    seed_interval,
    share_difference,
    share_interval,
    share_intervals,
    share_limits,
    skewed_reach,
    third_moment,
    wilson,
)


def test_student_interval_by_hand():
    interval = seed_interval([0.40, 0.44, 0.42])
    half = 4.302652729911275 * 0.02 / math.sqrt(3)  # t quantile on 2 degrees of freedom, sd 0.02
    assert interval.value == pytest.approx(0.42)
    assert (interval.low, interval.high) == pytest.approx((0.42 - half, 0.42 + half))
    assert interval.over == "training seeds" and interval.n == 3
    same = mean_interval([0.40, 0.44, 0.42], method="t", over="training seeds")
    assert same == interval


def test_one_seed_says_nothing():
    interval = seed_interval([0.4])
    assert interval.width == math.inf and interval.n == 1
    assert "no interval" in str(interval)
    assert mean_interval([0.4]).width == math.inf


def test_wilson_against_the_published_formula():
    interval = wilson(24, 60)
    reference = stats.binomtest(24, 60).proportion_ci(method="wilson")
    assert (interval.low, interval.high) == pytest.approx((reference.low, reference.high))
    assert wilson(0, 40).low == 0.0 and wilson(0, 40).high > 0.05
    assert wilson(40, 40).high == 1.0
    with pytest.raises(DataError, match="successes = 5"):
        wilson(5, 4)


def test_bca_agrees_with_scipy_on_a_skewed_sample():
    values = np.random.default_rng(3).beta(0.5, 2, 400)
    ours = mean_interval(values)
    theirs = stats.bootstrap((values,), np.mean, n_resamples=4000, rng=np.random.default_rng(0)).confidence_interval
    width = theirs.high - theirs.low
    assert ours.low == pytest.approx(theirs.low, abs=0.05 * width)
    assert ours.high == pytest.approx(theirs.high, abs=0.05 * width)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "shape"), [(40, (0.5, 2.0)), (134, (0.3, 1.0))])
def test_bca_covers_its_mean(n, shape):
    rng, truth = np.random.default_rng(n), shape[0] / sum(shape)
    hits = sum(mean_interval(rng.beta(*shape, n), resamples=1000).contains(truth) for _ in range(400))
    assert hits / 400 >= 0.93


def test_equal_values_have_zero_width_and_near_equal_ones_no_nan():
    assert mean_interval([0.3] * 20).width == 0.0
    odd = mean_interval([0.0] * 19 + [1.0])
    assert 0.0 <= odd.low < odd.value < odd.high <= 1.0
    assert math.isfinite(mean_interval([0.1, 0.1, 0.1 + 1e-9]).width)


def test_seeded_and_columnwise():
    values = np.random.default_rng(0).random((50, 3))
    first, again = column_intervals(values), column_intervals(values)
    assert first == again
    assert first[1].low == pytest.approx(mean_interval(values[:, 1]).low)
    assert column_intervals(values, seed=1) != first


def test_bootstrap_means_are_means_of_drawn_rows():
    values = np.array([[0.0], [1.0], [5.0]])
    means = bootstrap_means(values, resamples=5000)
    assert set(np.round(means[:, 0] * 3).astype(int)) == {0, 1, 2, 3, 5, 6, 7, 10, 11, 15}
    assert means.mean() == pytest.approx(2.0, abs=0.1)


def test_refusals():
    for bad, word in [([], "shape"), ([[1.0]], "shape"), ([0.1, math.nan], r"values\[1\]")]:
        with pytest.raises(DataError, match=word):
            mean_interval(bad)
    with pytest.raises(DataError, match="'bca' or 't'"):
        mean_interval([0.1, 0.2], method="wald")


def test_text_says_level_and_unit():
    text = str(Interval(value=0.5, low=0.4, high=0.6, level=0.95, over="problems", n=300))
    assert text == "0.500 (95 % interval 0.400 to 0.600 over 300 problems)"


def test_beta_binomial_limits_by_hand():
    """Two problems of four all right: with no pseudo-problems and z in place of t these are Clopper and Pearson's 2 of 4."""
    low, high = share_limits(0.5, 0.25, 4, pseudo=0.0)
    size = 4 * (1.959963984540054 / 3.182446305284263) ** 2
    assert low == pytest.approx(stats.beta.ppf(0.025, size / 2, size / 2 + 1))
    assert high == pytest.approx(stats.beta.ppf(0.975, size / 2 + 1, size / 2))
    assert share_limits(0.0, 0.0, 40)[0] == 0.0 and share_limits(1.0, 0.0, 40)[1] == 1.0
    pulled, half = share_limits(0.5, 0.0, 8), share_limits(0.5, 0.125, 8, pseudo=0.0)  # rho 0 becomes 8 / 16
    assert float(pulled[0]) == pytest.approx(float(half[0])) and float(pulled[1]) == pytest.approx(float(half[1]))
    narrow, wide = share_limits(0.3, 0.01, 60), share_limits(0.3, 0.2, 60)
    assert wide[0] < narrow[0] < 0.3 < narrow[1] < wide[1]


def test_which_interval_shares_get():
    rng = np.random.default_rng(0)
    coins, shares = rng.integers(2, size=60).astype(float), rng.beta(0.4, 2, 400)
    assert share_interval(coins) == wilson(int(coins.sum()), 60)
    assert share_interval(shares) == mean_interval(shares)
    small = share_interval(shares[:60])
    low, high = share_limits(shares[:60].mean(), shares[:60].var(ddof=1), 60)
    assert (small.low, small.high) == (float(low), float(high))
    assert share_interval([0.4]).width == math.inf
    assert [x.value for x in share_intervals(np.stack([coins, coins], axis=1))] == [coins.mean()] * 2
    with pytest.raises(DataError, match=r"values\[1\] = 1.2: a share lies in \[0, 1\]"):
        share_interval([0.1, 1.2])


def test_pass_at_k_from_counts_holds_the_samples_noise_too():
    found = passk_interval(4, [0, 1, 4, 4] * 10, 1)
    assert found.value == pytest.approx(0.5625) and found.n == 40
    assert str(found).endswith("over 40 problems and their samples)")
    assert passk_interval(4, [0, 1, 4, 4] * 10, 4) == Interval(
        **vars(wilson(30, 40, over="problems and their samples"))
    )


def test_a_difference_of_shares_by_hand():
    a, b = np.array([1.0, 0.5, 0.5, 0.0] * 5), np.array([0.5, 0.5, 0.0, 0.0] * 5)
    found = share_difference(a, b)
    (la, ua), (lb, ub) = (share_limits(x.mean(), x.var(ddof=1), 20) for x in (a, b))
    r = np.corrcoef(a, b)[0, 1] * 20 / 20.5
    x, y = 0.5 - la, ub - 0.25
    assert found.value == 0.25 and found.low == pytest.approx(0.25 - math.sqrt(x * x - 2 * r * x * y + y * y))
    x, y = ua - 0.5, 0.25 - lb
    assert found.high == pytest.approx(0.25 + math.sqrt(x * x - 2 * r * x * y + y * y))
    alone = share_difference(np.ones(40), np.ones(40))
    assert alone.value == 0 and alone.high == pytest.approx(-alone.low) and 0.05 < alone.high < 0.2


def test_no_difference_is_told_more_closely_than_student_tells_it():
    """Thirteen problems of 134, on each of which b scores twice a: the arms' own limits would all but cancel."""
    a = np.zeros(134)
    a[:13] = np.linspace(0.02, 0.5, 13)
    found = share_difference(a, 2 * a)
    half = stats.t.ppf(0.975, 133) * a.std(ddof=1) / math.sqrt(134)
    assert found.high == pytest.approx(-a.mean() + half) and found.low <= -a.mean() - half


def test_how_many_problems_carry_a_number():
    assert carried_by([0.3] * 7 + [0.0] * 93) == pytest.approx(7) and carried_by([0.0, 0.0]) == 0.0
    assert carried_by([2.0, 1.0]) == pytest.approx(25 / 17)  # (4 + 1)^2 / (16 + 1)
    few, many = np.zeros(300), np.zeros(300)
    few[:49], many[:50] = 0.1, 0.1
    assert not bootstrap_sees(few) and bootstrap_sees(many) and not bootstrap_sees(many[:299])
    assert not bootstrap_sees(np.ones(400))  # every resample is the same


def test_from_300_problems_on_what_few_problems_carry_keeps_its_beta_binomial_limits():
    rare = np.zeros(300)
    rare[:20] = np.linspace(0.05, 0.9, 20)
    found = share_interval(rare)
    low, high = share_limits(rare.mean(), rare.var(ddof=1), 300)
    assert (found.low, found.high) == (float(low), float(high)) and share_intervals(rare[:, None]) == [found]


def test_how_far_a_mean_of_few_gaps_may_lie_beyond_it():
    """No gap seen: -ln(0.025) / n. No lean: the normal limit. Ten of 200 problems of all or nothing: Clopper and Pearson's."""
    assert float(skewed_reach(0.0, 0.0, 300)) == pytest.approx(-math.log(0.025) / 300)
    for third in (0.0, -0.01):
        assert float(skewed_reach(0.04, third, 400)) == pytest.approx(1.96 * 0.2 / 20, rel=2e-3)
    few = np.arange(200) < 10
    exact = stats.beta.ppf(0.975, 11, 190) - 0.05
    assert float(skewed_reach(few.var(ddof=1), third_moment(few), 200)) == pytest.approx(exact, rel=0.03)


def test_a_kept_draw_of_resamples_is_the_one_that_is_drawn_anew(monkeypatch):
    values = np.random.default_rng(0).random((30, 2))
    kept, again = bootstrap_means(values, resamples=50, seed=1), bootstrap_means(values, resamples=50, seed=1)
    monkeypatch.setattr(intervals, "_KEPT", 0)
    rows = np.random.default_rng(1).integers(30, size=(50, 30))
    for means in (kept, again, bootstrap_means(values, resamples=50, seed=1)):
        np.testing.assert_allclose(means, values[rows].mean(axis=1))


@given(st.integers(0, 10_000), st.integers(20, 200), st.integers(0, 10))
@settings(max_examples=40, deadline=None)
def test_the_interval_of_a_lone_solver_leans_to_its_side_and_turns_with_the_arms(seed, n, lone):
    rng = np.random.default_rng(seed)
    a = rng.beta(0.5, 2, n)
    b = np.where(np.arange(n) < lone, np.minimum(a + rng.random(n), 1), a)
    there, back = share_difference(b, a), share_difference(a, b)
    assert (there.low, there.high) == pytest.approx((-back.high, -back.low))
    reach = float(skewed_reach((b - a).var(ddof=1), third_moment(b - a), n))
    assert there.high >= min(1.0, there.value + reach) - 1e-9 and there.low <= there.value
