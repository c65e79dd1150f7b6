"""The temperature frontier: pass@1 and pass@k of the base policy at different sampling temperatures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.stats.arrays import Floats
from sage_rlvr.verdicts.stats.intervals import (
    RESAMPLES,
    SEED,
    Interval,
    bootstrap_means,
    bootstrap_sees,
    difference_reach,
    third_moment,
)
from sage_rlvr.verdicts.stats.laws import t_ppf
from sage_rlvr.verdicts.stats.paired import FEWEST_SEEDS, PairedDifference, Reason, side, unknown
from sage_rlvr.verdicts.stats.passk import check_probabilities, exact_pass_at_k, pass_at_k
from sage_rlvr.verdicts.stats.power import fewest_units

PassColumns = dict[float, tuple[Floats, Floats]]  # temperature, coldest first -> pass@1 and pass@k of each problem
RightCounts = tuple[int, ArrayLike]  # samples of each problem, right ones among them (N,)

WIDEST = 4.0  # how many times the ends of a percentile interval are moved out at most


@dataclass(frozen=True, kw_only=True)
class FrontierPoint:
    """Mean pass@1 and pass@k of one policy at one sampling temperature."""

    temperature: float
    pass1: float
    passk: float


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Arm minus base in pass@k at equal pass@1. `value` is None if the two have no common range of pass@1."""

    value: float | None
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True, kw_only=True)
class AtFrontier:
    """A difference in pass@k at equal pass@1 with its interval, from frontiers that are recomputed in every resample.

    `difference` is None if there is a `reason`. `mde`: the true difference that leaves the interval clear of zero with 80 %
    power, in the harder direction.
    """

    difference: Interval | None
    reason: Reason = Reason.NONE
    mde: float = math.inf

    @property
    def comparison(self) -> PairedDifference:
        """Return a row of the list of comparisons; no test is made, only the interval decides."""
        if (difference := self.difference) is None:
            value = getattr(self, "value", None)
            return unknown(self.reason, value=math.nan if value is None else value)
        return PairedDifference(difference=difference, outcome=side(difference.low, difference.high), mde=self.mde)


@dataclass(frozen=True, kw_only=True)
class AtEqualPass1(AtFrontier):
    """One trained policy against the base at the temperature at which it has the same pass@1.

    `base_passk`, `temperature` and `difference` (arm minus base, interval over problems) are None when the arm is outside the
    base's frontier; `reason` then names the side.
    """

    base_passk: float | None
    temperature: float | None


@dataclass(frozen=True, kw_only=True)
class FrontierGap(AtFrontier):
    """Two policies, each at all its temperatures: mean gap in pass@k (a minus b) at equal pass@1.

    low, high: the range of pass@1 that both cover.
    """

    value: float | None
    low: float
    high: float

    @property
    def covers(self) -> tuple[float, float] | None:
        """The range of pass@1 of the mean; None without a mean."""
        return None if self.value is None else (self.low, self.high)


@dataclass(frozen=True, kw_only=True)
class GapCurve:
    """Intervals of the pass@1 axis in which two methods' frontiers differ, and the difference (`gap_curve`).

    pass1, difference, low, high: (M,). low and high are NaN below three training seeds. home: b's mean pass@1 at temperature 1,
    None if a seed was not evaluated at it.
    """

    pass1: Floats
    difference: Floats
    low: Floats
    high: Floats
    level: float
    seeds: int
    home: float | None = None


def frontier(ps: Mapping[float, ArrayLike], k: int = 256) -> tuple[FrontierPoint, ...]:
    """Points of one policy, hottest last: ps maps temperature -> exact probabilities (N,) on the same problems."""
    return _points(_table(ps, k))


def best_pass1(points: Sequence[FrontierPoint]) -> FrontierPoint:
    """The point of highest pass@1; among equals the one with the higher pass@k."""
    if not points:
        raise DataError("an empty frontier has no best point; evaluate the base at at least one temperature.")
    return max(points, key=lambda point: (point.pass1, point.passk))


def at_temperature(points: Sequence[FrontierPoint], temperature: float = 1.0) -> FrontierPoint | None:
    """Return the point at this temperature; None without one."""
    return next((point for point in points if point.temperature == temperature), None)


def passk_at(pass1: float, points: Sequence[FrontierPoint]) -> tuple[float, float] | None:
    """(pass@k, temperature) of the frontier at the given pass@1 by linear interpolation between neighbors in T.

    If several parts of the frontier have this pass@1, the best pass@k counts. None outside the frontier.
    """
    ordered = sorted(points, key=lambda point: point.temperature)
    candidates = [(p.passk, p.temperature) for p in ordered if p.pass1 == pass1]
    for left, right in pairwise(ordered):
        low, high = sorted((left.pass1, right.pass1))
        if low < high and low <= pass1 <= high:
            w = (pass1 - left.pass1) / (right.pass1 - left.pass1)
            temperature = left.temperature + w * (right.temperature - left.temperature)
            candidates.append((left.passk + w * (right.passk - left.passk), temperature))
    return max(candidates) if candidates else None


