"""Intervals: every number with the uncertainty it holds, and only that one, named in `over`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from sage_rlvr.errors import DataError

Floats = NDArray[np.float64]

RESAMPLES = 4000
SEED = 3407
_CHUNK = 2_000_000  # indices drawn at a time, so that 10,000 problems need no gigabyte


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An estimate and its confidence interval.

    `over` says which uncertainty the interval holds ("problems", "training seeds", "samples"), `n` how many of them
    were seen, `level` the nominal coverage. With a single unit low and high are infinite: nothing can be said.
    """

    value: float
    low: float
    high: float
    level: float
    over: str
    n: int

    @property
    def width(self) -> float:
        """high - low, infinite when nothing can be said."""
        return self.high - self.low

    def contains(self, x: float) -> bool:
        """Whether x lies in the closed interval."""
        return self.low <= x <= self.high

    def __str__(self) -> str:
        if not math.isfinite(self.width):
            return f"{self.value:.3f} (no interval: one of the {self.over} says nothing about the next)"
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
    """Mean of values (N,) with a seeded interval over its units (one value a problem).

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
    """BCa interval of the mean of every column of values (N, K), rows being the units that are drawn again."""
    matrix = np.asarray(values, dtype=float)
    _values(matrix.reshape(-1))
    means, n = matrix.mean(axis=0), len(matrix)
    if n == 1:
        return [_unbounded(float(m), level, over) for m in means]
    boot = bootstrap_means(matrix, resamples=resamples, seed=seed)
    out = []
    for j, mean in enumerate(means):
        low, high = _bca(matrix[:, j], boot[:, j], level)
        out.append(Interval(value=float(mean), low=low, high=high, level=level, over=over, n=n))
    return out


def seed_interval(values: ArrayLike, *, level: float = 0.95, over: str = "training seeds") -> Interval:
    """Mean over training seeds (S,) with Student's t on S - 1 degrees of freedom; S = 1 gives an infinite interval.

    No bootstrap: percentile intervals over 3, 5 and 10 runs cover 74, 83 and 90 % instead of 95 %.
    """
    return _student(_values(values), level, over)


def wilson(successes: int, n: int, *, level: float = 0.95, over: str = "problems") -> Interval:
    """Wilson (1927) score interval of a proportion of 0/1 outcomes; never leaves [0, 1], never of zero width."""
    if not 0 <= successes <= n or n < 1:
        raise DataError(f"successes = {successes}, n = {n}: a proportion needs 0 <= successes <= n and n >= 1.")
    z, share = float(stats.norm.ppf((1 + level) / 2)), successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return Interval(value=share, low=low, high=high, level=level, over=over, n=n)


def bootstrap_means(values: ArrayLike, *, resamples: int = RESAMPLES, seed: int = SEED) -> Floats:
    """Means of rows drawn with replacement: values (N, K) -> (resamples, K). The same draw serves every column."""
    matrix = np.asarray(values, dtype=float)
    n, rng = len(matrix), np.random.default_rng(seed)
    out = np.empty((resamples, matrix.shape[1]))
    step = max(1, _CHUNK // n)
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        drawn = rng.integers(n, size=(rows, n)) + n * np.arange(rows)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n)
        out[start : start + rows] = counts @ matrix / n
    return out


def _bca(values: Floats, boot: Floats, level: float) -> tuple[float, float]:
    mean, n = float(values.mean()), len(values)
    if np.ptp(values) <= 1e-12 * max(1.0, abs(mean)):
        return mean, mean
    share = (np.sum(boot < mean) + 0.5 * np.sum(boot == mean)) / len(boot)
    bias = stats.norm.ppf(np.clip(share, 0.5 / len(boot), 1 - 0.5 / len(boot)))
    away = values - mean  # jackknife of a mean: (x_i - mean) / (n - 1), so the factor n - 1 drops out
    spread = float(np.sum(away**2)) ** 1.5
    bend = float(np.sum(away**3)) / (6 * spread) if spread > 0 else 0.0
    z = math.sqrt(n / (n - 1)) * stats.t.ppf((1 + level) / 2, n - 1)  # Hesterberg's widening, 1.96 for large n
    levels = []
    for shifted in (bias - z, bias + z):
        bent = 1 - bend * shifted
        levels.append(stats.norm.cdf(bias + shifted / bent) if bent > 0 else float(shifted > 0))
    low, high = np.quantile(boot, np.clip(levels, 0.0, 1.0))
    return float(low), float(high)


def _student(values: Floats, level: float, over: str) -> Interval:
    n, mean = len(values), float(values.mean())
    if n == 1:
        return _unbounded(mean, level, over)
    half = float(stats.t.ppf((1 + level) / 2, n - 1) * values.std(ddof=1) / math.sqrt(n))
    return Interval(value=mean, low=mean - half, high=mean + half, level=level, over=over, n=n)


def _unbounded(mean: float, level: float, over: str) -> Interval:
    return Interval(value=mean, low=-math.inf, high=math.inf, level=level, over=over, n=1)


def _values(values: ArrayLike) -> Floats:
    array = np.asarray(values, dtype=float)
    if array.ndim != 1 or array.size == 0:
        raise DataError(f"values of shape {array.shape}: pass one number a unit, shape (N,) with N >= 1.")
    if not np.all(np.isfinite(array)):
        raise DataError(f"values[{int(np.argmin(np.isfinite(array)))}] is not finite; drop or mend that unit first.")
    return array
