"""The base of tasks that use the problems of a `Countdown` world with a suitable expression in another form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sage_rlvr.errors import DataError
from sage_rlvr.tasks.base import Task
from sage_rlvr.tasks.countdown import Countdown, draws
from sage_rlvr.tasks.countdown.problem import Problem


@dataclass(frozen=True)
class KeptProblems(Task):
    """Problems of a world under law "expression". counts, max_number, min_target, max_target, train_problems, data_seed: as in
    `countdown`. A subclass defines in `keep` the worked completion of a drawn (problem, expression), or None to leave it out.
    """

    counts: dict[int, float] = field(default_factory=lambda: {4: 1.0})
    max_number: int = 12
    min_target: int = 1
    max_target: int = 100
    train_problems: int = 20_000
    data_seed: int = 0

    name: ClassVar[str]

    def __post_init__(self) -> None:
        self.world  # noqa: B018  its errors are ours

    def __hash__(self) -> int:
        return hash((self.world, self.train_problems, self.data_seed))

    @property
    def keep(self) -> Callable[[Problem, str], str | None]:
        """(problem, expression) -> the worked completion; None for a problem that is left out. Equal for equal tasks."""
        raise NotImplementedError

    @property
    def world(self) -> Countdown:
        """The world of the problems."""
        bounds: dict[str, Any] = {"max_number": self.max_number, "min_target": self.min_target, "max_target": self.max_target}
        return Countdown(self.counts, **bounds, train_problems=self.train_problems, data_seed=self.data_seed)

    def examples(self, split: str, seed: int, start: int, n: int) -> list[tuple[Problem, str]]:
        """Examples `start` to `start + n` of an endless stream: a problem and its worked completion."""
        return draws.kept(self.world, self.keep, split, seed, start, n)

    def problems(self, split: str = "train") -> list[Problem]:
        """The first `train_problems` different ones of a split. Raises DataError if the world has fewer."""
        return self.first(split, self.train_problems)

    def first(self, split: str, n: int) -> list[Problem]:
        """The first n of `problems(split)`."""
        return draws.kept_problems(self.world, self.keep, split, self.data_seed, min(n, self.train_problems))

    def draw(self, split: str, seed: int, n: int, sampling: str = "iid") -> list[Problem]:
        """The problems of an evaluation. "iid": n independent draws, with repeats; "distinct": the first n different ones."""
        if sampling == "distinct":
            return draws.kept_problems(self.world, self.keep, split, seed, n)
        if sampling != "iid":
            raise DataError(f"sampling {sampling!r}: {self.name} has only iid and distinct, because its problems are not listed")
        return [problem for problem, _ in draws.kept(self.world, self.keep, split, seed, 0, n)]


__all__ = ["KeptProblems"]
