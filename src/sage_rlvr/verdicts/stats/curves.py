"""Difference curves over k with a simultaneous band, and the probability of improvement.

From two files of counts to a verdict: `crossing(paired_count_curve(n, right_a, right_b))`, a `Crossing` with the k at which a
gains, loses, or neither is decided. Over training seeds: `crossing(seeds_curve(...))`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, groupby

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.stats.arrays import Floats, Ints
from sage_rlvr.verdicts.stats.intervals import (
    CARRIED,
    RESAMPLES,
    SEED,
    SMALL,
    Interval,
    OverProblems,
    bootstrap_means,
    difference_reach,
    least_seen,
    resampled_times,
    seeds_reach,
    share_interval,
)
from sage_rlvr.verdicts.stats.laws import norm_ppf, t_ppf
from sage_rlvr.verdicts.stats.paired import (
    FEWEST_SEEDS,
    SEEDS,
    SEEDS_AND_PROBLEMS,
    Outcome,
    Reason,
    are_shares,
    paired_seeds,
    same_shape,
    seeds_reason,
    side,
)
from sage_rlvr.verdicts.stats.passk import curve_ks, curve_table
from sage_rlvr.verdicts.stats.power import detectable_shares, fewest_units
from sage_rlvr.verdicts.stats.samples.clusters import CLUSTERS

_CHUNK = 2_000_000  # numbers made at a time


@dataclass(frozen=True, kw_only=True)
class CurveComparison:
    """a - b at every k with a simultaneous band; `outcomes` use the band, so there is no selection of k.

    over: the units of the band, n of them; over training seeds `problems` is the number of problems, and `fixed` whether they are
    held fixed. reason: of "unknown". widening: how many times wider the band is than one interval; alpha: the error rate of this
    interval, less than 1 - level by Bonferroni.
    """

    ks: tuple[int, ...]
    difference: Floats
    low: Floats
    high: Floats
    outcomes: tuple[Outcome, ...]
    level: float
    over: str
    n: int
    reason: Reason = Reason.NONE
    fixed: bool = False
    problems: int | None = None
    widening: float = 1.0
    alpha: float = 0.05

    @property
    def over_seeds(self) -> bool:
        """Whether the band is about methods: over training seeds, and problems unless these are fixed."""
        return self.over.startswith(SEEDS)


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """Ranges of k (first k, last k) in which a is above b (gain), below b (loss), or the band includes 0 (undecided).

    first_loss: the set (low, high) that contains the first k at which a is truly below b, None if no loss was found. All k from 1
        to low - 1 are gains and high is the first loss found, so the set contains it whenever the band contains the curve. If the
        comparison has only some k (`seed_ks`), a range spans all k between its ends, and low counts only k = 1, 2, ... without a
        gap.
    reason: `CurveComparison.reason`, why nothing could be decided
    low: the low end of `first_loss`, also if no loss was found
    """

    gain: tuple[tuple[int, int], ...]
    loss: tuple[tuple[int, int], ...]
    undecided: tuple[tuple[int, int], ...]
    first_loss: tuple[int, int] | None
    reason: Reason = Reason.NONE
    low: int = 1

    @property
    def crosses(self) -> bool:
        """Whether a gain at some k precedes a loss at a larger k."""
        return bool(self.gain and self.loss) and self.gain[0][0] < self.loss[-1][1]


def crossing(curve: CurveComparison) -> Crossing:
    """The verdict over k of a band over problems (`paired_count_curve`, `paired_curve`) or over training seeds (`seeds_curve`)."""
    kinds = [{"better": "gain", "worse": "loss"}.get(outcome, "undecided") for outcome in curve.outcomes]
    ranges: dict[str, list[tuple[int, int]]] = {"gain": [], "loss": [], "undecided": []}
    for kind, pairs in groupby(zip(kinds, curve.ks, strict=True), key=lambda pair: pair[0]):
        ks = [k for _, k in pairs]
        ranges[kind].append((ks[0], ks[-1]))
    gains = {k for k, kind in zip(curve.ks, kinds, strict=True) if kind == "gain"}
    low = next(k for k in count(1) if k not in gains)
    loss = ranges["loss"]
    return Crossing(
        gain=tuple(ranges["gain"]),
        loss=tuple(loss),
        undecided=tuple(ranges["undecided"]),
        first_loss=(low, loss[0][0]) if loss else None,
        reason=curve.reason,
        low=low,
    )


def paired_curve(
    a: ArrayLike, b: ArrayLike, ks: Sequence[int], *, level: float = 0.95, resamples: int = RESAMPLES, seed: int = SEED
) -> CurveComparison:
    """Difference curve of a, b (N, K) over ks (K,) with a simultaneous band (bootstrap max-|t| over problems).

    The half-width at k is c * se_k, where c is the `level` quantile of the largest |t| over all k in resampled sets
    of problems (fixed se_k), never below the pointwise Student quantile t. If no bootstrap sees enough (`bootstrap_sees`)
    it is the interval of `share_difference` at this k, made wider by c / t: resamples lack the problems that were not drawn.
    """
    left, right = same_shape(a, b, 2)
    if len(ks) != left.shape[1]:
        raise DataError(f"{len(ks)} values of k for curves of {left.shape[1]} columns; pass the ks of the columns.")
    units = _Units(left.mean(axis=0), right.mean(axis=0), len(left), lambda: iter([(left, right)]), are_shares(left, right))
    return _banded(units, ks, lambda: iter([bootstrap_means(left - right, resamples=resamples, seed=seed)]), level, "problems")


def paired_count_curve(
    n: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    *,
    n_b: ArrayLike | None = None,
    cluster: ArrayLike | None = None,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> CurveComparison:
    """`paired_curve` at the k of `curve_ks` (every k up to 1,024, then a grid) from counts; `crossing` reads it.

    n: samples of each problem, () or (N,); a, b: right ones among them, (N,).

    n_b: samples of b if they differ from n. k ends at the smallest n of any problem in either arm: no unbiased estimate of
    pass@k exists from fewer than k samples, and to leave a problem out above its n would let the set of problems change with k.
    cluster: (N,) labels of problems that are not independent (copies or variants of one problem): clusters are then resampled
        instead of problems, each with all its problems, by the linearized mean. Needs 6 clusters.
    Linear in problems, N (K + resamples) steps: 20,000 problems of 1,024 samples take seconds and less than 1 GB. So do 40
    problems of a million samples, which have some 1,400 values of k.
    """
    left, right = np.atleast_1d(np.asarray(a)), np.atleast_1d(np.asarray(b))
    same_shape(left, right, 1)
    many = [np.broadcast_to(np.asarray(x), left.shape) for x in (n, n if n_b is None else n_b)]
    table, which = curve_table(np.concatenate(many), np.concatenate([left, right]), curve_ks)
    ks = curve_ks(int(np.min(many)))
    curves = _Counted(table, which[: len(left)], which[len(left) :], _numbered(cluster, len(left)))
    over = "problems and their samples" if cluster is None else CLUSTERS
    return _banded(
        curves.units(), ks, lambda: curves.resampled(resamples, seed), level, over
    )


def seeds_curve(
    a: ArrayLike, b: ArrayLike, ks: Sequence[int], *, level: float = 0.95, fixed: bool = False, shared: ArrayLike = 0.0,
    sampled: bool = False,
) -> CurveComparison:  # fmt: skip
    """Difference curve of two methods: a, b (S, N, K) over ks (K,), row s for training seed s of both.

    At each k the interval of `paired_seeds`, over seeds and problems, at level 1 - (1 - level) / K (Bonferroni), so that all K
    hold at once, however they are correlated. Every k costs width: pass few (`seed_ks`). No resampling and no sign flips: with
    fewer than six seeds no pattern of signs is rarer than 5 %. No half-width is below -ln(tail) / (S N), the rate at which
    problems may differ when none of N did in S runs: if both methods solve nearly all, seeds that agree show nothing.
    Below three seeds, or six problems, all outcomes are "unknown". fixed: whether the claim is about these problems only; shared:
    then standard errors (K,) common to the differences of all seeds, as in `paired_seeds`. sampled: as in `are_shares`.
    """
    left, right = same_shape(a, b, 3)
    gaps = (left - right).mean(axis=1)
    s, many = gaps.shape
    problems = left.shape[1]
    if len(ks) != many:
        raise DataError(f"{len(ks)} values of k for curves of {many} columns; pass the ks of the columns.")
    mean, tail = gaps.mean(axis=0), (1 - level) / (2 * many)
    below = above = np.full(many, math.inf)
    if s > 1 and (fixed or problems > 1):
        scatter = gaps.std(axis=0, ddof=1) / math.sqrt(s)
        others = (-norm_ppf(tail) * np.broadcast_to(shared, many),) * 2
        if not fixed:
            shares = all(are_shares(left[..., j], right[..., j], sampled=sampled) for j in range(many))
            others = OverProblems.of(left.mean(axis=0), right.mean(axis=0), shares=shares).reach(1 - 2 * tail)
        least = -math.log(tail) / left[..., 0].size
        below, above = (np.maximum(seeds_reach(scatter, other, s, 1 - tail), least) for other in others)
    low, high = mean - below, mean + above
    few = not fixed and problems < fewest_units(1 - level)
    reason = seeds_reason(s) or (Reason.FEW_PROBLEMS if few else Reason.NONE)
    return CurveComparison(
        ks=tuple(ks),
        difference=mean,
        low=low,
        high=high,
        outcomes=_outcomes(low, high, reason),
        level=level,
        over=SEEDS if fixed else SEEDS_AND_PROBLEMS,
        n=s,
        reason=reason,
        fixed=fixed,
        problems=problems,
        alpha=2 * tail,
    )


def seed_ks(top: int) -> tuple[int, ...]:
    """1, 4, 16, ... below top, and top: the ks of `seeds_curve`."""
    return (*(4**i for i in range(top.bit_length()) if 4**i < top), top)


@dataclass(frozen=True, kw_only=True)
class Improvement:
    """P(a > b): the chance that a run of a scores higher than one of b on a problem, ties counted half, mean over problems.

    `interval` is over problems (of these checkpoints) or over training seeds (of these methods, infinite below three); `outcome`
    reads it against 1/2, "unknown" if there are too few of either.
    """

    interval: Interval
    outcome: Outcome


def probability_of_improvement(
    a: ArrayLike, b: ArrayLike, *, over: str = "problems", level: float = 0.95, fixed: bool = False
) -> Improvement:
    """P(a > b) + P(a = b) / 2 of scores a (S, N) and b (R, N), mean over the N problems, runs in all S R pairs.

    The definition of Agarwal et al. 2021 (rliable, arXiv 2108.13264): the Mann-Whitney statistic of each problem over S R.
    One run each may be given as (N,). It measures how often, not by how much: a difference of 1e-9 counts as a win.
    over = "problems": interval of the N win shares (`share_interval`). over = "training seeds": rows are paired by seed
    (S = R), Student's t with S - 1 degrees of freedom on the jackknife's pseudo-values, seed s left out of both arms; in quadrature
    with the interval over problems unless these are `fixed`.
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
    if not fixed:
        interval = with_problems(interval, share_interval(wins.mean(axis=(0, 1)), level=level)).within(0.0, 1.0)
    return Improvement(interval=interval, outcome=_against_half(interval, FEWEST_SEEDS))