def gap_to_frontier(arm: Sequence[FrontierPoint], base: Sequence[FrontierPoint], *, steps: int = 201) -> Gap:
    """Mean gap in pass@k (arm minus base) at equal pass@1 over the range of pass@1 that both frontiers cover."""
    if not arm or not base:
        return Gap(value=None)
    low = max(min(p.pass1 for p in arm), min(p.pass1 for p in base))
    high = min(max(p.pass1 for p in arm), max(p.pass1 for p in base))
    if low > high:
        return Gap(value=None, low=low, high=high)
    corners = [p.pass1 for p in (*arm, *base) if low <= p.pass1 <= high]
    grid = np.unique([*np.linspace(low, high, steps), *corners])
    ones, gaps = [], []
    for pass1 in grid.tolist():
        of_arm, of_base = passk_at(pass1, arm), passk_at(pass1, base)
        if of_arm is not None and of_base is not None:
            ones.append(pass1)
            gaps.append(of_arm[0] - of_base[0])
    if not gaps:
        return Gap(value=None)
    if len(gaps) == 1:
        return Gap(value=float(gaps[0]), low=low, high=high)
    mean = np.trapezoid(gaps, ones) / (ones[-1] - ones[0])
    return Gap(value=float(mean), low=low, high=high)


def gap_near(a: Sequence[FrontierPoint], b: Sequence[FrontierPoint], temperature: float = 1.0) -> float | None:
    """pass@k of a minus b at equal pass@1 near one temperature: the mean of two readings, at the pass@1 that b has at
    `temperature` and at the one that a has there, the other interpolated between its temperatures.

    A single reading favors the policy that is not interpolated: frontiers are concave, so noise along pass@1 lowers the
    interpolated values. The mean of both is antisymmetric in a and b. None if either was not evaluated at `temperature`, or cannot
    reach the other's pass@1.
    """
    own, other = at_temperature(a, temperature), at_temperature(b, temperature)
    if own is None or other is None:
        return None
    a_there, b_there = passk_at(other.pass1, a), passk_at(own.pass1, b)
    if a_there is None or b_there is None:
        return None
    return float((a_there[0] - other.passk + own.passk - b_there[0]) / 2)


def gap_curve(
    a: Sequence[Sequence[FrontierPoint]], b: Sequence[Sequence[FrontierPoint]], *, level: float = 0.95, steps: int = 101
) -> GapCurve | None:
    """pass@k of a minus b at equal pass@1, point by point: one frontier per training seed in each, paired in order.

    Over the range of pass@1 that every seed of both covers; None without one. Student's interval over seeds at each point
    separately, with fixed problems. A frontier seen at a single temperature covers one point and gives None.
    """
    if not a or len(a) != len(b):
        raise DataError(f"{len(a)} and {len(b)} frontiers: gap_curve needs one frontier per training seed in each.")
    left = [_columns(points) for points in a]
    right = [_columns(points) for points in b]
    ones = [one for one, _ in (*left, *right)]
    low, high = max(one.min() for one in ones), min(one.max() for one in ones)
    if not low < high:
        return None
    grid = np.linspace(low, high, steps)
    by_seed = []
    for own, other in zip(left, right, strict=True):
        by_seed.append(_best_at(grid, *own) - _best_at(grid, *other))
    gaps = np.stack(by_seed)
    mean, reach = gaps.mean(axis=0), np.full(steps, math.nan)
    if len(gaps) >= FEWEST_SEEDS:
        spread = gaps.std(axis=0, ddof=1) / math.sqrt(len(gaps))
        reach = float(t_ppf((1 + level) / 2, len(gaps) - 1)) * spread
    at_reference = [at_temperature(points) for points in b]
    known = [point.pass1 for point in at_reference if point is not None]
    home = float(np.mean(known)) if len(known) == len(b) else None
    return GapCurve(
        pass1=grid, difference=mean, low=mean - reach, high=mean + reach, level=level, seeds=len(gaps), home=home
    )


