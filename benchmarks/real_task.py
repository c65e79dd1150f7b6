"""The task of this package's arms in benchmarks/real.py: prompts are given token ids, and the reward costs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from real_work import parity

from sage_rlvr.tasks.base import Task
from sage_rlvr.verifiers import Verdict


@dataclass(frozen=True)
class Row:
    """A problem: token ids as text."""

    problem_id: str
    text: str


@dataclass(frozen=True)
class Numbers(Task):
    """A task whose prompts are the given token ids."""

    rows: tuple[Row, ...] = ()

    name = "numbers"

    def problems(self, split: str) -> Sequence[Row]:
        return self.rows

    def prompt(self, problem: Row) -> str:
        return problem.text

    def verify(self, problem: Row, completion: str) -> Verdict:
        return Verdict("right" if parity(completion) else "wrong", "parity")
