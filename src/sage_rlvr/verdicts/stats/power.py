"""Power: the smallest difference that a design could have detected, and whether arms differ by more than seed noise."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.stats.arrays import Floats
from sage_rlvr.verdicts.stats.intervals import CARRIED, SEED, SMALL, bootstrap_means, bootstrap_sees, difference_reach
from sage_rlvr.verdicts.stats.laws import beta_ppf, chi2_ppf, f_sf, norm_ppf, t_ppf

EXACT_UP_TO = 12  # units whose 2^n sign patterns are all tried
FAMILY = 0.05
"""Error rate of a band over all k, whatever the rate of its single intervals."""
LAID_OUT = 400
DRAWS = 600
GOLDEN = 0.6180339887498949
MOST_DRAWN = 500


def detectable(sd: float, n: int, *, power: float = 0.8, alpha: float = 0.05) -> float:
    """Smallest true mean difference that a two-sided paired t test on n units finds with probability `power`.

    sd: standard deviation of the paired differences (same unit as the answer). Solves the noncentral t power function without
    rejections on the wrong side (below 1e-4). Infinite for n < 2, 0 for sd = 0.
    """
    if sd < 0 or math.isnan(sd) or not 0 < alpha < power < 1:
        raise DataError(f"sd = {sd}, alpha = {alpha}, power = {power}: needs sd >= 0 and 0 < alpha < power < 1.")
    if n < 2:
        return math.inf
    if sd == 0:
        return 0.0
    df = n - 1
    critical = float(t_ppf(1 - alpha / 2, df))
    start = critical + float(t_ppf(power, df))  # the usual sum of two quantiles: close, a little high for small n

    def missing(shift: float) -> float:
        return float(scipy.stats.nct.sf(critical, df, shift)) - power

    shift = start
    if missing(0.2 * start) < 0 < missing(2 * start):
        shift = float(scipy.optimize.brentq(missing, 0.2 * start, 2 * start, xtol=1e-6))
    return shift * sd / math.sqrt(n)


def detectable_up_to(mde: float, units: float, *, confidence: float = 0.95) -> float:
    """Upper confidence limit of a minimum detectable difference `mde` that is based on the scatter of `units` units.

    The difference is a multiple of their standard deviation, an estimate with units - 1 degrees of freedom: times
    sqrt((units - 1) / chi2_{1 - confidence, units - 1}), which is 4.4 for 3 units, 2.1 for 6, 1.07 for 300 (normal scatter).
    Infinite for fewer than two units.
    """
    if not units > 1 or math.isinf(mde):
        return math.inf
    return mde * math.sqrt((units - 1) / float(chi2_ppf(1 - confidence, units - 1)))


def fewest_units(alpha: float = 0.05) -> int:
    """Smallest n at which a two-sided sign-flip test can reach p < alpha at all: 2 / 2^n < alpha, 6 for 0.05."""
    return math.floor(math.log2(2 / alpha)) + 1


def least_share(n: int, *, power: float = 0.8, alpha: float = 0.05) -> float:
    """The least difference of the right shares of n problems, each right or wrong, that a sign-flip test finds with probability
    `power`: the smallest p with P(Bin(n, p) >= `fewest_units`) >= power. Problems on which both agree are no evidence, so this
    many are needed even if all others are on one side. Infinite for n below it."""
    fewest = fewest_units(alpha)
    return float(beta_ppf(power, fewest, n - fewest + 1)) if n >= fewest else math.inf


def detectable_paired(
    gaps: ArrayLike, *, power: float = 0.8, alpha: float = 0.05, resamples: int = 1000, seed: int = SEED
) -> float:
    """Smallest true mean difference that the rule of `paired.paired` (BCa interval and sign-flip test) finds with
    probability `power`, in the direction in which it is harder to find; gaps (N,) are the observed paired differences.

    Simulated: the centered gaps are resampled, and for each draw the smallest shift is computed at which both halves of the rule
    detect it; the answer is the `power` quantile of these shifts. The interval's ends come from the draw's mean,
    variance and skewness (Cornish-Fisher), the sign flips from all patterns up to 12 units, else from the normal law. Infinite
    below `fewest_units(alpha)`, 0 if all gaps are equal.
    """
    values = np.asarray(gaps, dtype=float)
    n = len(values)
    if n < fewest_units(alpha):
        return math.inf
    if np.ptp(values) <= 1e-12 * max(1.0, abs(float(values.mean()))):
        return 0.0
    centered = (values - values.mean()) * math.sqrt(n / (n - 1))
    powers = np.stack([centered, centered**2, centered**3], axis=1)
    raw, drawn = _drawn_again(powers, centered, resamples, seed)
    mean, spread = raw[:, 0], np.sqrt(np.maximum(raw[:, 1] - raw[:, 0] ** 2, 0.0))
    third = raw[:, 2] - 3 * mean * raw[:, 1] + 2 * mean**3
    skew = np.divide(third, spread**3, out=np.zeros_like(third), where=spread > 1e-12)
    reach = {side: _reach_of_bca(side * skew, n, alpha) * spread / math.sqrt(n) for side in (1.0, -1.0)}
    return _harder_side(reach, mean, spread, drawn, n, power, alpha)


def detectable_shares(
    a: ArrayLike, b: ArrayLike, *, power: float = 0.8, alpha: float = 0.05, resamples: int = 1000, seed: int = SEED,
    widening: float | None = None,
) -> float:  # fmt: skip
    """`detectable_paired` for shares a, b (N,) under their rule: `share_difference` and the sign flips.

    The problems are resampled; the interval's ends come from the moments of the draw. Unlike in `detectable_paired`, equal gaps do
    not give 0: problems not seen may differ. If all shares are 0 or 1, or no problem shows a difference, it is
    at least `least_share`.

    widening: under the rule of a band instead, whose half-widths are so many times those of `share_difference`
    (`CurveComparison.widening`; 1 for one interval), without sign flips.
    """
    left, right = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    n = len(left)
    if n < fewest_units(alpha if widening is None else FAMILY):
        return math.inf
    gaps = left - right
    least = least_share(n, power=power, alpha=alpha if widening is None else FAMILY) if _all_or_nothing(left, right) else 0.0
    # the scatter of a sample is that of its population, minus that of its mean
    centered = (gaps - gaps.mean()) * math.sqrt(n / (n - 1))
    columns = _moments_of(left, right, centered)
    if widening is None:
        raw, drawn = _drawn_again(columns, centered, resamples, seed)
    else:
        raw, drawn = _times_of_problems(n, resamples, seed) @ columns / n, None
    below, above, spread = _reach_of_shares(raw, n, alpha, student=widening is not None and bootstrap_sees(gaps))
    if widening is not None:
        reaches = {1.0: widening * below, -1.0: widening * above}
        return max(least, *(float(np.quantile(reach - side * raw[:, 5], power)) for side, reach in reaches.items()))
    return max(least, _harder_side({1.0: below, -1.0: above}, raw[:, 5], spread, drawn, n, power, alpha))


@functools.lru_cache(maxsize=1)
def _times_of_problems(n: int, resamples: int, seed: int) -> NDArray[np.uint8]:
    """Counts of each of n problems in each of `resamples` samples with replacement, (resamples, n): the same for every k."""
    return np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples).astype(np.uint8)


def _all_or_nothing(a: Floats, b: Floats) -> bool:
    """Whether all shares are 0 or 1, or equal on every problem."""
    both = np.concatenate([a, b])
    return bool(np.all((both == 0) | (both == 1))) or np.array_equal(a, b)


def _moments_of(a: Floats, b: Floats, gaps: Floats) -> Floats:
    """Columns (N, 8) whose means are the moments that `_reach_of_shares` reads. gaps: a - b, less some constant."""
    return np.stack([a, b, a**2, b**2, a * b, gaps, gaps**2, gaps**3], axis=1)


def _reach_of_shares(raw: Floats, n: int, alpha: float, *, student: bool) -> tuple[Floats, Floats, Floats]:
    """The half-widths (below, above) of the intervals of draws of n problems, and the standard deviation of its gaps,
    by the means raw (R, 8) of `_moments_of`. student: only Student's t, as if a bootstrap would be trusted."""
    unbiased, mean = n / (n - 1), raw[:, 5]
    spread = np.sqrt(np.maximum(raw[:, 6] - mean**2, 0.0))
    if student:
        reach = float(t_ppf(1 - alpha / 2, n - 1)) * spread / math.sqrt(n - 1)
        return reach, reach, spread
    m_a, m_b = raw[:, 0], raw[:, 1]
    variances = (unbiased * (raw[:, 2] - m_a**2), unbiased * (raw[:, 3] - m_b**2))
    third = raw[:, 7] - 3 * mean * raw[:, 6] + 2 * mean**3
    covariance = unbiased * (raw[:, 4] - m_a * m_b)
    return *difference_reach((m_a, m_b), variances, covariance, third, n, level=1 - alpha), spread


