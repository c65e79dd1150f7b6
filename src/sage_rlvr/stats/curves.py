"""Difference curves over k with a simultaneous band, and the probability of improvement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from sage_rlvr.errors import DataError
from sage_rlvr.stats.comparison import FEWEST_SEEDS, Outcome, Reason, are_shares, same_shape, seeds_reason, side
from sage_rlvr.stats.intervals import (
    RESAMPLES,
    SEED,
    Interval,
    bootstrap_means,
    bootstrap_sees,
    difference_reach,
    least_seen,
    share_interval,
    third_moment,
)
from sage_rlvr.stats.laws import t_ppf
from sage_rlvr.stats.passk import Floats, pass_at_all_k
from sage_rlvr.stats.power import fewest_units


@dataclass(frozen=True, kw_only=True)
class CurveComparison:
    """a - b at every k with a simultaneous band; `outcomes` use the band, so there is no selection of k. reason: of "unknown"."""

    ks: tuple[int, ...]
    difference: Floats
    low: Floats
    high: Floats
    outcomes: tuple[Outcome, ...]
    level: float
    over: str
    n: int
    reason: Reason = Reason.NONE


def paired_curve(
    a: ArrayLike, b: ArrayLike, ks: Sequence[int], *, level: float = 0.95, resamples: int = RESAMPLES, seed: int = SEED
) -> CurveComparison:
    """Difference curve of a, b (N, K) over ks (K,) with a simultaneous band (bootstrap max-|t| over problems).

    The half-width at k is c * se_k, where c is the `level` quantile of the largest |t| over all k in resampled sets
    of problems (fixed se_k), never below the pointwise Student quantile t. Where no bootstrap sees enough (`bootstrap_sees`)
    it is the interval of `share_difference` at this k, made wider by c / t: resamples lack the problems that were not drawn.
    """
    left, right = same_shape(a, b, 2)
    gaps = left - right
    n, mean = len(gaps), gaps.mean(axis=0)
    if len(ks) != gaps.shape[1]:
        raise DataError(f"{len(ks)} values of k for curves of {gaps.shape[1]} columns; pass the ks of the columns.")
    below = above = np.full(len(ks), math.inf)
    if n > 1:
        se = gaps.std(axis=0, ddof=1) / math.sqrt(n)
        point = float(t_ppf((1 + level) / 2, n - 1))
        wide = max(_widest(gaps, se, level, resamples, seed), point)
        below = above = wide * se
        if are_shares(left, right):
            seen = np.array([bootstrap_sees(column) for column in gaps.T])
            below, above = (np.where(seen, wide * se, wide / point * x) for x in _share_reach(left, right, level))
    low, high = mean - below, mean + above
    reason = Reason.FEW_PROBLEMS if n < fewest_units(1 - level) else Reason.NONE
    return CurveComparison(
        ks=tuple(ks), difference=mean, low=low, high=high, outcomes=_outcomes(low, high, reason), level=level, over="problems",
        n=n, reason=reason,
    )  # fmt: skip


def paired_count_curve(n: int, a: ArrayLike, b: ArrayLike, *, level: float = 0.95, seed: int = SEED) -> CurveComparison:
    """`paired_curve` at every k from 1 to n, from counts: right ones a, b (N,) among n samples of each problem."""
    left, right = pass_at_all_k(n, a), pass_at_all_k(n, b)
    found = paired_curve(left, right, range(1, n + 1), level=level, seed=seed)
    return replace(found, over="problems and their samples")


def seeds_curve(
    a: ArrayLike, b: ArrayLike, ks: Sequence[int], *, level: float = 0.95, shared: ArrayLike = 0.0
) -> CurveComparison:
    """Difference curve of two methods: a, b (S, N, K) over ks (K,), row s being training seed s of both, the problems fixed.

    At each k the seeds' S mean differences get Student's interval at level 1 - (1 - level) / K (Bonferroni), so that all K
    hold at once however they hang together. Every k costs width: pass few (`seed_ks`). No resampling and no sign flips: with
    fewer than six seeds no pattern of signs is rarer than 5 %. No half-width is below -ln(tail) / (S N), the rate at which
    problems may differ when none of N did in S runs: where both methods solve nearly all, seeds that agree show nothing.
    Below three seeds nothing is told. shared: standard errors (K,) that all seeds' differences have in common, as in
    `paired_seeds`.
    """
    left, right = same_shape(a, b, 3)
    gaps = (left - right).mean(axis=1)
    s, many = gaps.shape
    if len(ks) != many:
        raise DataError(f"{len(ks)} values of k for curves of {many} columns; pass the ks of the columns.")
    mean, half = gaps.mean(axis=0), np.full(many, math.inf)
    if s > 1:
        tail = (1 - level) / (2 * many)
        error = np.hypot(gaps.std(axis=0, ddof=1) / math.sqrt(s), np.asarray(shared, dtype=float))
        half = float(t_ppf(1 - tail, s - 1)) * error
        half = np.maximum(half, -math.log(tail) / left[..., 0].size)
    low, high = mean - half, mean + half
    reason = seeds_reason(s)
    return CurveComparison(
        ks=tuple(ks),
        difference=mean,
        low=low,
        high=high,
        outcomes=_outcomes(low, high, reason),
        level=level,
        over="training seeds",
        n=s,
        reason=reason,
    )


def seed_ks(top: int) -> tuple[int, ...]:
    """1, 4, 16, ... below top, and top: the ks of `seeds_curve`."""
    return (*(4**i for i in range(top.bit_length()) if 4**i < top), top)


@dataclass(frozen=True, kw_only=True)
class Improvement:
    """P(a > b): the chance that a run of a scores higher than one of b on a problem, ties counted half, mean over problems.

    `interval` is over problems (of these checkpoints) or over training seeds (of these methods, infinite below three); `outcome`
    reads it against 1/2, "unknown" where there are too few of either.
    """

    interval: Interval
    outcome: Outcome


def probability_of_improvement(
    a: ArrayLike, b: ArrayLike, *, over: str = "problems", level: float = 0.95
) -> Improvement:
    """P(a > b) + P(a = b) / 2 of scores a (S, N) and b (R, N), mean over the N problems, runs in all S R pairs.

    The definition of Agarwal et al. 2021 (rliable, arXiv 2108.13264): the Mann-Whitney statistic of each problem over S R.
    One run each may be given as (N,). It says how often, not by how much: a difference of 1e-9 counts as a win.
    over = "problems": interval of the N win shares (`share_interval`). over = "training seeds": rows are paired by seed
    (S = R), Student's t with S - 1 degrees of freedom on the jackknife's pseudo-values, seed s left out of both arms.
    """
    left, right = np.atleast_2d(np.asarray(a, dtype=float)), np.atleast_2d(np.asarray(b, dtype=float))
    if left.shape[1] != right.shape[1] or left.size == 0:
        raise DataError(f"shapes {left.shape} and {right.shape}: evaluate both on the same problems in the same order.")
    above = left[:, None, :] - right[None, :, :]
    wins = (above > 0) + 0.5 * (above == 0)
    if over == "problems":
        interval = share_interval(wins.mean(axis=(0, 1)), level=level)
        return Improvement(interval=interval, outcome=_against_half(interval, 6))
    if over != "training seeds":
        raise DataError(f"over = {over!r}: choose 'problems' or 'training seeds'.")
    if len(left) != len(right):
        raise DataError(f"{len(left)} and {len(right)} training seeds cannot be paired; pass the same seeds for both.")
    interval = _jackknife(wins.mean(axis=2), level, least_seen(left.size, level=level))
    return Improvement(interval=interval, outcome=_against_half(interval, FEWEST_SEEDS))


def _jackknife(pairs: Floats, level: float, least: float) -> Interval:
    """Interval of the mean of pairs (S, S), row and column s belonging to one seed; no half-width below `least`."""
    s, value = len(pairs), float(pairs.mean())
    if s < FEWEST_SEEDS:
        return Interval(value=value, low=-math.inf, high=math.inf, level=level, over="training seeds", n=s)
    kept = (pairs.sum() - pairs.sum(axis=0) - pairs.sum(axis=1) + np.diag(pairs)) / (s - 1) ** 2
    pseudo = s * value - (s - 1) * kept
    half = max(float(t_ppf((1 + level) / 2, s - 1) * pseudo.std(ddof=1) / math.sqrt(s)), least)
    low, high = max(0.0, value - half), min(1.0, value + half)
    return Interval(value=value, low=low, high=high, level=level, over="training seeds", n=s)


def _against_half(interval: Interval, fewest: int) -> Outcome:
    return "unknown" if interval.n < fewest else side(interval.low - 0.5, interval.high - 0.5)


def _widest(gaps: Floats, se: Floats, level: float, resamples: int, seed: int) -> float:
    """The `level` quantile over resamples of the largest |t| over k, 0 where nothing scatters."""
    n, moved = len(gaps), se > 1e-15
    if not moved.any():
        return 0.0
    away = (
        np.abs(bootstrap_means(gaps[:, moved], resamples=resamples, seed=seed) - gaps[:, moved].mean(axis=0))
        / se[moved]
    )
    return float(np.quantile(away.max(axis=1), level)) * math.sqrt(n / (n - 1))


def _share_reach(left: Floats, right: Floats, level: float) -> tuple[Floats, Floats]:
    n = len(left)
    a, b = left - left.mean(axis=0), right - right.mean(axis=0)
    variances = ((a * a).sum(axis=0) / (n - 1), (b * b).sum(axis=0) / (n - 1))
    means = (left.mean(axis=0), right.mean(axis=0))
    return difference_reach(means, variances, (a * b).sum(axis=0) / (n - 1), third_moment(left - right), n, level=level)


def _outcomes(low: Floats, high: Floats, reason: Reason) -> tuple[Outcome, ...]:
    return tuple("unknown" if reason else side(lo, hi) for lo, hi in zip(low.tolist(), high.tolist(), strict=True))
