"""The temperature frontier: interpolation by hand, gaps, arms beyond the base's reach."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.stats.frontier import (
    FrontierPoint,
    _best_at,
    _mean_gap,
    _unseen,
    at_equal_pass1,
    best_pass1,
    compare_count_frontiers,
    compare_frontiers,
    count_frontier,
    frontier,
    gap_curve,
    gap_near,
    gap_to_frontier,
    passk_at,
)
from sage_rlvr.verdicts.stats.intervals import share_difference
from sage_rlvr.verdicts.stats.paired import Reason


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
    assert gap.value is None and gap_to_frontier([], BASE).value is None


def test_gap_curve_by_hand():
    """Lines of pass@k = 1.2 - x shifted up by 0.01, 0.02 and 0.03 in three seeds: mean 0.02, Student's t of 2 degrees."""
    lower = points((0.1, 0.40, 0.80), (1.0, 0.20, 1.00))
    upper = [points((0.1, 0.40, 0.80 + s), (1.0, 0.20, 1.00 + s)) for s in (0.01, 0.02, 0.03)]
    curve = gap_curve(upper, [lower] * 3, steps=5)
    np.testing.assert_allclose(curve.pass1, [0.20, 0.25, 0.30, 0.35, 0.40])
    np.testing.assert_allclose(curve.difference, 0.02)
    reach = stats.t.ppf(0.975, 2) * 0.01 / np.sqrt(3)
    np.testing.assert_allclose(curve.high - curve.difference, reach)
    np.testing.assert_allclose(curve.difference - curve.low, reach)
    assert curve.seeds == 3 and curve.home == pytest.approx(0.20)


def test_near_temperature_one_two_readings_are_averaged():
    """a has 0.40, 0.70 at T 0.1 and 0.30, 0.90 at T 1; b 0.40, 0.60 and 0.35, 0.70. At b's 0.35 a has 0.80 against 0.70; at a's
    0.30 b, whose coldest point is 0.40 and hottest 0.25, has 0.84 against 0.90."""
    a = points((0.1, 0.40, 0.70), (1.0, 0.30, 0.90))
    b = points((0.1, 0.40, 0.60), (1.0, 0.35, 0.70), (1.3, 0.25, 0.98))
    assert gap_near(a, b) == pytest.approx((0.10 + (0.90 - 0.84)) / 2)
    assert gap_near(b, a) == pytest.approx(-gap_near(a, b))
    assert gap_near(a, a) == 0
    assert gap_near(a, b[:2]) is None and gap_near(b[:2], a) is None  # b[:2] does not reach a's 0.30
    assert gap_near(a, b[:1]) is None  # not read at temperature 1


def test_gap_curve_covers_what_every_seed_covers():
    narrow = points((0.1, 0.35, 0.85), (1.0, 0.25, 0.95))
    curve = gap_curve([BASE, narrow], [BASE, BASE])
    assert (curve.pass1[0], curve.pass1[-1]) == pytest.approx((0.25, 0.35))
    assert np.isnan(curve.low).all() and np.isnan(curve.high).all()  # two seeds carry no interval
    assert gap_curve([points((0.5, 0.6, 0.8), (1.0, 0.5, 0.9))], [BASE]) is None
    assert gap_curve([points((1.0, 0.3, 0.9))], [BASE]) is None
    with pytest.raises(DataError, match="2 and 1 frontiers"):
        gap_curve([BASE, BASE], [BASE])


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
        assert here.mde >= max(gap.value - gap.low, gap.high - gap.value, abs(gap.value))
        assert here.mde < 2 * gap.width
    few = at_equal_pass1([0.5, 0.2, 0.3], {1.0: [0.1, 0.2, 0.3], 0.5: [0.6, 0.7, 0.8]})
    assert few.difference is None and few.reason is Reason.FEW_PROBLEMS


def test_beyond_and_below_say_where_the_base_ends():
    base = world(np.random.default_rng(0), 0.0)
    beyond = at_equal_pass1(np.full(200, 0.99), base)
    assert beyond.base_passk is None and beyond.reason is Reason.BEYOND
    assert at_equal_pass1(np.full(200, 0.01), base).reason is Reason.BELOW
    assert beyond.comparison.outcome == "unknown" and beyond.comparison.reason is Reason.BEYOND


def test_at_the_end_of_the_frontier_the_interval_is_withheld():
    base = world(np.random.default_rng(0), 0.0)
    cold = base[0.2]
    arm = (
        np.random.default_rng(1).permutation(cold) - 1e-9
    )  # same mean, other problems: half of the resamples fall outside
    here = at_equal_pass1(np.clip(arm, 0, 1), base, resamples=500)
    assert here.difference is None and here.reason is Reason.FRONTIER_END


def test_unpaired_problems_are_refused():
    with pytest.raises(DataError, match="different numbers of problems"):
        at_equal_pass1([0.5, 0.2], {1.0: [0.1, 0.2, 0.3], 0.5: [0.6, 0.7, 0.8]})


def test_two_frontiers_with_their_interval():
    base = world(np.random.default_rng(0), 0.0)
    better = {t: np.clip(p + 0.06 * (1 - p), 0, 1) for t, p in base.items()}
    gap = compare_frontiers(better, base, k=4, resamples=300)
    plain = gap_to_frontier(frontier(better, 4), frontier(base, 4))
    assert gap.value == gap.difference.value == plain.value and (gap.low, gap.high) == (plain.low, plain.high)
    assert gap.difference.n == 200 and gap.difference.low <= gap.value <= gap.difference.high
    same = compare_frontiers(base, base, k=16, resamples=200)
    assert same.comparison.outcome == "tied" and same.difference.width == pytest.approx(0, abs=1e-12)
    back = compare_frontiers(base, better, k=4, resamples=300)
    assert back.value == pytest.approx(-gap.value) and back.difference.low == pytest.approx(-gap.difference.high)


