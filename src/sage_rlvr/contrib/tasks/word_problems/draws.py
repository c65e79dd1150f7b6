"""Stories drawn at random: everybody is connected to an earlier person by one fact, extra facts close loops, some numbers are
given."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from sage_rlvr.contrib.tasks.word_problems.story import NAMES, Fact, Story, applied
from sage_rlvr.tasks.base import words

GAP, FACTORS = 9, (2, 3)  # the largest difference of two people in a fact, and the factors


class Words:
    """Numbers below bounds from the endless words of a stream, a pure function of its path. `WordProblems` makes one per
    example."""

    def __init__(self, *path: int) -> None:
        self._words = words(*path)

    def below(self, n: int) -> int:
        """One of 0 to n - 1: the next word modulo n."""
        return next(self._words) % n

    def some(self, items: Sequence[Any], n: int) -> list[Any]:
        """n different items, in random order."""
        left = list(items)
        return [left.pop(self.below(len(left))) for _ in range(n)]


def candidate(people: int, given: int, loops: int, max_value: int, chance: Words) -> Story | None:
    """A drawn story; None if a number would leave 1 to `max_value`, or too few pairs remain to compare in words."""
    names = chance.some(NAMES, people)
    values = {names[0]: 1 + chance.below(max(1, max_value // 2))}
    facts: list[Fact] = []
    for person in names[1:]:
        other = names[chance.below(len(values))]
        times = chance.below(3) == 0
        operator, amount = ("*", FACTORS[chance.below(len(FACTORS))]) if times else ("+-"[chance.below(2)], 1 + chance.below(GAP))
        turned = chance.below(2) == 0 and times  # the other one has times as many
        value = applied(values[other], "/" if turned else operator, amount)
        if value is None or value > max_value:
            return None
        values[person] = value
        facts.append(Fact(other, amount, operator, person) if turned else Fact(person, amount, operator, other))
    joined = {frozenset((fact.who, fact.other)) for fact in facts}
    free = [(a, b) for i, a in enumerate(names) for b in names[:i] if frozenset((a, b)) not in joined]
    spare = [fact for a, b in free if (fact := between(a, b, values, chance)) is not None]
    if len(spare) < loops:
        return None
    facts += chance.some(spare, loops)
    facts += [Fact(person, values[person]) for person in chance.some(names, given)]
    shuffled = chance.some(facts, len(facts))
    known = {fact.who for fact in shuffled if not fact.operator}
    unknown = [person for person in names if person not in known]
    return Story(tuple(shuffled), unknown[chance.below(len(unknown))])


def between(a: str, b: str, values: Mapping[str, int], chance: Words) -> Fact | None:
    """A fact that compares two people, in either direction; None if neither a small difference nor a factor is possible."""
    big, small = (a, b) if values[a] >= values[b] else (b, a)
    gap, (factor, rest) = values[big] - values[small], divmod(values[big], values[small])
    fits = [Fact(big, factor, "*", small)] if rest == 0 and factor in FACTORS else []
    fits += [Fact(big, gap, "+", small), Fact(small, gap, "-", big)] if 1 <= gap <= GAP else []
    return fits[chance.below(len(fits))] if fits else None


def bucket(story: Story) -> int:
    """0 to 99, by the numbers that it compares, gives and asks for: the same for other names, another order, and a fact stated in
    the other direction or by other means."""
    values = story.values
    pairs = sorted(sorted((values[fact.who], values[fact.other])) for fact in story.facts if fact.operator)
    key = repr((pairs, sorted(values[person] for person in story.given), values[story.queried]))
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") % 100


__all__ = ["Words", "bucket", "candidate"]
