"""Countdown in words, for any chat model: the problems of a `Countdown` world, asked by the model's chat template.

    user       Numbers: 3, 5, 7, 11. Target: 24. Write an expression.
    assistant  11+5*3-7+5

Any form of a right expression is right (`verifiers/countdown_chat.py`); two forms of one expression are one answer.
Problems and splits are those of the world under law "expression", without problems whose drawn expression has a forbidden operator.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from sage_rlvr.errors import ConfigError
from sage_rlvr.tasks.base import TASKS, words
from sage_rlvr.tasks.countdown import Countdown, draws
from sage_rlvr.tasks.countdown.expressions import count_right, expressions_over, guesses
from sage_rlvr.tasks.countdown.kept import KeptProblems
from sage_rlvr.tasks.countdown.problem import (
    MARKS,
    SPLITS,
    STATES,
    Problem,
    answer_form,
    families,
    problem_of,
    solutions,
    state_class,
)
from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.countdown_chat import OPERATORS, expression_of, judge, operators_of
from sage_rlvr.verifiers.versions import version_hash

CLASSES = (  # tokens of a completion, which may have several characters each
    ("end or special", r"<[^>]*>"),
    ("number", r"\s*\d+"),
    ("sum or difference", r"\s*[-+−–]\s*"),
    ("product or quotient", r"\s*[*/×÷]\s*"),
    ("opening bracket", r"\s*\(+"),
    ("closing bracket", r"\s*\)+"),
    ("bracket and operator", r"\s*[-+*/×÷()]+\s*"),
    ("equals", r"\s*=\s*"),
)


@TASKS.register
@dataclass(frozen=True)
class CountdownChat(KeptProblems):
    """Countdown in words (see the module).

    operators: those that an answer may use, one or more of + - * /. question: the user's message, with {numbers} and {target}.
    system: the system message; "" sends none, so that a chat template may add one. solutions_per_problem: in worked
    examples, how many solutions of one problem follow one another.
    """

    operators: str = OPERATORS
    question: str = "Numbers: {numbers}. Target: {target}. Write an expression."
    system: str = ""
    solutions_per_problem: int = 1

    name: ClassVar[str] = "countdown_chat"
    needs_chat_template: ClassVar[bool] = True
    token_classes: ClassVar[tuple[tuple[str, str], ...]] = CLASSES
    state_classes: ClassVar[tuple[str, ...]] = STATES
    state_class = staticmethod(state_class)
    answer_marks: ClassVar[tuple[str, ...]] = MARKS
    answer_form = staticmethod(answer_form)
    problem_of = staticmethod(problem_of)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.operators or not set(self.operators) <= set(OPERATORS):
            raise ConfigError(f"operators {self.operators!r}: one or more of {' '.join(OPERATORS)}, as in '+-'")
        # One order for one set of operators: "-+" and "+-" have the same problems, so their stores are one.
        object.__setattr__(self, "operators", "".join(one for one in OPERATORS if one in self.operators))
        if sorted(re.findall(r"\{numbers\}|\{target\}|[{}]", self.question)) != ["{numbers}", "{target}"]:
            raise ConfigError(f"question {self.question!r}: must have {{numbers}} and {{target}}, once each, and no other braces")
        if not 1 <= self.solutions_per_problem <= 64:
            raise ConfigError(f"solutions_per_problem {self.solutions_per_problem}: from 1 to 64")

    def __hash__(self) -> int:
        return hash((super().__hash__(), self.operators, self.question, self.system))

    @property
    def identity(self) -> dict[str, Any]:
        """Settings that determine the problems of an evaluation and their prompts."""
        prompt = {"operators": self.operators, "question": self.question, "system": self.system}
        return self.world.identity | {"name": self.name} | prompt

    @staticmethod
    def described(identity: Mapping[str, Any]) -> str:
        """Sizes and bounds of the problems in a line."""
        operators = identity["operators"]
        only = "" if set(operators) == set(OPERATORS) else f", operators {' '.join(operators)}"
        return f"{Countdown.described(identity)}{only}, asked in words"

    @property
    def max_new_tokens(self) -> int:
        """The longest canonical answer and its end, at one token per character: 24 for four numbers of two digits."""
        return (2 * len(str(self.max_number)) + 2) * max(self.counts)

    def prompt(self, problem: Problem) -> str:
        """The question."""
        return self.question.format(numbers=", ".join(map(str, problem.numbers)), target=problem.target)

    def messages(self, problem: Problem) -> list[dict[str, str]]:
        """The question as a conversation."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": self.prompt(problem)}]

    def verify(self, problem: Problem, completion: str) -> Verdict:
        """Right iff it is an expression, in any form, over the problem's numbers whose value is the target."""
        return judge(problem.numbers, problem.target, completion, self.operators)

    def answer_key(self, problem: Problem, text: str) -> str | None:
        """The canonical form of the expression; None without one."""
        parsed, _ = expression_of(text)
        return None if parsed is None else parsed.spelling

    def answer_span(self, problem: Problem, text: str) -> tuple[int, int] | None:
        """The expression, without the spaces around it and the text after its "="."""
        if expression_of(text)[0] is None:
            return None
        left = text.partition("=")[0]
        return len(left) - len(left.lstrip()), len(left.rstrip())

    def answers(self, problem: Problem) -> list[str]:
        """All right answers, each in canonical form. (No `solutions`: those would be all right completions.)"""
        return [text for text in solutions(problem) if operators_of(text) <= set(self.operators)]

    def families(self, problem: Problem) -> frozenset[str]:
        """Every number with every allowed operator."""
        return families(problem, self.operators)

    def reference(self, problem: Problem) -> str:
        """The shortest right answer, alphabetically first among several."""
        return min(self.answers(problem), key=lambda text: (len(text), text))

    def candidates(self, problem: Problem) -> int:
        """Well-formed answers, right or wrong: canonical expressions over the numbers with the allowed operators."""
        return expressions_over(problem.numbers, self.operators)

    def choices(self, problem: Problem) -> float:
        """Well-formed answers per right one, by enumeration; infinite if none is right."""
        right = count_right(problem.numbers, problem.target, self.operators)
        return self.candidates(problem) / right if right else math.inf

    def guesses(self, problem: Problem) -> tuple[float, ...]:
        """Shares of right guesses of guessers that omit division, brackets, or both."""
        return guesses(problem.numbers, problem.target, self.operators)

    @property
    def _verifier_version(self) -> str:
        """The verifier's version, and the operators that it allows."""
        return version_hash("countdown_chat", operators=self.operators)

    @property
    def keep(self) -> draws.Rewrite:
        """Keep the expression if it uses only the allowed operators."""
        return _Allowed(self.operators)

    def examples(self, split: str, seed: int, start: int, n: int) -> list[tuple[Problem, str]]:
        """Examples `start` to `start + n` of an endless stream: a problem and a right answer in canonical form."""
        each = self.solutions_per_problem
        if each == 1:
            return super().examples(split, seed, start, n)
        first, behind = start // each, -(-(start + n) // each)
        problems = [problem for problem, _ in draws.kept(self.world, self.keep, split, seed, first, behind - first)]
        pairs = [pair for i, problem in enumerate(problems, first) for pair in self._several(problem, split, seed, i)]
        return pairs[start - first * each :][:n]

    def _several(self, problem: Problem, split: str, seed: int, index: int) -> list[tuple[Problem, str]]:
        """`solutions_per_problem` answers of problem `index` of a stream, distinct as far as there are enough."""
        answers, drawn = self.answers(problem), words(seed, SPLITS.index(split), index)
        keyed = sorted(zip(drawn, answers, strict=False))
        return [(problem, keyed[i % len(keyed)][1]) for i in range(self.solutions_per_problem)]


@dataclass(frozen=True)
class _Allowed:
    """Keeps an example whose expression uses these operators only."""

    operators: str

    def __call__(self, problem: Problem, text: str) -> str | None:
        return text if operators_of(text) <= set(self.operators) else None


__all__ = ["CountdownChat"]