class Planned(Protocol):
    """Differences of shares on problems that are still to be drawn."""

    def missing(self, x: float, *, power: float, alpha: float, widening: float) -> float:
        """Return the gap between a true difference x and one found with probability `power`, 0 or less if x is found. The rule: an
        interval `widening` times as wide as that of `share_difference` at level 1 - alpha excludes 0."""


@dataclass(frozen=True)
class LikeCoins:
    """Problems without a pilot: n problems, each right or wrong, on a share `differ` of which two arms differ; on x if x is more.

    The outcomes of a design are spaced evenly over their law, not drawn, so that successive x are compared on the same outcomes.
    The problems on which both arms agree are half right.
    """

    n: int
    differ: float

    def missing(self, x: float, *, power: float, alpha: float, widening: float) -> float:
        """Return the gap as in `Planned`."""
        differ, even = min(1.0, max(self.differ, x)), (np.arange(LAID_OUT) + 0.5) / LAID_OUT
        several = scipy.stats.binom.ppf(even, self.n, differ)
        up = scipy.stats.binom.ppf(np.arange(LAID_OUT) * GOLDEN % 1.0, several, (differ + x) / (2 * differ))
        agree = (self.n - several) / 2
        kinds = _moments_of(np.array([1.0, 0.0, 1.0, 0.0]), np.array([0.0, 1.0, 1.0, 0.0]), np.array([1.0, -1.0, 0.0, 0.0]))
        raw = np.stack([up, several - up, agree, agree], axis=1) @ kinds / self.n
        student = self.n >= SMALL and self.n * differ >= CARRIED
        below, _, _ = _reach_of_shares(raw, self.n, alpha, student=student)
        return float(np.quantile(widening * below - raw[:, 5], power))


