"""Comparisons: paired differences over problems (of checkpoints) or over training seeds (of methods), as values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import combinations
from typing import Literal

import numpy as np
import scipy
from numpy.typing import ArrayLike

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.stats.arrays import Floats
from sage_rlvr.verdicts.stats.intervals import (
    RESAMPLES,
    SEED,
    Interval,
    OverProblems,
    all_one,
    bootstrap_sees,
    difference_reach,
    least_seen,
    mean_interval,
    seeds_reach,
    share_difference,
    third_moment,
)
from sage_rlvr.verdicts.stats.laws import norm_cdf, norm_ppf, t_ppf, t_sf
from sage_rlvr.verdicts.stats.passk import pass_at_k, sampling_variance
from sage_rlvr.verdicts.stats.power import (
    EXACT_UP_TO,
    detectable,
    detectable_paired,
    detectable_shares,
    detectable_up_to,
    fewest_units,
)
from sage_rlvr.verdicts.stats.samples.clusters import CLUSTERS, cluster_sums, clustered_rows, linearized, ratio_interval

FEWEST_SEEDS = 3
DETECTABLE = 0.05
"""A non-significant result is printed as "no significant difference" only if the minimum detectable difference is at most this."""
FLIPS = 9999
LEAST_LOG_P = -690.0
"""Logarithm of the smallest p that is distinguished from 0."""
MOST_LOG_P = -1e-6
LEAST_LOG_P_OF_PROBLEMS = -27.0
"""The same for the choice of problems, whose limits at the level 1 - p lose their digits for a smaller p."""
Outcome = Literal["better", "worse", "tied", "unknown"]
Level = Literal["problems", "training seeds"]
SEEDS = "training seeds"
SEEDS_AND_PROBLEMS = "training seeds and problems"
"""Units of an interval about methods on these problems, and on such problems."""


class Reason(StrEnum):
    """The reason for the outcome "unknown"; text/rows.py has the printed text."""

    NONE = ""
    ONE_SEED = "one seed"
    TWO_SEEDS = "two seeds"
    NO_SCATTER = "no scatter"
    FEW_PROBLEMS = "few problems"
    NO_COMMON_RANGE = "no common range"
    RESAMPLES = "resamples without a common range"
    FRONTIER_END = "end of the frontier"
    BEYOND = "beyond the frontier"
    BELOW = "below the frontier"
    NOT_NEAR = "not near"
    OUTSIDE = "outside the betas"


@dataclass(frozen=True, kw_only=True)
class PairedDifference:
    """a - b, paired; values only.

    difference: with the uncertainty over problems (`over`; about these checkpoints on such problems), or over training seeds and
        problems (about these methods on such problems), or over training seeds only (`fixed`: about these methods on these
        problems)
    problems: their number if it is known
    p: two-sided and raw, NaN if no test is made
    outcome: from a's side and before any correction; "tied" means not significant
    mde: the minimum detectable difference: the smallest true difference that this rule finds with 80 % power before correction, if
        the units scatter as these did
    largest: the largest possible difference, 1 for shares; it caps a finite `mde`

    Only the interval rules values out (`excludes`).
    """

    difference: Interval
    p: float = math.nan
    outcome: Outcome
    reason: Reason = Reason.NONE
    mde: float = math.inf
    over: Level = "problems"
    mean_a: float = math.nan
    mean_b: float = math.nan
    problems: int | None = None
    fixed: bool = False
    largest: float = math.inf

    @property
    def mde_limit(self) -> float:
        """Upper 95 % limit of `mde`, because the scatter of few units is itself an estimate (`detectable_up_to`)."""
        limit = detectable_up_to(self.mde, self.difference.n)
        return min(limit, self.largest) if math.isfinite(limit) else limit

    @property
    def known(self) -> bool:
        """Return whether a test was made."""
        return self.outcome != "unknown"

    def of_shares(self) -> PairedDifference:
        """The same comparison with its detectable difference and its interval within 1, the largest difference of two shares."""
        mde = min(self.mde, 1.0) if math.isfinite(self.mde) else self.mde
        return replace(self, largest=1.0, mde=mde, difference=self.difference.within(-1.0, 1.0))

    def detects(self, bound: float = DETECTABLE) -> bool:
        """Return whether the design finds a true difference of `bound` with 80 % power."""
        return self.mde <= bound


def unknown(
    reason: Reason, *, value: float = math.nan, n: int = 0, over: Level = "problems", level: float = 0.95
) -> PairedDifference:
    """A comparison without a test, with the reason."""
    gap = Interval(value=value, low=-math.inf, high=math.inf, level=level, over=over, n=n)
    return PairedDifference(difference=gap, outcome="unknown", reason=reason, over=over)


def paired(
    a: ArrayLike,
    b: ArrayLike,
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = SEED,
    shares: bool | None = None,
    sampled: bool = False,
) -> PairedDifference:
    """Compare two checkpoints on the same problems: a, b (N,), one score per problem, same order.

    "better" or "worse" needs both an interval over problems that excludes zero and a sign-flip permutation test with p < 1 - level.
    Other outcomes are "tied"; with fewer than 6 problems the test cannot reach 0.05 and the outcome is "unknown". Shares in [0, 1]
    (`shares`; None: if all scores are in [0, 1]) get the interval of `share_difference` unless `bootstrap_sees` their gaps, all
    other scores BCa, which covers differences of few discordant problems too rarely (lab/pages/concepts/statistics.md).
    sampled: as in `are_shares`.
    """
    left, right = same_shape(a, b, 1)
    gaps, in_shares = left - right, shares is not False and are_shares(left, right, sampled=sampled)
    if in_shares and not bootstrap_sees(gaps):
        interval = share_difference(left, right, level=level)
        mde = detectable_shares(left, right, alpha=1 - level, seed=seed)
    else:
        interval = mean_interval(gaps, level=level, resamples=resamples, seed=seed)
        mde = detectable_paired(gaps, alpha=1 - level, seed=seed)
    p = sign_flip_p(gaps, seed=seed)
    return _judged(interval, p, mde, len(gaps), left, right, in_shares)


def paired_counts(
    n: ArrayLike, a: ArrayLike, b: ArrayLike, k: int, *, n_b: ArrayLike | None = None, cluster: ArrayLike | None = None,
    level: float = 0.95, seed: int = SEED,
) -> PairedDifference:  # fmt: skip
    """Compare two checkpoints at pass@k from counts: right ones a, b (N,) among n samples of each problem, () or (N,), same order.
    n_b: samples of b if they differ from n. cluster: (N,) labels of problems that belong together (`paired_clusters`).

    As `paired` on the unbiased estimates; the interval then includes the noise of the samples, and `over` names it.
    """
    left, right = np.atleast_1d(pass_at_k(n, a, k)), np.atleast_1d(pass_at_k(n if n_b is None else n_b, b, k))
    if cluster is not None:
        return paired_clusters(left, right, cluster, level=level, seed=seed, sampled=True)
    comparison = paired(left, right, level=level, seed=seed, sampled=True)
    return replace(comparison, difference=replace(comparison.difference, over="problems and their samples"))


def more_right_p(n_a: int, a: ArrayLike, n_b: int, b: ArrayLike) -> float:
    """One-sided p that a policy has more right samples than another on these problems, which are fixed. a, b: right ones (N,)
    among n_a and n_b samples of each problem; 1 if all samples of each problem agree.

    Sum over problems of the hypergeometric deal of each problem's right samples, with the normal law (Mantel and Haenszel 1959,
    without correction for continuity): the only noise is that of the samples.
    """
    (left, right), n = same_shape(a, b, 1), n_a + n_b
    both = left + right
    variance = float((both * (n - both)).sum()) * n_a * n_b / (n * n * (n - 1))
    excess = float(left.sum() - both.sum() * n_a / n)
    return float(norm_cdf(-excess / math.sqrt(variance))) if variance > 0 else 1.0


def paired_clusters(
    a: ArrayLike, b: ArrayLike, cluster: ArrayLike, *, level: float = 0.95, seed: int = SEED, sampled: bool = False
) -> PairedDifference:
    """`paired` if problems come in clusters, which are resampled and change sign as units. cluster: (N,) labels. sampled: as in
    `are_shares`.

    The interval is that of the linearized clusters (`clusters.linearized`): for shares that of `difference_reach`, unless
    `bootstrap_sees` their gaps. The signs flip the sums of the clusters, which are exchangeable whatever their sizes.
    """
    left, right = same_shape(a, b, 1)
    (sums, sizes), shares = cluster_sums(left - right, cluster), are_shares(left, right, sampled=sampled)
    one, two = linearized(left, cluster), linearized(right, cluster)
    if shares and len(sums) > 1 and not bootstrap_sees(one - two):
        interval = _cluster_difference(one, two, level)
        mde = detectable_shares(one, two, alpha=1 - level, seed=seed)
    else:
        interval = ratio_interval(sums, sizes, level=level, over=CLUSTERS, seed=seed)
        mde = detectable_paired(one - two, alpha=1 - level, seed=seed)
    p = sign_flip_p(sums, seed=seed)
    return _judged(interval, p, mde, len(sums), left, right, shares)


def _judged(interval: Interval, p: float, mde: float, units: int, left: Floats, right: Floats, shares: bool) -> PairedDifference:
    """A comparison from its interval and its sign-flip p over so many units."""
    few = units < fewest_units(1 - interval.level)
    outcome: Outcome = "unknown" if few else outcome_of(interval, p, interval.level)
    compared = PairedDifference(
        difference=interval,
        p=math.nan if few else p,
        outcome=outcome,
        reason=Reason.FEW_PROBLEMS if few else Reason.NONE,
        mde=mde,
        mean_a=float(left.mean()),
        mean_b=float(right.mean()),
    )
    return compared.of_shares() if shares else compared


def _cluster_difference(a: Floats, b: Floats, level: float) -> Interval:
    """mean(a) - mean(b) of linearized clusters of shares (J,), which may leave [0, 1], by their moments only."""
    n, value = len(a), float(a.mean() - b.mean())
    spread = np.cov(a, b)
    variances = (spread[0, 0], spread[1, 1])
    reach = difference_reach((a.mean(), b.mean()), variances, spread[0, 1], third_moment(a - b), n, level=level)
    low, high = (float(x) for x in (value - reach[0], value + reach[1]))
    return Interval(value=value, low=max(-1.0, low), high=min(1.0, high), level=level, over=CLUSTERS, n=n)


def paired_seeds(
    a: ArrayLike, b: ArrayLike, *, level: float = 0.95, fixed: bool = False, shared: float = 0.0, least: float = 0.0,
    sampled: bool = False,
) -> PairedDifference:  # fmt: skip
    """Compare two methods: a, b (S, N) or (S,), row s being training seed s of both, the same problems in each.

    Each seed gives one mean difference, each problem another. The interval has the scatter of both: Student's t with S - 1 degrees
    of freedom over seeds, and the interval over problems of the means over seeds (`OverProblems`), half-widths in quadrature
    (`seeds_reach`). It is about these methods on such problems. fixed: whether it is about these problems only, so that their
    choice is left out; it also is for one number per seed (S,). With fewer than three seeds the outcome is "unknown", with fewer
    than 6 problems too, and if all differences are equal and not 0, because identical seeds give no estimate of the variance.
    shared: with `fixed`, a standard error common to the differences of all seeds; the choice of problems includes it. least: the
        smallest half-width (`paired_seed_counts` has both).
    sampled: as in `are_shares`.
    """
    left, right = same_shape(a, b, np.ndim(a))
    fixed = fixed or left.ndim == 1
    gaps = (left - right).reshape(len(left), -1).mean(axis=1)
    seeds, mean = len(gaps), _finite(float(gaps.mean()))
    other = _Known(shared) if fixed else _of_problems(left, right, sampled)
    parts = _Parts(mean, _scatter(gaps), other, least, seeds)
    interval, p = _over_seeds(parts, level, SEEDS if fixed else SEEDS_AND_PROBLEMS)
    few = not fixed and left.shape[1] < fewest_units(1 - level)
    reason = seeds_reason(seeds) or (Reason.FEW_PROBLEMS if few else Reason.NONE if math.isfinite(p) else Reason.NO_SCATTER)
    return PairedDifference(
        difference=interval,
        p=math.nan if reason else p,
        outcome="unknown" if reason else outcome_of(interval, p, level),
        reason=reason,
        mde=math.inf if reason else _detectable_over_seeds(parts, level),
        over="training seeds",
        mean_a=float(left.mean()),
        mean_b=float(right.mean()),
        problems=left.shape[1] if left.ndim == 2 else None,
        fixed=fixed,
    )


def paired_seed_counts(
    n: ArrayLike, a: ArrayLike, b: ArrayLike, k: int, *, n_b: ArrayLike | None = None, level: float = 0.95, fixed: bool = False,
    cluster: Sequence[str] = (),
) -> PairedDifference:  # fmt: skip
    """Compare two methods at pass@k from counts: right ones a (S, N) among n samples, b (S, N) or, for a control that was evaluated
    once, (1, N). n_b: samples of b if they differ from n. fixed: as in `paired_seeds`. cluster: (N,) labels of problems that belong
    together; the choice of clusters then replaces the choice of problems.

    As `paired_seeds` on the unbiased estimates, with the noise of samples: no half-width is below `least_seen`. One control's
    samples are noise that all seeds' differences share: part of the scatter over problems, or, if these problems are fixed, added
    separately (`control_error`); `over` of the interval then names it.
    """
    n_b = n if n_b is None else n_b
    left, right = (np.atleast_2d(np.asarray(pass_at_k(m, x, k))) for m, x in ((n, a), (n_b, b)))
    once = len(right) == 1 < len(left)
    left, right = np.broadcast_arrays(left, right)
    least = least_seen(left.size, level=level) if are_shares(left, right, sampled=True) else 0.0
    shared = control_error(n_b, b, k) if once and fixed else 0.0
    left, right = (clustered_rows(side, () if fixed else cluster) for side in (left, right))
    comparison = paired_seeds(left, right, level=level, fixed=fixed, shared=shared, least=least, sampled=True).of_shares()
    over = f"{SEEDS} and the control's samples" if once and fixed else comparison.difference.over
    return replace(comparison, difference=replace(comparison.difference, over=over), problems=np.shape(a)[-1])


def halves(seeds: Sequence[int]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """All ways to call one half of these seeds A and the other B, the first of them in A. If their number is odd the last is
    left out."""
    even = tuple(seeds[: len(seeds) - len(seeds) % 2])
    return [(a, tuple(s for s in even if s not in a)) for a in combinations(even, len(even) // 2) if a[:1] == even[:1]]


def against_itself(scores: Mapping[int, ArrayLike], *, level: float = 0.95, fixed: bool = False) -> list[PairedDifference]:
    """A/A check: one arm in each of the `halves` of its seeds; seed -> (N,) or one number, paired in order of seed. A share `level`
    of them should not be significant. [] for halves with fewer than three seeds."""
    if len(scores) < 2 * FEWEST_SEEDS:
        return []
    values = {seed: np.asarray(score, dtype=float) for seed, score in scores.items()}

    def stacked(half: Sequence[int]) -> Floats:
        return np.stack([values[seed] for seed in half])

    return [paired_seeds(stacked(a), stacked(b), level=level, fixed=fixed) for a, b in halves(list(scores))]


def seeds_reason(seeds: int) -> Reason:
    """The reason why this number of training seeds supports no claim about methods."""
    return {1: Reason.ONE_SEED, 2: Reason.TWO_SEEDS}.get(seeds, Reason.NONE)


def control_error(n: ArrayLike, c: ArrayLike, k: int) -> float:
    """Standard error that n samples give the mean pass@k of fixed problems, c right ones each: at p = (c + 1/2) / (n + 1). n: one
    number or one per problem.

    At c / n a problem without a right sample would have no noise, although the next n may contain one: with k near n that is most
    of it.
    """
    right = np.ravel(np.asarray(c))
    samples = np.broadcast_to(np.ravel(np.asarray(n)), right.shape)
    variance = 0.0
    for m in np.unique(samples).tolist():
        variance += float(sampling_variance((right[samples == m] + 0.5) / (m + 1), m, k).sum())
    return math.sqrt(variance) / len(right)


def holm(ps: ArrayLike) -> Floats:
    """Holm's (1979) adjusted p values (M,) of ps (M,): p_(i) times the number of p values from it on, made nondecreasing, <= 1.

    The probability of at least one false rejection is at most alpha under any dependence.
    """
    values = np.asarray(ps, dtype=float)
    order = np.argsort(values, kind="stable")
    stepped = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    out = np.empty(len(values))
    out[order] = np.minimum(stepped, 1.0)
    return out


def sign_flip_p(gaps: ArrayLike, *, flips: int = FLIPS, seed: int = SEED) -> float:
    """Two-sided p of mean(gaps) = 0 when each gap's sign is exchangeable; all 2^n patterns up to n = 12, else sampled.

    Sampled: (1 + hits) / (1 + flips), so that p is never 0 (Phipson and Smyth 2010).
    """
    values = np.asarray(gaps, dtype=float)
    values = values[values != 0]  # a zero gap does not depend on its sign
    n, seen = len(values), abs(float(np.sum(values)))
    if n == 0:
        return 1.0
    edge = seen * (1 - 1e-12)
    if n <= EXACT_UP_TO:
        signs = 1.0 - 2.0 * (np.arange(2**n)[:, None] >> np.arange(n) & 1)
        return float(np.mean(np.abs(signs @ values) >= edge))
    rng, hits, step = np.random.default_rng(seed), 0, max(1, 2_000_000 // n)
    for start in range(0, flips, step):
        signs = rng.integers(2, size=(min(step, flips - start), n)) * 2.0 - 1.0
        hits += int(np.sum(np.abs(signs @ values) >= edge))
    return (1 + hits) / (1 + flips)


def excludes(comparison: PairedDifference, value: float) -> bool:
    """Return whether the interval excludes a difference of `value` (a minus b). Without an interval no value is excluded.

    The minimum detectable difference does not replace the interval, because it depends on the estimated variance of few units.
    """
    return not comparison.difference.contains(value)


def signed(x: float, digits: int = 3) -> str:
    """+0.012 or −0.003 with a true minus sign; a number that would round to zero keeps one significant digit."""
    if 1e-7 < abs(x) < 0.5 * 10**-digits:
        digits = math.ceil(-math.log10(abs(x)))
    text = f"{x:+.{digits}f}"
    return text[1:] if float(text) == 0 else text.replace("-", "−")


def are_shares(left: Floats, right: Floats, *, sampled: bool = False) -> bool:
    """Return whether the scores are shares in [0, 1] of several problems.

    Known probabilities that are equal to the last digit and not all 0 or 1 are those of one policy: their difference needs no
    interval. sampled: the scores are from samples, so that equal ones are chance, or copies, and the difference has an
    interval."""
    both = np.stack([left, right])
    inside = bool(np.all((both >= -1e-9) & (both <= 1 + 1e-9)))
    one_policy = not sampled and np.array_equal(left, right) and not np.all((left == 0) | (left == 1))
    return len(left) > 1 and inside and not one_policy


def same_shape(a: ArrayLike, b: ArrayLike, dims: int) -> tuple[Floats, Floats]:
    """a and b as arrays of one shape with `dims` axes, or DataError."""
    left, right = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if left.shape != right.shape or left.ndim != dims or left.size == 0:
        raise DataError(
            f"shapes {left.shape} and {right.shape} cannot be paired; "
            "evaluate both on the same problems in the same order."
        )
    return left, right


def outcome_of(interval: Interval, p: float, level: float) -> Outcome:
    """"better" or "worse" if the interval excludes 0 and p is below 1 - level; else "tied"."""
    return side(interval.low, interval.high) if p < 1 - level else "tied"


def side(low: float, high: float) -> Outcome:
    """"better" or "worse" if the interval excludes 0; else "tied"."""
    return "better" if low > 0 else "worse" if high < 0 else "tied"


def _scatter(gaps: Floats) -> float:
    """Standard error of the mean of gaps (S,) from their scatter, 0 without scatter; NaN for one seed."""
    if len(gaps) < 2:
        return math.nan
    return 0.0 if all_one(gaps) else float(gaps.std(ddof=1)) / math.sqrt(len(gaps))


class _Known:
    """An error with a known standard error, that of a control's samples."""

    def __init__(self, error: float):
        self.error = error

    def reach(self, p: float) -> tuple[float, float]:
        """Half-widths below and above at the level 1 - p."""
        half = -float(norm_ppf(p / 2)) * self.error if self.error else 0.0
        return half, half

    def detectable(self, alpha: float) -> float:
        """The difference that it lets the design detect with 80 % power."""
        return float(norm_ppf(1 - alpha / 2) + norm_ppf(0.8)) * self.error