def with_problems(seeds: Interval, problems: Interval) -> Interval:
    """An interval over training seeds and problems: the half-widths of both, for the same mean, are added in quadrature."""
    value = seeds.value
    low = value - math.hypot(value - seeds.low, problems.value - problems.low)
    high = value + math.hypot(seeds.high - value, problems.high - problems.value)
    return replace(seeds, low=low, high=high, over=SEEDS_AND_PROBLEMS)


def _jackknife(pairs: Floats, level: float, least: float) -> Interval:
    """Interval of the mean of pairs (S, S), row and column s of one seed; no half-width below `least`."""
    s, value = len(pairs), float(pairs.mean())
    if s < FEWEST_SEEDS:
        return Interval(value=value, low=-math.inf, high=math.inf, level=level, over="training seeds", n=s)
    kept = (pairs.sum() - pairs.sum(axis=0) - pairs.sum(axis=1) + np.diag(pairs)) / (s - 1) ** 2
    pseudo = s * value - (s - 1) * kept
    half = max(float(t_ppf((1 + level) / 2, s - 1) * pseudo.std(ddof=1) / math.sqrt(s)), least)
    return Interval(value=value, low=value - half, high=value + half, level=level, over=SEEDS, n=s).within(0.0, 1.0)


def _against_half(interval: Interval, fewest: int) -> Outcome:
    return "unknown" if interval.n < fewest else side(interval.low - 0.5, interval.high - 0.5)