@dataclass(frozen=True, eq=False)
class LikePilot:
    """n problems like those of a pilot with shares a, b (N,), from which the plan takes the gaps and the middle.

    Two things are unknown about new problems, and every draw varies both: the population, of which the pilot is one sample (the
    Bayesian bootstrap, Rubin 1981), and the sample from it. A true difference multiplies the odds of every problem by one factor,
    upward in one arm and downward in the other, in addition to the gaps of the pilot: problems near 0 and 1 move little, so a
    larger difference scatters more. The gaps are skewed to the side that is harder to find. No problem is at 0 or 1: each is shrunk
    to the mean by one problem.
    """

    n: int
    a: Floats
    b: Floats

    def missing(self, x: float, *, power: float, alpha: float, widening: float) -> float:
        """Return the gap as in `Planned`."""
        a, b = self.a, self.b
        if len(a) > MOST_DRAWN:  # a large pilot is represented by some of its problems, in the order of their gaps
            some = np.argsort(a - b)[np.linspace(0, len(a) - 1, MOST_DRAWN).round().astype(int)]
            a, b = a[some], b[some]
        of, gaps, middle = len(a), a - b, np.clip((a + b) / 2, 0.0, 1.0)
        gaps = (gaps - gaps.mean()) * math.sqrt(of / (of - 1))
        middle = (of * middle + np.clip(middle.mean(), 0.5 / of, 1 - 0.5 / of)) / (of + 1)
        population, sample = _problems_drawn(of, self.n)
        missing, (higher, lower) = [], _odds_apart(middle, x)
        for side in (1.0, -1.0):
            left, right = higher + side * gaps / 2, lower - side * gaps / 2
            raw = sample @ _moments_of(left, right, left - right - x)
            drawn = raw[:, 5] - population @ (left - right - x)  # the difference of the population is x
            below, _, _ = _reach_of_shares(raw, self.n, alpha, student=bootstrap_sees(np.resize(left - right, self.n)))
            missing.append(float(np.quantile(widening * below - drawn, power)) - x)
        return max(missing)


def detectable_planned(planned: Planned, *, power: float = 0.8, alpha: float = 0.05, widening: float = 1.0) -> float:
    """Smallest true difference that is found with probability `power`; 1 if none is."""

    def missing(x: float) -> float:
        return planned.missing(x, power=power, alpha=alpha, widening=widening)

    low, high = 0.0, 1 / 64
    while missing(high) > 0:
        if high > 0.5:
            return 1.0
        low, high = high, min(2 * high, 0.999)
    return float(scipy.optimize.brentq(missing, low, high, xtol=1e-4)) if low or missing(low) > 0 else 0.0


