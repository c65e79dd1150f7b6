"""The support gate: whether a policy solves more than a guesser, and how much headroom training has.

    points at the ks that will be read -> Gate -> passed or the reasons why not, and the room at the largest k

Support: at every k the interval of pass@k is above the chance floor. All of them must be, so no level is corrected. Room: RL needs
    problems that are solved sometimes and not always, so the room is judged by pass@k at the largest k, with bounds that a study
    sets before its runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sage_rlvr.verdicts.stats.intervals import Interval

Room = Literal["out of reach", "much", "some", "little"]


@dataclass(frozen=True, kw_only=True)
class GatePoint:
    """pass@k with its interval, and the chance floor at k. `sage_rlvr.evaluate` makes it, for a `Gate`."""

    k: int
    passed: Interval
    chance: float

    @property
    def above(self) -> bool:
        """Whether the interval is above the floor."""
        return self.passed.low > self.chance

    @property
    def against_chance(self) -> str:
        """Compare pass@k with chance, in words."""
        if self.above:
            return "above chance"
        return "below chance" if self.passed.high < self.chance else "not distinguishable from chance"


@dataclass(frozen=True, kw_only=True)
class Gate:
    """The verdict. points: ascending in k; much, little: bounds of the room; wanted: the room that is required, or "any".
    `sage_rlvr.evaluate` makes it of a store or a record, and prints its lines."""

    points: tuple[GatePoint, ...]
    much: tuple[float, float]
    little: float
    wanted: Literal["any", "much", "little"] = "any"

    def room_of(self, value: float) -> Room:
        """Return the room at this pass@k."""
        low, high = self.much
        if value < low:
            return "out of reach"
        if value <= high:
            return "much"
        return "some" if value < self.little else "little"

    @property
    def room(self) -> Room:
        """The room at the largest k."""
        return self.room_of(self.points[-1].passed.value)

    @property
    def certain(self) -> bool:
        """Whether the room is the same for the full interval at the largest k."""
        interval = self.points[-1].passed
        return {self.room_of(interval.low), self.room_of(interval.high)} == {self.room}

    @property
    def failures(self) -> list[str]:
        """Reasons why the gate is not passed; [] if it is."""
        reasons = [f"pass@{one.k} is {one.against_chance}" for one in self.points if not one.above]
        if self.wanted not in ("any", self.room):
            reasons.append(f"the room at k = {self.points[-1].k} is {self.room!r}, and {self.wanted!r} is required")
        return reasons

    @property
    def passed(self) -> bool:
        """Whether it is passed."""
        return not self.failures

    def lines(self) -> list[str]:
        """The verdict, then each k, then the room."""
        ks, last = ", ".join(str(one.k) for one in self.points), self.points[-1]
        verdict = f"PASSED: above chance at k = {ks}" if self.passed else f"FAILED: {'; '.join(self.failures)}"
        bounds = f"much: {self.much[0]:g} to {self.much[1]:g}, little: from {self.little:g}"
        doubt = "" if self.certain else "; the interval reaches beyond these bounds; evaluate more problems"
        lines = [f"gate       {verdict}; room: {self.room}"]
        for one in self.points:
            name = f"pass@{one.k}"
            lines.append(f"  {name:<9}{one.passed.bracketed()}, chance {one.chance:.3f}: {one.against_chance}")
        return [*lines, f"  room     {self.room} at pass@{last.k} {last.passed.bracketed()}; {bounds}{doubt}"]

    def tree(self) -> dict[str, Any]:
        """Strict JSON; null for infinite ends of an interval."""
        points = [
            {"k": one.k, "pass": one.passed.value, "low": _finite(one.passed.low), "high": _finite(one.passed.high)}
            | {"chance": one.chance, "above_chance": one.above}
            for one in self.points
        ]
        bounds = {"much": list(self.much), "little": self.little, "required": self.wanted}
        room = {"room": self.room, "room_certain": self.certain, "bounds": bounds}
        return {"passed": self.passed, "failures": self.failures, "points": points, **room}


def ks_of(given: Sequence[int], largest: int) -> list[int]:
    """The ks of a gate, ascending. given: the chosen ones; by default 1, 8 and the largest."""
    return sorted(set(given)) if given else [*(k for k in (1, 8) if k < largest), largest]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


__all__ = ["Gate", "GatePoint", "Room", "ks_of"]
