"""Word problems of several steps from a grammar: how many each person has, given by comparisons, asked of one of them.

    Dan has 3 more than Ann. Ann has exactly 7. Eve has 2 times as many as Dan. Ben has 5 fewer than Ann. How many does Eve have?
    Ann has exactly 7, Dan has 3 more than Ann, so Dan has 7+3=10, Eve has 2 times as many as Dan, so Eve has 10*2=20

A right completion is a chain: it starts at a given number, and each further step repeats one fact of the text that compares the
last person with a new one, in either direction, and computes the new one's number. The last person is the one in the question.
Extra facts close loops, so that there are several chains, and other facts lead nowhere; no step can be undone. The success of
guessing is `blind`, the chance of a random walk over facts, which a task can bound. Each step is checked exactly, in one form, so
that `solutions` lists every right completion.

A problem is a pure function of (task, split, seed, index). Its split is a hash of its numbers.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from itertools import count
from math import fsum
from typing import Any, ClassVar

from sage_rlvr.contrib.tasks.word_problems.draws import Words, bucket, candidate
from sage_rlvr.contrib.tasks.word_problems.story import (
    CLASSES,
    EXACTLY,
    LONGEST,
    MOST,
    NAMES,
    THEN,
    TOKENS,
    WORKED,
    Story,
    read,
    story_of,
)
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.tasks import TASKS
from sage_rlvr.tasks.base import Task, different, hash_of
from sage_rlvr.tasks.checks import Case, Check, duplicates
from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.versions import version_hash

SPLITS = {"test": (0, 10), "validation": (10, 20), "train": (20, 100)}  # of a story's bucket
DRAWS = 2_000  # candidates for one problem before an error
DRY = 2_000  # draws in a row without a new problem
BY_HAND = str.maketrans("*-/", "×−÷")


@TASKS.register
@dataclass(frozen=True)
class WordProblems(Task):
    """Word problems of several steps from a grammar (see the module).

    people: weights of the numbers of people (any sum). given: numbers that the text gives. loops: facts beyond those that connect
        everybody, so that there are several ways. steps: the fewest and the most facts in the shortest right chain. ways: the
        fewest and the most right chains. blind: the largest chance that a random walk over facts is right. max_value: the largest
        number of a person. train_problems: size of the training pool. data_seed: its seed, separate from the seed of a run.
    """

    people: dict[int, float] = field(default_factory=lambda: {3: 0.25, 4: 0.25, 5: 0.25, 6: 0.25})
    given: int = 1
    loops: int = 1
    steps: tuple[int, int] = (1, 5)
    ways: tuple[int, int] = (1, 12)
    blind: float = 1.0
    max_value: int = 40
    train_problems: int = 2_000
    data_seed: int = 0

    name: ClassVar[str] = "word_problems"
    characters: ClassVar[tuple[str, ...]] = TOKENS
    token_classes: ClassVar[tuple[tuple[str, str], ...]] = CLASSES
    kinds: ClassVar[Mapping[str, str]] = {"steps": "", "operators": "In the order in which they are taken."}
    problem_of = staticmethod(story_of)

    def __post_init__(self) -> None:
        try:
            for name in ("given", "loops", "max_value", "train_problems", "data_seed"):
                operator.index(getattr(self, name))
            for name in ("steps", "ways"):
                object.__setattr__(self, name, tuple(operator.index(n) for n in getattr(self, name)))
            people = dict(sorted((int(n), float(weight)) for n, weight in self.people.items()))
            whole = len(people) == len(self.people) and all(int(n) == float(n) for n in self.people)
        except (TypeError, ValueError, AttributeError, OverflowError):
            whole = False
        if not whole or not isinstance(self.blind, int | float):
            raise ConfigError(
                f"{self}: people is {{whole number: weight}}, steps and ways are two whole numbers each, blind is a number, "
                "the others are whole numbers"
            )
        total, few = fsum(people.values()), min(people, default=0)
        if total and abs(total - 1) > 1e-9:  # rounded, so that equal weights are equal numbers
            people = {n: round(weight / total, 12) for n, weight in people.items()}
        object.__setattr__(self, "people", people)
        refused = {
            f"people {people}: numbers from 2 to {len(NAMES)} with finite weights above 0":
                not 0 < total < float("inf") or any(not 2 <= n <= len(NAMES) or w <= 0 for n, w in people.items()),
            f"given {self.given}: 1 or more, and fewer than the fewest people ({few})": not 1 <= self.given < few,
            f"loops {self.loops}: 0 to {min(few, (few - 1) * (few - 2) // 2)} for the fewest people ({few}); take more of them":
                not 0 <= self.loops <= min(few, (few - 1) * (few - 2) // 2),
            f"steps {list(self.steps)}: the fewest and the most, 1 or more":
                len(self.steps) != 2 or not 1 <= self.steps[0] <= self.steps[1],
            f"ways {list(self.ways)}: the fewest and the most, 1 or more":
                len(self.ways) != 2 or not 1 <= self.ways[0] <= self.ways[1],
            f"blind {self.blind}: above 0, at most 1": not 0 < self.blind <= 1,
            f"max_value {self.max_value}: 2 to {MOST}": not 2 <= self.max_value <= MOST,
            f"train_problems {self.train_problems}, data_seed {self.data_seed}: at least 1 problem, and a seed of 0 or more":
                self.train_problems < 1 or self.data_seed < 0,
        }  # fmt: skip
        for why, so in refused.items():
            if so:
                raise ConfigError(f"word_problems: {why}")

    def __hash__(self) -> int:
        return hash((tuple(self.people.items()), *(getattr(self, one.name) for one in fields(self) if one.name != "people")))

    @property
    def identity(self) -> dict[str, Any]:
        """Settings that determine the problems of an evaluation."""
        sizes = {name: getattr(self, name) for name in ("given", "loops", "blind", "max_value")}
        people = {str(n): weight for n, weight in self.people.items()}
        return {"name": self.name, "people": people, **sizes, "steps": list(self.steps), "ways": list(self.ways)}

    @staticmethod
    def described(identity: Mapping[str, Any]) -> str:
        """Sizes and bounds of the problems in a line."""
        (least, most), spare = identity["steps"], identity["loops"]
        sizes = f"{' or '.join(identity['people'])} people, numbers given {identity['given']}, spare facts {spare}"
        blind = "" if identity["blind"] == 1 else f", a blind walk right at most {identity['blind']:g}"
        return f"word problems: {sizes}, {least} to {most} steps{blind}, numbers up to {identity['max_value']}"

    @property
    def max_new_tokens(self) -> int:
        """At least the tokens of the longest right completion, a chain of everybody, and its end."""
        digits = len(str(self.max_value))
        return 3 + digits + (max(self.people) - 1) * (13 + 2 * digits)

    def prompt(self, problem: Story) -> str:
        """The text, which ends with the question."""
        return problem.text

    def solutions(self, problem: Story) -> list[str]:
        """Every right completion."""
        return [problem.written(chain) for chain in problem.chains]

    def verify(self, problem: Story, completion: str) -> Verdict:
        """Right if it starts at a given number, every step follows from a fact, and it ends at the person in the question."""
        return read(problem, completion)[0]

    def answer_key(self, problem: Story, text: str) -> str | None:
        """The people of a chain with valid steps, with any end; None if a step is invalid."""
        return read(problem, text)[1]

    def kinds_of(self, problem: Story, text: str) -> list[str]:
        """The number of steps, and the operators."""
        operators = "".join(step[1] for step in WORKED.finditer(text))
        return [str(len(operators)), operators.translate(BY_HAND)]

    def reference(self, problem: Story) -> str:
        """A shortest right completion, the first among several."""
        return problem.written(min(problem.chains, key=len))

    def doc(self, problem: Story) -> dict[str, str]:
        """Question and answer."""
        return {"question": problem.text, "answer": str(problem.values[problem.queried])}

    def examples(self, split: str, seed: int, start: int, n: int) -> list[tuple[Story, str]]:
        """Examples `start` to `start + n` of an endless stream: a problem and one of its right completions, each equally likely."""
        _check_split(split)
        if min(seed, start, n) < 0:
            raise ConfigError(f"seed {seed}, start {start}, n {n}: none may be negative.")
        return [_example(self, split, seed, index) for index in range(start, start + n)]

    def problems(self, split: str = "train") -> list[Story]:
        """The first `train_problems` of a split that differ in words, including names. Raises DataError if the world has fewer."""
        _check_split(split)
        return list(_different(self, split, self.data_seed, self.train_problems))

    def first(self, split: str, n: int) -> list[Story]:
        """The first n of `problems(split)`."""
        _check_split(split)
        return list(_different(self, split, self.data_seed, min(n, self.train_problems)))

    def draw(self, split: str, seed: int, n: int, sampling: str = "iid") -> list[Story]:
        """The problems of an evaluation: n independent draws, with repeats."""
        if sampling != "iid":
            raise DataError(f"sampling {sampling!r}: {self.name} has only iid, because its problems are not listed")
        return [problem for problem, _ in self.examples(split, seed, 0, n)]

    def fingerprint(self, problems: Sequence[Story]) -> str:
        """Hash of their contents and words."""
        return hash_of([[p.problem_id, p.text] for p in problems])

    @property
    def _verifier_version(self) -> str:
        """The verifier's version, and the length limit of a completion."""
        return version_hash("word_problems", longest=LONGEST)

    def audit_cases(self, k: int) -> Iterator[Case | Check]:
        """All right completions; the same with a number changed, a step left out or repeated, and only the answer."""
        rows = _different(self, "test", 1, 200)
        yield Case("every chain is right", [(p, text) for p in rows for text in self.solutions(p)])
        first = [(p, self.reference(p)) for p in rows]
        wrong = {
            "the answer changed": [(p, re.sub(r"[0-9]+$", lambda m: str(int(m[0]) + 1), text)) for p, text in first],
            "the given number changed": [(p, re.sub(r"[0-9]+", lambda m: m[0] + "1", text, count=1)) for p, text in first],
            "its last step missing": [(p, THEN.join(text.split(THEN)[:-2])) for p, text in first],
            "its beginning missing": [(p, text.partition(THEN)[2]) for p, text in first],
            "its last step twice": [(p, THEN.join([text, *text.split(THEN)[-2:]])) for p, text in first],
            "the answer alone": [(p, f"{p.queried}{EXACTLY}{p.values[p.queried]}") for p in rows],
        }
        yield Case("", wrong, "wrong")
        chance = sum(p.blind for p in rows)
        yield Check("a walk that takes any fact to a new person", chance, len(rows), note="expected; steps worked without fault")
        yield duplicates("problems that stand once", ((p.problem_id, p.text, str(p.values[p.queried])) for p in rows))

    def audited(self) -> str:
        """Describe the subject of an audit."""
        return f"200 problems of the test split, seed 1; {self.described(self.identity)}"


