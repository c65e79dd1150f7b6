"""Countdown: some numbers and a target; the completion is an arithmetic expression that uses each number exactly once.

A world small enough to know exactly. Every problem is a pure function of (world, split, seed, index); every correct
completion can be listed (`solutions`), because exactly one form of each expression is accepted. Canonical form:
binary `+ - * /` with the usual strength and left association, no spaces, no signs, no leading zeros, and parentheses
only if leaving them out would change the meaning as algebra. So `a+(b-c)` must be written `a+b-c`, while `a+b` and
`b+a` are two expressions (`verifiers/countdown.py` has the rule and the parser). Intermediate fractions and negative
numbers are allowed.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, get_args

import numpy as np

from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.tasks.base import TASKS, Task, different, stream
from sage_rlvr.tasks.countdown import draws
from sage_rlvr.tasks.countdown.draws import TargetLaw
from sage_rlvr.tasks.countdown.expressions import MAX_NUMBERS, check_range, expressions_over, guesses
from sage_rlvr.tasks.countdown.problem import (
    MARKS,
    SPLITS,
    STATES,
    Problem,
    answer_form,
    families,
    parse_prompt,
    problem_of,
    render,
    solutions,
    split_of,
    state_class,
    verify,
)
from sage_rlvr.tasks.countdown.tokenizer import build_tokenizer
from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.countdown import canonical, parse, structure
from sage_rlvr.verifiers.versions import version_hash

SAMPLINGS = ("iid", "distinct", "without-replacement")
COUNTDOWN_CLASSES = (  # one token per character
    ("end or special", r"<pad>|<eos>"),
    ("digit", r"\d"),
    ("sum or difference", r"[+-]"),
    ("product or quotient", r"[*/]"),
    ("opening bracket", r"\("),
    ("closing bracket", r"\)"),
    ("prompt", r"|[=:]"),
)


_BY_HAND = str.maketrans("*-/.", "×−÷·")


def _check_split(split: str) -> None:
    if split not in SPLITS:
        raise ConfigError(f"split {split!r}: choose one of {', '.join(SPLITS)}.")


@TASKS.register
@dataclass(frozen=True)
class Countdown(Task):
    """A world: a distribution over problems, and for each problem one over its correct expressions.

    counts: weights of the sizes of a problem (keys 2..5; they need not sum to one, and are those after rejection);
    numbers are uniform in 1..max_number with repeats.
    targets "expression": numbers and an expression over them are drawn together, uniformly over all whose value is an
    integer in min_target..max_target, so problems come in proportion to how many solutions they have (easy ones often).
    targets "uniform": numbers are drawn until they reach a target of the split, then the target uniformly among the
    integers in min_target..max_target that they reach in the split, however few solutions it has.
    Under both laws every problem is solvable and, given its problem, an expression is uniform over
    `solutions(problem)`. Numbers are listed in ascending order. Indices are endless; problems recur (see `problems`).
    train_problems: size of the training pool. data_seed: seed of the problems, separate from the seed of a run, so that runs share
        their data. Two worlds that differ only in these are equal.
    """

    name: ClassVar[str] = "countdown"
    worlds: ClassVar[Mapping[str, Countdown]] = {}
    max_new_tokens: ClassVar[int] = 32
    counts: dict[int, float] = field(default_factory=lambda: {4: 1.0})
    max_number: int = 12
    max_target: int = 100
    min_target: int = 1
    targets: TargetLaw = "expression"
    train_problems: int = field(default=20_000, compare=False)
    data_seed: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        counts = {int(n): float(weight) for n, weight in sorted(self.counts.items())}
        object.__setattr__(self, "counts", counts)
        weights = list(counts.values())
        refused = {
            f"counts {counts}: name at least one number of numbers, each from 2 to {MAX_NUMBERS}.":
                not counts or any(not 2 <= n <= MAX_NUMBERS for n in counts),
            f"counts {counts}: weights must be finite, not negative, and not all zero.":
                not all(0 <= weight < float("inf") for weight in weights) or sum(weights) <= 0,
            f"max_number {self.max_number}: must be 1 or larger.": self.max_number < 1,
            f"targets {self.min_target}..{self.max_target}: need 1 <= min_target <= max_target.":
                not 1 <= self.min_target <= self.max_target,
            f"targets {self.targets!r}: choose one of {', '.join(get_args(TargetLaw))}.": self.targets not in get_args(TargetLaw),
            f"train_problems {self.train_problems}, data_seed {self.data_seed}: at least 1 problem, and a seed of 0 or more.":
                self.train_problems < 1 or self.data_seed < 0,
        }  # fmt: skip
        for why, so in refused.items():
            if so:
                raise ConfigError(why)
        check_range(max(counts), self.max_number, self.max_target)

    def __hash__(self) -> int:
        return hash((tuple(self.counts.items()), self.max_number, self.max_target, self.min_target, self.targets))

    prompt = staticmethod(render)
    verify = staticmethod(verify)
    solutions = staticmethod(solutions)
    problem_of = staticmethod(problem_of)
    token_classes = COUNTDOWN_CLASSES
    state_classes: ClassVar[tuple[str, ...]] = STATES
    state_class = staticmethod(state_class)
    answer_marks: ClassVar[tuple[str, ...]] = MARKS
    answer_form = staticmethod(answer_form)
    families = staticmethod(families)
    answers = staticmethod(solutions)
    kinds: ClassVar[Mapping[str, str]] = {"operators": "", "trees": "A dot is a number, a pair of parentheses an operation."}

    def kinds_of(self, problem: Problem, text: str) -> list[str]:
        """Operators and tree of an expression, as written by hand."""
        return [part.translate(_BY_HAND) for part in structure(text)]

    def answer_key(self, problem: Problem, text: str) -> str:
        """The expression: each is a separate answer."""
        return text

    def reference(self, problem: Problem) -> str:
        """The shortest right expression, alphabetically first among several."""
        return min(solutions(problem), key=lambda text: (len(text), text))

    def answer_span(self, problem: Problem, text: str) -> tuple[int, int] | None:
        """The full expression, right or wrong: there is no reasoning before it."""
        return None if parse(text) is None else (0, len(text))

    def choices(self, problem: Problem) -> float | None:
        """Expressions over the numbers per right one; None for five numbers, because listing them takes long."""
        many = len(problem.numbers) == MAX_NUMBERS
        return None if many else self.candidates(problem) / len(solutions(problem))

    def candidates(self, problem: Problem) -> int:
        """Expressions over the numbers."""
        return expressions_over(problem.numbers)

    def guesses(self, problem: Problem) -> tuple[float, ...]:
        """Shares of right guesses of guessers that omit division, brackets, or both."""
        return guesses(problem.numbers, problem.target)

    @property
    def _verifier_version(self) -> str:
        """The verifier's version."""
        return version_hash("countdown")

    @property
    def identity(self) -> dict[str, Any]:
        """Settings that determine the problems of an evaluation, as JSON: all but the size and seed of the training pool."""
        counts = {str(n): weight for n, weight in self.counts.items()}
        bounds = {"max_number": self.max_number, "min_target": self.min_target, "max_target": self.max_target}
        return {"name": self.name, "counts": counts, **bounds, "targets": self.targets}

    @staticmethod
    def described(identity: Mapping[str, Any]) -> str:
        """Sizes and bounds of the problems and their distribution, in a line."""
        sizes, most = " or ".join(map(str, identity["counts"])), identity["max_number"]
        bounds = f"targets {identity['min_target']}..{identity['max_target']}"
        return f"Countdown: {sizes} numbers of 1..{most}, {bounds}, drawn by {identity['targets']}"

    def draw(self, split: str, seed: int, n: int, sampling: str = "iid") -> list[Problem]:
        """The problems of an evaluation. "iid": n independent draws from the world's distribution, restricted to the split, with
        repeats, so that the mean over them estimates the world's mean and an interval over them is valid. "distinct": the first n
        different ones of these, for scores on this many problems of the kind that a run trains on. "without-replacement": n
        problems drawn without replacement from all problems of the split, each equally likely: the many hard ones weigh more.
        """
        if sampling == "iid":
            return self.problems(split, seed, n, distinct=False)
        if sampling == "distinct":
            return self.problems(split, seed, n)
        if sampling == "without-replacement":
            return self.sample_of_census(split, seed, n)
        raise DataError(f"sampling {sampling!r}: choose one of {', '.join(SAMPLINGS)}")

    def first(self, split: str, n: int) -> list[Problem]:
        """The first n of `problems(split)`."""
        return self.problems(split, n=min(n, self.train_problems))

    def examples(self, split: str, seed: int, start: int, n: int) -> list[tuple[Problem, str]]:
        """Examples start..start+n-1: problem and correct canonical expression. A pure function of its arguments."""
        _check_split(split)
        if min(seed, start, n) < 0:
            raise ConfigError(f"seed {seed}, start {start}, n {n}: none may be negative.")
        size = draws.block_size(self)
        first, behind = start // size, -(-(start + n) // size)
        drawn = [example for number in range(first, behind) for example in draws.block(self, split, seed, number)]
        return drawn[start - first * size :][:n]

    def census(self, split: str) -> list[Problem]:
        """Every problem of the split that has a right answer, each once, in the order of its numbers and target.

        Seconds for four numbers, about half a minute for five (each set of numbers is enumerated once).
        """
        _check_split(split)
        return list(draws.census(self, split))

    def facts(self, split: str = "test") -> dict[str, float]:
        """Facts about a split by enumeration: `problems`; right answers per problem, each problem counted once
        (`answers_mean`, `answers_median`) and as the law draws them (`answers_mean_by_law`; only law "expression");
        `expressions_mean`, all canonical expressions over a problem's numbers; `longest`, characters of the longest answer.
        """
        every = self.census(split)
        right = [solutions(p) for p in every]
        counts = np.array([len(answers) for answers in right], dtype=float)
        made = [expressions_over(p.numbers) for p in every]
        facts = {"problems": len(every), "answers_mean": counts.mean(), "answers_median": np.median(counts)}
        if self.targets == "expression" and len(self.counts) == 1:  # a problem is drawn as often as it has answers
            facts["answers_mean_by_law"] = (counts**2).sum() / counts.sum()
        longest = max(len(answer) for answers in right for answer in answers)
        return {k: float(v) for k, v in (facts | {"expressions_mean": np.mean(made), "longest": longest}).items()}

    def sample_of_census(self, split: str, seed: int, n: int) -> list[Problem]:
        """`n` problems drawn without replacement from the census of the split, all equally likely: the problems of an evaluation.

        The mean over them estimates the mean over all problems of the split, each counted once. Draws by expression would prefer
        the problems with many answers, the easy ones. Raises DataError when the split has fewer than n.
        """
        every = self.census(split)
        if not 1 <= n <= len(every):
            raise DataError(f"{n} {split} problems: this world has {len(every)}; ask for 1 to {len(every)} of them.")
        words = stream(seed, SPLITS.index(split), len(every)).random_raw(len(every))
        return [every[i] for i in np.argsort(words, kind="stable")[:n]]

    def problems(
        self, split: str, seed: int | None = None, n: int | None = None, distinct: bool = True
    ) -> list[Problem]:
        """The first n problems of a seed (`train_problems` of `data_seed`, unless given); with `distinct` repeats of a key are
        dropped (a small world may run dry)."""
        seed = self.data_seed if seed is None else seed
        n = self.train_problems if n is None else n
        if not distinct:
            return [problem for problem, _ in self.examples(split, seed, 0, n)]
        size = draws.block_size(self)
        blocks = (self.examples(split, seed, start, size) for start in itertools.count(0, size))
        distinct_problems = different(blocks, n, 4 * draws.BLOCK // size)
        if len(distinct_problems) < n:
            raise DataError(
                f"{n} distinct {split} problems: this world gave only {len(distinct_problems)}; ask for fewer or "
                f"enlarge max_number={self.max_number} or max_target={self.max_target}."
            )
        return distinct_problems


WORLDS: Mapping[str, Countdown] = {
    "demo": Countdown({4: 1.0}, max_number=9, max_target=20, train_problems=6_000),
    "demo-base": Countdown({3: 0.85, 4: 0.15}, max_number=9, max_target=20, train_problems=6_000),
    "demo-5": Countdown({5: 1.0}, max_number=9, max_target=20, targets="uniform", train_problems=6_000),
    "demo-large": Countdown({4: 1.0}, max_number=9, min_target=21, max_target=99, train_problems=6_000),
    "countdown-3": Countdown({3: 1.0}, train_problems=3_000),
    "countdown-base": Countdown({3: 0.85, 4: 0.15}),
    "countdown-4": Countdown({4: 1.0}, targets="uniform"),
    "countdown-5": Countdown({5: 1.0}, targets="uniform"),
    "countdown-4-large": Countdown({4: 1.0}, min_target=101, max_target=999, targets="uniform"),
}
"""Named worlds. "demo" is the frozen world of recipes/countdown, "demo-base" the training world of its base policy, "demo-5"
(five numbers) and "demo-large" (targets 21..99) its out-of-distribution sets. Each has
at least its train_problems. The others go to 12 and 100: "countdown-3" and
"countdown-base" teach, "countdown-4", "countdown-5" and "countdown-4-large" draw their targets uniformly."""
Countdown.worlds = WORLDS

__all__ = [
    "SAMPLINGS", "SPLITS", "WORLDS", "Countdown", "Problem", "Verdict", "build_tokenizer", "canonical",
    "parse_prompt", "render", "solutions", "split_of", "structure", "verify",
]  # fmt: skip
