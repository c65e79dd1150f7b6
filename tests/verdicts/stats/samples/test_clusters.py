"""Ratios over clustered samples: by hand, never without width, and coverage by simulation."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.scores import ProblemScores
from sage_rlvr.verdicts.stats.intervals import column_intervals
from sage_rlvr.verdicts.stats.paired import Reason, paired, paired_clusters, paired_counts, paired_seed_counts
from sage_rlvr.verdicts.stats.samples.clusters import (
    CLUSTERS,
    clustered_mean,
    clusters,
    is_sparse,
    linearized,
    pooled_share,
    ratio_interval,
)
from sage_rlvr.verdicts.units import OverSeeds


def test_numbers_problems_in_order_of_appearance():
    of, n = clusters(["b", "a", "b", 7, "a"])
    assert of.tolist() == [0, 1, 0, 2, 1] and n == 3


def test_a_ratio_with_equal_bottoms_is_the_interval_of_the_mean():
    tops = np.random.default_rng(0).random(30)
    ratio, mean = ratio_interval(tops, np.full(30, 4.0)), column_intervals(tops[:, None] / 4)[0]
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((mean.value, mean.low, mean.high))
    assert ratio.n == 30 and ratio.over == "problems"


def test_values_and_degenerate_cases():
    assert ratio_interval([1, 3], [4, 4]).value == pytest.approx(0.5)
    assert ratio_interval([1], [4]).width == math.inf and pooled_share([1], [4]).width == math.inf
    none, every = pooled_share([0] * 20, [16] * 20), pooled_share([16] * 20, [16] * 20)
    assert (none.value, none.low) == (0.0, 0.0) and 0.1 < none.high < 0.2  # as 20 samples, not as 320
    assert (every.value, every.high) == (1.0, 1.0) and every.low == pytest.approx(1 - none.high)
    alike = pooled_share([4] * 20, [16] * 20)
    assert alike.low < 0.25 < alike.high
    assert pooled_share([1, 0, 2], [4, 0, 4]).n == 2  # a problem without samples says nothing


def test_sparse_means_few_problems_with_hits_or_misses():
    assert is_sparse([1] * 9 + [0] * 50, [16] * 59) and not is_sparse([1] * 10 + [0] * 50, [16] * 60)
    assert is_sparse([16] * 50 + [0] * 9, [16] * 59)


@pytest.mark.parametrize("problems", [40, 320])
def test_clustered_shares_are_covered(problems):
    rng, misses, rounds = np.random.default_rng(3), 0, 200
    for _ in range(rounds):
        p = rng.beta(0.3, 0.9, problems)  # mean 1/4, samples of a problem much alike
        sizes = rng.integers(1, 17, problems)
        misses += not pooled_share(rng.binomial(sizes, p), sizes, resamples=400).contains(0.25)
    assert misses <= 0.1 * rounds  # 5 % wanted; treating samples as independent misses about half the time


# ---- clusters of problems


def test_linearized_clusters_average_to_the_mean_over_problems():
    values, labels = np.array([1.0, 0.0, 1.0, 0.5, 0.25]), ["a", "b", "a", "a", "b"]
    # mean 0.55, sizes 3 and 2 (mean 2.5), sums 2.5 and 0.25
    assert linearized(values, labels).tolist() == pytest.approx([0.55 + (2.5 - 1.65) / 2.5, 0.55 + (0.25 - 1.1) / 2.5])
    assert linearized(values, labels).mean() == pytest.approx(values.mean())
    with pytest.raises(DataError, match="pass one label a problem"):
        linearized(values, labels[:3])


def test_copies_in_one_cluster_are_one_problem():
    rng = np.random.default_rng(4)
    a, b, labels = rng.random(40), rng.random(40), np.tile(np.arange(40), 3)
    once, copies = paired(a, b), paired_clusters(np.tile(a, 3), np.tile(b, 3), labels)
    ends = [(one.difference.value, one.difference.low, one.difference.high, one.p, one.mde) for one in (once, copies)]
    assert ends[1] == pytest.approx(ends[0])
    assert (copies.difference.n, copies.difference.over) == (40, CLUSTERS)
    assert paired(np.tile(a, 3), np.tile(b, 3)).difference.width < 0.7 * copies.difference.width
    counted = paired_counts(4, np.tile([1, 2, 3, 0], 6), np.tile([0, 2, 4, 0], 6), 2, cluster=np.repeat(np.arange(8), 3))
    assert counted.difference.n == 8 and counted.difference.over == CLUSTERS
    few = paired_clusters(np.tile(a[:5], 3), np.tile(b[:5], 3), np.tile(np.arange(5), 3))
    assert few.outcome == "unknown" and few.reason is Reason.FEW_PROBLEMS


def test_two_large_clusters_among_small_ones_are_two_problems():
    """Fifty copies that are right, fifty that are wrong, and ten others: nearly nothing is known of the share."""
    values, labels = np.array([1.0] * 50 + [0.0] * 50 + [1.0, 0.0] * 5), [0] * 50 + [1] * 50 + list(range(2, 12))
    found = clustered_mean(values, labels, shares=True)
    assert (found.value, found.low, found.high, found.n) == (0.5, 0.0, 1.0, 12)
    assert pooled_share([50, 0, *[1, 0] * 5], [50, 50, *[1] * 10]).width < 0.7
    assert clustered_mean([0.5, 1.0], ["a", "a"], shares=True).width == math.inf
    wide = clustered_mean(values * 3, labels, shares=False)
    assert wide.value == pytest.approx(1.5) and wide.over == CLUSTERS


@pytest.mark.slow
@pytest.mark.parametrize("size", [(3, 3), pytest.param((1, 12), marks=pytest.mark.slow)])
def test_equal_policies_on_clusters_are_seldom_told_apart(size):
    """Each problem stands in its cluster once to twelve times, with samples of its own; the two arms change places at random."""
    rng, false, rounds = np.random.default_rng(5), 0, 150
    for _ in range(rounds):
        sizes = rng.integers(size[0], size[1] + 1, 30)
        p = rng.beta(0.4, 1.0, (2, 30))
        p = np.where(rng.random(30) < 0.5, p, p[::-1]).repeat(sizes, axis=1)
        left, right = rng.binomial(16, p)
        found = paired_counts(16, left, right, 1, cluster=np.repeat(np.arange(30), sizes))
        false += found.outcome in ("better", "worse")
    assert false <= 0.05 * rounds + 2.5 * (0.05 * 0.95 * rounds) ** 0.5


def test_copies_in_clusters_are_one_problem_for_several_seeds_too():
    rng = np.random.default_rng(3)
    a, b = (rng.binomial(8, rng.beta(2, 2, (4, 20))) for _ in range(2))
    many = [str(i) for i in np.repeat(np.arange(20), 6)]
    alone = paired_seed_counts(np.full((4, 20), 8), a, b, 2)
    copied = paired_seed_counts(np.full((4, 120), 8), a.repeat(6, axis=1), b.repeat(6, axis=1), 2, cluster=many)
    assert copied.difference.low == pytest.approx(alone.difference.low, abs=1e-12)
    assert copied.difference.high == pytest.approx(alone.difference.high, abs=1e-12) and copied.problems == 120
    singles = paired_seed_counts(np.full((4, 20), 8), a, b, 2, cluster=[str(i) for i in range(20)])
    assert singles.difference.low == pytest.approx(alone.difference.low) and singles.p == pytest.approx(alone.p)
    unaware = paired_seed_counts(np.full((4, 120), 8), a.repeat(6, axis=1), b.repeat(6, axis=1), 2)
    assert unaware.difference.width < 0.8 * copied.difference.width


def test_bands_and_scores_of_several_seeds_are_over_clusters():
    rng = np.random.default_rng(4)
    values = [rng.binomial(8, rng.beta(2, 2, (3, 20))) for _ in range(2)]
    ids, copies = tuple(map(str, range(20))), tuple(map(str, range(120)))
    alone = [
        ProblemScores(arm=name, task="t", temperature=1.0, seeds=(0, 1, 2), problems=ids, values=v, n=8)
        for name, v in zip("ab", values, strict=True)
    ]
    cluster = tuple(str(i) for i in np.repeat(np.arange(20), 6))
    many = [replace(one, problems=copies, values=one.values.repeat(6, axis=1), cluster=cluster) for one in alone]
    units = [OverSeeds(a, b, fixed=False) for a, b in (alone, many)]
    bands = [one.curve(8) for one in units]
    assert bands[1].low == pytest.approx(bands[0].low) and bands[1].high == pytest.approx(bands[0].high)
    assert bands[1].problems == 120
    found = [one.detectable(8, band) for one, band in zip(units, bands, strict=True)]
    assert found[0] == pytest.approx(found[1], rel=0.01)
    intervals = [sides[0].interval(4) for sides in (alone, many)]
    assert intervals[1].width >= 0.9 * intervals[0].width


def test_refusals():
    with pytest.raises(DataError, match=r"hits\[1\] = 5"):
        pooled_share([1, 5], [4, 4])
    with pytest.raises(DataError, match="one top and one bottom"):
        ratio_interval([1, 2], [4])
    for bottoms in ([0, 0], [-1, 4], [math.nan, 4]):
        with pytest.raises(DataError, match="finite tops and bottoms"):
            ratio_interval([1, 2], bottoms)
