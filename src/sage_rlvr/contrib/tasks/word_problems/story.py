"""A word problem: its facts in words, the chains that answer it, and the verdict on a completion."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from sage_rlvr.errors import DataError
from sage_rlvr.verifiers import Verdict

NAMES = ("Ann", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana", "Ida", "Jon", "Kim", "Leo")
HAS, EXACTLY = " has ", " has exactly "
SAID = {"+": " more than ", "-": " fewer than ", "*": " times as many as "}
ASKED = "How many does ", " have?"
END, THEN, SO = ". ", ", ", ", so "
TOKENS = (*NAMES, HAS, EXACTLY, *SAID.values(), *ASKED, END, THEN, SO, *"0123456789+-*/=")
CLASSES = (  # of the tokens
    ("end or special", r"<pad>|<eos>"),
    ("person", "|".join(NAMES)),
    ("digit", r"\d"),
    ("operator", r"[-+*/]"),
    ("comparison", "|".join((HAS, EXACTLY, *SAID.values()))),
    ("equals", "="),
    ("next", f"{SO}|{THEN}"),
    ("prompt", "|".join(map(re.escape, (*ASKED, END)))),
)
BACK = {"+": "-", "-": "+", "*": "/"}
LONGEST = 2_000  # characters; a longer completion is wrong without being read
MOST = 999_999  # of what anybody has
FACT = re.compile(r"([A-Z][a-z]+)=(?:([0-9]{1,6})|([A-Z][a-z]+)([-+*])([0-9]{1,6}))")
GIVEN = re.compile(r"([A-Z][a-z]+) has exactly ([0-9]{1,6})")
WORKED = re.compile(r"so [A-Z][a-z]+ has [0-9]{1,6}([-+*/])[0-9]{1,6}=[0-9]{1,6}")


@dataclass(frozen=True, slots=True)
class Fact:
    """`who` has `amount`; or, with an operator, `amount` more ("+") or fewer ("-") than `other`, or that many times as many
    ("*"). `draws.candidate` and `story_of` make it; a `Story` contains its facts."""

    who: str
    amount: int
    operator: str = ""
    other: str = ""

    def __str__(self) -> str:
        """The fact as a sentence, without its full stop."""
        if not self.operator:
            return f"{self.who}{EXACTLY}{self.amount}"
        return f"{self.who}{HAS}{self.amount}{SAID[self.operator]}{self.other}"

    @property
    def short(self) -> str:
        """The short form in ids, such as Dan=Ann+3."""
        return f"{self.who}={self.other}{self.operator}{self.amount}"

    def toward(self, person: str) -> str:
        """The operator that gives the number of `person`, one of the two, from the other one's."""
        return self.operator if person == self.who else BACK[self.operator]