def test_a_resample_is_measured_as_the_whole():
    """The bootstrap's own mean gap on the undrawn problems is `gap_to_frontier`'s but for the corners between its steps."""
    base, arm = world(np.random.default_rng(0), 0.0), world(np.random.default_rng(1), 0.3)
    a, b = frontier(arm, 16), frontier(base, 16)
    columns = [np.array([getattr(p, name) for p in points]) for points in (a, b) for name in ("pass1", "passk")]
    assert _mean_gap(*columns) == pytest.approx(gap_to_frontier(a, b).value, abs=2e-4)
    turning = np.array([0.3, 0.4, 0.2]), np.array([0.5, 0.6, 1.0])
    assert _best_at(np.array([0.35, 0.4, 0.2]), *turning) == pytest.approx([0.70, 0.6, 1.0])
    assert _best_at(np.array([0.3]), np.array([0.4, 0.3, 0.3]), np.array([0.6, 0.5, 0.9])) == pytest.approx([0.9])
    far = (np.array([0.8, 0.9]), np.array([0.9, 0.9]))
    assert _mean_gap(*turning, *far) is None


def test_frontiers_as_comparisons():
    base = world(np.random.default_rng(0), 0.0)
    far = {t: np.full(200, 0.97 + 0.01 * t) for t in base}
    none = compare_frontiers(far, base, k=16)
    assert none.reason is Reason.NO_COMMON_RANGE and none.difference is None
    few = compare_frontiers({t: p[:4] for t, p in base.items()}, {t: p[:4] for t, p in base.items()}, k=16)
    assert few.reason is Reason.FEW_PROBLEMS and few.comparison.difference.value == 0
    noisy = {t: np.clip(p + np.random.default_rng(2).normal(0, 0.05, 200), 0, 1) for t, p in base.items()}
    found = compare_frontiers(noisy, base, k=2, resamples=300)
    assert found.comparison.difference is found.difference and found.comparison.mde == found.mde
    with pytest.raises(DataError, match="different numbers of problems"):
        compare_frontiers({t: p[:100] for t, p in base.items()}, base, k=16)


def test_an_arm_at_the_edge_of_the_others_range_is_withheld():
    rng = np.random.default_rng(1)
    low = {t: rng.beta(1, 3, 60) for t in (0.5, 1.0)}
    top = max(p.mean() for p in low.values())
    edge = {
        0.5: np.clip(rng.permutation(low[0.5]) - low[0.5].mean() + top - 1e-4, 0, 1),
        1.0: np.clip(low[1.0] + 0.3, 0, 1),
    }
    gap = compare_frontiers(edge, low, k=4, resamples=200)
    assert gap.difference is None and gap.reason is Reason.RESAMPLES


def test_frontiers_from_samples_and_from_probabilities_agree_in_the_limit():
    rng = np.random.default_rng(5)
    a, b = world(rng, 0.3, 200), world(rng, 0.0, 200)
    n = 2000
    counts = [{t: (n, rng.binomial(n, p)) for t, p in ps.items()} for ps in (a, b)]
    sampled, exact = compare_count_frontiers(*counts, k=8, resamples=300), compare_frontiers(a, b, k=8, resamples=300)
    assert sampled.value == pytest.approx(exact.value, abs=0.01) and sampled.comparison.outcome == exact.comparison.outcome
    assert sampled.difference.over == "problems and their samples"
    points = count_frontier({1.0: (2, [0, 1, 2]), 0.5: (2, [2, 2, 2])}, k=2)
    assert [(p.temperature, p.pass1, p.passk) for p in points] == [(0.5, 1.0, 1.0), (1.0, 0.5, pytest.approx(2 / 3))]
    apart = compare_count_frontiers({1.0: (4, [4] * 8), 0.5: (4, [3] * 8)}, {1.0: (4, [0] * 8), 0.5: (4, [1] * 8)}, k=4)
    assert apart.reason is Reason.NO_COMMON_RANGE


def test_where_few_problems_differ_the_ends_are_moved_out():
    """Four of 80 differ: as far as the interval of shares reaches beyond Student's. All of 400 differ: not at all."""
    rng = np.random.default_rng(0)
    left = rng.beta(1, 1, 80)
    right = left.copy()
    right[:4] *= 0.5
    point, gaps = share_difference(left, right), left - right
    half = stats.t.ppf(0.975, 79) * gaps.std(ddof=1) / np.sqrt(80)
    found = _unseen(left, right, 0.95)
    assert found == pytest.approx([min((point.value - point.low) / half, 4), min((point.high - point.value) / half, 4)])
    assert min(found) > 1.1
    many = rng.beta(1, 1, 400)
    assert _unseen(many, many * rng.uniform(0.8, 1.0, 400), 0.95) == (1.0, 1.0) == _unseen(left, left, 0.95)
    law = world(rng, 0.0, 80)
    near = {t: np.where(np.arange(80) < 4, 0.7 * p, p) for t, p in law.items()}
    gap = compare_frontiers(near, law, k=8, resamples=300)
    assert gap.difference is not None and gap.comparison.outcome == "tied"
