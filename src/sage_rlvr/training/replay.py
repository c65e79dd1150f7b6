"""Replay of stored answers, as the loop calls it: `ReplayStep` of buffer.py if the method has a buffer, else `NoReplay`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor

from sage_rlvr.core.state import State
from sage_rlvr.training.groups import Groups
from sage_rlvr.training.loop_state import TrainState

if TYPE_CHECKING:
    from sage_rlvr.training.buffer import ReplayStep

Replay: TypeAlias = "ReplayStep | NoReplay"


@dataclass
class NoReplay:
    """The replay of a method without a buffer: it stores nothing, and adds nothing to a loss."""

    loop: TrainState

    def see(self, groups: Groups, advantages: Tensor | None = None) -> None:
        """Stores nothing."""

    def descends(self, number: int) -> bool:
        """Nothing is stored, so there is no term."""
        return False

    def descend(self, number: int) -> dict[str, float]:
        """The term of no stored answer."""
        return {"loss": 0.0}

    def updates(self) -> dict[str, float]:
        """Without a rollout and without stored answers nothing moves."""
        return {}

    def commit(self, metrics: dict[str, float], parts: State) -> dict[str, float]:
        """The step is done: `parts` is the running state after it."""
        self.loop.parts = parts
        return metrics


def recall(loop: TrainState, step: int) -> Replay:
    """The buffer of the run's method as a step finds it."""
    buffer = loop.method.buffer
    if buffer is None:
        return NoReplay(loop)
    from sage_rlvr.training.buffer import ReplayStep, stored  # late: most methods store no answers

    return ReplayStep(loop, buffer, step, stored(loop))


def fill(loop: TrainState) -> bool:
    """Put into the buffer what the method asks for before step 0 (`buffer.fill`); False where it asks for nothing."""
    if loop.method.buffer is None:
        return False
    from sage_rlvr.training import buffer  # late, as above

    return buffer.fill(loop)


def numbered(problems: Sequence[Any]) -> dict[str, int]:
    """Id of a training problem -> its number; of several with one id, the first."""
    numbers: dict[str, int] = {}
    for number, problem in enumerate(problems):
        numbers.setdefault(str(problem.problem_id), number)
    return numbers
