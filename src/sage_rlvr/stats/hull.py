"""Rivals taken together: the convex hull of several arms at all their temperatures, and how far a candidate lies above it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sage_rlvr.stats.frontier import FrontierPoint, at_temperature

Lines = Sequence[Sequence[FrontierPoint]]  # a frontier per training seed


@dataclass(frozen=True, kw_only=True)
class Share:
    """A rival (its index) at one temperature, and its weight in a mixture."""

    rival: int
    temperature: float
    weight: float


@dataclass(frozen=True, kw_only=True)
class Place:
    """A place on a hull. best: the one or two that answer there; height: their pass@k; price: pass@k gained per pass@1 given up."""

    best: tuple[Share, ...]
    height: float
    price: float


@dataclass(frozen=True, kw_only=True)
class AboveHull:
    """`above_hull`: where the hull was read, and of each training seed the arm's pass@1, its pass@k, and what the rivals reach."""

    place: Place
    pass1: tuple[float, ...]
    arm: tuple[float, ...]
    rival: tuple[float, ...]

    @property
    def gaps(self) -> tuple[float, ...]:
        """Arm minus rivals, per seed."""
        return tuple(a - b for a, b in zip(self.arm, self.rival, strict=True))


def on_hull(pass1: float, rivals: Sequence[Lines]) -> Place | None:
    """What rivals reach in pass@k with at least this pass@1; None where none of them was read at one temperature in all its seeds.

    A point is a rival at a temperature, its scores means over all seeds. The hull is the highest line over the points, since a
    coin per problem may decide which of two answers it. Beyond the highest pass@1 it is the point that has it: what it gives up in
    pass@1 is then not charged to it.
    """
    points: list[tuple[float, float, int, float]] = []
    for i, lines in enumerate(rivals):
        seen = [{point.temperature: (point.pass1, point.passk) for point in line} for line in lines]
        for t in sorted(set.intersection(*map(set, seen))) if seen else ():
            points.append((*np.mean([found[t] for found in seen], axis=0).tolist(), i, t))
    if not points:
        return None
    right = [one for one in points if one[0] >= pass1]
    top = max(right, key=lambda one: (one[1], one[0])) if right else max(points, key=lambda one: (one[0], one[1]))
    found = Place(best=(Share(rival=top[2], temperature=top[3], weight=1.0),), height=top[1], price=0.0)
    left = [one for one in points if one[0] < pass1] if right else []
    # a mixture with a point that has more of both is never better than that point; let in, rounding could make it so
    for one, other in ((one, other) for one in left for other in right if other[1] < one[1]):
        weight, rise = (pass1 - one[0]) / (other[0] - one[0]), other[1] - one[1]
        if (height := one[1] + weight * rise) > found.height:
            ends = ((one, 1 - weight), (other, weight))
            best = tuple(Share(rival=end[2], temperature=end[3], weight=w) for end, w in ends if w)
            found = Place(best=best, height=height, price=-rise / (other[0] - one[0]))
    return found


def above_hull(arm: Lines, rivals: Sequence[Lines], temperature: float = 1.0) -> AboveHull | None:
    """pass@k of an arm at `temperature` minus what the rivals reach with the arm's pass@1, seed by seed.

    arm: a frontier per training seed; rivals: the same of each, paired in order. Place on the hull and price are chosen once, by
    means over the seeds: the best of each seed would take the rivals' noise for height. What is left of that choice favors the
    rivals. Where the arm has more pass@1 than the mixture in some seed it is credited at the hull's price, which changes the
    spread between seeds and not their mean. None where the arm was not read at that temperature.
    """
    own = [home for line in arm if (home := at_temperature(line, temperature)) is not None]
    if not own or len(own) < len(arm):
        return None
    pass1, passk = (np.array([getattr(point, end) for point in own]) for end in ("pass1", "passk"))
    place = on_hull(float(pass1.mean()), rivals)
    if place is None:
        return None
    theirs = np.zeros((2, len(own)))
    for share in place.best:
        homes = [at_temperature(line, share.temperature) for line in rivals[share.rival]]
        theirs += share.weight * np.array([(home.pass1, home.passk) for home in homes if home is not None]).T
    rival = theirs[1] - place.price * (pass1 - theirs[0])
    return AboveHull(place=place, pass1=tuple(pass1.tolist()), arm=tuple(passk.tolist()), rival=tuple(rival.tolist()))
