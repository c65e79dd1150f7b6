"""Countdown: some numbers and a target; the completion is an arithmetic expression that uses each number exactly once.

A world small enough to know exactly. Every problem is a pure function of (world, split, seed, index); every correct
completion can be listed (`solutions`), because exactly one spelling of each expression is accepted. Canonical form:
binary `+ - * /` with the usual strength and left association, no spaces, no signs, no leading zeros, and parentheses
only where leaving them out would change the meaning as algebra. A left operand is parenthesised only before `*` or `/`
and when it is a sum or difference; a right operand never after `+`, after `-` and `*` only when it is a sum or
difference, after `/` when it is any operation. So `a+(b-c)` must be written `a+b-c`, while `a+b` and `b+a` are two
expressions (`verifiers/countdown.py` has the parser). Intermediate fractions and negative numbers are allowed.

Splits: a problem's key (sorted numbers, target) is hashed to a bucket 0..99; 0-9 is test, 10-19 validation, the rest
train. Two splits therefore never share a problem, not even up to the order of the numbers, whatever the world or seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations_with_replacement
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.tasks.base import code_hash
from sage_rlvr.tasks.countdown.expressions import (
    MAX_NUMBERS,
    check_range,
    count_expressions,
    evaluate,
    expressions_over,
    reached,
    solve,
    templates,
)
from sage_rlvr.tasks.countdown.tokenizer import build_tokenizer
from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.countdown import canonical, judge, structure

Split = Literal["train", "validation", "test"]
Law = Literal["expression", "uniform"]
SPLITS: tuple[str, ...] = get_args(Split)
DRAWS = ("law", "census")
BLOCK = 4096  # examples are drawn in blocks; block k is a pure function of (world, split, seed, k)
UNIFORM_BLOCK, UNIFORM_BLOCK_OF_FIVE = 64, 16  # law "uniform": smaller, for each new set of numbers is enumerated
_TOO_LARGE = 1 << 31
_MAX_DRAWS = 1 << 23  # candidates for one block before a world is called impossible
_MAX_MISSES = 1 << 11  # law "uniform": sets of numbers in a row without a target before a world is called impossible


@dataclass(frozen=True, slots=True)
class Problem:
    """Numbers (in the order in which the prompt shows them) and a target."""

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
        """(sorted numbers, target): what makes two problems the same; splits and `distinct` go by it."""
        return tuple(sorted(self.numbers)), self.target

    @property
    def problem_id(self) -> str:
        """The key as text, such as "3-5-7-11=24"."""
        return f"{'-'.join(map(str, sorted(self.numbers)))}={self.target}"


def render(problem: Problem) -> str:
    """The prompt, such as "3 5 7 11=24:". The completion is the expression alone, ended by `<eos>`."""
    return f"{' '.join(map(str, problem.numbers))}={problem.target}:"


def parse_prompt(prompt: str) -> Problem:
    """The problem of a prompt written by `render`; `DataError` for any other text."""
    left, _, right = prompt.partition("=")
    try:
        problem = Problem(tuple(int(word) for word in left.split(" ")), int(right[:-1]))
    except ValueError:
        problem = None
    if problem is None or render(problem) != prompt:
        raise DataError(f"{prompt!r:.80} is not a Countdown prompt: it should look like '3 5 7 11=24:'.")
    return problem


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


def _buckets(numbers: NDArray[np.int64], targets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bucket 0..99 of each key, numbers (R, n) ascending in each row, targets (R,); the same on every platform."""
    state = np.full(len(numbers), numbers.shape[1], np.uint64)
    for column in (*numbers.T, targets):
        state = _mix(state + np.uint64(0x9E3779B97F4A7C15) + column.astype(np.uint64))
    return (state % np.uint64(100)).astype(np.int64)


def _in_split(buckets: NDArray[np.int64], split: str) -> NDArray[np.bool_]:
    low, high = {"test": (0, 10), "validation": (10, 20), "train": (20, 100)}[split]
    return (buckets >= low) & (buckets < high)


def split_of(problem: Problem) -> str:
    """The split that a problem belongs to: a function of its key alone."""
    numbers, target = problem.key
    bucket = _buckets(np.array([numbers], np.int64), np.array([target], np.int64))
    return next(split for split in SPLITS if _in_split(bucket, split)[0])


def _stream(seed: int, *path: int) -> np.random.Philox:
    """A counter-based bit stream; only its raw 64-bit words are used, which every numpy version gives alike."""
    return np.random.Philox(np.random.SeedSequence([seed, *path]))


