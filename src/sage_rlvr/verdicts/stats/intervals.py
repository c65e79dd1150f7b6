"""Intervals: every number with the uncertainty that its interval contains, named in `over`.

Which one is used when, and how often each covers: lab/pages/concepts/statistics.md (`python -m lab.stress.interval_coverage`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.stats.arrays import Floats
from sage_rlvr.verdicts.stats.laws import beta_ppf, gamma_ppf, norm_cdf, norm_ppf, t_ppf
from sage_rlvr.verdicts.stats.passk import pass_at_k

RESAMPLES = 4000
SEED = 3407
SMALL = 300  # problems below which a bootstrap covers too rarely and shares get Beta-Binomial or Wilson intervals
CARRIED = 50.0  # from this many: problems that must carry a number before a bootstrap is trusted with it (`carried_by`)
PSEUDO = 8.0  # all-or-nothing problems that the Beta-Binomial interval adds; chosen by simulation
_NORMAL = 1e6  # a Poisson count from which its limits are those of a normal law
_CHUNK = 2_000_000  # indices drawn at a time, so that 10,000 problems need no gigabyte
_KEPT = 100_000_000  # bytes of a draw that is kept: 4,000 resamples of 25,000 problems


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An estimate and its confidence interval.

    over: the uncertainty that the interval contains ("problems", "training seeds", "samples")
    n: number of these units
    level: the nominal coverage
    low, high: infinite for a single unit
    """

    value: float
    low: float
    high: float
    level: float
    over: str
    n: int

    @property
    def width(self) -> float:
        """high - low, infinite for a single unit."""
        return self.high - self.low

    def within(self, least: float, most: float) -> Interval:
        """Return the interval clipped to the possible values; an infinite one is returned unchanged."""
        if not math.isfinite(self.width):
            return self
        return replace(self, low=max(self.low, least), high=min(self.high, most))

    def contains(self, x: float) -> bool:
        """Whether x is in the closed interval."""
        return self.low <= x <= self.high

    def bracketed(self, form: str = ".3f") -> str:
        """"0.150 [0.100, 0.200]"; only the value if the interval is infinite. form: format of each number."""
        ends = f" [{self.low:{form}}, {self.high:{form}}]" if math.isfinite(self.width) else ""
        return f"{self.value:{form}}{ends}"

    def __str__(self) -> str:
        if not math.isfinite(self.width):
            why = "n = 1 of {} has no variance" if self.n == 1 else "identical in all {1} {0}: no variance"
            return f"{self.value:.3f} (no interval: {why.format(self.over, self.n)})"
        band = f"{100 * self.level:g} % interval {self.low:.3f} to {self.high:.3f}"
        return f"{self.value:.3f} ({band} over {self.n} {self.over})"