@functools.lru_cache(maxsize=16)
def _problems_drawn(of: int, n: int) -> tuple[Floats, Floats]:
    """(R, of) shares of `of` kinds of problems in R populations, and in n problems drawn from each."""
    rng = np.random.default_rng(SEED)
    population = rng.dirichlet(np.ones(of), size=min(DRAWS, max(250, 100_000 // of)))
    return population, rng.multinomial(n, population) / n


def _odds_apart(p: Floats, x: float) -> tuple[Floats, Floats]:
    """p (N,) inside (0, 1) with all odds multiplied, and divided, by the factor that sets the two means at a distance x < 1."""
    logits = scipy.special.logit(p)

    def moved(shift: float) -> tuple[Floats, Floats]:
        return scipy.special.expit(logits + shift), scipy.special.expit(logits - shift)

    def short(shift: float) -> float:
        higher, lower = moved(shift)
        return float(np.mean(higher - lower)) - x

    reach = 1.0
    while short(reach) < 0:
        reach *= 2
    return moved(scipy.optimize.brentq(short, 0.0, reach))


def _drawn_again(columns: Floats, centered: Floats, resamples: int, seed: int) -> tuple[Floats, Floats | None]:
    """Means of columns (N, K) over resampled rows, (R, K), and the drawn gaps if all flips are tried."""
    n = len(centered)
    if n > EXACT_UP_TO:
        return bootstrap_means(columns, resamples=min(resamples, max(200, 1_000_000 // n)), seed=seed), None
    rows = np.random.default_rng(seed).integers(n, size=(250, n))
    return columns[rows].mean(axis=1), centered[rows]


def _harder_side(
    reach: dict[float, Floats], mean: Floats, spread: Floats, drawn: Floats | None, n: int, power: float, alpha: float
) -> float:
    """The `power` quantile of the shift at which both halves of the rule detect it, in the harder of the two directions."""
    shifts = []
    for side, by_interval in reach.items():
        if drawn is None:
            z = float(norm_ppf(1 - alpha / 2))
            by_flips = z * spread / math.sqrt(n - z * z) - side * mean
        else:
            by_flips = _shift_for_flips(side * drawn, alpha)
        shifts.append(float(np.quantile(np.maximum(by_interval - side * mean, by_flips), power)))
    return max(0.0, *shifts)


def _reach_of_bca(skew: Floats, n: int, alpha: float) -> Floats:
    """The lower half-width of the BCa interval of a mean, in standard errors (those of `intervals.bca`), by skewness."""
    bend = skew / (6 * math.sqrt(n))  # acceleration, and to this order the median bias too
    shifted = bend - math.sqrt(n / (n - 1)) * float(t_ppf(1 - alpha / 2, n - 1))
    bent = bend + shifted / np.maximum(1 - bend * shifted, 0.05)
    return -(bent + (bent**2 - 1) * bend)


def _shift_for_flips(drawn: Floats, alpha: float) -> Floats:
    """(R,) smallest shift of each row of drawn (R, n) at which the sign-flip test on all 2^n patterns has p < alpha.

    Flipping the set M reaches the shifted sum or more exactly when the shifted values of M add up to 0 or less, that is
    when the shift is at most minus the mean of M; so the shift must exceed all but a share alpha of these.
    """
    n = drawn.shape[1]
    chosen = (np.arange(1, 2**n)[:, None] >> np.arange(n) & 1).astype(float)
    limits = -(drawn @ chosen.T) / chosen.sum(axis=1)
    allowed = math.ceil(alpha * 2 ** (n - 1)) - 1  # subsets that may reach it, including the empty one (always)
    if allowed < 1:
        return np.full(len(drawn), math.inf)
    index = limits.shape[1] - allowed
    return np.partition(limits, index, axis=1)[:, index]


@dataclass(frozen=True)
class ArmSpread:
    """arms: standard deviation of the arms' means, in the scores' unit. seeds: the value for equal arms, from seed noise only. p:
    the probability of such a difference between equal arms (F test)."""

    arms: float
    seeds: float
    p: float


def spread(scores: ArrayLike) -> ArmSpread:
    """Whether the arms of a selection differ: the spread of their means compared with seed noise.

    The best of several means overestimates its true mean, more so for similar arms (the winner's curse). scores: (arms, seeds),
    paired by seed (the same prompts), in any unit. DataError for fewer than two of either, NaN or infinity. Source: Fisher's
    analysis of variance in randomized blocks, arms by seeds.
    """
    values = np.asarray(scores, dtype=float)
    if values.ndim != 2 or min(values.shape) < 2 or not np.isfinite(values).all():
        raise DataError(f"scores of shape {values.shape}: pass finite scores of at least 2 arms (rows) and 2 seeds (columns)")
    arms, seeds = values.shape
    means = values.mean(axis=1, keepdims=True)
    rest = values - means - values.mean(axis=0, keepdims=True) + values.mean()
    noise = float((rest**2).sum()) / ((arms - 1) * (seeds - 1))  # variance of one run, without the seed's effect on all arms
    between = float(means.var(ddof=1))
    if noise == 0:
        return ArmSpread(math.sqrt(between), 0.0, 0.0 if between > 0 else 1.0)
    p = float(f_sf(seeds * between / noise, arms - 1, (arms - 1) * (seeds - 1)))
    return ArmSpread(math.sqrt(between), math.sqrt(noise / seeds), p)