def at_equal_pass1(
    arm: ArrayLike,
    base: Mapping[float, ArrayLike],
    *,
    k: int = 256,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> AtEqualPass1:
    """One trained policy arm (N,) at its temperature against the base's frontier: temperature -> (N,).

    The interval is a percentile bootstrap over problems; it is withheld when more than 1 - level of the resamples put
    the arm off the base's frontier (then the comparison depends on which problems were drawn).
    """
    one, many = check_probabilities(arm, "arm"), np.asarray(exact_pass_at_k(arm, k))
    points, pass1 = frontier(base, k), float(one.mean())
    on_base = passk_at(pass1, points)
    if on_base is None:
        outside = Reason.BEYOND if pass1 > best_pass1(points).pass1 else Reason.BELOW
        return AtEqualPass1(base_passk=None, temperature=None, difference=None, reason=outside)
    table = _table(base, k)
    columns = [one, many]
    for pair in table.values():
        columns += pair
    if len({len(column) for column in columns}) > 1:
        raise DataError("arm and base were evaluated on different numbers of problems; evaluate both on the same ones.")
    boot = bootstrap_means(np.stack(columns, axis=1), resamples=resamples, seed=seed)
    gaps = [_gap_of_row(row, list(table)) for row in boot]
    base_passk, temperature = on_base
    value, interval, mde = float(many.mean()) - base_passk, None, math.inf
    reason, (low, rare, often, high) = _resampled(gaps, len(one), level, Reason.FRONTIER_END)
    if not reason:
        interval = Interval(value=value, low=low, high=high, level=level, over="problems", n=len(one))
        mde = max(2 * value - low - rare, high + often - 2 * value, abs(value))
    return AtEqualPass1(base_passk=base_passk, temperature=temperature, difference=interval, reason=reason, mde=mde)


def compare_frontiers(
    a: Mapping[float, ArrayLike],
    b: Mapping[float, ArrayLike],
    *,
    k: int = 256,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = SEED,
) -> FrontierGap:
    """`gap_to_frontier` of two policies with its interval: a, b map temperature -> exact probabilities (N,), same problems.

    Percentile bootstrap over problems, paired: every resample draws the same problems for both, makes both frontiers again
    and takes the range that these two cover. If it sees too few problems that differ (`bootstrap_sees`), its ends are moved
    out as far as `share_difference` reaches beyond Student, in pass@k at both hottest temperatures: plain percentiles cover 87 %.
    Withheld when more than 1 - level of the resamples have no common range.
    """
    return _compare_tables(_table(a, k), _table(b, k), "problems", level, resamples, seed)


def compare_count_frontiers(
    a: Mapping[float, RightCounts],
    b: Mapping[float, RightCounts],
    *,
    k: int = 256,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = SEED,
) -> FrontierGap:
    """`compare_frontiers` from samples: a, b map temperature -> (n, right ones (N,)), same problems in the same order.

    A problem enters each frontier with its unbiased pass@1 and pass@k, so that resampling problems includes the noise of the
    samples; `over` of the interval names both.
    """
    return _compare_tables(_count_table(a, k), _count_table(b, k), "problems and their samples", level, resamples, seed)


def count_frontier(counts: Mapping[float, RightCounts], k: int = 256) -> tuple[FrontierPoint, ...]:
    """`frontier` from samples: temperature -> (n, right ones (N,)), hottest last, the unbiased means."""
    return _points(_count_table(counts, k))


def _compare_tables(a: PassColumns, b: PassColumns, over: str, level: float, resamples: int, seed: int) -> FrontierGap:
    plain = gap_to_frontier(_points(a), _points(b))
    if plain.value is None:
        return FrontierGap(
            difference=None, value=None, low=plain.low, high=plain.high, reason=Reason.NO_COMMON_RANGE
        )
    columns: list[Floats] = []
    for pair in (*a.values(), *b.values()):
        columns += pair
    if len({len(column) for column in columns}) > 1:
        raise DataError("the two were evaluated on different numbers of problems; evaluate both on the same ones.")
    n, split = len(columns[0]), 2 * len(a)
    boot = bootstrap_means(np.stack(columns, axis=1), resamples=resamples, seed=seed)
    gaps = [_mean_gap(row[:split:2], row[1:split:2], row[split::2], row[split + 1 :: 2]) for row in boot]
    value, interval, mde = plain.value, None, math.inf
    reason, (low, rare, often, high) = _resampled(gaps, n, level, Reason.RESAMPLES)
    if not reason:
        hottest_a, hottest_b = list(a.values())[-1], list(b.values())[-1]
        below, above = _unseen(hottest_a[1], hottest_b[1], level)
        low = min(value - below * (value - low), value)
        high = max(value + above * (high - value), value)
        interval = Interval(value=value, low=low, high=high, level=level, over=over, n=n)
        mde = max(2 * value - low - rare, high + often - 2 * value, abs(value))
    return FrontierGap(difference=interval, value=value, low=plain.low, high=plain.high, reason=reason, mde=mde)


def _resampled(gaps: list[float | None], n: int, level: float, short: Reason) -> tuple[Reason, list[float]]:
    """(why there is no interval, or NONE; lower end, 20 %, 80 % and upper end of the gaps that resamples of n problems show).

    `short` if more than 1 - level of the resamples show none.
    """
    if n < fewest_units(1 - level):
        return Reason.FEW_PROBLEMS, [math.nan] * 4
    known = [gap for gap in gaps if gap is not None]
    if len(known) < level * len(gaps):
        return short, [math.nan] * 4
    return Reason.NONE, np.quantile(known, [(1 - level) / 2, 0.2, 0.8, (1 + level) / 2]).tolist()


def _mean_gap(one_a: Floats, many_a: Floats, one_b: Floats, many_b: Floats, steps: int = 101) -> float | None:
    """`gap_to_frontier` from columns in order of temperature; the corners between the steps are left out."""
    low, high = max(one_a.min(), one_b.min()), min(one_a.max(), one_b.max())
    if low > high:
        return None
    grid = np.linspace(low, high, steps)
    gaps = _best_at(grid, one_a, many_a) - _best_at(grid, one_b, many_b)
    return float(np.mean((gaps[1:] + gaps[:-1]) / 2))


def _best_at(grid: Floats, one: Floats, many: Floats) -> Floats:
    """pass@k of a frontier at each pass@1 of grid, all within its range: the best over its stretches, as `passk_at`."""
    if len(one) == 1:
        return np.full(len(grid), many[0])
    low, high = np.minimum(one[:-1], one[1:]), np.maximum(one[:-1], one[1:])
    width = np.where(high > low, one[1:] - one[:-1], 1.0)
    at = many[:-1] + (grid[:, None] - one[:-1]) / width * (many[1:] - many[:-1])
    inside = (low - 1e-12 <= grid[:, None]) & (grid[:, None] <= high + 1e-12) & (high > low)
    corners = np.where(np.abs(grid[:, None] - one) <= 1e-12, many, -np.inf)
    return np.asarray(np.maximum(np.where(inside, at, -np.inf).max(axis=1), corners.max(axis=1)))


def _columns(points: Sequence[FrontierPoint]) -> tuple[Floats, Floats]:
    ordered = sorted(points, key=lambda point: point.temperature)
    return np.array([p.pass1 for p in ordered]), np.array([p.passk for p in ordered])


def _gap_of_row(row: Floats, temperatures: list[float]) -> float | None:
    points = []
    for i, temperature in enumerate(temperatures):
        points.append(FrontierPoint(temperature=temperature, pass1=row[2 + 2 * i], passk=row[3 + 2 * i]))
    on_base = passk_at(float(row[0]), points)
    return None if on_base is None else float(row[1]) - on_base[0]


def _unseen(left: Floats, right: Floats, level: float) -> tuple[float, float]:
    """How many times further the interval of a difference of shares reaches (below, above) it than Student's, from 1 to
    `WIDEST`: 1 if a bootstrap sees enough problems that differ, otherwise the factor for what its resamples lack."""
    gaps, n = left - right, len(left)
    student = float(t_ppf((1 + level) / 2, n - 1)) * float(gaps.std(ddof=1)) / math.sqrt(n)
    if bootstrap_sees(gaps) or np.array_equal(left, right):
        return 1.0, 1.0
    spread = np.cov(left, right)
    means, variances = (left.mean(), right.mean()), (spread[0, 0], spread[1, 1])
    reach = difference_reach(means, variances, spread[0, 1], third_moment(gaps), n, level=level)
    below, above = (min(float(x) / student, WIDEST) if student > 0 else WIDEST for x in reach)
    return below, above


def _points(table: PassColumns) -> tuple[FrontierPoint, ...]:
    points = []
    for temperature, (one, many) in table.items():
        points.append(FrontierPoint(temperature=temperature, pass1=float(one.mean()), passk=float(many.mean())))
    return tuple(points)


def _count_table(counts: Mapping[float, RightCounts], k: int) -> PassColumns:
    table: PassColumns = {}
    for temperature in sorted(counts):
        n, right = counts[temperature]
        one, many = (np.atleast_1d(pass_at_k(n, right, tries)) for tries in (1, k))
        table[float(temperature)] = (one, many)
    return table


def _table(ps: Mapping[float, ArrayLike], k: int) -> PassColumns:
    out: PassColumns = {}
    for temperature in sorted(ps):
        one = check_probabilities(ps[temperature], f"p at T = {temperature:g}")
        out[float(temperature)] = (one, np.asarray(exact_pass_at_k(one, k)))
    return out
