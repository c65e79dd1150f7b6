"""Comparisons: paired differences over problems (of checkpoints) or over training seeds (of methods), as values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize

from sage_rlvr.errors import DataError
from sage_rlvr.stats.intervals import (
    RESAMPLES,
    SEED,
    Interval,
    all_one,
    bootstrap_sees,
    difference_reach,
    least_seen,
    mean_interval,
    seeds_reach,
    share_difference,
    third_moment,
)
from sage_rlvr.stats.laws import norm_ppf, t_ppf, t_sf
from sage_rlvr.stats.passk import Floats, pass_at_k, sampling_variance
from sage_rlvr.stats.power import (
    EXACT_UP_TO,
    detectable,
    detectable_paired,
    detectable_shares,
    detectable_up_to,
    fewest_units,
)
from sage_rlvr.stats.samples.clusters import CLUSTERS, cluster_sums, linearized, ratio_interval

FEWEST_SEEDS = 3
DETECTABLE = 0.05
"""A non-significant result is printed as "no significant difference" only if the minimum detectable difference is at most this."""
FLIPS = 9999
LEAST_LOG_P = -690.0
"""Logarithm of the least p that is told from 0."""
Outcome = Literal["better", "worse", "tied", "unknown"]
Level = Literal["problems", "training seeds"]


class Reason(StrEnum):
    """The reason for the outcome "unknown"; `results.row_text` has the printed text."""

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

    `difference` holds the uncertainty over problems (about these checkpoints) or over training seeds (about these methods,
    `problems` of them held fixed); `p` is two-sided and raw, NaN where no test is made. `outcome` is from a's side and before
    any correction; "tied" means not significant. `mde`, the minimum detectable difference: the smallest true difference that this
    rule finds with 80 % power before correction, if the units scatter as these did. `largest`: the largest possible difference, 1
    for shares; it caps a finite `mde`. Only the interval rules values out (`excludes`).
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
    largest: float = math.inf

    @property
    def mde_limit(self) -> float:
        """Upper 95 % limit of `mde`, because the scatter of few units is itself an estimate (`detectable_up_to`)."""
        limit = detectable_up_to(self.mde, self.difference.n)
        return min(limit, self.largest) if math.isfinite(limit) else limit

    @property
    def known(self) -> bool:
        """Whether a test was made."""
        return self.outcome != "unknown"

    def of_shares(self) -> PairedDifference:
        """The same comparison with its detectable difference and its interval within 1, the largest difference of two shares."""
        gap = self.difference
        low = max(gap.low, -1.0) if math.isfinite(gap.low) else gap.low
        high = min(gap.high, 1.0) if math.isfinite(gap.high) else gap.high
        mde = min(self.mde, 1.0) if math.isfinite(self.mde) else self.mde
        return replace(self, largest=1.0, mde=mde, difference=replace(gap, low=low, high=high))

    def detects(self, bound: float = DETECTABLE) -> bool:
        """Whether the design finds a true difference of `bound` with 80 % power."""
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
) -> PairedDifference:
    """Compare two checkpoints on the same problems: a, b (N,), one score per problem, same order.

    "better" or "worse" needs both an interval over problems that excludes zero and a sign-flip permutation test with p < 1 - level.
    Other outcomes are "tied"; with fewer than 6 problems the test cannot reach 0.05 and the outcome is "unknown". Shares in [0, 1]
    (`shares`; None: where all scores lie there) get the interval of `share_difference` unless `bootstrap_sees` their gaps, all
    other scores BCa, which covers differences of few discordant problems too rarely (lab/pages/concepts/statistics.md).
    """
    left, right = same_shape(a, b, 1)
    gaps = left - right
    if shares is not False and are_shares(left, right) and not bootstrap_sees(gaps):
        interval = share_difference(left, right, level=level)
        mde = detectable_shares(left, right, alpha=1 - level, seed=seed)
    else:
        interval = mean_interval(gaps, level=level, resamples=resamples, seed=seed)
        mde = detectable_paired(gaps, alpha=1 - level, seed=seed)
    p = sign_flip_p(gaps, seed=seed)
    return _judged(interval, p, mde, len(gaps), left, right, shares is not False and are_shares(left, right))


def paired_counts(
    n: ArrayLike, a: ArrayLike, b: ArrayLike, k: int, *, n_b: ArrayLike | None = None, cluster: ArrayLike | None = None,
    level: float = 0.95, seed: int = SEED,
) -> PairedDifference:  # fmt: skip
    """Compare two checkpoints at pass@k from counts: right ones a, b (N,) among n samples of each problem, () or (N,), same order.
    n_b: samples of b where they differ from n. cluster: (N,) labels of problems that belong together (`paired_clusters`).

    As `paired` on the unbiased estimates; the interval then holds the noise of the samples too, and says so.
    """
    left, right = np.atleast_1d(pass_at_k(n, a, k)), np.atleast_1d(pass_at_k(n if n_b is None else n_b, b, k))
    if cluster is not None:
        return paired_clusters(left, right, cluster, level=level, seed=seed)
    comparison = paired(left, right, level=level, seed=seed)
    return replace(comparison, difference=replace(comparison.difference, over="problems and their samples"))


def paired_clusters(
    a: ArrayLike, b: ArrayLike, cluster: ArrayLike, *, level: float = 0.95, seed: int = SEED
) -> PairedDifference:
    """`paired` where problems come in clusters, which are drawn and change sign whole. cluster: (N,) labels.

    The interval is of the linearized clusters (`clusters.linearized`): of shares that of `difference_reach`, unless
    `bootstrap_sees` their gaps. The signs flip the sums of the clusters, which are exchangeable whatever their sizes.
    """
    left, right = same_shape(a, b, 1)
    (sums, sizes), shares = cluster_sums(left - right, cluster), are_shares(left, right)
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
    """A comparison from its interval and its sign-flip p over so many units. Without a difference the detectable one is at least
    the measured one."""
    few = units < fewest_units(1 - interval.level)
    outcome: Outcome = "unknown" if few else outcome_of(interval, p, interval.level)
    compared = PairedDifference(
        difference=interval,
        p=p,
        outcome=outcome,
        reason=Reason.FEW_PROBLEMS if few else Reason.NONE,
        mde=max(mde, abs(interval.value)) if outcome == "tied" else mde,
        mean_a=float(left.mean()),
        mean_b=float(right.mean()),
    )
    return compared.of_shares() if shares else compared


def _cluster_difference(a: Floats, b: Floats, level: float) -> Interval:
    """mean(a) - mean(b) of linearized clusters of shares (J,), which may leave [0, 1], by their moments alone."""
    n, value = len(a), float(a.mean() - b.mean())
    spread = np.cov(a, b)
    variances = (spread[0, 0], spread[1, 1])
    reach = difference_reach((a.mean(), b.mean()), variances, spread[0, 1], third_moment(a - b), n, level=level)
    low, high = (float(x) for x in (value - reach[0], value + reach[1]))
    return Interval(value=value, low=max(-1.0, low), high=min(1.0, high), level=level, over=CLUSTERS, n=n)


def paired_seeds(
    a: ArrayLike, b: ArrayLike, *, level: float = 0.95, shared: float = 0.0, least: float = 0.0
) -> PairedDifference:
    """Compare two methods: a, b (S, N) or (S,), row s being training seed s of both, the same problems in each.

    Each seed gives one mean difference; Student's t with S - 1 degrees of freedom over seeds, the problems held fixed.
    With fewer than three seeds the outcome is "unknown", and also if all differences are equal and not 0, because identical seeds
    give no estimate of the variance. shared: a standard error that all seeds' differences have in common (`seeds_reach`); least: no
    half-width is below it (both 0 for exact scores; `paired_seed_counts` has them).
    """
    left, right = same_shape(a, b, np.ndim(a))
    gaps = (left - right).reshape(len(left), -1).mean(axis=1)
    seeds, mean = len(gaps), _finite(float(gaps.mean()))
    scatter = _scatter(gaps)
    interval, p = _over_seeds(mean, scatter, shared, least, seeds, level)
    reason = seeds_reason(seeds) or (Reason.NONE if math.isfinite(p) else Reason.NO_SCATTER)
    return PairedDifference(
        difference=interval,
        p=p,
        outcome="unknown" if reason else outcome_of(interval, p, level),
        reason=reason,
        mde=_detectable_over_seeds(scatter, shared, least, seeds, level) if math.isfinite(p) else math.inf,
        over="training seeds",
        mean_a=float(left.mean()),
        mean_b=float(right.mean()),
        problems=left.shape[1] if left.ndim == 2 else None,
    )


def paired_seed_counts(
    n: ArrayLike, a: ArrayLike, b: ArrayLike, k: int, *, n_b: ArrayLike | None = None, level: float = 0.95
) -> PairedDifference:
    """Compare two methods at pass@k from counts: right ones a (S, N) among n samples, b (S, N) or, of a control that was
    evaluated once, (1, N). n_b: samples of b where they differ from n.

    As `paired_seeds` on the unbiased estimates, with what samples add to it: no half-width below `least_seen`, and one
    control's samples are noise that all seeds' differences share (`control_error`); the interval then says so.
    """
    n_b = n if n_b is None else n_b
    left, right = (np.atleast_2d(np.asarray(pass_at_k(m, x, k))) for m, x in ((n, a), (n_b, b)))
    once = len(right) == 1 < len(left)
    left, right = np.broadcast_arrays(left, right)
    least = least_seen(left.size, level=level) if are_shares(left, right) else 0.0
    comparison = paired_seeds(left, right, level=level, shared=control_error(n_b, b, k) if once else 0.0, least=least)
    over = "training seeds and the control's samples" if once else "training seeds"
    return replace(comparison.of_shares(), difference=replace(comparison.difference, over=over))


def halves(seeds: Sequence[int]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """All ways to call one half of these seeds A and the other B, the first of them in A. Of an odd number the last is left out."""
    even = tuple(seeds[: len(seeds) - len(seeds) % 2])
    return [(a, tuple(s for s in even if s not in a)) for a in combinations(even, len(even) // 2) if a[:1] == even[:1]]


def against_itself(scores: Mapping[int, ArrayLike], *, level: float = 0.95) -> list[PairedDifference]:
    """A/A check: one arm in each of the `halves` of its seeds; seed -> (N,) or one number, paired in order of seed. A share `level`
    of them should not be significant. [] for halves with fewer than three seeds."""
    if len(scores) < 2 * FEWEST_SEEDS:
        return []
    values = {seed: np.asarray(score, dtype=float) for seed, score in scores.items()}
    sides = ((np.stack([values[s] for s in half]) for half in both) for both in halves(list(scores)))
    return [paired_seeds(a, b, level=level) for a, b in sides]


def seeds_reason(seeds: int) -> Reason:
    """The reason why this number of training seeds supports no claim about methods."""
    return {1: Reason.ONE_SEED, 2: Reason.TWO_SEEDS}.get(seeds, Reason.NONE)


def control_error(n: ArrayLike, c: ArrayLike, k: int) -> float:
    """Standard error that n samples give the mean pass@k of fixed problems, c right ones each: at p = (c + 1/2) / (n + 1). n: one
    number or one per problem.

    At c / n a problem of no right sample would have no noise, although the next n may hold one: with k near n that is most of it.
    """
    right = np.ravel(np.asarray(c))
    samples = np.broadcast_to(np.ravel(np.asarray(n)), right.shape)
    variance = 0.0
    for m in np.unique(samples).tolist():
        variance += float(sampling_variance((right[samples == m] + 0.5) / (m + 1), m, k).sum())
    return math.sqrt(variance) / len(right)


def holm(ps: ArrayLike) -> Floats:
    """Holm's (1979) adjusted p values (M,) of ps (M,): p_(i) times the number of those not yet passed, kept rising, <= 1.

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
    values = values[values != 0]  # a zero gap does not care about its sign
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
    """Whether the interval excludes a difference of `value` (a minus b). Without an interval no value is excluded. The minimum
    detectable difference does not replace the interval, because it depends on the estimated variance of few units.
    """
    return not comparison.difference.contains(value)


