"""Countdown worked step by step: a completion of fifty and more characters, each step of it checked exactly.

    3*7=21(5 8 9 21)5+21=26(8 9 26)8+9=17(17 26)17+26=43        for 3 5 7 8 9=43:

A step uses two of the remaining numbers and writes their result, then in brackets the remaining numbers, ascending. The last step
leaves one number, the target, and no brackets. Results are nonnegative integers. There are many ways to a target, and a way is a
choice of numbers and operators at every step: `countdown` asks for an expression, this for the reasoning that leads to it.

Problems, splits and prompts are those of a `Countdown` world under law "expression", without problems whose drawn expression needs
a fraction or a number below zero on its way. The characters are those of Countdown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sage_rlvr.tasks import TASKS
from sage_rlvr.tasks.checks import Case, Check, duplicates
from sage_rlvr.tasks.countdown import Countdown, Problem, draws, render
from sage_rlvr.tasks.countdown.kept import KeptProblems
from sage_rlvr.tasks.countdown.tokenizer import CHARACTERS
from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.countdown import ATOM, kind_of, postfix, spell
from sage_rlvr.verifiers.versions import version_hash

LONGEST = 400  # characters; a longer completion is wrong without being read
STEP = re.compile(r"([0-9]{1,9})([-+*/])([0-9]{1,9})=([0-9]{1,9})")
LEFT = re.compile(r"\(([0-9]{1,9}(?: [0-9]{1,9})*)\)")
SpelledPart = tuple[str, int]  # a spelling and its kind


@TASKS.register
@dataclass(frozen=True)
class CountdownSteps(KeptProblems):
    """Countdown worked step by step (see the module)."""

    counts: dict[int, float] = field(default_factory=lambda: {5: 1.0})

    name: ClassVar[str] = "countdown_steps"
    characters: ClassVar[str] = CHARACTERS
    max_new_tokens: ClassVar[int] = 96
    __hash__ = KeptProblems.__hash__  # a dataclass would hash its fields, of which counts has no hash

    @property
    def keep(self) -> draws.Rewrite:
        """The expression worked in steps, if possible."""
        return _worked

    @property
    def identity(self) -> dict[str, Any]:
        """Settings that determine the problems of an evaluation."""
        return self.world.identity | {"name": self.name}

    @staticmethod
    def described(identity: Mapping[str, Any]) -> str:
        """Sizes and bounds of the problems in a line."""
        return f"{Countdown.described(identity)}, step by step"

    prompt = staticmethod(render)

    def verify(self, problem: Problem, completion: str) -> Verdict:
        """Right if every step is, each number is used once, and the last result is the target."""
        return work(problem, completion)[0]

    def answer_key(self, problem: Problem, text: str) -> str | None:
        """The expression that the steps compute, so that steps in another order are the same answer; None if a step is wrong.

        If a result equals a remaining number, the steps do not determine which of the two is used: the result's expression sorts
        after the number, and two orders may count as two answers.
        """
        return work(problem, text)[1]

    @property
    def _verifier_version(self) -> str:
        """The verifier's version."""
        return version_hash("countdown_steps", limits=(LONGEST,))

    def audit_cases(self, k: int) -> Iterator[Case | Check]:
        """Worked examples; the same with a result, a remaining number or the target changed, without the last step, as an
        expression."""
        rows = self.examples("test", 1, 0, 200)
        yield Case("worked examples are right", rows)
        wrong = {
            "a result changed": [(p, STEP.sub(_plus_one, text, count=1)) for p, text in rows],
            "a number left changed": [(p, LEFT.sub(lambda m: f"({m[1]}0)", text, count=1)) for p, text in rows],
            "another target": [(Problem(p.numbers, p.target + 1), text) for p, text in rows],
            "its last step missing": [(p, text.rpartition(")")[0] + ")") for p, text in rows],
            "an expression": [(p, str(self.answer_key(p, text))) for p, text in rows],
        }
        yield Case("", wrong, "wrong")
        problems = draws.kept_problems(self.world, _worked, "test", 1, 200)
        yield duplicates("problems that stand once", ((p.problem_id, render(p), str(p.target)) for p in problems))

    def audited(self) -> str:
        """Describe the subject of an audit."""
        bounds = f"numbers up to {self.max_number}, targets {self.min_target} to {self.max_target}"
        return f"200 worked examples of the test split, seed 1; {bounds}"


def _plus_one(step: re.Match[str]) -> str:
    return f"{step[1]}{step[2]}{step[3]}={int(step[4]) + 1}"


def computed(operator: str, a: int, b: int) -> int | None:
    """a operator b if it is an integer of 0 or more, else None."""
    if operator == "/":
        return a // b if b and a % b == 0 else None
    result = a + b if operator == "+" else a * b if operator == "*" else a - b
    return result if result >= 0 else None


def steps(numbers: tuple[int, ...], expression: str) -> str | None:
    """An expression over these numbers worked step by step, innermost first; None if it needs a fraction or a number below 0."""
    left, stack, written = sorted(numbers), [], ""
    for token in postfix(expression) or []:
        if token.isdigit():
            stack.append(int(token))
            continue
        b, a = stack.pop(), stack.pop()
        result = computed(token, a, b)
        if result is None:
            return None
        left.remove(a)
        left.remove(b)
        left = sorted([*left, result])
        written += f"{a}{token}{b}={result}" + (f"({' '.join(map(str, left))})" if len(left) > 1 else "")
        stack.append(result)
    return written


def work(problem: Problem, text: str) -> tuple[Verdict, str | None]:
    """The verdict on worked steps, and the expression that they compute; None if a step is wrong or steps are missing."""
    if len(text) > LONGEST:
        return Verdict("wrong", "too long"), None
    left: list[tuple[int, SpelledPart]] = sorted((number, (str(number), ATOM)) for number in problem.numbers)
    position = 0
    while len(left) > 1:
        step = STEP.match(text, position)
        if step is None:
            return Verdict("wrong", "not a step"), None
        operator, (a, b, result) = step[2], (int(step[n]) for n in (1, 3, 4))
        if computed(operator, a, b) != result or step[0] != f"{a}{operator}{b}={result}":
            return Verdict("wrong", "value"), None
        parts: list[SpelledPart] = []
        for number in (a, b):
            at = next((i for i, (value, _) in enumerate(left) if value == number), None)
            if at is None:
                return Verdict("wrong", "numbers"), None
            parts.append(left.pop(at)[1])
        (one, one_kind), (two, two_kind) = parts
        left = sorted([*left, (result, (spell(operator, one, one_kind, two, two_kind), kind_of(operator)))])
        position = step.end()
        if len(left) > 1:
            expected = f"({' '.join(str(value) for value, _ in left)})"
            if not text.startswith(expected, position):
                return Verdict("wrong", "what is left"), None
            position += len(expected)
    if position != len(text):
        return Verdict("wrong", "more after the last step"), None
    value, (expression, _) = left[0]
    return Verdict(*(("right", "right") if value == problem.target else ("wrong", "target"))), expression


def _worked(problem: Problem, text: str) -> str | None:
    """An example of the world in steps; None if that is impossible."""
    return steps(problem.numbers, text)


__all__ = ["CountdownSteps", "steps", "work"]
