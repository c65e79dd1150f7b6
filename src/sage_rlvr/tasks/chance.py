"""The chance floor of pass@k: the share of problems that k guesses solve, so that pass@k with k > 1 is read against a level.

The only code that computes the floor. Records, sample stores and summaries keep its tree, so their readers need no task.

    answers   guesses uniform over the well-formed answers of a problem: 1 - (1 - share of right answers)^k
    values    guesses uniform over the values that an answer can take: 1 - (1 - 1 / values)^k
    golds     the k most frequent golds of the other problems, for tasks that can list neither (ties: first come)
    given     guesses that are each right with a given probability: 1 - (1 - probability)^k
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from sage_rlvr.tasks.abilities import Counted, HasGolds
from sage_rlvr.verifiers.exact import normalized, number

GuessLaw = Literal["answers", "values", "golds", "given"]
WORDS: Mapping[GuessLaw, str] = {
    "answers": "k guesses, uniform over the well-formed answers",
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
    """A guesser on a set of problems. `chance_of` makes it; evaluation stores it, results compare pass@k with it.

    each: per problem the share of guesses that are right; under "golds" the number of guesses up to the right one, 0 where none of
    them is.
    """

    law: GuessLaw
    each: tuple[float, ...]

    def hits(self, k: int) -> list[float]:
        """Per problem the probability that one of k guesses is right."""
        if self.law == "golds":
            return [float(0 < rank <= k) for rank in self.each]
        return [1 - (1 - share) ** k for share in self.each]

    def at(self, k: int) -> float:
        """pass@k of the guesser, mean over the problems."""
        return sum(self.hits(k)) / len(self.each)

    def below(self, k: int, value: float, high: float | None = None) -> bool:
        """Whether a pass@k is lower than the guesser's. high: of samples the upper end of the interval, which then decides, since
        the samples of a guesser lie below the floor half of the time; None for exact values."""
        bound = value if high is None or not math.isfinite(high) else high
        return bound < self.at(k) - SLACK

    def tree(self) -> dict[str, Any]:
        """Strict JSON."""
        return asdict(self) | {"each": list(self.each)}

    @property
    def words(self) -> str:
        """What guesses, in words."""
        return WORDS[self.law]


def chance_of_tree(tree: Mapping[str, Any] | None) -> Chance | None:
    """Inverse of `Chance.tree`; None for None. Raises ValueError for any other tree."""
    if tree is None:
        return None
    law, each = tree["law"], tuple(float(one) for one in tree["each"])
    if law not in get_args(GuessLaw) or not each or not all(one >= 0 for one in each):
        raise ValueError(f"chance: law {law!r} over {len(each)} problems is no chance floor")
    return Chance(law, each)


def chance_of(task: Any, problems: Sequence[Any], right: Sequence[int] | None = None) -> Chance | None:
    """The guesser of a task on these problems; None where the task has neither a number of choices nor golds.

    right: how many right answers each problem has, where they are counted: `candidates` then suffices."""
    if isinstance(task, Counted) and right is not None:
        return Chance("answers", tuple(n / task.candidates(problem) for n, problem in zip(right, problems, strict=True)))
    counts = [task.choices(problem) for problem in problems]
    shares = tuple(1 / n for n in counts if n is not None)
    if counts and len(shares) == len(counts):
        return Chance("answers" if isinstance(task, Counted) else "values", shares)
    return chance_of_golds(task.golds(problems)) if isinstance(task, HasGolds) else None


def chance_of_golds(golds: Sequence[str]) -> Chance:
    """A guesser that knows the golds of the other problems and reads no problem."""
    keys = [str(value) if (value := number(gold)) is not None else normalized(gold) for gold in golds]
    counts = Counter(keys)
    order = sorted((-many, index) for index, many in enumerate(counts.values()))  # most frequent first, ties: first come
    # Without one row of itself a gold has many - 1 and stands behind all others of that number up to its own place.
    ranks = {}
    for index, (key, many) in enumerate(counts.items()):
        ahead = bisect_left(order, (1 - many, index)) - 1  # the gold itself is among those before
        ranks[key] = ahead + 1 if many > 1 else 0
    return Chance("golds", tuple(float(ranks[key]) for key in keys))


__all__ = ["BELOW", "KEY", "UNKNOWN", "Chance", "chance_of", "chance_of_golds", "chance_of_tree"]