def mean_interval(
    values: ArrayLike,
    *,
    level: float = 0.95,
    method: Literal["bca", "t"] = "bca",
    over: str = "problems",
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Interval:
    """Mean of values (N,) with a seeded interval over its units (one value per problem).

    `bca`: bias-corrected accelerated bootstrap (Efron 1987) with Hesterberg's (2015) small-sample widening;
    `t`: Student. Equal values give zero width, one value gives an infinite interval.
    """
    column = _values(values)
    if method == "t":
        return _student(column, level, over)
    if method != "bca":
        raise DataError(f"method = {method!r}: use 'bca' or 't'.")
    return column_intervals(column[:, None], level=level, over=over, resamples=resamples, seed=seed)[0]


def column_intervals(
    values: ArrayLike, *, level: float = 0.95, over: str = "problems", resamples: int = RESAMPLES, seed: int = SEED
) -> list[Interval]:
    """BCa interval of the mean of every column of values (N, K), rows being the units that are resampled."""
    matrix = np.asarray(values, dtype=float)
    _values(matrix.reshape(-1))
    means, n = matrix.mean(axis=0), len(matrix)
    if n == 1:
        return [_unbounded(float(m), level, over) for m in means]
    boot = bootstrap_means(matrix, resamples=resamples, seed=seed)
    out = []
    for j, mean in enumerate(means):
        low, high = bca(matrix[:, j], boot[:, j], level)
        out.append(Interval(value=float(mean), low=low, high=high, level=level, over=over, n=n))
    return out


def seed_interval(
    values: ArrayLike, *, level: float = 0.95, over: str = "training seeds", least: float = 0.0
) -> Interval:
    """Mean over training seeds (S,) with Student's t on S - 1 degrees of freedom; S = 1 gives an infinite interval.

    No bootstrap: percentile intervals over 3, 5 and 10 runs cover 74, 83 and 90 % instead of 95 %. No half-width is below
    `least` (`least_seen`).
    """
    interval = _student(_values(values), level, over)
    if interval.width >= 2 * least:
        return interval
    return replace(interval, low=interval.value - least, high=interval.value + least)


def seeds_reach(scatter: ArrayLike, other: ArrayLike, seeds: int, q: float) -> Any:
    """Half-width of the interval of a mean over training seeds whose values also have another error in common.

    scatter: standard error of the mean from the scatter between seeds, S - 1 degrees of freedom. other: half-width of the other
        error separately, at the same level: from the choice of problems (`OverProblems.reach`), or from a control's samples.
    q: 0.975 for 95 %; a small q, which is exact in the far tail, gives the same as 1 - q.

    The two half-widths add up in quadrature (Howe 1974; Zou and Donner 2008, "MOVER"). With three seeds one t quantile for both
    errors together is 1.4 times as wide if they are equal, 2.2 times if only the other one exists; Welch's degrees of
    freedom cover 92 to 95 % (tests/verdicts/stats/test_seeds_reach.py simulates all three).
    """
    error = np.asarray(scatter)
    of_seeds = np.multiply(t_ppf(q, seeds - 1), error, out=np.zeros(error.shape), where=error != 0)  # the quantile may be infinite
    return np.hypot(of_seeds, np.asarray(other))


@dataclass(frozen=True, eq=False)
class OverProblems:
    """Moments over N problems of the scores of two arms, each (K,) or (): the input of an interval over problems.

    means, variances: of both arms
    covariance: of both arms
    spread, third: variance and third central moment of a - b
    seen: whether a bootstrap over problems would be trusted (`bootstrap_sees`), and so Student's t is used
    shares: whether the scores are shares
    """

    n: int
    means: tuple[Floats, Floats]
    variances: tuple[Floats, Floats]
    covariance: Floats
    spread: Floats
    third: Floats
    seen: NDArray[np.bool_]
    shares: bool

    @classmethod
    def of(cls, a: ArrayLike, b: ArrayLike, *, shares: bool) -> OverProblems:
        """Compute the moments of scores a, b (N,) or (N, K), N >= 2."""
        left, right = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
        gaps = left - right
        variances = left.var(axis=0, ddof=1), right.var(axis=0, ddof=1)
        spread = gaps.var(axis=0, ddof=1)
        columns = gaps.reshape(len(gaps), -1).T
        return cls(
            n=len(gaps), means=(left.mean(axis=0), right.mean(axis=0)), variances=variances,
            covariance=(variances[0] + variances[1] - spread) / 2, spread=spread, third=third_moment(gaps),
            seen=np.array([bootstrap_sees(column) for column in columns]).reshape(spread.shape), shares=shares,
        )  # fmt: skip

    def reach(self, level: float) -> tuple[Floats, Floats]:
        """The half-widths (below, above) of the interval of mean(a) - mean(b) over problems: those of `difference_reach` for
        shares, Student's t for other scores and if many problems carry the difference."""
        student = float(t_ppf((1 + level) / 2, self.n - 1)) * np.sqrt(self.spread / self.n)
        if not self.shares:
            return student, student
        below, above = difference_reach(self.means, self.variances, self.covariance, self.third, self.n, level=level)
        return np.where(self.seen, student, below), np.where(self.seen, student, above)


def least_seen(units: int, *, level: float = 0.95) -> float:
    """-ln((1 - level) / 2) / units, the upper limit of the rate of an event that none of `units` showed.

    Units are problems times training seeds: if a policy solves nearly all problems its seeds agree to the last digit, and
    Student's interval of three of them is too short (`coverage_seed_counts`).
    """
    return -math.log((1 - level) / 2) / units


def wilson(successes: int, n: int, *, level: float = 0.95, over: str = "problems") -> Interval:
    """Wilson (1927) score interval of a proportion of 0/1 outcomes; never leaves [0, 1], never of zero width."""
    if not 0 <= successes <= n or n < 1:
        raise DataError(f"successes = {successes}, n = {n}: a proportion needs 0 <= successes <= n and n >= 1.")
    z, share = float(norm_ppf((1 + level) / 2)), successes / n
    center = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low = 0.0 if successes == 0 else max(0.0, center - half)
    high = 1.0 if successes == n else min(1.0, center + half)
    return Interval(value=share, low=low, high=high, level=level, over=over, n=n)


def share_interval(values: ArrayLike, *, level: float = 0.95, over: str = "problems") -> Interval:
    """Mean of shares (N,) in [0, 1], one per problem (pass@k, a win): the interval that lab/pages/concepts/statistics.md measures.

    Wilson if every share is 0 or 1. Otherwise BCa if `bootstrap_sees` both the shares and 1 - shares, and the Beta-Binomial limits
    of `share_limits` if it does not, as below 300 problems. One problem gives an infinite interval.
    """
    column = _shares(values)
    n, mean = len(column), float(column.mean())
    if np.all((column == 0) | (column == 1)) and n > 1:
        return wilson(int(column.sum()), n, level=level, over=over)
    if n == 1 or _by_bootstrap(column):
        return mean_interval(column, level=level, over=over)
    low, high = share_limits(mean, column.var(ddof=1), n, level=level)
    return Interval(value=mean, low=float(low), high=float(high), level=level, over=over, n=n)


def share_intervals(values: ArrayLike, *, level: float = 0.95, over: str = "problems") -> list[Interval]:
    """`share_interval` of every column of values (N, K), with one bootstrap for all of them."""
    matrix = np.asarray(values, dtype=float)
    drawn = [j for j, column in enumerate(matrix.T) if _by_bootstrap(_shares(column))]
    bootstrapped = dict(zip(drawn, column_intervals(matrix[:, drawn], level=level, over=over), strict=True)) if drawn else {}
    return [bootstrapped[j] if j in bootstrapped else share_interval(x, level=level, over=over) for j, x in enumerate(matrix.T)]


def carried_by(values: ArrayLike) -> float:
    """Number of problems that carry a sum of values (N,): (sum x^2)^2 / sum x^4, m if m are equal, the others 0; 0 for zeros."""
    squares = np.asarray(values, dtype=float) ** 2
    top = float(squares.max(initial=0.0))
    return float(np.sum(squares / top) ** 2 / np.sum((squares / top) ** 2)) if top > 1e-30 else 0.0


def bootstrap_sees(values: ArrayLike) -> bool:
    """Whether a bootstrap over problems is trusted with the mean of values (N,): 300 problems at least, and 50 that carry it.

    For differences these are the discordant ones: if few problems disagree, the resamples lack the problems that were not drawn,
    however many agree. If all values are equal, no resample scatters.
    """
    array = np.asarray(values, dtype=float)
    return len(array) >= SMALL and carried_by(array) >= CARRIED and not all_one(array)


def all_one(values: ArrayLike) -> bool:
    """Whether values (N,) are all the same but for rounding (1e-12 of their size or of 1)."""
    array = np.asarray(values, dtype=float)
    return bool(np.ptp(array) <= 1e-12 * max(1.0, abs(float(array.mean()))))


def passk_interval(n: ArrayLike, c: ArrayLike, k: int, *, level: float = 0.95) -> Interval:
    """pass@k of a data set from counts: n samples and c right ones of each problem, c (N,), n (N,) or one number.

    The interval contains both uncertainties, which problems were drawn and which samples: the unbiased estimates of the
    problems are independent draws whose mean is the true pass@k, and they scatter by both.
    """
    counts = np.atleast_1d(np.asarray(c))
    values = np.atleast_1d(pass_at_k(np.broadcast_to(np.asarray(n), counts.shape), counts, k))
    return share_interval(values, level=level, over="problems and their samples")


def share_limits(
    mean: ArrayLike, var: ArrayLike, n: int, *, level: float = 0.95, pseudo: float = PSEUDO
) -> tuple[Floats, Floats]:
    """Beta-Binomial limits of the mean of n shares in [0, 1] with the given mean and variance (ddof 1); arrays broadcast.

    low = BetaInv(a/2; x, m - x + 1), high = BetaInv(1 - a/2; x + 1, m - x), x = m * mean, the limits of Clopper and Pearson
    at an effective size m = (n / rho) (z / t_{n-1})^2 (Korn and Graubard 1998). rho = var / (mean (1 - mean)) is the
    intra-class correlation of a Beta-Binomial in the limit of many samples, and 1 if every share is 0 or 1. It is shrunk toward 1
    by `pseudo` problems: (n rho + pseudo) / (n + pseudo), without which skewed shares are covered 83 % of the time.
    """
    means, tail = np.asarray(mean, dtype=float), (1 - level) / 2
    bound = means * (1 - means)
    rho = np.divide(np.asarray(var, dtype=float), bound, out=np.ones_like(means + var), where=bound > 1e-12)
    rho = (n * np.clip(rho, 0.0, 1.0) + pseudo) / (n + pseudo)
    size = n / rho * (norm_ppf(tail) / t_ppf(tail, n - 1)) ** 2
    right = np.clip(size * means, 0.0, size)
    wrong = size - right
    low = np.where(right > 1e-9, beta_ppf(tail, np.maximum(right, 1e-9), wrong + 1), 0.0)
    high = np.where(wrong > 1e-9, beta_ppf(1 - tail, right + 1, np.maximum(wrong, 1e-9)), 1.0)
    return low, high


def difference_reach(
    means: tuple[ArrayLike, ArrayLike],
    variances: tuple[ArrayLike, ArrayLike],
    covariance: ArrayLike,
    third: ArrayLike,
    n: int,
    *,
    level: float = 0.95,
) -> tuple[Floats, Floats]:
    """The half-widths (below, above) of the interval of mean(a) - mean(b), a and b shares of the same n problems. third: third
    central moment of a - b.

    below^2 = x^2 - 2 r x y + y^2 with x = mean(a) - low(a), y = high(b) - mean(b) of `share_limits`, above^2 likewise from
    the other ends (Newcombe 1998, method 10; Zou and Donner 2008). r is the correlation of a and b over problems, times
    n / (n + 1/2), so that equal shares do not give certainty. Neither is below Student's t_{n-1} sqrt(var(a - b) / n): if one
    policy scores twice the other on the same few problems, the long arm of one share and the short arm of the other would cancel
    (coverage 0.91 on the world "out of reach" of `lab.stress.interval_coverage`). And neither is below `skewed_reach`: if only
    one policy solves a few problems, others of their kind were not drawn (0.90 to 0.93 on the worlds "alone on").
    """
    (a, b), (va, vb) = (np.asarray(m, dtype=float) for m in means), (np.asarray(v, dtype=float) for v in variances)
    spread = np.maximum(va + vb - 2 * np.asarray(covariance, dtype=float), 0.0)
    least = float(t_ppf((1 + level) / 2, n - 1)) * np.sqrt(spread / n)
    (low_a, high_a), (low_b, high_b) = share_limits(a, va, n, level=level), share_limits(b, vb, n, level=level)
    scale = np.sqrt(np.maximum(va * vb, 0.0))
    r = np.divide(np.asarray(covariance, dtype=float), scale, out=np.zeros_like(scale + a), where=scale > 1e-15)
    r = np.clip(r, -1.0, 1.0) * n / (n + 0.5)
    below, above = _square_and_add(a - low_a, high_b - b, r), _square_and_add(high_a - a, b - low_b, r)
    far_below, far_above = (skewed_reach(spread, side * np.asarray(third), n, level=level) for side in (-1, 1))
    return np.maximum(np.maximum(below, least), far_below), np.maximum(np.maximum(above, least), far_above)


def skewed_reach(var: ArrayLike, third: ArrayLike, n: int, *, level: float = 0.95) -> Floats:
    """The upper half-width of the interval of the mean of n gaps in [-1, 1], from their variance and third central moment. Arrays
    broadcast.

    A mean of few like gaps is a Poisson count of gaps of one size: g = third / var and c = n var / g^2 of them have this
    variance and skewness. Its exact upper limit (Garwood 1936) reaches g (GammaInv(1 - a/2; c + 1) - c) / n above it, which is
    Student's if many gaps differ and up to 3.7 g / n if none does. g is known from only c gaps, so one more gap of 1 is assumed: g
    <- (c g + 1) / (c + 1), and c again from this g. If gaps lean to the other side (third < 0) a Poisson count would reach less far
    than Student, so Student's limit is used.
    """
    v, cubed = np.broadcast_arrays(np.asarray(var, dtype=float), np.asarray(third, dtype=float))
    moves = v > 1e-18  # below this, all gaps are equal except for rounding
    size = np.divide(cubed, v, out=np.zeros(v.shape), where=moves)
    doubt = np.divide(cubed**2, n * v**3 + cubed**2, out=np.ones(v.shape), where=moves)  # 1 / (c + 1)
    gap = np.where(moves & (size <= 0), 0.0, (1 - doubt) * size + doubt)
    gap = np.maximum(gap, np.sqrt(n * v / _NORMAL))
    count = n * v / gap**2
    return np.asarray(gap * (gamma_ppf((1 + level) / 2, count + 1) - count) / n)


def third_moment(values: ArrayLike) -> Floats:
    """Third central moment of values (N, ...) along the first axis."""
    array = np.asarray(values, dtype=float)
    return np.asarray(np.mean((array - array.mean(axis=0)) ** 3, axis=0))


def share_difference(a: ArrayLike, b: ArrayLike, *, level: float = 0.95, over: str = "problems") -> Interval:
    """mean(a) - mean(b) of shares (N,) of the same problems, same order, N >= 2, with the interval of `difference_reach`."""
    left, right = _shares(a), _shares(b)
    n, value = len(left), float(left.mean() - right.mean())
    spread = np.cov(left, right)
    means, variances = (left.mean(), right.mean()), (spread[0, 0], spread[1, 1])
    below, above = difference_reach(means, variances, spread[0, 1], third_moment(left - right), n, level=level)
    return Interval(
        value=value,
        low=max(-1.0, value - float(below)),
        high=min(1.0, value + float(above)),
        level=level,
        over=over,
        n=n,
    )


def bootstrap_means(values: ArrayLike, *, resamples: int = RESAMPLES, seed: int = SEED) -> Floats:
    """Means of rows drawn with replacement: values (N, K) -> (resamples, K). Every column uses the same draw."""
    matrix = np.asarray(values, dtype=float)
    return np.concatenate([times @ matrix / len(matrix) for times in resampled_times(len(matrix), resamples, seed)])


def resampled_times(units: int, resamples: int, seed: int) -> Iterable[NDArray[np.uint8]]:
    """Count how often each of `units` units is in each of `resamples` samples with replacement, in chunks (r, units).

    A verdict needs the same draw for every k, so the last two are kept, unless one takes more than `_KEPT` bytes."""
    return _kept_times(units, resamples, seed) if units * resamples <= _KEPT else _drawn_times(units, resamples, seed)


@lru_cache(maxsize=2)
def _kept_times(units: int, resamples: int, seed: int) -> tuple[NDArray[np.uint8], ...]:
    return tuple(_drawn_times(units, resamples, seed))


def _drawn_times(units: int, resamples: int, seed: int) -> Iterator[NDArray[np.uint8]]:
    rng, step = np.random.default_rng(seed), max(1, _CHUNK // units)
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        drawn = rng.integers(units, size=(rows, units)) + units * np.arange(rows)[:, None]
        times = np.bincount(drawn.ravel(), minlength=rows * units).reshape(rows, units)
        yield times.astype(np.uint8)  # about Poisson(1): above 255 with probability 1e-508


def bca(values: Floats, boot: Floats, level: float) -> tuple[float, float]:
    """Ends of the BCa interval of a mean of values (N,), given its resampled means (R,). For another smooth statistic pass
    statistic + influence of each unit as values, and the resampled statistics."""
    mean, n = float(values.mean()), len(values)
    if all_one(values):
        return mean, mean
    share = (np.sum(boot < mean) + 0.5 * np.sum(boot == mean)) / len(boot)
    bias = norm_ppf(np.clip(share, 0.5 / len(boot), 1 - 0.5 / len(boot)))
    away = values - mean  # jackknife of a mean: (x_i - mean) / (n - 1), so the factor n - 1 drops out
    spread = float(np.sum(away**2)) ** 1.5
    bend = float(np.sum(away**3)) / (6 * spread) if spread > 0 else 0.0
    z = math.sqrt(n / (n - 1)) * t_ppf((1 + level) / 2, n - 1)  # Hesterberg's widening, 1.96 for large n
    levels = []
    for shifted in (bias - z, bias + z):
        bent = 1 - bend * shifted
        levels.append(norm_cdf(bias + shifted / bent) if bent > 0 else float(shifted > 0))
    low, high = np.quantile(boot, np.clip(levels, 0.0, 1.0))
    return float(low), float(high)


def _student(values: Floats, level: float, over: str) -> Interval:
    n, mean = len(values), float(values.mean())
    if n == 1:
        return _unbounded(mean, level, over)
    half = float(t_ppf((1 + level) / 2, n - 1) * values.std(ddof=1) / math.sqrt(n))
    return Interval(value=mean, low=mean - half, high=mean + half, level=level, over=over, n=n)


def _unbounded(mean: float, level: float, over: str) -> Interval:
    return Interval(value=mean, low=-math.inf, high=math.inf, level=level, over=over, n=1)


def _by_bootstrap(shares: Floats) -> bool:
    coins = bool(np.all((shares == 0) | (shares == 1)))
    return not coins and bootstrap_sees(shares) and bootstrap_sees(1 - shares)


def _square_and_add(x: Floats, y: Floats, r: Floats) -> Floats:
    return np.sqrt(np.maximum(x * x - 2 * r * x * y + y * y, 0.0))


def _shares(values: ArrayLike) -> Floats:
    array = _values(values)
    bad = (array < -1e-9) | (array > 1 + 1e-9)
    if np.any(bad):
        index = int(np.argmax(bad))
        raise DataError(
            f"values[{index}] = {array[index]}: a share lies in [0, 1]; use mean_interval for other scores."
        )
    return np.clip(array, 0.0, 1.0)


def _values(values: ArrayLike) -> Floats:
    array = np.asarray(values, dtype=float)
    if array.ndim != 1 or array.size == 0:
        raise DataError(f"values of shape {array.shape}: pass one number a unit, shape (N,) with N >= 1.")
    if not np.all(np.isfinite(array)):
        raise DataError(f"values[{int(np.argmin(np.isfinite(array)))}] is not finite; remove or fix that unit first.")
    return array
