"""Power: the smallest difference that a design could have detected, and whether arms differ by more than seed noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike
from scipy import optimize

from sage_rlvr.errors import DataError
from sage_rlvr.stats.intervals import SEED, bootstrap_means, difference_reach
from sage_rlvr.stats.laws import chi2_ppf, f_sf, norm_ppf, t_ppf
from sage_rlvr.stats.passk import Floats

EXACT_UP_TO = 12  # units whose 2^n sign patterns are all tried


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
        shift = float(optimize.brentq(missing, 0.2 * start, 2 * start, xtol=1e-6))
    return shift * sd / math.sqrt(n)


def detectable_up_to(mde: float, units: float, *, confidence: float = 0.95) -> float:
    """Upper confidence limit of a minimum detectable difference `mde` that rests on the scatter of `units` units.

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


def detectable_paired(
    gaps: ArrayLike, *, power: float = 0.8, alpha: float = 0.05, resamples: int = 1000, seed: int = SEED
) -> float:
    """Smallest true mean difference that the rule of `compare.paired` (BCa interval and sign-flip test) finds with
    probability `power`, in the direction in which it is harder to find; gaps (N,) are the observed paired differences.

    Simulated: the centered gaps are drawn again, and for each draw the smallest shift is computed at which both halves of
    the rule speak; the answer is the `power` quantile of these shifts. The interval's ends come from the draw's mean,
    variance and skewness (Cornish-Fisher), the sign flips from all patterns up to 12 units, else from the normal law.
    Infinite below `fewest_units(alpha)`, 0 where all gaps are equal.
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
    a: ArrayLike, b: ArrayLike, *, power: float = 0.8, alpha: float = 0.05, resamples: int = 1000, seed: int = SEED
) -> float:
    """`detectable_paired` for shares a, b (N,) under their own rule: `share_difference` and the sign flips.

    The problems are drawn again; the interval's ends come from the draw's own moments. Unlike there
    equal gaps do not give 0: problems not seen may differ.
    """
    left, right = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    n = len(left)
    if n < fewest_units(alpha):
        return math.inf
    gaps = left - right
    centered = (gaps - gaps.mean()) * math.sqrt(n / (n - 1))
    columns = np.stack([left, right, left**2, right**2, left * right, centered, centered**2, centered**3], axis=1)
    raw, drawn = _drawn_again(columns, centered, resamples, seed)
    m_a, m_b, mean = raw[:, 0], raw[:, 1], raw[:, 5]
    unbiased = n / (n - 1)
    variances = (unbiased * (raw[:, 2] - m_a**2), unbiased * (raw[:, 3] - m_b**2))
    third = raw[:, 7] - 3 * mean * raw[:, 6] + 2 * mean**3
    covariance = unbiased * (raw[:, 4] - m_a * m_b)
    below, above = difference_reach((m_a, m_b), variances, covariance, third, n, level=1 - alpha)
    spread = np.sqrt(np.maximum(raw[:, 6] - mean**2, 0.0))
    return _harder_side({1.0: below, -1.0: above}, mean, spread, drawn, n, power, alpha)


def _drawn_again(columns: Floats, centered: Floats, resamples: int, seed: int) -> tuple[Floats, Floats | None]:
    """Means of columns (N, K) over rows drawn again, (R, K), and the drawn gaps themselves where all flips are tried."""
    n = len(centered)
    if n > EXACT_UP_TO:
        return bootstrap_means(columns, resamples=min(resamples, max(200, 1_000_000 // n)), seed=seed), None
    rows = np.random.default_rng(seed).integers(n, size=(250, n))
    return columns[rows].mean(axis=1), centered[rows]


def _harder_side(
    reach: dict[float, Floats], mean: Floats, spread: Floats, drawn: Floats | None, n: int, power: float, alpha: float
) -> float:
    """The `power` quantile of the shift at which both halves of the rule speak, in the harder of the two directions."""
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
    """How far the BCa interval of a mean reaches below it, in standard errors (those of `intervals.bca`), by skewness."""
    bend = skew / (6 * math.sqrt(n))  # acceleration, and to this order the median bias too
    shifted = bend - math.sqrt(n / (n - 1)) * float(t_ppf(1 - alpha / 2, n - 1))
    bent = bend + shifted / np.maximum(1 - bend * shifted, 0.05)
    return -(bent + (bent**2 - 1) * bend)


def _shift_for_flips(drawn: Floats, alpha: float) -> Floats:
    """(R,) smallest shift of each row of drawn (R, n) at which the sign-flip test on all 2^n patterns has p < alpha.

    Flipping the set M reaches the shifted sum or more exactly when the shifted values of M add up to 0 or less, that is
    when the shift is at most minus the mean of M; so the shift must pass the largest of these but a share alpha.
    """
    n = drawn.shape[1]
    chosen = (np.arange(1, 2**n)[:, None] >> np.arange(n) & 1).astype(float)
    limits = -(drawn @ chosen.T) / chosen.sum(axis=1)
    allowed = math.ceil(alpha * 2 ** (n - 1)) - 1  # subsets that may reach it, the empty one (always) among them
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
    noise = float((rest**2).sum()) / ((arms - 1) * (seeds - 1))  # variance of one run, what a seed does to all arms taken off
    between = float(means.var(ddof=1))
    if noise == 0:
        return ArmSpread(math.sqrt(between), 0.0, 0.0 if between > 0 else 1.0)
    p = float(f_sf(seeds * between / noise, arms - 1, (arms - 1) * (seeds - 1)))
    return ArmSpread(math.sqrt(between), math.sqrt(noise / seeds), p)
