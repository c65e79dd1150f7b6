"""Sampling and listing the problems of a world: counter-based bit streams, in blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from itertools import combinations_with_replacement, count
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.tasks.base import different, stream
from sage_rlvr.tasks.countdown.expressions import MAX_NUMBERS, evaluate, reached, templates
from sage_rlvr.tasks.countdown.problem import SPLITS, Problem, in_split

BLOCK = 4096  # examples are drawn in blocks; block k is a pure function of (world, split, seed, k)
UNIFORM_BLOCK, UNIFORM_BLOCK_OF_FIVE = 64, 16  # law "uniform": smaller, because each new set of numbers is enumerated
MAX_DRAWS = 1 << 23  # candidates for one block before an error that the world is impossible
_MAX_MISSES = 1 << 11  # law "uniform": sets of numbers in a row without a target before an error that the world is impossible
DRY = 64  # blocks of examples in a row of which none is kept before an error
TargetLaw = Literal["expression", "uniform"]
ExampleList = list[tuple[Problem, str]]
Rewrite = Callable[[Problem, str], str | None]
"""An example of a world -> its answer in another task; None leaves the example out. Hashable: results are cached by it."""


class ProblemLaw(Protocol):
    """Settings that determine the problems of a world: `Countdown` is one. Hashable, because results are cached by it."""

    @property
    def counts(self) -> dict[int, float]:
        """Number of numbers of a problem -> weight."""

    @property
    def max_number(self) -> int:
        """The largest number."""

    @property
    def min_target(self) -> int:
        """The smallest target."""

    @property
    def max_target(self) -> int:
        """The largest target."""

    @property
    def targets(self) -> TargetLaw:
        """Whether numbers and an expression are drawn, or numbers and a target."""

    def __hash__(self) -> int: ...


def block_size(world: ProblemLaw) -> int:
    """Number of examples that are drawn at a time."""
    if world.targets == "expression":
        return BLOCK
    return UNIFORM_BLOCK_OF_FIVE if max(world.counts) == MAX_NUMBERS else UNIFORM_BLOCK


@lru_cache(maxsize=32)
def block(world: ProblemLaw, split: str, seed: int, number: int) -> ExampleList:
    """Block `number` of `block_size` examples: sizes first (so that `counts` are exact), then each size's stream."""
    path = (seed, SPLITS.index(split), number)
    draw = _even if world.targets == "uniform" else _accepted
    # 53 bits: exact in a double. All 64 could round up to 1.0, which is in no bin.
    uniform = (stream(*path, 0).random_raw(block_size(world)) >> np.uint64(11)) * 2.0**-53
    sizes = np.array(list(world.counts))
    edges = np.cumsum(list(world.counts.values()))
    chosen = sizes[np.minimum(np.searchsorted(edges, uniform * edges[-1], side="right"), len(sizes) - 1)].tolist()
    streams = {n: iter(draw(world, split, n, stream(*path, n), chosen.count(n))) for n in world.counts if n in chosen}
    return [next(streams[n]) for n in chosen]


def _accepted(world: ProblemLaw, split: str, n: int, bits: np.random.Philox, need: int) -> ExampleList:
    """The first `need` candidates of a bit stream that are kept; raises `DataError` when they are nearly impossible."""
    examples: ExampleList = []
    draws = 0
    while len(examples) < need:
        if draws >= MAX_DRAWS:
            raise _too_rare(world, split, n, len(examples), need, draws)
        # The number of rows changes no example: a candidate is the next n + 1 words of the stream, however many are drawn at once.
        rows = min(max(6 * (need - len(examples)), 1024), 1 << 16)
        examples += _candidates(world, split, n, bits, rows)
        draws += rows
    return examples[:need]


def _candidates(world: ProblemLaw, split: str, n: int, bits: np.random.Philox, rows: int) -> ExampleList:
    """Draw `rows` candidates (n numbers and a template each); keep those that are problems of the world and split."""
    table = templates(n)
    raw = bits.random_raw(rows * (n + 1)).reshape(rows, n + 1)
    slots = (raw[:, :n] % np.uint64(world.max_number)).astype(np.int64) + 1
    rule = (raw[:, n] % np.uint64(len(table))).astype(np.int64)
    num, den = (side[:, 0] for side in evaluate(table.operators[rule], table.left[rule], table.right[rule], slots.T[:, :, None]))
    targets, rest = np.divmod(num, np.where(den == 0, 1, den))
    good = (den != 0) & (rest == 0) & (targets >= world.min_target) & (targets <= world.max_target)
    ordered = np.sort(slots, axis=1)
    good[good] = in_split(split, ordered[good], targets[good])
    columns = zip(*(column[good].tolist() for column in (ordered, targets, rule, slots)), strict=True)
    return [(Problem(tuple(low), target), table.texts[t].format(*order)) for low, target, t, order in columns]


