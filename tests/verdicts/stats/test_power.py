"""Detectable difference: a published value, the normal limit, a simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.stats.paired import paired, sign_flip_p
from sage_rlvr.verdicts.stats.power import (
    LikeCoins,
    LikePilot,
    _odds_apart,
    detectable,
    detectable_paired,
    detectable_planned,
    detectable_shares,
    fewest_units,
    spread,
)


def test_published_values():
    assert detectable(1.0, 34) == pytest.approx(0.495, abs=0.001)  # G*Power: effect 0.5 needs n = 34 (33.37)
    assert detectable(0.01, 100_000) == pytest.approx(2.8016 * 0.01 / math.sqrt(100_000), rel=1e-3)


@pytest.mark.parametrize("n", [3, 6, 60])
def test_is_found_four_times_in_five(n):
    shift = detectable(0.2, n)
    rng = np.random.default_rng(n)
    gaps = rng.normal(shift, 0.2, (4000, n))
    found = stats.ttest_1samp(gaps, 0.0, axis=1).pvalue < 0.05
    assert found.mean() == pytest.approx(0.8, abs=0.025)


def test_ends():
    assert detectable(0.1, 1) == math.inf
    assert detectable(0.0, 10) == 0.0
    assert math.isfinite(detectable(0.1, 2))
    assert detectable(0.1, 40) > detectable(0.1, 400)
    with pytest.raises(DataError, match="sd"):
        detectable(-1.0, 5)


def test_fewest_units_is_where_the_sign_flips_can_speak():
    for alpha in (0.05, 0.01, 0.2):
        n = fewest_units(alpha)
        assert sign_flip_p(np.full(n, 0.3)) < alpha <= sign_flip_p(np.full(n - 1, 0.3))
    assert fewest_units() == 6


GAPS = {
    "eight, exact flips": np.random.default_rng(0).normal(0, 0.1, 8),
    "forty, skewed": np.random.default_rng(1).exponential(0.1, 40),
    "many zeros": (np.random.default_rng(2).random(100) < 0.2) * np.random.default_rng(3).normal(0, 0.3, 100),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GAPS)
def test_the_paired_rule_finds_it_four_times_in_five(name):
    """The real rule (bootstrap interval and sign flips) on data drawn again, shifted by the answer in both directions."""
    gaps = GAPS[name]
    n, shift = len(gaps), 1.001 * detectable_paired(gaps)
    centered = (gaps - gaps.mean()) * math.sqrt(n / (n - 1))
    rng, found = np.random.default_rng(4), {}
    for word, side in (("better", 1), ("worse", -1)):
        drawn = rng.choice(centered, (150, n)) + side * shift
        found[word] = np.mean([paired(row, np.zeros(n), resamples=300, shares=False).outcome == word for row in drawn])
    assert 0.7 <= min(found.values()) <= 0.9, found  # the harder direction sets the answer


def test_ends_of_the_paired_rule():
    assert detectable_paired([0.1, 0.2, 0.3, 0.1, 0.2]) == math.inf
    assert detectable_paired([0.1] * 6) == 0.0
    wide = np.random.default_rng(0).normal(0, 1, 300)
    assert detectable_paired(wide) == pytest.approx(detectable(wide.std(ddof=1), 300), rel=0.1)
    assert detectable_paired(10 * wide) == pytest.approx(10 * detectable_paired(wide))
    assert detectable_paired(-wide) == pytest.approx(detectable_paired(wide), rel=0.05)


@pytest.mark.slow
def test_the_rule_of_shares_finds_its_detectable_difference_four_times_in_five():
    """Policies on problems drawn again, the one lifted by the answer: `paired` says "better" about 4 times in 5."""
    rng = np.random.default_rng(0)
    a, b = rng.beta(4, 4, 60), rng.beta(4, 4, 60)
    shift = detectable_shares(a, b)
    found = 0
    for _ in range(150):
        rows = rng.integers(60, size=60)
        lifted = a[rows] - a.mean() + b.mean() + shift
        found += paired(np.clip(lifted, 0, 1), b[rows]).outcome == "better"
    assert 0.68 <= found / 150 <= 0.92
    assert detectable_shares(a[:5], b[:5]) == math.inf
    assert detectable_shares(np.ones(40), np.ones(40)) > 0.05  # nothing seen to differ, and little could have been
    assert detectable_shares(a[:8], b[:8]) > detectable_shares(a, b)


# ---- problems that are still to be drawn


def test_a_plan_from_a_pilot_has_the_uncertainty_of_the_pilot() -> None:
    """More than the pilot's own problems drawn again show, the more so the fewer they are."""
    rng = np.random.default_rng(0)
    more = {}
    for n in (20, 320):
        a, b = rng.beta(4, 4, n), rng.beta(4, 4, n)
        planned = detectable_planned(LikePilot(n, a, b))
        more[n] = planned / detectable_shares(a, b, widening=1.0)
        assert detectable_planned(LikePilot(n, b, a)) == pytest.approx(planned)  # the harder side, whichever arm is named first
        assert detectable_planned(LikePilot(4 * n, a, b)) < 0.6 * planned
    assert 0.97 < more[320] < 1.1 and 1.05 < more[20] < 1.5