def signed(x: float, digits: int = 3) -> str:
    """+0.012 or −0.003 with a true minus sign; a number that would round to zero keeps one significant digit."""
    if 1e-7 < abs(x) < 0.5 * 10**-digits:
        digits = math.ceil(-math.log10(abs(x)))
    text = f"{x:+.{digits}f}"
    return text[1:] if float(text) == 0 else text.replace("-", "−")


def detectable_text(mde: float, limit: float) -> str:
    """ "minimum detectable difference 0.012 (80 % power), up to 0.053 at 95 % confidence"; the limit only if it differs."""
    if not math.isfinite(mde):
        return "no difference could have been detected"
    few, most = (f"{x:.3f}" if x >= 0.0005 else f"{x:.1g}" for x in (mde, limit))
    return f"minimum detectable difference {few} (80 % power)" + (f", up to {most} at 95 % confidence" if most != few else "")


def p_text(p: float) -> str:
    """ "p = 0.012", "p < 0.001"."""
    return f"p = {p:.3f}" if p >= 0.001 else "p < 0.001"


def are_shares(left: Floats, right: Floats) -> bool:
    """Whether the scores are shares in [0, 1] of several problems. Scores equal to the last digit that are not all 0 or 1 are
    those of one policy: their difference needs no interval."""
    both = np.stack([left, right])
    inside = bool(np.all((both >= -1e-9) & (both <= 1 + 1e-9)))
    one_policy = np.array_equal(left, right) and not np.all((left == 0) | (left == 1))
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
    """Standard error of the mean of gaps (S,) from their scatter, 0 where they have none; NaN of one seed."""
    if len(gaps) < 2:
        return math.nan
    return 0.0 if all_one(gaps) else float(gaps.std(ddof=1)) / math.sqrt(len(gaps))