def _even(world: ProblemLaw, split: str, n: int, bits: np.random.Philox, need: int) -> ExampleList:
    """Law "uniform": `need` examples from n + 2 words each (numbers, target, expression); raises `DataError` if impossible."""
    examples: ExampleList = []
    misses = 0
    while len(examples) < need:
        raw = bits.random_raw(n + 2)
        numbers = tuple(sorted(int(word) % world.max_number + 1 for word in raw[:n]))
        choices = targets_of(world, split, numbers)
        misses = 0 if len(choices) else misses + 1
        if misses == _MAX_MISSES:
            raise _too_rare(world, split, n, len(examples), need, misses)
        if not misses:
            table = reached(numbers, world.min_target, world.max_target)
            which = choices[int(raw[n]) % len(choices)]
            text = table.text(which, int(raw[n + 1]) % int(table.counts[which]))
            examples.append((Problem(numbers, int(table.targets[which])), text))
    return examples


def _too_rare(world: ProblemLaw, split: str, n: int, accepted: int, need: int, draws: int) -> DataError:
    return DataError(
        f"only {accepted} of {need} {split} problems after {draws} draws: targets {world.min_target}..{world.max_target} "
        f"are too rare for {n} numbers up to {world.max_number}; widen one of them."
    )


def kept(world: ProblemLaw, rewrite: Rewrite, split: str, seed: int, start: int, n: int) -> ExampleList:
    """Examples start..start+n-1 of a world's endless stream, counted without those that `rewrite` leaves out."""
    examples: ExampleList = []
    number, before, dry = 0, 0, 0
    while before < start + n:
        many = _many(world, rewrite, split, seed, number)
        if before + many > start:
            examples += _rewritten(world, rewrite, split, seed, number)[max(start - before, 0) : start + n - before]
        number, before, dry = number + 1, before + many, 0 if many else dry + 1
        if dry == DRY:
            raise DataError(
                f"{world}: no {split} example in {dry} blocks fits the task; widen the targets, the numbers or the operators"
            )
    return examples


def kept_problems(world: ProblemLaw, rewrite: Rewrite, split: str, seed: int, n: int) -> list[Problem]:
    """The first n different problems of `kept`. Raises DataError if the world has fewer."""
    problems = kept_at_most(world, rewrite, split, seed, n, DRY)
    if len(problems) < n:
        raise DataError(f"{n} different {split} problems: {world} gave only {len(problems)}; ask for fewer or widen it")
    return problems


def kept_at_most(world: ProblemLaw, rewrite: Rewrite, split: str, seed: int, n: int, dry: int) -> list[Problem]:
    """`kept_problems`, or fewer if `dry` blocks in a row have no new problem: in a small world nearly all that exist."""
    return different((_rewritten(world, rewrite, split, seed, number) for number in count()), n, dry)


@lru_cache(maxsize=64)
def _rewritten(world: ProblemLaw, rewrite: Rewrite, split: str, seed: int, number: int) -> tuple[tuple[Problem, str], ...]:
    """Block `number` of the world's examples, rewritten, without those that are left out."""
    if split not in SPLITS:
        raise ConfigError(f"split {split!r}: choose one of {', '.join(SPLITS)}")
    rewritten = ((problem, rewrite(problem, text)) for problem, text in block(world, split, seed, number))
    return tuple((problem, text) for problem, text in rewritten if text)


@cache
def _many(world: ProblemLaw, rewrite: Rewrite, split: str, seed: int, number: int) -> int:
    """The number of kept examples of a block; cached for all blocks, so that a place far down the stream is found without them."""
    return len(_rewritten(world, rewrite, split, seed, number))


def targets_of(world: ProblemLaw, split: str, numbers: tuple[int, ...]) -> NDArray[np.intp]:
    """Places, in `reached(numbers, ...).targets`, of the world's targets whose problem is in the split."""
    return _targets_of(numbers, world.min_target, world.max_target, split)


@lru_cache(maxsize=1 << 13)
def _targets_of(numbers: tuple[int, ...], low: int, high: int, split: str) -> NDArray[np.intp]:
    targets = reached(numbers, low, high).targets
    rows = np.broadcast_to(np.array(numbers, np.int64), (len(targets), len(numbers)))
    return np.flatnonzero(in_split(split, rows, targets))


@lru_cache(maxsize=32)
def census(world: ProblemLaw, split: str) -> tuple[Problem, ...]:
    """Every problem of a split that has a right answer, each once, in the order of its numbers and target."""
    problems = []
    for size in world.counts:
        for numbers in combinations_with_replacement(range(1, world.max_number + 1), size):
            targets = reached(numbers, world.min_target, world.max_target).targets
            problems += [Problem(numbers, int(targets[i])) for i in targets_of(world, split, numbers)]
    return tuple(problems)
