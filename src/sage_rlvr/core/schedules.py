"""Schedules: values that change during training, as pure functions schedule(step, total_steps) -> float."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from sage_rlvr.errors import ConfigError
from sage_rlvr.registry import Registry


@runtime_checkable
class Schedule(Protocol):
    """A map from (step counted from 0, total_steps) to a float, without memory."""

    def __call__(self, step: int, total_steps: int) -> float: ...


SCHEDULES: Registry[type] = Registry("schedule")


def _progress(step: int, total_steps: int) -> float:
    """Return 0 at the first step, 1 at the last one (step = total_steps - 1) and after it."""
    return min(1.0, max(0, step) / max(1, total_steps - 1))


def _require_finite(owner: str, **values: float) -> None:
    for name, value in values.items():
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise ConfigError(f"{owner}: {name} = {value!r} is not a finite number; set one, for example {name}=0.1.")


@SCHEDULES.register
@dataclass(frozen=True)
class Constant:
    """The same value at every step.

    value: the value at every step.
    """

    value: float

    def __post_init__(self) -> None:
        _require_finite("Constant", value=self.value)

    def __call__(self, step: int, total_steps: int) -> float:
        return float(self.value)


@SCHEDULES.register
@dataclass(frozen=True)
class Linear:
    """A straight line from `start` at step 0 to `end` at the last step.

    start: at step 0. end: at the last step.
    """

    start: float
    end: float

    def __post_init__(self) -> None:
        _require_finite("Linear", start=self.start, end=self.end)

    def __call__(self, step: int, total_steps: int) -> float:
        done = _progress(step, total_steps)
        return (1.0 - done) * self.start + done * self.end


@SCHEDULES.register
@dataclass(frozen=True)
class Cosine:
    """Half a cosine from `start` at step 0 to `end` at the last step.

    start: at step 0. end: at the last step.
    """

    start: float
    end: float

    def __post_init__(self) -> None:
        _require_finite("Cosine", start=self.start, end=self.end)

    def __call__(self, step: int, total_steps: int) -> float:
        return self.end + (self.start - self.end) * 0.5 * (1.0 + math.cos(math.pi * _progress(step, total_steps)))


@SCHEDULES.register
@dataclass(frozen=True)
class CosineCycles:
    """Half cosines from a decaying upper value down to `lower`, repeatedly, as in SAGE (arXiv 2605.18864).

    The 8 cycles and the decay 0.9 come from the authors' released code. With L = max(1, total_steps // cycles) and
    c = min(step // L, cycles - 1),

        value = lower + (upper * decay**c - lower) * (1 + cos(pi * (step mod L) / L)) / 2.

    If `cycles` does not divide `total_steps`, some steps remain after the last cycle: tail="final" stays at
    `lower` there, tail="released" starts the last cycle over, as the authors' released code does. With fewer than two
    steps per cycle (L = 1) no cycle comes down from its upper value: step 0 warns with the numbers.

    upper: value at the start of a cycle, before its decay. lower: value at its end.
    """

    upper: float
    lower: float
    cycles: int = 8
    decay: float = 0.9
    tail: Literal["final", "released"] = "final"

    def __post_init__(self) -> None:
        _require_finite("CosineCycles", upper=self.upper, lower=self.lower, decay=self.decay)
        if isinstance(self.cycles, bool) or not isinstance(self.cycles, int) or self.cycles < 1:
            raise ConfigError(f"CosineCycles: cycles = {self.cycles!r}; set a whole number of cycles >= 1.")
        if self.tail not in ("final", "released"):
            raise ConfigError(f"CosineCycles: tail = {self.tail!r}; choose 'final' or 'released'.")

    def __call__(self, step: int, total_steps: int) -> float:
        length = max(1, total_steps // self.cycles)
        if step == 0 and length == 1:
            self._warn_that_no_cycle_anneals(total_steps)
        if self.tail == "final" and step >= length * self.cycles:
            return float(self.lower)
        top = self.upper * self.decay ** min(step // length, self.cycles - 1)
        phase = (step % length) / length
        return self.lower + (top - self.lower) * 0.5 * (1.0 + math.cos(math.pi * phase))

    def _warn_that_no_cycle_anneals(self, total_steps: int) -> None:
        warnings.warn(
            f"CosineCycles: {self.cycles} cycles over total_steps = {total_steps} are cycles of one step each, so "
            f"each stays at its upper value ({self.upper:g}, then times {self.decay:g} per cycle) and none comes down "
            f"to {self.lower:g}; take at least {2 * self.cycles} steps, or fewer cycles.",
            UserWarning,
            stacklevel=3,
        )


def as_schedule(value: float | Schedule) -> Schedule:
    """Return `Constant(number)` for a number, and a schedule unchanged; raise ConfigError for anything else."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Constant(float(value))
    if isinstance(value, Schedule):
        return value
    raise ConfigError(f"{value!r} is neither a number nor a schedule; use 0.05 or, for example, Linear(0.1, 0.0).")


def is_zero(value: float | Schedule) -> bool:
    """Return True if the value is 0 at every step, as far as the known schedules show."""
    match as_schedule(value):
        case Constant(value=constant):
            return constant == 0.0
        case Linear(start=first, end=last) | Cosine(start=first, end=last) | CosineCycles(upper=first, lower=last):
            return first == 0.0 and last == 0.0
        case _:
            return False


def over_a_run(value: float | Schedule) -> list[float]:
    """Return the values over a run: one for a number, else those at each of a thousand steps."""
    schedule = as_schedule(value)
    return [schedule.value] if isinstance(schedule, Constant) else [schedule(step, 1000) for step in range(1000)]


def show(value: float | Schedule) -> str:
    """Return a value or schedule as written in an equation: the number itself, or the schedule's constructor."""
    schedule = as_schedule(value)
    return f"{schedule.value:g}" if isinstance(schedule, Constant) else repr(schedule)
