"""The guessers of a task, whose chance floor `verdicts.chance.Chance` computes."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sage_rlvr.tasks.abilities import Counted, Guessed, HasGolds
from sage_rlvr.verdicts.chance import Chance
from sage_rlvr.verifiers.exact import normalized, number


def chance_of(task: Any, problems: Sequence[Any], right: Sequence[int] | None = None) -> Chance | None:
    """The guessers of a task on these problems; None if the task has neither a number of choices nor golds.

    right: how many right answers each problem has, if known: `candidates` then suffices."""
    chance = _first_guesser(task, problems, right)
    if chance is None or not isinstance(task, Guessed):
        return chance
    shares = [task.guesses(problem) for problem in problems]
    others = dict.fromkeys(zip(*shares, strict=True) if all(shares) else ())  # without brackets, two numbers give the same guesses
    return replace(chance, others=tuple(guesser for guesser in others if guesser != chance.each))


def _first_guesser(task: Any, problems: Sequence[Any], right: Sequence[int] | None) -> Chance | None:
    """The guesser that draws any answer."""
    if isinstance(task, Counted) and right is not None:
        return Chance("answers", tuple(n / task.candidates(problem) for n, problem in zip(right, problems, strict=True)))
    counts = [task.choices(problem) for problem in problems]
    shares = tuple(1 / n for n in counts if n is not None)
    if counts and len(shares) == len(counts):
        return Chance("answers" if isinstance(task, Counted) else "values", shares)
    return chance_of_golds(task.golds(problems)) if isinstance(task, HasGolds) else None


def chance_of_golds(golds: Sequence[str]) -> Chance:
    """A guesser that knows the golds of the other problems but not the problem."""
    keys = [str(value) if (value := number(gold)) is not None else normalized(gold) for gold in golds]
    counts = Counter(keys)
    order = sorted((-many, index) for index, many in enumerate(counts.values()))  # most frequent first, ties: first come
    # Without one row of itself a gold has many - 1 and ranks after all others of that number up to its place.
    ranks = {}
    for index, (key, many) in enumerate(counts.items()):
        ahead = bisect_left(order, (1 - many, index)) - 1  # the gold itself is among the earlier ones
        ranks[key] = ahead + 1 if many > 1 else 0
    return Chance("golds", tuple(float(ranks[key]) for key in keys))


__all__ = ["chance_of", "chance_of_golds"]