@dataclass(frozen=True)
class _Units:
    """Units that are resampled, with curves over K values of k. a, b: mean curves (K,); n: units; rows: the curves of both,
    (n, K) each, in chunks, from the start at each call; shares: whether `share_difference` judges them."""

    a: Floats
    b: Floats
    n: int
    rows: Callable[[], Iterator[tuple[Floats, Floats]]]
    shares: bool


class _Counted:
    """Curves of problems by their counts, each stored as a row of `table`, so that no array of problems times k is needed."""

    def __init__(self, table: Floats, a: Ints, b: Ints, cluster: Ints | None):
        # problems in order of cluster: the problems of a cluster are then adjacent in every chunk
        order = np.argsort(cluster, kind="stable") if cluster is not None else np.arange(len(a))
        self.table, self.codes = table, (a[order], b[order])
        self.sizes = np.ones(len(a), dtype=np.int64) if cluster is None else np.bincount(cluster)
        self.ends = np.cumsum(self.sizes)
        self.means = tuple(np.bincount(code, minlength=len(table)) @ table / len(a) for code in self.codes)

    def units(self) -> _Units:
        """One unit per cluster: size-weighted so that the mean over clusters is the mean over problems."""
        return _Units(self.means[0], self.means[1], len(self.sizes), self._rows, len(self.sizes) > 1)

    def _rows(self) -> Iterator[tuple[Floats, Floats]]:
        step = max(1, _CHUNK // self.table.shape[1])
        first = 0
        while first < len(self.sizes):
            start = int(self.ends[first] - self.sizes[first])
            last = max(first + 1, int(np.searchsorted(self.ends, start + step, side="right")))
            rows = slice(start, int(self.ends[last - 1]))
            left, right = (
                self._summed(code[rows], mean, first, last) for code, mean in zip(self.codes, self.means, strict=True)
            )
            yield left, right
            first = last

    def _summed(self, codes: Ints, mean: Floats, first: int, last: int) -> Floats:
        """Curves (last - first, K) of the units first to last - 1, which contain the problems `codes`.

        The mean over problems is a ratio: the clusters' sums over their sizes. Linearized, cluster j of size m_j has the curve
        mean + (sum_j - m_j mean) / (mean size), so that clusters of unequal sizes also average to the mean over problems.
        """
        curves, sizes = self.table[codes], self.sizes[first:last]
        per = len(self.sizes) / len(self.codes[0])  # 1 / mean size
        if per == 1:
            return curves
        summed = np.add.reduceat(curves, np.cumsum(sizes) - sizes, axis=0)
        return per * summed - (per * sizes - 1)[:, None] * mean

    def resampled(self, resamples: int, seed: int) -> Iterator[Floats]:
        """Mean differences of resampled units, in chunks (r, K): counts of each row of the table first, curves last."""
        units, problems = len(self.sizes), len(self.codes[0])
        of, gap = np.repeat(np.arange(units), self.sizes), self.means[0] - self.means[1]
        arms = []  # of each: problems in order of their row, the rows that occur, and where each row's problems start
        for code in self.codes:
            order = np.argsort(code, kind="stable")
            arms.append((of[order], *np.unique(code[order], return_index=True)))
        for times in resampled_times(units, resamples, seed):
            held = np.zeros((len(times), len(self.table)))
            for sign, (unit, present, starts) in zip((1, -1), arms, strict=True):
                held[:, present] += sign * np.add.reduceat(times[:, unit], starts, axis=1, dtype=np.int64)
            surplus = times @ self.sizes / problems - 1  # problems drawn in excess of their number: 0 without clusters
            yield held @ self.table / problems - surplus[:, None] * gap


def _numbered(cluster: ArrayLike | None, problems: int) -> Ints | None:
    if cluster is None:
        return None
    labels = np.asarray(cluster)
    if labels.shape != (problems,):
        raise DataError(f"cluster of shape {labels.shape} for {problems} problems; pass one label a problem.")
    return np.unique(labels, return_inverse=True)[1].reshape(-1)


def _banded(
    units: _Units, ks: Sequence[int], resampled: Callable[[], Iterator[Floats]], level: float, over: str
) -> CurveComparison:
    """The band of `paired_curve`."""
    n, mean, widening = units.n, units.a - units.b, 1.0
    below = above = np.full(len(ks), math.inf)
    if n > 1:
        moments = _moments(units)
        se = np.sqrt(moments.spread / n)
        point = float(t_ppf((1 + level) / 2, n - 1))
        wide = max(_widest(resampled, mean, se, n, level), point)
        below = above = wide * se
        widening = wide / point
        if units.shares:
            reach = difference_reach((units.a, units.b), moments.variances, moments.covariance, moments.third, n, level=level)
            below, above = (np.where(moments.seen, wide * se, widening * x) for x in reach)
    low, high = mean - below, mean + above
    if units.shares:
        low, high = np.maximum(low, -1.0), np.minimum(high, 1.0)
    reason = Reason.FEW_PROBLEMS if n < fewest_units(1 - level) else Reason.NONE
    return CurveComparison(
        ks=tuple(ks), difference=mean, low=low, high=high, outcomes=_outcomes(low, high, reason), level=level, over=over,
        n=n, reason=reason, widening=widening, alpha=1 - level,
    )  # fmt: skip


def detectable_in_band(
    curve: CurveComparison, a: ArrayLike, b: ArrayLike, *, shared: float = 0.0, sampled: bool = False
) -> float:
    """The true difference that the band finds with 80 % power at one k, if both arms have these shares: (N,) of the units of a
    band over problems, (S, N) of one over training seeds. shared, sampled: as in `seeds_curve`. Infinite if nothing is decided."""
    left, right = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if curve.reason:
        return math.inf
    if left.ndim == 1:
        return min(1.0, detectable_shares(left, right, alpha=curve.alpha, widening=curve.widening))
    level = 1 - curve.alpha
    least = least_seen(left.size, level=level)  # as in the band, without which seeds that agree would give no interval
    found = paired_seeds(left, right, level=level, fixed=curve.fixed, shared=shared, least=least, sampled=sampled)
    return found.of_shares().mde


@dataclass(frozen=True)
class _Moments:
    """Moments of the units' curves at each k: variances of a and b, their covariance, variance (spread) and third central moment of
    a - b, and the differences if `bootstrap_sees`."""

    variances: tuple[Floats, Floats]
    covariance: Floats
    spread: Floats
    third: Floats
    seen: NDArray[np.bool_]


def _moments(units: _Units) -> _Moments:
    """All moments in one pass over the chunks, central from the start: the means are known."""
    sums, mean = np.zeros((6, len(units.a))), units.a - units.b
    least, most = np.full(len(mean), math.inf), np.full(len(mean), -math.inf)
    for left, right in units.rows():
        gaps = left - right
        least, most = np.minimum(least, gaps.min(axis=0)), np.maximum(most, gaps.max(axis=0))
        squares = gaps * gaps
        sums[0] += squares.sum(axis=0)
        sums[1] += np.einsum("ij,ij->j", squares, squares)
        a, b = left - units.a, right - units.b
        gaps -= mean
        for i, (x, y) in enumerate(((a, a), (b, b), (gaps, gaps)), 2):
            sums[i] += np.einsum("ij,ij->j", x, y)
        sums[5] += np.einsum("ij,ij,ij->j", gaps, gaps, gaps)
    second, fourth, *central, third = sums
    var_a, var_b, spread = (x / (units.n - 1) for x in central)
    # `bootstrap_sees` of every column from the sums of one pass: the columns of all problems are never in memory at once
    top = np.maximum(np.abs(least), np.abs(most)) ** 2
    carried = np.divide(second**2, fourth, out=np.zeros_like(mean), where=(top > 1e-30) & (fourth > 0))
    one = most - least <= 1e-12 * np.maximum(1.0, np.abs(mean))
    seen = (units.n >= SMALL) & (carried >= CARRIED) & ~one
    return _Moments((var_a, var_b), (var_a + var_b - spread) / 2, spread, third / units.n, seen)


def _widest(resampled: Callable[[], Iterator[Floats]], mean: Floats, se: Floats, n: int, level: float) -> float:
    """The `level` quantile over resamples of the largest |t| over k, 0 if nothing scatters."""
    moved = se > 1e-15
    if not moved.any():
        return 0.0
    most = [(np.abs(means - mean)[:, moved] / se[moved]).max(axis=1) for means in resampled()]
    return float(np.quantile(np.concatenate(most), level)) * math.sqrt(n / (n - 1))


def _outcomes(low: Floats, high: Floats, reason: Reason) -> tuple[Outcome, ...]:
    return tuple("unknown" if reason else side(lo, hi) for lo, hi in zip(low.tolist(), high.tolist(), strict=True))
