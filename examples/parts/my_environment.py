"""A task of several turns: guess a digit (guess_sft.yaml makes a base, guess.yaml trains it)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import sage_rlvr
from sage_rlvr.tasks.base import Turn
from sage_rlvr.verifiers import Verdict


@dataclass(frozen=True)
class Secret:
    problem_id: str
    number: int


@sage_rlvr.task
@dataclass(frozen=True)
class Guess(sage_rlvr.Task):
    """Find a digit; after each guess the environment says whether it is more or less."""

    name: ClassVar[str] = "guess"
    characters: ClassVar[str] = "0123456789+-?\n"
    turns: int = 3

    def problems(self, split: str) -> Sequence[Secret]:
        part = {"train": 0, "validation": 1, "test": 2}[split]
        return [Secret(f"guess-{n}", n) for n in range(10) if n % 3 == part]

    def prompt(self, problem: Secret) -> str:
        return f"{problem.number % 2}?"

    def reply(self, problem: Secret, responses: Sequence[str]) -> str | None:
        guess = responses[-1].strip()
        if not (guess.isascii() and guess.isdigit()):
            return "?"
        return None if int(guess) == problem.number else "+" if int(guess) < problem.number else "-"

    def judge(self, problem: Secret, responses: Sequence[str]) -> Verdict:
        right = responses[-1].strip() == str(problem.number)
        return Verdict("right", "found") if right else Verdict("wrong", "another number")

    def verify(self, problem: Secret, completion: str) -> Verdict:
        return self.judge(problem, (completion,))

    def examples(self, split: str, seed: int, start: int, n: int) -> list[tuple[Secret, tuple[Turn, ...]]]:
        found = []
        for number in range(start, start + n):
            problem = self.problems(split)[number % len(self.problems(split))]
            first, right = Turn("policy", str(number % 7), learned=False), Turn("policy", str(problem.number))
            message = self.reply(problem, (first.text,))
            found.append((problem, (right,) if message is None else (first, Turn("environment", message), right)))
        return found
