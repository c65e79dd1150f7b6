"""Puzzles: one worked by hand, all small ones counted by a second account, and laws over seeds."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_rlvr.contrib.tasks.knights_and_knaves import (
    NAMES,
    KnightsAndKnaves,
    Puzzle,
    solutions_of,
    spoken,
    true_under,
)
from sage_rlvr.errors import ConfigError, DataError

# Ann: "Ben is a knave." Ben: "Ann is a knight if and only if Cleo is a knight." Cleo: "Ann is a knave and Ben is a knave."
# Were Ann a knight, Ben would lie: then Ann and Cleo differ, Cleo lies, and she does: her "Ann is a knave" is false. Were
# Ann a knave, Ben is a knight, so Cleo is a knave like Ann, and she lies, as Ben is a knight: that works as well.
HAND = (("knave", 1), ("iff", ("knight", 0), ("knight", 2)), ("and", ("knave", 0), ("knave", 1)))
# With Cleo saying "Ann is a knight" instead: Ann knight -> Cleo knight -> Ben says the truth and lies, a contradiction. Ann
# knave -> Ben knight, Cleo knave; what Cleo says is false, and Ben's "both or neither" is true. The one solution.
ONE = (("knave", 1), ("iff", ("knight", 0), ("knight", 2)), ("knight", 0))


def test_by_hand():
    assert solutions_of(HAND) == [(True, False, False), (False, True, False)]
    assert solutions_of(ONE) == [(False, True, False)]
    assert solutions_of((("knave", 0),)) == []  # "I am a knave" can be said by nobody
    with pytest.raises(DataError, match="puzzle two: 2 solutions"):
        Puzzle("two", ("Ann", "Ben", "Cleo"), HAND)
    with pytest.raises(DataError, match="names that differ"):
        Puzzle("same", ("Ann", "Ann", "Cleo"), ONE)
    puzzle = Puzzle("one", ("Ann", "Ben", "Cleo"), ONE)
    assert puzzle.answer == "CONCLUSION:\n(1) Ann is a knave\n(2) Ben is a knight\n(3) Cleo is a knave"
    assert 'Ben says: "Ann is a knight if and only if Cleo is a knight."' in puzzle.text
    assert "You meet 3 of the people who live there: Ann, Ben and Cleo." in puzzle.text


@pytest.mark.parametrize(
    "statement, words, table",
    [
        (("knight", 0), "A is a knight", [1, 1, 0, 0]),
        (("knave", 1), "B is a knave", [0, 1, 0, 1]),
        (("not", ("knave", 0)), "A is not a knave", [1, 1, 0, 0]),
        (("and", ("knight", 0), ("knight", 1)), "A is a knight and B is a knight", [1, 0, 0, 0]),
        (("or", ("knight", 0), ("knight", 1)), "A is a knight or B is a knight", [1, 1, 1, 0]),
        (("if", ("knight", 0), ("knight", 1)), "if A is a knight then B is a knight", [1, 0, 1, 1]),
        (("iff", ("knight", 0), ("knight", 1)), "A is a knight if and only if B is a knight", [1, 0, 0, 1]),
    ],
)
def test_each_form_means_what_it_says(statement, words: str, table: list[int]):
    assert spoken(statement, "AB") == words
    assert [true_under(statement, a) for a in product((True, False), repeat=2)] == [bool(v) for v in table]


def test_a_form_that_is_none():
    with pytest.raises(DataError, match="'nor' is none of"):
        true_under(("nor", ("knight", 0)), (True,))


def every_pair():
    """All puzzles of two people that the generator may draw, counted apart from it: truth tables as 4-bit numbers."""
    knight = {0: 0b1100, 1: 0b1010}

    def claims(speaker: int) -> dict[object, int]:
        made = {("knight", p): knight[p] for p in (0, 1)} | {("knave", p): knight[p] ^ 15 for p in (0, 1)}
        del made["knave", speaker]
        return made

    def said(speaker: int) -> list[int]:
        plain = claims(speaker)
        joined = [
            table
            for (a, x), (b, y) in product(plain.items(), repeat=2)
            if a != b
            for table in (x & y, x | y, (x ^ 15) | y, (x ^ y) ^ 15)
        ]
        return [*plain.values(), *(table ^ 15 for table in plain.values()), *joined]

    return [(knight[0] ^ x ^ 15) & (knight[1] ^ y ^ 15) for x, y in product(said(0), said(1))]


@pytest.mark.slow
def test_all_puzzles_of_two_people_are_counted_and_can_be_drawn():
    consistent = [bin(table).count("1") for table in every_pair()]
    assert len(consistent) == 900 and consistent.count(1) == 399
    with pytest.raises(DataError, match="420 puzzles of 2 people: only 399 differ"):
        KnightsAndKnaves(people=(2,), count=420).problems()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 8), st.integers(0, 50))
def test_every_puzzle_has_one_solution_and_is_a_function_of_its_place(seed: int, people: int, index: int):
    task = KnightsAndKnaves(seed=seed)
    puzzle = task.puzzle(people, index)
    assert puzzle == KnightsAndKnaves(people=(people,), count=1, seed=seed).puzzle(people, index)
    twin = [
        a
        for a in product((True, False), repeat=people)
        if not any(true_under(s, a) != a[i] for i, s in enumerate(puzzle.statements))
    ]
    assert twin == [puzzle.solution] and len(puzzle.names) == people == len(set(puzzle.names))
    assert all(("knave", i) != claim for i, s in enumerate(puzzle.statements) for claim in (s, *s[1:]))
    for rule in ("published", "strict"):
        judged = KnightsAndKnaves(seed=seed, rule=rule)
        assert judged.verify(puzzle, f"working\n{puzzle.answer}").right


def test_the_set_of_problems():
    task = KnightsAndKnaves(people=(3, 2), count=5, seed=1)
    puzzles = task.problems()
    assert [len(p.names) for p in puzzles] == [2] * 5 + [3] * 5
    assert len({(len(p.names), p.statements) for p in puzzles}) == 10
    assert len({p.problem_id for p in puzzles}) == 10
    assert puzzles != KnightsAndKnaves(people=(3, 2), count=5, seed=2).problems()
    prompt = task.prompt(puzzles[0])
    assert prompt.startswith(task.instruction) and prompt.endswith("?\n### Answer:") and "### Question: On an" in prompt
    assert task.messages(puzzles[0])[0]["content"].endswith(puzzles[0].text)


def test_no_name_can_be_taken_for_another_or_for_a_condition():
    assert not [(a, b) for a in NAMES for b in NAMES if a != b and a.endswith(b)]
    assert not [name for name in NAMES if "if" in name.lower()]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"people": (1, 2)}, "from 2 to 8"),
        ({"people": (2, 2)}, "different numbers"),
        ({"people": ()}, "different numbers"),
        ({"count": 0}, "at least 1 puzzle"),
        ({"seed": -1}, "seed of 0 or more"),
        ({"instruction": "Who is who?"}, "never asks for 'CONCLUSION:'"),
    ],
)
def test_what_is_refused(options, message: str):
    with pytest.raises(ConfigError, match=message):
        KnightsAndKnaves(**options)


def test_examples_are_right_with_their_people_named_anew() -> None:
    task = KnightsAndKnaves(people=(2,), rule="strict", train_count=20)
    found = task.examples("train", 3, 5, 40)
    statements = {puzzle.statements for puzzle in task.problems("train")}
    for puzzle, text in found:
        assert task.verify(puzzle, text).right and puzzle.statements in statements
        told = [true_under(said, puzzle.solution) for said in puzzle.statements]
        said = (f" {name} says what is {str(true).lower()}." for name, true in zip(puzzle.names, told, strict=True))
        assert text.startswith("".join(said))
        assert set(task.prompt(puzzle) + text) <= set(task.characters)
    assert found[3:9] == task.examples("train", 3, 8, 6) and found[:6] != task.examples("train", 4, 5, 6)
    assert len({puzzle.names for puzzle, _ in found}) > 20