@dataclass(frozen=True)
class Countdown:
    """A world: a distribution over problems, and for each problem one over its correct expressions.

    counts: weights over how many numbers a problem has (keys 2..5; they need not sum to one, and hold after rejection);
    numbers are uniform in 1..max_number with repeats.
    targets "expression": numbers and an expression over them are drawn together, uniformly over all whose value is an
    integer in min_target..max_target, so problems come in proportion to how many solutions they have (easy ones often).
    targets "uniform": numbers are drawn until they reach a target of the split, then the target uniformly among the
    integers in min_target..max_target that they reach in the split, however few solutions it has.
    Under both laws every problem is solvable and, given its problem, an expression is uniform over
    `solutions(problem)`. Numbers are listed in ascending order. Indices are endless; problems recur (see `problems`).
    train_problems: size of the training pool. data_seed: seed of the problems, apart from the seed of a run, so that runs share
    their data. Two worlds that differ in these alone are one law, and equal.
    """

    name: ClassVar[str] = "countdown"
    max_new_tokens: ClassVar[int] = 32
    counts: dict[int, float] = field(default_factory=lambda: {4: 1.0})
    max_number: int = 12
    max_target: int = 100
    min_target: int = 1
    targets: Law = "expression"
    train_problems: int = field(default=20_000, compare=False)
    data_seed: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        counts = {int(n): float(weight) for n, weight in sorted(self.counts.items())}
        object.__setattr__(self, "counts", counts)
        if not counts or any(not 2 <= n <= MAX_NUMBERS for n in counts):
            raise ConfigError(f"counts {counts}: name at least one number of numbers, each from 2 to {MAX_NUMBERS}.")
        if not all(0 <= weight < float("inf") for weight in counts.values()) or sum(counts.values()) <= 0:
            raise ConfigError(f"counts {counts}: weights must be finite, not negative, and not all zero.")
        if self.max_number < 1:
            raise ConfigError(f"max_number {self.max_number}: must be 1 or larger.")
        if not 1 <= self.min_target <= self.max_target:
            raise ConfigError(f"targets {self.min_target}..{self.max_target}: need 1 <= min_target <= max_target.")
        if self.targets not in get_args(Law):
            raise ConfigError(f"targets {self.targets!r}: choose one of {', '.join(get_args(Law))}.")
        if self.train_problems < 1 or self.data_seed < 0:
            raise ConfigError(
                f"train_problems {self.train_problems}, data_seed {self.data_seed}: at least 1 problem, and a seed of 0 or more."
            )
        check_range(max(counts), self.max_number, self.max_target)

    def __hash__(self) -> int:
        return hash((tuple(self.counts.items()), self.max_number, self.max_target, self.min_target, self.targets))

    @property
    def block_size(self) -> int:
        """Examples are drawn this many at a time."""
        if self.targets == "expression":
            return BLOCK
        return UNIFORM_BLOCK_OF_FIVE if max(self.counts) == MAX_NUMBERS else UNIFORM_BLOCK

    def prompt(self, problem: Problem) -> str:
        """The prompt: `render(problem)`."""
        return render(problem)

    def verify(self, problem: Problem, completion: str) -> Verdict:
        """`verify(problem, completion)`."""
        return verify(problem, completion)

    def solutions(self, problem: Problem) -> list[str]:
        """`solutions(problem)`."""
        return solutions(problem)

    def answer_key(self, problem: Problem, text: str) -> str:
        """The expression: each is an answer of its own."""
        return text

    def choices(self, problem: Problem) -> float | None:
        """Expressions over the numbers per right one; None for five numbers, whose listing takes long."""
        many = len(problem.numbers) == MAX_NUMBERS
        return None if many else expressions_over(problem.numbers) / len(solutions(problem))

    @property
    def verifier_hash(self) -> str:
        """Of the parser and its rules."""
        return code_hash(["countdown"])

    @property
    def identity(self) -> dict[str, Any]:
        """What decides the problems of an evaluation, as JSON has it: all but the size and seed of the training pool."""
        counts = {str(n): weight for n, weight in self.counts.items()}
        bounds = {"max_number": self.max_number, "min_target": self.min_target, "max_target": self.max_target}
        return {"name": self.name, "counts": counts, **bounds, "targets": self.targets}

    def draw(self, split: str, seed: int, n: int, law: str = "law") -> list[Problem]:
        """The problems of an evaluation. "law": n independent draws from the world's own distribution, restricted to the split,
        repeats kept, so that the mean over them estimates the world's mean and an interval over them holds. "census": n problems
        drawn without replacement from all problems of the split, each equally likely: the many hard ones weigh more.
        """
        if law == "law":
            return self.problems(split, seed, n, distinct=False)
        if law == "census":
            return self.sample_of_census(split, seed, n)
        raise DataError(f"draw {law!r}: choose one of {', '.join(DRAWS)}")

    def audit_cases(self, k: int, **options: Any) -> Any:
        """See `sage_rlvr.tasks.countdown.audit`."""
        from sage_rlvr.tasks.countdown.audit import cases

        return cases(self, k, **options)

    def audited(self, **options: Any) -> str:
        """What an audit looks at, in words."""
        from sage_rlvr.tasks.countdown.audit import head

        return head(self, **options)

    def examples(self, split: str, seed: int, start: int, n: int) -> list[tuple[Problem, str]]:
        """Examples start..start+n-1: problem and correct canonical expression. A pure function of its arguments."""
        if split not in SPLITS:
            raise ConfigError(f"split {split!r}: choose one of {', '.join(SPLITS)}.")
        if min(seed, start, n) < 0:
            raise ConfigError(f"seed {seed}, start {start}, n {n}: none may be negative.")
        drawn: list[tuple[Problem, str]] = []
        size = self.block_size
        for block in range(start // size, -(-(start + n) // size)):
            first = block * size
            drawn += _block(self, split, seed, block)[max(start - first, 0) : start + n - first]
        return drawn

    def example(self, split: str, seed: int, index: int) -> tuple[Problem, str]:
        """Example `index`: a problem with a uniformly drawn correct canonical expression."""
        return self.examples(split, seed, index, 1)[0]

    def problem(self, split: str, seed: int, index: int) -> Problem:
        """The problem of example `index`."""
        return self.example(split, seed, index)[0]

    def census(self, split: str) -> list[Problem]:
        """Every problem of the split that has a right answer, each once, in the order of its numbers and target.

        Seconds for four numbers, about half a minute for five (each set of numbers is enumerated once).
        """
        if split not in SPLITS:
            raise ConfigError(f"split {split!r}: choose one of {', '.join(SPLITS)}.")
        return list(_census(self, split))

    def facts(self, split: str = "test") -> dict[str, float]:
        """What enumeration says of a split: `problems`; right answers a problem, each problem counted once
        (`answers_mean`, `answers_median`) and as the law draws them (`answers_mean_by_law`; only law "expression");
        `expressions_mean`, all canonical expressions a problem's numbers make; `longest`, characters of the longest answer.
        """
        every = self.census(split)
        found = [solutions(p) for p in every]
        counts = np.array([len(answers) for answers in found], dtype=float)
        made = [expressions_over(p.numbers) for p in every]
        facts = {"problems": len(every), "answers_mean": counts.mean(), "answers_median": np.median(counts)}
        if self.targets == "expression" and len(self.counts) == 1:
            facts["answers_mean_by_law"] = (
                counts**2
            ).sum() / counts.sum()  # a problem is drawn as often as it has answers
        longest = max(len(answer) for answers in found for answer in answers)
        return {k: float(v) for k, v in facts.items()} | {
            "expressions_mean": float(np.mean(made)),
            "longest": float(longest),
        }

    def sample_of_census(self, split: str, seed: int, n: int) -> list[Problem]:
        """`n` problems drawn without replacement from the census of the split, all equally likely: what is evaluated.

        The mean over them estimates the mean over all problems of the split, each counted once. Draws by expression would
        put the problems with many answers, the easy ones, first. DataError when the split holds fewer than n.
        """
        every = self.census(split)
        if not 1 <= n <= len(every):
            raise DataError(f"{n} {split} problems: this world has {len(every)}; ask for 1 to {len(every)} of them.")
        words = _stream(seed, SPLITS.index(split), len(every)).random_raw(len(every))
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
        found: dict[tuple[tuple[int, ...], int], Problem] = {}
        stale = start = 0
        while len(found) < n:
            before = len(found)
            for problem, _ in self.examples(split, seed, start, self.block_size):
                found.setdefault(problem.key, problem)
            start, stale = start + self.block_size, 0 if len(found) > before else stale + self.block_size
            if stale >= 4 * BLOCK:
                raise DataError(
                    f"{n} distinct {split} problems: this world gave only {len(found)}; ask for fewer or "
                    f"enlarge max_number={self.max_number} or max_target={self.max_target}."
                )
        return list(found.values())[:n]


@lru_cache(maxsize=32)
def _census(world: Countdown, split: str) -> tuple[Problem, ...]:
    found = []
    for size in world.counts:
        for numbers in combinations_with_replacement(range(1, world.max_number + 1), size):
            targets = reached(numbers, world.min_target, world.max_target).targets
            found += [Problem(numbers, int(targets[i])) for i in _choices(world, split, numbers)]
    return tuple(found)


def _candidates(world: Countdown, split: str, n: int, bits: np.random.Philox, rows: int) -> list[tuple[Problem, str]]:
    """Draw `rows` candidates (n numbers and a template each); keep those that are problems of the world and split."""
    table = templates(n)
    raw = bits.random_raw(rows * (n + 1)).reshape(rows, n + 1)
    slots = (raw[:, :n] % np.uint64(world.max_number)).astype(np.int64) + 1
    rule = (raw[:, n] % np.uint64(len(table))).astype(np.int64)
    num, den = evaluate(table.operators[rule], table.left[rule], table.right[rule], slots.T[:, :, None])
    targets, rest = np.divmod(num[:, 0], np.where(den == 0, 1, den)[:, 0])
    whole = (den[:, 0] != 0) & (rest == 0)
    good = np.flatnonzero(whole & (targets >= world.min_target) & (targets <= world.max_target))
    ordered = np.sort(slots[good], axis=1)
    kept = _in_split(_buckets(ordered, targets[good]), split)
    good, ordered = good[kept], ordered[kept]
    columns = zip(ordered.tolist(), targets[good].tolist(), rule[good].tolist(), slots[good].tolist(), strict=True)
    return [(Problem(tuple(low), target), table.texts[t].format(*order)) for low, target, t, order in columns]


def _too_rare(world: Countdown, split: str, n: int, found: int, need: int, draws: int) -> DataError:
    return DataError(
        f"only {found} of {need} {split} problems after {draws} draws: targets {world.min_target}..{world.max_target} "
        f"are too rare for {n} numbers up to {world.max_number}; widen one of them."
    )


def _accepted(world: Countdown, split: str, n: int, bits: np.random.Philox, need: int) -> list[tuple[Problem, str]]:
    """The first `need` candidates of a bit stream that are kept; `DataError` when they are all but impossible."""
    found: list[tuple[Problem, str]] = []
    draws = 0
    while len(found) < need:
        if draws >= _MAX_DRAWS:
            raise _too_rare(world, split, n, len(found), need, draws)
        rows = min(max(6 * (need - len(found)), 1024), 1 << 16)
        found += _candidates(world, split, n, bits, rows)
        draws += rows
    return found[:need]


def _choices(world: Countdown, split: str, numbers: tuple[int, ...]) -> NDArray[np.intp]:
    """Places, in `reached(numbers, ...).targets`, of the world's targets whose problem lies in the split."""
    return _choices_of(numbers, world.min_target, world.max_target, split)


@lru_cache(maxsize=1 << 13)
def _choices_of(numbers: tuple[int, ...], low: int, high: int, split: str) -> NDArray[np.intp]:
    targets = reached(numbers, low, high).targets
    rows = np.broadcast_to(np.array(numbers, np.int64), (len(targets), len(numbers)))
    return np.flatnonzero(_in_split(_buckets(rows, targets), split))


def _even(world: Countdown, split: str, n: int, bits: np.random.Philox, need: int) -> list[tuple[Problem, str]]:
    """Law "uniform": `need` examples from n + 2 words each (numbers, target, expression); `DataError` if impossible."""
    found: list[tuple[Problem, str]] = []
    misses = 0
    while len(found) < need:
        raw = bits.random_raw(n + 2)
        numbers = tuple(sorted(int(word) % world.max_number + 1 for word in raw[:n]))
        choices = _choices(world, split, numbers)
        misses = 0 if len(choices) else misses + 1
        if misses == _MAX_MISSES:
            raise _too_rare(world, split, n, len(found), need, misses)
        if not misses:
            table = reached(numbers, world.min_target, world.max_target)
            which = choices[int(raw[n]) % len(choices)]
            text = table.text(which, int(raw[n + 1]) % int(table.counts[which]))
            found.append((Problem(numbers, int(table.targets[which])), text))
    return found


@lru_cache(maxsize=32)
def _block(world: Countdown, split: str, seed: int, block: int) -> list[tuple[Problem, str]]:
    """Block `block` of `world.block_size` examples: sizes first (so that `counts` holds), then each size's stream."""
    path = (seed, SPLITS.index(split), block)
    draw = _even if world.targets == "uniform" else _accepted
    uniform = (_stream(*path, 0).random_raw(world.block_size) >> np.uint64(11)) * 2.0**-53
    sizes = np.array(list(world.counts))
    edges = np.cumsum(list(world.counts.values()))
    chosen = sizes[np.minimum(np.searchsorted(edges, uniform * edges[-1], side="right"), len(sizes) - 1)].tolist()
    streams = {n: iter(draw(world, split, n, _stream(*path, n), chosen.count(n))) for n in world.counts if n in chosen}
    return [next(streams[n]) for n in chosen]


WORLDS: Mapping[str, Countdown] = {
    "demo": Countdown({4: 1.0}, max_number=9, max_target=20),
    "demo-base": Countdown({3: 0.85, 4: 0.15}, max_number=9, max_target=20),
    "demo-5": Countdown({5: 1.0}, max_number=9, max_target=20, targets="uniform"),
    "demo-large": Countdown({4: 1.0}, max_number=9, min_target=21, max_target=99),
    "countdown-3": Countdown({3: 1.0}),
    "countdown-base": Countdown({3: 0.85, 4: 0.15}),
    "countdown-4": Countdown({4: 1.0}, targets="uniform"),
    "countdown-5": Countdown({5: 1.0}, targets="uniform"),
    "countdown-4-large": Countdown({4: 1.0}, min_target=101, max_target=999, targets="uniform"),
}
"""Named worlds. "demo" is the frozen world of recipes/countdown, "demo-base" what its base policy was trained on, "demo-5"
(five numbers) and "demo-large" (targets 21..99) its out-of-distribution sets. The others go to 12 and 100: "countdown-3" and
"countdown-base" teach, "countdown-4", "countdown-5" and "countdown-4-large" draw their targets uniformly."""


def _spoil(problem: Problem, text: str) -> list[tuple[Problem, str]]:
    """Five wrong neighbors of a right answer: parentheses, a space, a number used twice, a cut end, another target."""
    texts = (f"({text})", f" {text}", f"{text}+{problem.numbers[0]}", text[:-1])
    return [(problem, other) for other in texts] + [(Problem(problem.numbers, problem.target + 1), text)]


def _law_holds(world: Countdown, examples: Mapping[str, list[tuple[Problem, str]]]) -> bool:
    """Given its numbers, a target's mid-rank under the world's law has mean 1/2 and variance <= 1/12: five sigmas."""
    ranks: list[float] = []
    for split, drawn in examples.items():
        for problem, _ in drawn:
            table = reached(problem.key[0], world.min_target, world.max_target)
            choices = _choices(world, split, problem.key[0])
            weights = table.counts[choices] if world.targets == "expression" else np.ones(len(choices))
            place = int(np.searchsorted(table.targets[choices], problem.target))
            ranks.append(float((weights[:place].sum() + weights[place] / 2) / weights.sum()))
    return not ranks or abs(float(np.mean(ranks)) - 0.5) <= 5 / (12 * len(ranks)) ** 0.5


def selfcheck(world: Countdown = WORLDS["countdown-4"], seed: int = 0, n: int = 200) -> dict[str, int | bool]:
    """The task tests itself on n examples a split: `ok` when gold passes, spoiled gold fails, splits are
    apart, and targets follow the world's law."""
    examples = {split: world.examples(split, seed, 0, n) for split in SPLITS}
    gold = [example for drawn in examples.values() for example in drawn]
    spoiled = [neighbor for problem, text in gold for neighbor in _spoil(problem, text)]
    accepted = sum(verify(problem, text).right for problem, text in gold)
    rejected = sum(not verify(problem, text).right for problem, text in spoiled)
    keys = {split: {problem.key for problem, _ in drawn} for split, drawn in examples.items()}
    shared = sum(len(keys[a] & keys[b]) for a in SPLITS for b in SPLITS if a < b)
    lawful = _law_holds(world, examples)
    return {
        "ok": accepted == len(gold) and rejected == len(spoiled) and not shared and lawful,
        "gold": len(gold),
        "gold_accepted": accepted,
        "spoiled": len(spoiled),
        "spoiled_rejected": rejected,
        "problems_shared_by_splits": shared,
        "targets_follow_law": lawful,
    }


__all__ = [
    "BLOCK",
    "DRAWS",
    "SPLITS",
    "UNIFORM_BLOCK",
    "WORLDS",
    "Countdown",
    "Problem",
    "Verdict",
    "build_tokenizer",
    "canonical",
    "count_expressions",
    "parse_prompt",
    "render",
    "selfcheck",
    "solutions",
    "split_of",
    "structure",
    "verify",
]
