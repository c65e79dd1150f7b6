"""Intervals of ratios and shares whose samples come in clusters: several samples of one problem, and problems are drawn.

A share over all samples is sum_i h_i / sum_i n_i (hits and samples of problem i). Samples of one problem resemble each
other, so problems are drawn again, with all their samples (Miller 2024, arXiv 2411.00640).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sage_rlvr.errors import DataError
from sage_rlvr.stats.intervals import RESAMPLES, SEED, SMALL, Interval, bca, bootstrap_means, share_limits

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SPARSE = 10  # with hits (or misses) in fewer problems than this, a bootstrap has too little to draw from


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

    The acceleration comes from the linearized ratio. One problem gives an infinite interval. Raises DataError where
    shapes differ, a bottom is negative, all are 0, or a value is not finite.
    """
    a, b = _paired(tops, bottoms)
    value, n = float(a.sum() / b.sum()), len(a)
    if n == 1:
        return Interval(value=value, low=-math.inf, high=math.inf, level=level, over=over, n=1)
    means = bootstrap_means(np.stack([a, b], axis=1), resamples=resamples, seed=seed)
    drawn = means[means[:, 1] > 0]  # a draw of empty problems alone has no ratio
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
    Else the limits of `share_limits` (Korn and Graubard 1998) with the variance of the linearized ratio; where no sample
    or every sample is a hit they count each problem as one sample. Problems without samples are left out.
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
    """Whether hits, or misses, stand in fewer than 10 problems."""
    h, n = np.asarray(hits, dtype=float), np.asarray(totals, dtype=float)
    return min(int(np.sum(h > 0)), int(np.sum(h < n))) < SPARSE


def _paired(tops: ArrayLike, bottoms: ArrayLike) -> tuple[Floats, Floats]:
    a, b = np.asarray(tops, dtype=float), np.asarray(bottoms, dtype=float)
    if a.ndim != 1 or a.shape != b.shape or a.size == 0:
        raise DataError(f"shapes {a.shape} and {b.shape}: pass one top and one bottom a problem, shape (N,), N >= 1.")
    if not (np.all(np.isfinite(a)) and np.all(np.isfinite(b))) or np.any(b < 0) or b.sum() == 0:
        raise DataError("a ratio needs finite tops and bottoms >= 0 that are not all 0; drop what has no samples.")
    return a, b
