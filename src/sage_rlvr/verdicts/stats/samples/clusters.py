"""Intervals of ratios and shares whose samples come in clusters: several samples of one problem, and problems are drawn.

A share over all samples is sum_i h_i / sum_i n_i (hits and samples of problem i). Samples of one problem resemble each
other, so problems are resampled, with all their samples (Miller 2024, arXiv 2411.00640). Problems come in clusters too
(copies, variants, questions about one document): a mean over problems then has its interval over clusters (`clustered_mean`).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.stats.arrays import Floats, Ints
from sage_rlvr.verdicts.stats.intervals import RESAMPLES, SEED, SMALL, Interval, bca, bootstrap_means, share_limits
from sage_rlvr.verdicts.stats.laws import t_ppf

CLUSTERS = "clusters of problems and their samples"
SPARSE = 10  # with hits (or misses) in fewer problems than this, a bootstrap has too few to resample


def clusters(problems: Sequence[Hashable]) -> tuple[Ints, int]:
    """Number of the problem of each sample (M,), problems numbered in order of first appearance, and how many there are."""
    numbers: dict[Hashable, int] = {}
    of = np.array([numbers.setdefault(problem, len(numbers)) for problem in problems], dtype=np.int64)
    return of, len(numbers)


def ratio_interval(
    tops: ArrayLike,
    bottoms: ArrayLike,
    *,
    level: float = 0.95,
    over: str = "problems",
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Interval:
    """sum(tops) / sum(bottoms), both (N,) with one entry per problem, and its BCa bootstrap interval over problems.

    The acceleration comes from the linearized ratio. One problem gives an infinite interval. Raises DataError if shapes differ, a
    bottom is negative, all are 0, or a value is not finite.
    """
    a, b = _paired(tops, bottoms)
    value, n = float(a.sum() / b.sum()), len(a)
    if n == 1:
        return Interval(value=value, low=-math.inf, high=math.inf, level=level, over=over, n=1)
    means = bootstrap_means(np.stack([a, b], axis=1), resamples=resamples, seed=seed)
    drawn = means[means[:, 1] > 0]  # a draw of only empty problems has no ratio
    low, high = bca(value + (a - value * b) / b.mean(), drawn[:, 0] / drawn[:, 1], level)
    return Interval(value=value, low=low, high=high, level=level, over=over, n=n)


def pooled_share(
    hits: ArrayLike,
    totals: ArrayLike,
    *,
    level: float = 0.95,
    over: str = "problems",
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Interval:
    """sum(hits) / sum(totals), 0 <= hits_i <= totals_i, and its interval over problems: never of zero width.

    From 300 problems on, with hits in at least 10 of them and misses in at least 10: the bootstrap of `ratio_interval`.
    Else the limits of `share_limits` (Korn and Graubard 1998) with the variance of the linearized ratio; if no sample or every
    sample is a hit they count each problem as one sample. Problems without samples are left out.
    """
    h, n = _paired(hits, totals)
    if np.any((h < 0) | (h > n)):
        i = int(np.argmax((h < 0) | (h > n)))
        raise DataError(f"hits[{i}] = {h[i]:g} of totals[{i}] = {n[i]:g}: hits lie between 0 and the total.")
    h, n = h[n > 0], n[n > 0]
    problems, share = len(h), float(h.sum() / n.sum())
    if problems >= SMALL and not is_sparse(h, n):
        return ratio_interval(h, n, level=level, over=over, resamples=resamples, seed=seed)
    low, high = -math.inf, math.inf
    if problems > 1:
        spread = float(np.sum((h - share * n) ** 2)) / (problems - 1) / float(n.mean()) ** 2
        low, high = (float(end) for end in share_limits(share, spread, problems, level=level))
    return Interval(value=share, low=low, high=high, level=level, over=over, n=problems)


def is_sparse(hits: ArrayLike, totals: ArrayLike) -> bool:
    """Return whether hits, or misses, occur in fewer than 10 problems."""
    h, n = np.asarray(hits, dtype=float), np.asarray(totals, dtype=float)
    return min(int(np.sum(h > 0)), int(np.sum(h < n))) < SPARSE


def linearized(values: ArrayLike, cluster: ArrayLike) -> Floats:
    """Values (N,) of problems as values of clusters (J,), so that their plain mean is the mean over problems.

    The mean over problems is a ratio, the sums of the clusters over their sizes. Linearized, a cluster of size m with the sum s has
    the value mean + (s - m mean) / (mean size).
    """
    sums, sizes = cluster_sums(values, cluster)
    mean = sums.sum() / sizes.sum()
    return np.asarray(mean + (sums - sizes * mean) / sizes.mean())


def clustered_rows(values: ArrayLike, cluster: Sequence[str]) -> Floats:
    """Values of problems (S, N) or (S, N, K) as values of clusters (S, J) or (S, J, K): `linearized`, row by row.

    Without clusters the values are returned unchanged.
    """
    array = np.asarray(values, dtype=float)
    if not len(cluster):
        return array
    columns = array.reshape(len(array), array.shape[1], -1)
    rows = [np.stack([linearized(column, cluster) for column in row.T], axis=1) for row in columns]
    return np.stack(rows).reshape(len(array), -1, *array.shape[2:])


def cluster_sums(values: ArrayLike, cluster: ArrayLike) -> tuple[Floats, Floats]:
    """The sum of the values (N,) in each cluster, and its number of problems, both (J,). cluster: (N,) labels."""
    array, labels = np.asarray(values, dtype=float), np.asarray(cluster)
    if array.ndim != 1 or labels.shape != array.shape:
        raise DataError(f"{labels.shape} labels of clusters for values of shape {array.shape}; pass one label a problem.")
    of = np.unique(labels, return_inverse=True)[1].reshape(-1)
    return np.asarray(np.bincount(of, weights=array), dtype=float), np.bincount(of).astype(float)


def clustered_mean(values: ArrayLike, cluster: ArrayLike, *, shares: bool, level: float = 0.95) -> Interval:
    """Mean over problems of values (N,), with its interval over clusters of problems. shares: whether the values are in [0, 1].

    For shares no half-width is below Student's over the linearized clusters: `share_limits` counts every cluster as at least one
    problem, and one large cluster among small ones is less.
    """
    sums, sizes = cluster_sums(values, cluster)
    if not shares:
        return ratio_interval(sums, sizes, level=level, over=CLUSTERS)
    interval = pooled_share(np.clip(sums, 0.0, sizes), sizes, level=level, over=CLUSTERS)  # a sum may be off by its last bit
    if interval.n < 2:
        return interval
    units = linearized(values, cluster)
    half = float(t_ppf((1 + level) / 2, interval.n - 1) * units.std(ddof=1)) / math.sqrt(interval.n)
    low, high = max(0.0, min(interval.low, interval.value - half)), min(1.0, max(interval.high, interval.value + half))
    return replace(interval, low=low, high=high)


def _paired(tops: ArrayLike, bottoms: ArrayLike) -> tuple[Floats, Floats]:
    a, b = np.asarray(tops, dtype=float), np.asarray(bottoms, dtype=float)
    if a.ndim != 1 or a.shape != b.shape or a.size == 0:
        raise DataError(f"shapes {a.shape} and {b.shape}: pass one top and one bottom a problem, shape (N,), N >= 1.")
    if not (np.all(np.isfinite(a)) and np.all(np.isfinite(b))) or np.any(b < 0) or b.sum() == 0:
        raise DataError("a ratio needs finite tops and bottoms >= 0 that are not all 0; drop what has no samples.")
    return a, b