def test_a_difference_moves_the_middle_more_than_the_ends() -> None:
    """One factor on all odds: at p = 1/2 and f = 3 in one arm and 1/3 in the other, 3/4 and 1/4."""
    higher, lower = _odds_apart(np.array([0.5]), 0.5)
    assert (higher[0], lower[0]) == (pytest.approx(0.75), pytest.approx(0.25))
    higher, lower = _odds_apart(np.array([0.02, 0.5, 0.98]), 0.2)
    assert np.mean(higher - lower) == pytest.approx(0.2) and (higher - lower)[1] > 4 * (higher - lower)[[0, 2]].max()


def test_what_is_found_is_found_when_it_is_larger() -> None:
    for planned in (LikeCoins(60, 0.1), LikePilot(60, np.linspace(0, 1, 60), np.linspace(0, 1, 60)[::-1])):
        x = detectable_planned(planned)
        rule = {"power": 0.8, "alpha": 0.05, "widening": 1.0}
        assert planned.missing(0.9 * x, **rule) > 0 >= planned.missing(1.1 * x, **rule)
    assert detectable_planned(LikeCoins(6, 1.0), widening=5.0) == 1.0


# ---- the spread of arms beside that of their seeds


def test_spread_by_hand():
    """Means 1, 2, 6; residuals (1/2, -1/2) in the first two arms and (-1, 1) in the third: 3 over 2 degrees of freedom."""
    found = spread([[1.5, 0.5], [2.5, 1.5], [5.0, 7.0]])
    assert found.arms == pytest.approx(7**0.5)  # (4 + 1 + 9) / 2
    assert found.seeds == pytest.approx((1.5 / 2) ** 0.5)
    assert found.p == pytest.approx(1 / (1 + 7 / 0.75))  # of F with 2 and 2 degrees of freedom the tail is 1 / (1 + F)


@given(st.integers(2, 6), st.integers(2, 5), st.integers(0, 99))
def test_what_a_seed_does_to_all_arms_and_the_unit_change_nothing(arms: int, seeds: int, key: int):
    scores = np.random.default_rng(key).normal(size=(arms, seeds))
    found, moved = spread(scores), spread(3 * (scores + np.arange(seeds)))
    assert moved.p == pytest.approx(found.p) and moved.arms == pytest.approx(3 * found.arms)
    assert moved.seeds == pytest.approx(3 * found.seeds)


def test_equal_arms_are_told_apart_at_the_stated_rate():
    rng = np.random.default_rng(0)
    low = np.mean([spread(rng.normal(size=(5, 3))).p < 0.05 for _ in range(2000)])
    assert low == pytest.approx(0.05, abs=0.015)  # three standard errors
    assert spread(rng.normal(size=(5, 3)) + 9 * np.arange(5)[:, None]).p < 1e-4


def test_spread_without_noise():
    assert spread([[1, 1], [1, 1]]).p == 1 and spread([[1, 1], [2, 2]]).p == 0


@pytest.mark.parametrize("scores", [[[1, 2]], [[1], [2]], [1, 2], [[1, np.nan], [1, 2]]])
def test_spread_of_fewer_than_two(scores):
    with pytest.raises(DataError, match="at least 2 arms"):
        spread(scores)