class _Problems:
    """The choice of problems, by the means over seeds of both arms (N,)."""

    def __init__(self, left: Floats, right: Floats, shares: bool):
        self.left, self.right, self.shares = left, right, shares
        self.moments = OverProblems.of(left, right, shares=shares)

    def reach(self, p: float) -> tuple[float, float]:
        """Half-widths below and above at the level 1 - p."""
        below, above = self.moments.reach(1 - p)
        return float(below), float(above)

    def detectable(self, alpha: float) -> float:
        """The difference that it lets the design detect with 80 % power."""
        if self.shares:
            return detectable_shares(self.left, self.right, alpha=alpha, widening=1.0)
        return detectable(math.sqrt(float(self.moments.spread)), len(self.left), alpha=alpha)


def _of_problems(left: Floats, right: Floats, sampled: bool) -> _Known | _Problems:
    """The error from the choice of problems, for scores (S, N); unknown for one problem. sampled: as in `are_shares`."""
    if left.shape[1] < 2:
        return _Known(math.inf)
    return _Problems(left.mean(axis=0), right.mean(axis=0), are_shares(left, right, sampled=sampled))


@dataclass(frozen=True)
class _Parts:
    """The parts of an interval over training seeds: the mean difference, its standard error from the scatter between seeds, the
    other error, and the smallest half-width."""

    mean: float
    scatter: float
    other: _Known | _Problems
    least: float
    seeds: int

    def reach(self, p: float) -> tuple[float, float]:
        """The half-widths of the interval at the level 1 - p, below and above the mean, before `least` is applied."""
        below, above = (float(seeds_reach(self.scatter, x, self.seeds, p / 2)) for x in self.other.reach(p))
        return below, above


