"""Knights and Knaves: two to eight people, each of whom makes one statement; statements of knights are true, those of knaves false.

    solutions = { a in {knight, knave}^n : for all i, a_i = knight iff the statement of i is true under a }
    a puzzle is one with exactly one solution

The statements are those of Xie et al. (arXiv 2410.23123): somebody is (not) a knight or knave; two such claims joined by
and, or, if-then, if and only if. A puzzle is a pure function of (seed, people, index): drawn from a counter-based stream
until all 2^n assignments leave one. The texts and the instruction are new; the answer format and the rule that scores it
are the published ones (`sage_rlvr.verifiers.knights_and_knaves`), and the published instruction can be given instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product
from typing import Any, ClassVar, TypeAlias

from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.tasks import TASKS
from sage_rlvr.tasks.base import Task, hash_of, words
from sage_rlvr.tasks.checks import Case, Check, duplicates
from sage_rlvr.verdicts.chance import Chance
from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.knights_and_knaves import HEADING, Rule, conclusion, identity, judge
from sage_rlvr.verifiers.versions import version_hash

# ("knight", i), ("knave", i), ("not", claim), ("and" | "or" | "if" | "iff", claim, claim)
Statement: TypeAlias = tuple[Any, ...]

PEOPLE = range(2, 9)
MAX_DRAWS = 10_000  # candidates for one puzzle; about one of three has one solution
MAX_PASSED = 50  # puzzles drawn per requested one before an error that those of two people ran out
# No name ends with another, and none contains "if", which the published rule reads as a condition.
NAMES = (
    "Agnes", "Bruno", "Carla", "Dmitri", "Esther", "Farid", "Greta", "Hamid", "Ingrid", "Jonas", "Klara", "Lorenzo",
    "Marta", "Nikhil", "Odette", "Pavel", "Ruth", "Silvio", "Tamar", "Ursula", "Viktor", "Wanda", "Yusuf", "Zdenka",
)  # fmt: skip
INSTRUCTION = (
    "Below are the statements of some people. Work out from them who each person is, and explain how. End your answer with "
    f"the identity of each person in this form:\n\n{HEADING}\n(1) ...\n(2) ...\n(3) ..."
)


# The truth of a statement, given that of the claims within it, and its words.
_JOINED: dict[str, tuple[Callable[..., bool], str]] = {
    "not": (lambda a: not a, ""),  # spoken within the claim
    "and": (lambda a, b: a and b, "{} and {}"),
    "or": (lambda a, b: a or b, "{} or {}"),
    "if": (lambda a, b: not a or b, "if {} then {}"),
    "iff": (lambda a, b: a == b, "{} if and only if {}"),
}


def true_under(statement: Statement, assignment: Sequence[bool]) -> bool:
    """Whether a statement is true when person i is a knight iff assignment[i]."""
    kind, *claims = statement
    if kind in ("knight", "knave"):
        return assignment[claims[0]] == (kind == "knight")
    if kind not in _JOINED:
        raise DataError(f"{statement!r:.80} is no statement: {kind!r} is none of knight, knave, {', '.join(_JOINED)}.")
    return bool(_JOINED[kind][0](*(true_under(claim, assignment) for claim in claims)))


def solutions_of(statements: Sequence[Statement]) -> list[tuple[bool, ...]]:
    """All assignments under which statements of knights are true and those of knaves false, by trying all 2^n."""
    return [
        assignment
        for assignment in product((True, False), repeat=len(statements))
        if all(true_under(statement, assignment) == knight for statement, knight in zip(statements, assignment, strict=True))
    ]


def spoken(statement: Statement, names: Sequence[str]) -> str:
    """A statement in words."""
    kind, *claims = statement
    if kind in ("knight", "knave"):
        return identity(names[claims[0]], kind == "knight")
    if kind == "not":
        return spoken(claims[0], names).replace(" is a ", " is not a ")
    return _JOINED[kind][1].format(*(spoken(claim, names) for claim in claims))


@dataclass(frozen=True)
class Puzzle:
    """A puzzle: the statements, person by person. Raises `DataError` unless it has exactly one solution. `KnightsAndKnaves` makes,
    renders, judges and solves it."""

    problem_id: str
    names: tuple[str, ...]
    statements: tuple[Statement, ...]

    def __post_init__(self) -> None:
        if len(self.names) != len(self.statements) or len(set(self.names)) != len(self.names):
            raise DataError(f"puzzle {self.problem_id}: needs one statement a person, and names that differ.")
        solutions = solutions_of(self.statements)
        if len(solutions) != 1:
            raise DataError(f"puzzle {self.problem_id}: {len(solutions)} solutions; a puzzle has exactly one.")

    @cached_property
    def solution(self) -> tuple[bool, ...]:
        """Whether each person is a knight."""
        return solutions_of(self.statements)[0]

    @property
    def answer(self) -> str:
        """The gold, in the requested format."""
        return conclusion(self.names, self.solution)

    @property
    def text(self) -> str:
        """The puzzle in words."""
        met = f"{', '.join(self.names[:-1])} and {self.names[-1]}"
        says = " ".join(
            f'{name} says: "{sentence[0].upper()}{sentence[1:]}."'
            for name, sentence in zip(self.names, (spoken(one, self.names) for one in self.statements), strict=True)
        )
        return (
            "On an island live knights, who only ever say what is true, and knaves, who only ever say what is false. You "
            f"meet {len(self.names)} of the people who live there: {met}. {says} Who is a knight, and who is a knave?"
        )


def _claims(chance: Iterator[int], people: int, speaker: int) -> Iterator[Statement]:
    """Claims that somebody is a knight or a knave, endlessly; nobody claims "I am a knave", which nobody can."""
    while True:
        claim = ("knight", "knave")[next(chance) % 2], next(chance) % people
        if claim != ("knave", speaker):
            yield claim


def _statement(chance: Iterator[int], people: int, speaker: int) -> Statement:
    kind = ("plain", *_JOINED)[next(chance) % 6]
    claims = _claims(chance, people, speaker)
    first = next(claims)
    if kind in ("plain", "not"):
        return first if kind == "plain" else (kind, first)
    return kind, first, next(claim for claim in claims if claim != first)


@lru_cache(maxsize=4096)
def _puzzle(seed: int, people: int, index: int) -> Puzzle:
    chance = words(seed, people, index)
    order = sorted(range(len(NAMES)), key=lambda _: next(chance))
    names = tuple(NAMES[i] for i in order[:people])
    for _ in range(MAX_DRAWS):
        statements = tuple(_statement(chance, people, speaker) for speaker in range(people))
        if len(solutions_of(statements)) == 1:
            return Puzzle(f"kk{people}-{seed}-{index}", names, statements)
    raise DataError(f"kk{people}-{seed}-{index}: none of {MAX_DRAWS} candidates has one solution; take another seed.")


@TASKS.register(name="knights_and_knaves")
@dataclass(frozen=True)
class KnightsAndKnaves(Task):
    """Puzzles of `people` people each, `count` for each number of people, of one seed.

    train_count  puzzles for each number of people for training; none of them is among the others
    rule         how a completion is scored: "published" or "strict" (see `sage_rlvr.verifiers.knights_and_knaves`)
    instruction  text before the puzzle; it must ask for the conclusion
    """

    people: tuple[int, ...] = tuple(PEOPLE)
    count: int = 100
    seed: int = 0
    rule: Rule = "published"
    instruction: str = INSTRUCTION
    train_count: int = 200

    characters: ClassVar[str] = "\n" + "".join(map(chr, range(32, 127)))

    def __post_init__(self) -> None:
        if not self.people or any(n not in PEOPLE for n in self.people) or len(set(self.people)) < len(self.people):
            raise ConfigError(f"people {self.people}: different numbers from {PEOPLE[0]} to {PEOPLE[-1]} are needed.")
        if min(self.count, self.train_count) < 1 or self.seed < 0:
            raise ConfigError(
                f"count {self.count}, train_count {self.train_count}, seed {self.seed}: at least 1 puzzle, and a seed of 0 or more."
            )
        if HEADING not in self.instruction:
            raise ConfigError(f"instruction: never asks for {HEADING!r}, behind which the answer is read.")

    def puzzle(self, people: int, index: int) -> Puzzle:
        """Puzzle `index` among those of `people` people: a pure function of (seed, people, index). Indices are endless."""
        return _puzzle(self.seed, people, index)

    def problems(self, split: str = "test") -> tuple[Puzzle, ...]:
        """`count` puzzles of each number of people (train: the following `train_count`), fewest people first.

        A puzzle with repeated statements is skipped.
        """
        first, count = (self.count, self.train_count) if split == "train" else (0, self.count)
        return _puzzles(tuple(sorted(self.people)), self.seed, first, count)

    @property
    def name(self) -> str:
        """The name, with the rule if it is not the published one."""
        return "knights_and_knaves" + ("" if self.rule == "published" else f"_{self.rule}")

    def prompt(self, problem: Puzzle) -> str:
        """The prompt as plain text, in the published frame: the instruction, "### Question:", "### Answer:"."""
        return f"{self.instruction}\n\n### Question: {problem.text}\n### Answer:"

    def messages(self, problem: Puzzle) -> list[dict[str, str]]:
        """The prompt as a conversation."""
        return [{"role": "user", "content": f"{self.instruction}\n\n{problem.text}"}]

    def examples(self, split: str, seed: int, start: int, n: int) -> list[tuple[Puzzle, str]]:
        """Examples `start` to `start + n` of an endless stream: a puzzle of the split, its people renamed, and its `worked`
        answer. For training a policy from scratch."""
        puzzles, examples = self.problems(split), []
        for number in range(start, start + n):
            chance = words(seed, number)
            drawn = puzzles[next(chance) % len(puzzles)]
            # sorted calls its key once per name, in the order of NAMES: the names are a function of the stream only
            names = sorted(NAMES, key=lambda _: next(chance))[: len(drawn.names)]
            puzzle = replace(drawn, names=tuple(names))
            examples.append((puzzle, self.worked(puzzle)))
        return examples

    def worked(self, problem: Puzzle) -> str:
        """A right completion: for each person in turn, whether their statement is true, as those of knights are; then the
        conclusion."""
        people = zip(problem.names, problem.solution, strict=True)
        return "".join(f" {name} says what is {'true' if knight else 'false'}." for name, knight in people) + f"\n{problem.answer}"

    def verify(self, problem: Puzzle, completion: str) -> Verdict:
        """The verdict on a completion by `rule`; plain searches in a text, so no worker process is needed."""
        return judge(problem.names, problem.solution, completion, self.rule)

    def answer_key(self, problem: Puzzle, text: str) -> str | None:
        """The text after the conclusion's heading, with normalized spaces."""
        _, heading, concluded = text.partition(HEADING)
        return " ".join(concluded.split()) if heading else None

    def reference(self, problem: Puzzle) -> str:
        """The identities, person by person, as after the heading."""
        return problem.answer.partition(HEADING)[2].strip()

    def answer_span(self, problem: Puzzle, text: str) -> tuple[int, int] | None:
        """The text after the last heading, without the spaces around it."""
        before, heading, concluded = text.rpartition(HEADING)
        first = len(before) + len(heading) + len(concluded) - len(concluded.lstrip())
        return (first, first + len(concluded.strip())) if concluded.strip() and heading else None

    def doc(self, problem: Puzzle) -> dict[str, str]:
        """Question and answer under the names of the published set."""
        return {"quiz": problem.text, "solution": problem.answer}

    def choices(self, problem: Puzzle) -> int:
        """Knight or knave for each person."""
        return int(2 ** len(problem.names))

    def fingerprint(self, problems: Sequence[Puzzle]) -> str:
        """Hash of ids, texts, golds and the instruction."""
        return hash_of([{p.problem_id: [p.text, p.answer] for p in problems}, self.instruction])

    @property
    def _verifier_version(self) -> str:
        """The verifier's version, and the rule in use."""
        return version_hash("knights_and_knaves", rule=self.rule)

    def audit_cases(self, k: int) -> Iterator[Case | Check]:
        """Golds, golds after working, wrong conclusions by kind, repeated puzzles, and the floors of k guesses."""
        puzzles = self.problems()
        working = "If Agnes lied, then (1) and (2) could not hold. "
        yield Case("gold right against itself", [(p, p.answer) for p in puzzles])
        yield Case("perfect answer in the published format", [(p, f"{working}\n{p.answer}") for p in puzzles])
        wrong = {kind: list(zip(puzzles, texts, strict=True)) for kind, texts in _wrong(puzzles).items()}
        yield Case("", wrong, "wrong")
        yield duplicates("puzzles that stand once", ((p.problem_id, str(p.statements), p.answer) for p in puzzles))
        for people in sorted(self.people):
            share = Chance("values", (2.0**-people,)).at(k)
            note = f"1 - (1 - 2^-{people})^{k} = {share:.3f}"
            yield Check(f"guess floor: {people} people, {k} guesses", share * self.count, self.count, note=note)

    def audited(self) -> str:
        """Describe the subject of an audit."""
        span = f"{min(self.people)} to {max(self.people)} people"
        return f"{len(self.problems())} puzzles of {span}, seed {self.seed}; rule {self.rule!r}"