@dataclass(frozen=True)
class Story:
    """A problem: its facts in the order of the text, and the person in the question. `draws.candidate` and `story_of` make it.

    Raises DataError if facts contradict or repeat each other, if they do not give everybody an integer from 1 to 999,999, and for
    names without a token.
    """

    facts: tuple[Fact, ...]
    queried: str

    def __post_init__(self) -> None:
        who = f"story {self.problem_id!r:.120}:"
        people = {person for fact in self.facts for person in (fact.who, fact.other) if person} | {self.queried}
        if unknown := sorted(people - set(NAMES)):
            raise DataError(f"{who} {', '.join(unknown)} has no token; take names from {', '.join(NAMES)}")
        keys = [frozenset((fact.who, fact.other)) if fact.operator else fact.who for fact in self.facts]
        if twice := [fact for n, fact in enumerate(self.facts) if keys[n] in keys[:n] or fact.who == fact.other or fact.amount < 1]:
            raise DataError(f"{who} {twice[0]}: a fact gives one person's number or compares two, by 1 or more; none is told twice")
        if lost := sorted(people - set(self.values)):
            advice = "join each person by facts to one whose number is given"
            raise DataError(f"{who} nothing tells how many {', '.join(lost)} would have, from 1 to {MOST}; {advice}")
        for fact in self.facts:
            value = applied(self.values[fact.other], fact.operator, fact.amount) if fact.operator else fact.amount
            if value != self.values[fact.who]:
                raise DataError(f"{who} {fact} contradicts the other facts; leave it out or mend its number")

    @cached_property
    def values(self) -> dict[str, int]:
        """The number of each person, as far as the facts determine it."""
        values = {fact.who: fact.amount for fact in self.facts if not fact.operator and 0 < fact.amount <= MOST}
        waiting = list(values)
        while waiting:
            person = waiting.pop()
            for other, fact in self.moves.get(person, {}).items():
                value = applied(values[person], fact.toward(other), fact.amount)
                if other not in values and value is not None:
                    values[other] = value
                    waiting.append(other)
        return values

    @cached_property
    def moves(self) -> dict[str, dict[str, Fact]]:
        """Person -> other person -> the fact that compares them, in the order of the text."""
        moves: dict[str, dict[str, Fact]] = {}
        for fact in self.facts:
            if fact.operator:
                moves.setdefault(fact.other, {})[fact.who] = fact
                moves.setdefault(fact.who, {})[fact.other] = fact
        return moves

    @property
    def given(self) -> list[str]:
        """The people whose numbers the text gives, in its order."""
        return [fact.who for fact in self.facts if not fact.operator]

    @property
    def problem_id(self) -> str:
        """The id, such as "Ann=7 Dan=Ann+3 Dan?"."""
        return " ".join([*(fact.short for fact in self.facts), f"{self.queried}?"])

    @property
    def text(self) -> str:
        """The problem in words."""
        return "".join(f"{fact}{END}" for fact in self.facts) + f"{ASKED[0]}{self.queried}{ASKED[1]}"

    @cached_property
    def chains(self) -> tuple[tuple[str, ...], ...]:
        """Every right chain as the people on it, by its first person in the order of the text, then fact by fact."""
        chains: list[tuple[str, ...]] = []

        def walk(path: tuple[str, ...]) -> None:
            if path[-1] == self.queried:
                chains.append(path)
                return
            for person in self.moves.get(path[-1], {}):
                if person not in path:
                    walk((*path, person))

        for person in self.given:
            walk((person,))
        return tuple(chains)

    @property
    def blind(self) -> float:
        """The chance that a random walk from a given number, over facts to new people, ends at the person in the question."""

        def chance(path: tuple[str, ...]) -> float:
            if path[-1] == self.queried:
                return 1.0
            left = [person for person in self.moves.get(path[-1], {}) if person not in path]
            return sum(chance((*path, person)) for person in left) / len(left) if left else 0.0

        return sum(chance((person,)) for person in self.given) / len(self.given)

    def written(self, chain: Sequence[str]) -> str:
        """The completion that visits these people in turn."""
        text = f"{chain[0]}{EXACTLY}{self.values[chain[0]]}"
        return text + "".join(f"{THEN}{self.moves[a][b]}{THEN}{self.worked(a, b)}" for a, b in pairwise(chain))

    def worked(self, before: str, person: str) -> str:
        """The conclusion of a step, such as "so Dan has 7+3=10"."""
        fact = self.moves[before][person]
        return f"so {person}{HAS}{self.values[before]}{fact.toward(person)}{fact.amount}={self.values[person]}"


def applied(value: int, operator: str, amount: int) -> int | None:
    """value operator amount if it is an integer from 1 to `MOST`, else None."""
    if operator == "/":
        return value // amount if amount and value % amount == 0 else None
    result = value + amount if operator == "+" else value - amount if operator == "-" else value * amount
    return result if 0 < result <= MOST else None


def story_of(problem_id: str) -> Story:
    """The problem of an id such as "Ann=7 Dan=Ann+3 Dan?"; raises DataError for any other text."""
    *sentences, question = problem_id.split(" ")
    matches = [FACT.fullmatch(one) for one in sentences]
    story = None
    if matches and None not in matches and question[:-1].isalpha():
        facts = (Fact(m[1], int(m[2] or m[5]), m[4] or "", m[3] or "") for m in matches if m)
        story = Story(tuple(facts), question[:-1])
    if story is None or story.problem_id != problem_id:
        raise DataError(f"{problem_id!r:.80} is no id of a word problem: it should look like 'Ann=7 Dan=Ann+3 Dan?'.")
    return story


def read(problem: Story, text: str) -> tuple[Verdict, str | None]:
    """The verdict on a completion, and the people of its chain; None if a step is invalid."""
    if len(text) > LONGEST:
        return Verdict("wrong", "too long"), None
    first, *rest = text.split(THEN)
    start = GIVEN.fullmatch(first)
    if start is None or len(rest) % 2 or not all(WORKED.fullmatch(sentence) for sentence in rest[1::2]):
        return Verdict("wrong", "not a chain"), None
    chain = [start[1]]
    if chain[0] not in problem.given or start[2] != str(problem.values[chain[0]]):
        return Verdict("wrong", "not given"), None
    for sentence, worked in zip(rest[::2], rest[1::2], strict=True):
        last = chain[-1]
        if last == problem.queried:
            return Verdict("wrong", "more after the answer"), None
        person, fact = next(((who, fact) for who, fact in problem.moves.get(last, {}).items() if str(fact) == sentence), ("", None))
        if fact is None:
            return Verdict("wrong", "no such fact"), None
        if person in chain:
            return Verdict("wrong", "was there before"), None
        if worked != problem.worked(last, person):
            return Verdict("wrong", "value"), None
        chain.append(person)
    right = chain[-1] == problem.queried
    return Verdict(*(("right", "right") if right else ("wrong", "another person"))), " ".join(chain)


__all__ = ["CLASSES", "EXACTLY", "NAMES", "THEN", "TOKENS", "WORKED", "Fact", "Story", "applied", "read", "story_of"]