def _check_split(split: str) -> None:
    if split not in SPLITS:
        raise ConfigError(f"split {split!r}: choose one of {', '.join(SPLITS)}")


def _people(task: WordProblems, words: Words) -> int:
    """The number of people, by the task's weights."""
    share = words.below(1 << 30) / (1 << 30) * sum(task.people.values())
    for n, weight in task.people.items():
        share -= weight
        if share < 0:
            return n
    return n  # rounding left a remainder: the last one


@lru_cache(maxsize=1 << 14)
def _example(task: WordProblems, split: str, seed: int, index: int) -> tuple[Story, str]:
    """Example `index` of a split: the first candidate of its stream in the split with the requested steps and ways."""
    words, (low, behind) = Words(seed, index, list(SPLITS).index(split)), SPLITS[split]
    for _ in range(DRAWS):
        story = candidate(_people(task, words), task.given, task.loops, task.max_value, words)
        if story is None or not low <= bucket(story) < behind or not task.ways[0] <= len(story.chains) <= task.ways[1]:
            continue
        if task.steps[0] <= min(map(len, story.chains)) - 1 <= task.steps[1] and story.blind <= task.blind:
            return story, story.written(story.chains[words.below(len(story.chains))])
    why = f"none of {DRAWS} drawn {split} stories has steps, ways and blind as asked"
    raise DataError(f"{task}: {why}; widen one of them, people or max_value")


@lru_cache(maxsize=32)
def _different(task: WordProblems, split: str, seed: int, n: int) -> tuple[Story, ...]:
    stories = different(([_example(task, split, seed, index)] for index in count()), n, DRY)
    if len(stories) < n:
        raise DataError(f"{n} different {split} problems: {task} gave only {len(stories)}; ask for fewer or widen it")
    return tuple(stories)


__all__ = ["WordProblems"]