@lru_cache(maxsize=64)
def _puzzles(people: tuple[int, ...], seed: int, first: int, count: int) -> tuple[Puzzle, ...]:
    """For each number of people, `count` puzzles of different statements after the `first` ones."""
    puzzles: list[Puzzle] = []
    for n in people:
        distinct: dict[tuple[Statement, ...], Puzzle] = {}
        for index in range((first + count) * MAX_PASSED):
            puzzle = _puzzle(seed, n, index)
            distinct.setdefault(puzzle.statements, puzzle)
            if len(distinct) == first + count:
                break
        else:
            raise DataError(f"{first + count} puzzles of {n} people: only {len(distinct)} differ; ask for fewer.")
        puzzles += list(distinct.values())[first:]
    return tuple(puzzles)


def _wrong(puzzles: Sequence[Puzzle]) -> dict[str, list[str]]:
    first = [conclusion(p.names, [not p.solution[0], *p.solution[1:]]) for p in puzzles]
    turned = [conclusion(p.names, [not knight for knight in p.solution]) for p in puzzles]
    return {
        "one person turned": first,
        "everybody turned": turned,
        "the last person missing": [p.answer.rpartition("\n")[0] for p in puzzles],
        "another puzzle's": [puzzles[i - 1].answer for i in range(len(puzzles))],
        "everybody called both": [
            f"{p.answer}\n{other.partition(chr(10))[2]}" for p, other in zip(puzzles, turned, strict=True)
        ],
    }


__all__ = [
    "INSTRUCTION", "NAMES", "PEOPLE", "KnightsAndKnaves", "Puzzle", "solutions_of", "spoken", "true_under"
]  # fmt: skip
