"""A Countdown problem: its prompt, its key, and its split.

Splits: a problem's key (sorted numbers, target) is hashed to a bucket 0..99; 0-9 is test, 10-19 validation, the rest
train. Two splits therefore never share a problem, not even up to the order of the numbers, for any world or seed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sage_rlvr.errors import DataError
from sage_rlvr.tasks.countdown.expressions import OPERATORS, solve
from sage_rlvr.tasks.forms import Form
from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.countdown import judge
from sage_rlvr.verifiers.countdown_chat import in_ascii

SPLITS: tuple[str, ...] = ("train", "validation", "test")
STATES: tuple[str, ...] = ("first operand", "first operator", "operand", "operator", "behind")
"""Classes of the states of an expression being written: `state_class`."""
_ENTERED = re.compile(r"\d\s*\)*\s*[-+−–*/×÷]")
"""A match if an operator follows an operand: the entrance of an answer (arXiv 2608.29188) is over."""
_FAMILY = re.compile(r"[\s(]*(\d+)[\s)]*([-+*/])")
MARKS: tuple[str, ...] = ("bracket",)
"""Features that an expression may have: `answer_form`."""
_BUCKETS = {"test": (0, 10), "validation": (10, 20), "train": (20, 100)}
_TOO_LARGE = 1 << 31


@dataclass(frozen=True, slots=True)
class Problem:
    """Numbers (in the order of the prompt) and a target. All Countdown tasks draw it and judge by it."""

    numbers: tuple[int, ...]
    target: int

    def __post_init__(self) -> None:
        if not self.numbers or min(self.numbers) < 1 or max(*self.numbers, abs(self.target)) >= _TOO_LARGE:
            raise DataError(
                f"numbers {self.numbers}, target {self.target}: a problem needs at least one number, "
                f"numbers of 1 or larger, and nothing beyond {_TOO_LARGE - 1}."
            )

    @property
    def key(self) -> tuple[tuple[int, ...], int]:
        """(sorted numbers, target): the identity of a problem; splits and `distinct` use it."""
        return tuple(sorted(self.numbers)), self.target

    @property
    def problem_id(self) -> str:
        """The key as text, such as "3-5-7-11=24"."""
        return f"{'-'.join(map(str, sorted(self.numbers)))}={self.target}"


def render(problem: Problem) -> str:
    """The prompt, such as "3 5 7 11=24:". The completion is only the expression, ended by `<eos>`."""
    return f"{' '.join(map(str, problem.numbers))}={problem.target}:"


def state_class(text: str) -> str:
    """Return what is next after the text of an expression so far: an operand or an operator (or the end), each with the word
    "first" until the first operator; "behind" after an equals sign."""
    left, equals, _ = text.partition("=")
    if equals:
        return "behind"
    last = left.rstrip()[-1:]
    kind = "operator" if last.isdigit() or last == ")" else "operand"
    return kind if _ENTERED.search(left) else f"first {kind}"


def answer_form(problem: Problem, text: str) -> Form:
    """Return the entrance of an expression, first operand and first operator as "3 +" (arXiv 2608.29188), and whether it has a
    bracket; for any text, right or wrong."""
    left = in_ascii(text.partition("=")[0])
    begun = _FAMILY.match(left)
    return Form(None if begun is None else " ".join(begun.groups()), frozenset(MARKS if "(" in left else ()))


def families(problem: Problem, operators: str = OPERATORS) -> frozenset[str]:
    """Every number with every operator: each begins an expression, unless there is only one number."""
    return frozenset(f"{number} {operator}" for number in problem.numbers for operator in operators if len(problem.numbers) > 1)


def parse_prompt(prompt: str) -> Problem:
    """The problem of a prompt written by `render`; raises `DataError` for any other text."""
    left, _, right = prompt.partition("=")
    try:
        problem = Problem(tuple(int(word) for word in left.split(" ")), int(right[:-1]))
    except ValueError:
        problem = None
    if problem is None or render(problem) != prompt:
        raise DataError(f"{prompt!r:.80} is not a Countdown prompt: it should look like '3 5 7 11=24:'.")
    return problem


def problem_of(problem_id: str) -> Problem:
    """The problem of an id such as "3-5-7-11=24"; raises `DataError` for any other text."""
    numbers, _, target = problem_id.partition("=")
    try:
        return Problem(tuple(map(int, numbers.split("-"))), int(target))
    except ValueError:
        raise DataError(f"{problem_id!r:.80} is no id of a Countdown problem: it should look like '3-5-7-11=24'.") from None


def verify(problem: Problem, completion: str) -> Verdict:
    """Right iff the completion is a canonical expression over the problem's numbers whose value is the target."""
    return judge(problem.numbers, problem.target, completion)


def solutions(problem: Problem) -> list[str]:
    """All completions that `verify` accepts, in a fixed order (up to 5 numbers; 0.2 ms for four, 0.1 s for five)."""
    return solve(problem.numbers, problem.target)


def _mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of splitmix64 (Steele, Lea and Flood 2014): a bijection of words that scatters their bits."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def in_split(split: str, numbers: NDArray[np.int64], targets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mask of the keys in a split, numbers (R, n) ascending in each row, targets (R,); the same on every platform."""
    state = np.full(len(numbers), numbers.shape[1], np.uint64)
    for column in (*numbers.T, targets):
        state = _mix(state + np.uint64(0x9E3779B97F4A7C15) + column.astype(np.uint64))
    buckets = (state % np.uint64(100)).astype(np.int64)
    low, high = _BUCKETS[split]
    return (buckets >= low) & (buckets < high)


def split_of(problem: Problem) -> str:
    """The split that a problem belongs to: a function of its key only."""
    numbers, target = problem.key
    key = np.array([numbers], np.int64), np.array([target], np.int64)
    return next(split for split in SPLITS if in_split(split, *key)[0])


__all__ = ["SPLITS", "Problem", "in_split", "parse_prompt", "render", "solutions", "split_of", "verify"]