def _over_seeds(parts: _Parts, level: float, over: str) -> tuple[Interval, float]:
    """The interval of `seeds_reach`, no half-width below `least`, and its p; infinite and NaN for one seed, and for seeds that all
    have one number other than 0 if there is no `least`."""
    mean, least, seeds = parts.mean, parts.least, parts.seeds
    known = seeds > 1 and (parts.scatter > 0 or least > 0 or mean == 0) and math.isfinite(sum(parts.other.reach(1 - level)))
    below, above = (max(x, least) for x in parts.reach(1 - level)) if known else (math.inf, math.inf)
    interval = Interval(value=mean, low=mean - below, high=mean + above, level=level, over=over, n=seeds)
    if not known:
        return interval, math.nan
    if mean == 0:
        return interval, 1.0
    quantile = float(t_ppf((1 + level) / 2, seeds - 1))
    of_least = float(2 * t_sf(abs(mean) * quantile / least, seeds - 1)) if least > 0 else 0.0
    return interval, max(_p_over_seeds(parts), of_least)


def _p_over_seeds(parts: _Parts) -> float:
    """1 - the level at which the interval ends at 0, for a mean that is not 0; 0 if it has no width."""
    mean, toward = abs(parts.mean), 0 if parts.mean > 0 else 1
    if isinstance(parts.other, _Known) and parts.other.error == 0:
        return float(2 * t_sf(mean / parts.scatter, parts.seeds - 1)) if parts.scatter > 0 else 0.0
    least = LEAST_LOG_P if isinstance(parts.other, _Known) else LEAST_LOG_P_OF_PROBLEMS

    def beyond(log_p: float) -> float:
        return parts.reach(math.exp(log_p))[toward] - mean

    if beyond(least) <= 0:
        return math.exp(least)
    if beyond(MOST_LOG_P) >= 0:  # at the level 0 the limits of shares still have some width
        return 1.0
    return math.exp(scipy.optimize.brentq(beyond, least, MOST_LOG_P))


def _detectable_over_seeds(parts: _Parts, level: float) -> float:
    """The minimum detectable difference over training seeds: those of the scatter and of the other error in quadrature, as in
    `seeds_reach`. If `least` is the half-width, it is at least the difference that an interval of this half-width detects."""
    alpha, root = 1 - level, math.sqrt(parts.seeds)
    least_error = parts.least / float(t_ppf((1 + level) / 2, parts.seeds - 1))
    of_least = detectable(max(parts.scatter, least_error) * root, parts.seeds, alpha=alpha)
    of_other = parts.other.detectable(alpha)
    if of_other == 0:
        return of_least
    both = math.hypot(detectable(parts.scatter * root, parts.seeds, alpha=alpha), of_other)
    if min(parts.reach(alpha)) >= parts.least:
        return both
    error = of_other / float(norm_ppf(1 - alpha / 2) + norm_ppf(0.8))
    return max(both, of_least, parts.least + float(norm_ppf(0.8)) * math.hypot(parts.scatter, error))


def _finite(mean: float) -> float:
    if not math.isfinite(mean):
        raise DataError("a score is not finite; remove or fix that unit in both arms first.")
    return mean
