"""Curves: levels at the start and the end, the step from which a curve has another level, and the first change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sage_rlvr.symptoms.logs.table import Floats, LogTable

PART = 5  # the start and the end are a fifth of the steps each
LEAST = 6  # steps: below, no change is searched for, and a policy need not have moved
SURE = 5.0  # standard errors between the levels before and after a change


@dataclass(frozen=True)
class Curve:
    """A metric over the steps, finite values only."""

    name: str
    steps: tuple[int, ...]
    values: Floats

    @classmethod
    def of(cls, name: str, steps: Sequence[int], values: Floats) -> Curve:
        """Leave out values that are not finite."""
        kept = np.isfinite(values)
        return cls(name, tuple(step for step, keep in zip(steps, kept, strict=True) if keep), values[kept])

    def __bool__(self) -> bool:
        return len(self.values) > 0

    @property
    def part(self) -> int:
        """Steps of the start and of the end."""
        return max(1, len(self.values) // PART)

    @property
    def start(self) -> float:
        """Median of the first fifth."""
        return float(np.median(self.values[: self.part]))

    @property
    def end(self) -> float:
        """Median of the last fifth."""
        return float(np.median(self.values[-self.part :]))

    @property
    def mean(self) -> float:
        """Mean of all."""
        return float(self.values.mean())

    @property
    def peak(self) -> float:
        """The highest level: of the start, the end, or a fifth of the steps in a row."""
        return max(self.start, self.end, float(self.smooth.max()))

    @property
    def smooth(self) -> Floats:
        """Running medians over a fifth of the steps at most, five at least, of the values up to each."""
        width = min(max(5, self.part), max(1, len(self.values)))
        return np.array([np.median(self.values[max(0, place + 1 - width) : place + 1]) for place in range(len(self.values))])

    def first(self, above: float | None = None, below: float | None = None) -> int | None:
        """The first step from which the running median is beyond a level until the end; None if there is none."""
        smooth = self.smooth
        beyond = smooth > above if above is not None else smooth < below
        if not len(beyond) or not beyond[-1]:
            return None
        place = len(beyond) - int(np.argmin(beyond[::-1])) if not beyond.all() else 0
        return self.steps[place]

    def change(self) -> Change | None:
        """The step that splits the curve into the two most different levels; None without a sure change."""
        values, count = self.values, len(self.values)
        if count < LEAST or np.ptp(values) == 0:
            return None
        best: Change | None = None
        noise = max(float(np.std(np.diff(values))) / np.sqrt(2), 1e-12 + 1e-6 * float(np.abs(values).max()))
        for place in range(2, count - 1):
            before, after = values[:place], values[place:]
            error = noise * np.sqrt(1 / len(before) + 1 / len(after))
            size = float(abs(after.mean() - before.mean()) / error)
            if best is None or size > best.size:
                best = Change(self.name, self.steps[place], float(before.mean()), float(after.mean()), size)
        return best if best is not None and best.size > SURE else None

    def onset(self) -> int | None:
        """The first step at which the running median has left the level of the start by a quarter of the way to that of the end."""
        change = self.change()
        if change is None:
            return None
        begin, end = self.start, self.end
        if begin == end:
            return change.step
        way = (self.smooth - begin) / (end - begin)
        beyond = np.flatnonzero(way > 0.25)
        return self.steps[int(beyond[0])] if len(beyond) else change.step


@dataclass(frozen=True)
class Change:
    """A change of level: the first step of the second one, the means before and after, and their distance in standard errors."""

    name: str
    step: int
    before: float
    after: float
    size: float

    def __str__(self) -> str:
        return f"{self.name} {self.before:.3g} -> {self.after:.3g} (step {self.step})"


@dataclass(frozen=True)
class Curves:
    """The curves of a log."""

    table: LogTable

    def __getitem__(self, name: str) -> Curve:
        return Curve.of(name, *self.table.curve(name))

    def common(self, first: str, second: str) -> tuple[Floats, Floats]:
        """The finite values of two metrics at the steps that have both."""
        one, two = (dict(zip(curve.steps, curve.values, strict=True)) for curve in (self[first], self[second]))
        steps = sorted(one.keys() & two.keys())
        return np.array([one[step] for step in steps]), np.array([two[step] for step in steps])

    @cached_property
    def reward(self) -> Curve:
        """Mean reward."""
        return self["reward"]

    @property
    def varies(self) -> bool:
        """Whether the mean reward ever changes."""
        return bool(self.reward) and float(np.ptp(self.reward.values)) > 1e-9

    @property
    def fell(self) -> bool:
        """Whether the reward ends far below its start or its maximum."""
        reward = self.reward
        return bool(reward) and reward.peak > 1e-9 and reward.end < 0.5 * reward.peak and reward.peak - reward.end > 0.02

    @cached_property
    def looping(self) -> float:
        """Share of the completions in the tables that are mostly one phrase."""
        texts = [one.text for one in self.table.completions]
        return sum(map(_loops, texts)) / len(texts) if texts else 0.0


def _loops(text: str) -> bool:
    words = text.split() if len(text.split()) >= 16 else list(text)
    grams = [tuple(words[i : i + 4]) for i in range(len(words) - 3)]
    return len(grams) >= 24 and len(set(grams)) < 0.3 * len(grams)


def correlation(a: Floats, b: Floats) -> float:
    """Pearson's; 0 if one of them is constant."""
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


__all__ = ["LEAST", "Change", "Curve", "Curves", "correlation"]