def _over_seeds(
    mean: float, scatter: float, shared: float, least: float, seeds: int, level: float
) -> tuple[Interval, float]:
    """The interval of `seeds_reach`, no half-width below `least`, and its p; infinite and NaN of one seed, and of seeds that all
    give one number but 0 where there is no `least`."""
    known = seeds > 1 and (scatter > 0 or least > 0 or mean == 0)
    half = max(float(seeds_reach(scatter, shared, seeds, (1 + level) / 2)), least) if known else math.inf
    interval = Interval(value=mean, low=mean - half, high=mean + half, level=level, over="training seeds", n=seeds)
    if not known:
        return interval, math.nan
    if mean == 0:
        return interval, 1.0
    quantile = float(t_ppf((1 + level) / 2, seeds - 1))
    of_least = float(2 * t_sf(abs(mean) * quantile / least, seeds - 1)) if least > 0 else 0.0
    return interval, max(_p_over_seeds(abs(mean), scatter, shared, seeds), of_least)


def _p_over_seeds(mean: float, scatter: float, shared: float, seeds: int) -> float:
    """1 - the level at which the interval of `seeds_reach` around a mean > 0 ends at 0; 0 where it has no width."""
    if shared == 0:
        return float(2 * t_sf(mean / scatter, seeds - 1)) if scatter > 0 else 0.0

    def beyond(log_p: float) -> float:
        return float(seeds_reach(scatter, shared, seeds, math.exp(log_p) / 2)) - mean

    if beyond(LEAST_LOG_P) <= 0:
        return math.exp(LEAST_LOG_P)
    return math.exp(optimize.brentq(beyond, LEAST_LOG_P, 0.0))


def _detectable_over_seeds(scatter: float, shared: float, least: float, seeds: int, level: float) -> float:
    """`detectable` where seeds also have an error in common: both parts in quadrature, as in `seeds_reach`; with `least` as the
    half-width, at least what the errors then leave to be found."""
    least_error = least / float(t_ppf((1 + level) / 2, seeds - 1))
    of_least = detectable(max(scatter, least_error) * math.sqrt(seeds), seeds, alpha=1 - level)
    if shared == 0:
        return of_least
    of_shared = float(norm_ppf((1 + level) / 2) + norm_ppf(0.8)) * shared
    both = math.hypot(detectable(scatter * math.sqrt(seeds), seeds, alpha=1 - level), of_shared)
    if float(seeds_reach(scatter, shared, seeds, (1 + level) / 2)) >= least:
        return both
    return max(both, of_least, least + float(norm_ppf(0.8)) * math.hypot(scatter, shared))


def _finite(mean: float) -> float:
    if not math.isfinite(mean):
        raise DataError("a score is not finite; remove or fix that unit in both arms first.")
    return mean
