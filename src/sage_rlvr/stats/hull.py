"""The convex hull of several arms at all their temperatures, and the difference between a candidate and the hull."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sage_rlvr.stats.comparison import Comparison, outcome_of, paired_seeds
from sage_rlvr.stats.frontier import FrontierPoint, at_temperature
from sage_rlvr.stats.laws import t_ppf, t_sf

PRICES = np.geomspace(1e-2, 1e4, 121)  # pass@k per pass@1: beyond the last, pass@1 alone decides
TINY = 1e-15  # a standard error where seeds do not scatter
Lines = Sequence[Sequence[FrontierPoint]]  # a frontier per training seed


@dataclass(frozen=True, kw_only=True)
class Share:
    """A rival (its index) at one temperature, and its weight in a mixture."""

    rival: int
    temperature: float
    weight: float


@dataclass(frozen=True, kw_only=True)
class Place:
    """A place on a hull. best: the one or two that answer there; height: their pass@k; price: pass@k given up per pass@1 gained."""

    best: tuple[Share, ...]
    height: float
    price: float


@dataclass(frozen=True, kw_only=True)
class AboveHull:
    """`above_hull`: where the hull was read, and of each training seed the arm's pass@1 and pass@k.

    ahead: (points, seeds, 2), how far the arm is ahead of every rival at every temperature, in pass@1 and in pass@k.
    """

    place: Place
    pass1: tuple[float, ...]
    arm: tuple[float, ...]
    ahead: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class _Point:
    """A rival (its index) at a temperature: the means of its scores, and those of each training seed."""

    rival: int
    temperature: float
    pass1: float
    passk: float
    seeds: NDArray[np.float64]  # (seeds, 2)

    def share(self, weight: float) -> Share:
        return Share(rival=self.rival, temperature=self.temperature, weight=weight)

    def price(self, other: _Point) -> float:
        """pass@k given up per pass@1 gained on the way to a point with more pass@1."""
        return (self.passk - other.passk) / (other.pass1 - self.pass1)


def _points(rivals: Sequence[Lines]) -> list[_Point]:
    """Every rival at every temperature that all its seeds were read at."""
    found = []
    for i, lines in enumerate(rivals):
        seen = [{point.temperature: (point.pass1, point.passk) for point in line} for line in lines]
        for t in sorted(set.intersection(*map(set, seen))) if seen else ():
            seeds = np.array([one[t] for one in seen])
            pass1, passk = seeds.mean(axis=0).tolist()
            found.append(_Point(rival=i, temperature=t, pass1=pass1, passk=passk, seeds=seeds))
    return found


def on_hull(pass1: float, rivals: Sequence[Lines]) -> Place | None:
    """What rivals reach in pass@k with at least this pass@1; None where none of them was read at one temperature in all its seeds.

    A point is a rival at a temperature, its scores means over all seeds. The hull is the highest line over the points, since a
    coin per problem may decide which of two answers it. Beyond the highest pass@1 of all it is their highest pass@k, at price 0.
    """
    points = _points(rivals)
    return _place(pass1, points) if points else None


def _place(pass1: float, points: Sequence[_Point]) -> Place:
    left, right = ([one for one in points if (one.pass1 >= pass1) is side] for side in (False, True))
    top = max(right or left, key=lambda one: (one.passk, one.pass1))
    found = Place(best=(top.share(1.0),), height=top.passk, price=0.0)
    # a mixture with a point that has more of both is never better than that point; let in, rounding could make it so
    for one, other in ((one, other) for one in left for other in right if other.passk < one.passk):
        weight, price = (pass1 - one.pass1) / (other.pass1 - one.pass1), one.price(other)
        if (height := one.passk - price * (pass1 - one.pass1)) > found.height:
            best = tuple(end.share(w) for end, w in ((one, 1 - weight), (other, weight)) if w)
            found = Place(best=best, height=height, price=price)
    return found


def above_hull(arm: Lines, rivals: Sequence[Lines], temperature: float = 1.0) -> AboveHull | None:
    """Where an arm at `temperature` stands to the hull of rivals, seed by seed.

    arm: a frontier per training seed; rivals: the same of each, paired in order. Place and price are those of the means over the
    seeds: the best of each seed would take the rivals' noise for height. None where the arm was not read at that temperature.
    """
    own = [home for line in arm if (home := at_temperature(line, temperature)) is not None]
    points = _points(rivals)
    if not own or len(own) < len(arm) or not points:
        return None
    mine = np.array([(point.pass1, point.passk) for point in own])
    return AboveHull(
        place=_place(float(mine[:, 0].mean()), points),
        pass1=tuple(mine[:, 0].tolist()),
        arm=tuple(mine[:, 1].tolist()),
        ahead=np.stack([mine - one.seeds for one in points]),
    )


def compare_hull(found: AboveHull, *, level: float = 0.95) -> Comparison:
    """pass@k of the arm minus the hull at its pass@1, over training seeds; the interval holds also where the hull is steep.

    The gap is the largest over prices of the least lead, a lead being how far the arm is ahead of one point of the rivals in
    pass@k + price * pass@1: at the hull's price no rival passes the hull. Low end: of the leads at the hull's price the lowest of
    Student's low ends, so that "better" is to be ahead of each of them (an intersection-union test: Berger 1982, Technometrics 24,
    295; no correction among them is needed). High end: over all prices the highest of the lowest high ends, so that "worse" is to
    be behind at every price; at most the arm's own score. A t interval of the gaps seed by seed would hold the truth in 57 to
    70 % where the hull is steep or ends, because the noise of pass@1 bends it (lab/pages/results/coverage.md).
    """
    seeds, prices = found.ahead.shape[1], np.array([found.place.price, 0.0, *PRICES])
    leads = found.ahead @ np.stack([prices, np.ones_like(prices)])  # (points, seeds, prices)
    means = leads.mean(axis=1)
    binding = paired_seeds(leads[int(means[:, 0].argmin()), :, 0], np.zeros(seeds), level=level)
    value, arm = float(means[:, 0].min()), float(np.mean(found.arm))
    if not binding.known:
        return replace(binding, mean_a=arm, mean_b=arm - value)
    errors = np.maximum(leads.std(axis=1, ddof=1) / math.sqrt(seeds), TINY)
    half = float(t_ppf((1 + level) / 2, seeds - 1)) * errors
    low, high = float((means - half)[:, 0].min()), float((means + half).min(axis=0).max())
    ts = (means / errors).min(axis=0)
    t = float(ts[0]) if value > 0 else min(0.0, float(ts.max()))
    p = float(2 * t_sf(abs(t), seeds - 1))
    interval = replace(binding.difference, value=value, low=low, high=max(value, min(high, arm)))
    return replace(binding, difference=interval, p=p, outcome=outcome_of(interval, p, level), mean_a=arm, mean_b=arm - value)
