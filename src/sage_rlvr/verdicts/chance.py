"""The chance floor of pass@k: the share of problems that a guesser solves with k guesses. pass@k with k > 1 is compared with it.
The guesser is not the best possible one: whoever knows more about the task guesses better.

The only code that computes the floor. Records, sample stores and summaries contain it as JSON, so their readers need no task.

    answers   guesses uniform over the well-formed answers of a problem: 1 - (1 - share of right answers)^k; if the task knows
              more guessers, such as one that never divides, the best of them at each k
    values    guesses uniform over the values that an answer can take: 1 - (1 - 1 / values)^k
    golds     the k most frequent golds of the other problems, for tasks that can list neither (ties: first come)
    given     guesses that are each right with a given probability: 1 - (1 - probability)^k
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

GuessLaw = Literal["answers", "values", "golds", "given"]
WORDS: Mapping[GuessLaw, str] = {
    "answers": "k guesses of a guesser, uniform over the well-formed answers",
    "values": "k guesses, uniform over the values of the answer",
    "golds": "the k most frequent golds of the other problems as guesses",
    "given": "k guesses, each right with the probability that was given",
}
KEY = "chance"  # in the meta of a record, the facts of a store, and a summary
BELOW = "below chance"
UNKNOWN = "no chance floor known"
SLACK = 1e-9  # sums in another order must not put a guesser below itself


@dataclass(frozen=True)
class Chance:
    """A guesser on a set of problems. `tasks.chance.chance_of` makes it; evaluation stores it, comparisons read pass@k against it.

    each: per problem the share of guesses that are right; under "golds" the number of guesses up to the right one, 0 if none is
        right
    others: the same for further guessers; at each k the best of all is the floor
    """

    law: GuessLaw
    each: tuple[float, ...]
    others: tuple[tuple[float, ...], ...] = ()

    def hits(self, k: int) -> list[float]:
        """Per problem the probability that one of k guesses is right, for the guesser that solves the most problems with k
        guesses."""
        if self.law == "golds":
            return [float(0 < rank <= k) for rank in self.each]
        return max(([1 - (1 - share) ** k for share in guesser] for guesser in self.guessers), key=sum)

    @property
    def guessers(self) -> tuple[tuple[float, ...], ...]:
        """Per guesser the share of right guesses of each problem."""
        return (self.each, *self.others)

    def at(self, k: int) -> float:
        """pass@k of the best guesser at this k, mean over the problems."""
        return sum(self.hits(k)) / len(self.each)

    def below(self, k: int, value: float, high: float | None = None) -> bool:
        """Return whether a pass@k is lower than the guesser's.

        high: for samples, the upper end of the interval, which decides because samples of a guesser are below the floor half of
            the time; None for exact values"""
        bound = value if high is None or not math.isfinite(high) else high
        return bound < self.at(k) - SLACK

    def tree(self) -> dict[str, Any]:
        """Strict JSON."""
        others = {"others": [list(guesser) for guesser in self.others]} if self.others else {}
        return {"law": self.law, "each": list(self.each), **others}

    @property
    def words(self) -> str:
        """Return a description of the guesser."""
        return WORDS[self.law] + (f"; at each k the best of {len(self.guessers)} guessers" if self.others else "")


def chance_of_tree(tree: Mapping[str, Any] | None) -> Chance | None:
    """Inverse of `Chance.tree`; None for None. Raises ValueError for any other tree."""
    if tree is None:
        return None
    law, each = tree["law"], tuple(float(one) for one in tree["each"])
    others = tuple(tuple(float(one) for one in guesser) for guesser in tree.get("others", ()))
    whole = all(len(guesser) == len(each) and all(one >= 0 for one in guesser) for guesser in (each, *others))
    if law not in get_args(GuessLaw) or not each or not whole:
        raise ValueError(f"chance: law {law!r} over {len(each)} problems is no chance floor")
    return Chance(law, each, others)


__all__ = ["BELOW", "KEY", "UNKNOWN", "Chance", "chance_of_tree"]
