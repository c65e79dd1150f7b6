"""The chance floor: by enumeration of all guesses, monotone in k, of the law that a task has, and kept by what is written."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import replace
from itertools import permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sage_rlvr.config import WorldConfig
from sage_rlvr.contrib.tasks.knights_and_knaves import KnightsAndKnaves
from sage_rlvr.evaluation.chance import chance_of_record, chance_of_store
from sage_rlvr.evaluation.evaluate import EVALUATION_SEED, Target, evaluate
from sage_rlvr.evaluation.record import load_record, save_record
from sage_rlvr.tasks import task_named
from sage_rlvr.tasks.chance import chance_of, chance_of_golds
from sage_rlvr.tasks.countdown import Countdown, Problem, solutions, verify
from sage_rlvr.tasks.countdown.expressions import templates
from sage_rlvr.verdicts.chance import Chance, chance_of_tree

TINY = [Problem((2, 3), 5), Problem((1, 4), 4), Problem((2, 3), 6)]
LAWS = [
    Chance("answers", (0.25, 0.01, 0.0)), Chance("values", (0.001, 1.0)), Chance("golds", (1.0, 3.0, 0.0)),
]  # fmt: skip


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_floor_is_the_mean_over_all_ways_to_guess_k_times(k: int) -> None:
    """Every k-tuple of well-formed expressions over two numbers, judged by the verifier; of two guessers, one of which never
    divides, the better."""
    levels = []
    for operators in ("+-*/", "+-*"):
        shares = []
        for problem in TINY:
            texts = [f"{a}{op}{b}" for a, b in permutations(problem.numbers) for op in operators]
            right = {text: verify(problem, text).right for text in texts}
            tuples = list(product(texts, repeat=k))
            shares.append(sum(any(right[text] for text in guesses) for guesses in tuples) / len(tuples))
        levels.append(sum(shares) / len(shares))
    for counted in (None, [len(solutions(problem)) for problem in TINY]):
        found = chance_of(Countdown({2: 1.0}), TINY, counted)
        assert found is not None and found.law == "answers" and len(found.guessers) == 2
        assert found.at(k) == pytest.approx(max(levels), abs=1e-12) and replace(found, others=()).at(k) == pytest.approx(levels[0])


def test_guessers_that_leave_out_division_and_brackets_by_listing() -> None:
    """Every canonical spelling over three numbers, judged by the verifier."""
    numbers, target = (2, 3, 4), 10
    shapes = [text.format(*order) for text in templates(3).texts for order in permutations(numbers)]
    shares = []
    for leave_out in ("", "/", "(", "/("):
        texts = [text for text in shapes if not set(leave_out) & set(text)]
        shares.append(sum(verify(Problem(numbers, target), text).right for text in texts) / len(texts))
    found = chance_of(Countdown({3: 1.0}), [Problem(numbers, target)])
    assert found is not None and [each for (each,) in found.guessers] == pytest.approx(shares) and len(set(shares)) == 4
    assert found.at(1) == pytest.approx(max(shares)) and max(shares) > shares[0]


def test_the_best_guesser_depends_on_k_by_hand() -> None:
    """One guesser has .5 on one problem of two, the other .2 on both: .25 against .2 with one guess, .375 against .36 with two,
    .4375 against .488 with three."""
    chance = Chance("answers", (0.5, 0.0), ((0.2, 0.2),))
    assert [chance.at(k) for k in (1, 2, 3)] == pytest.approx([0.25, 0.375, 0.488])
    assert chance_of_tree(json.loads(json.dumps(chance.tree()))) == chance and "best of 2 guessers" in chance.words
    with pytest.raises(ValueError, match="no chance floor"):
        chance_of_tree({**chance.tree(), "others": [[0.2]]})


@pytest.mark.parametrize("chance", LAWS, ids=lambda chance: chance.law)
def test_the_floor_rises_with_k_and_stays_a_share(chance: Chance) -> None:
    levels = [chance.at(k) for k in range(1, 300)]
    assert levels == sorted(levels) and 0 <= levels[0] < levels[-1] <= 1
    assert chance_of_tree(json.loads(json.dumps(chance.tree()))) == chance
    assert chance.below(8, chance.at(8) - 1e-6) and not chance.below(8, chance.at(8))


def test_an_interval_of_samples_decides_for_samples() -> None:
    chance = Chance("values", (0.5,))
    assert chance.below(1, 0.4) and not chance.below(1, 0.4, 0.6) and chance.below(1, 0.3, 0.45)
    assert chance.below(1, 0.4, float("inf"))  # one unit has no interval


def test_256_uniform_guesses_on_aime() -> None:
    found = chance_of(task_named("aime"), [None])
    assert found is not None and found.law == "values" and found.at(256) == pytest.approx(0.226, abs=5e-4)
    assert found.at(1) == pytest.approx(1 / 1000) and Chance("values", (0.5,)).at(2) == 0.75


def test_the_floor_of_the_other_rows_leaves_the_row_itself_out() -> None:
    # golds 5 5 5 7 7 9; k = 1. For a 5: the others are 5 5 7 7 9, where 5 and 7 tie and 5 comes first: hit. For a 7: the
    # others are 5 5 5 7 9: the guess is 5. For the 9: no other row has it.
    assert chance_of_golds(["5", "5.0", "10/2", "7", "7", "9"]).hits(1) == [1, 1, 1, 0, 0, 0]
    assert chance_of_golds(["5", "5", "5", "7", "7", "9"]).hits(2) == [1, 1, 1, 1, 1, 0]
    assert chance_of_golds(["5", "5", "5", "7", "7", "9"]).hits(99) == [1, 1, 1, 1, 1, 0]
    assert chance_of_golds(["x", "y"]).hits(99) == [0, 0]


@given(st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=25))
def test_the_rank_of_a_gold_is_its_place_among_the_counts_of_the_other_rows(golds: list[str]) -> None:
    def rank(row: int) -> int:
        others = Counter(golds[:row] + golds[row + 1 :])
        first = {gold: golds.index(gold) for gold in others}
        order = sorted(others, key=lambda gold: (-others[gold], first[gold]))
        return order.index(golds[row]) + 1 if golds[row] in others else 0

    assert chance_of_golds(golds).each == tuple(float(rank(row)) for row in range(len(golds)))


def test_many_distinct_golds_are_ranked_without_comparing_all_pairs() -> None:
    golds = [f"g{i}" for i in range(20_000)]
    began = time.process_time()
    assert set(chance_of_golds([*golds, *golds]).each) == {20_000.0}  # without its row a gold stands behind all the others
    assert time.process_time() - began < 10  # all pairs take minutes


def test_a_set_without_a_range_of_its_golds_has_the_floor_of_the_golds(tmp_path) -> None:
    (tmp_path / "own.jsonl").write_text("".join(json.dumps({"problem": f"p{i}", "answer": str(i % 2)}) + "\n" for i in range(6)))
    task = task_named(str(tmp_path / "own.jsonl"))
    found = chance_of(task, task.problems("test"))
    assert found is not None and found.law == "golds" and (found.at(1), found.at(2)) == (0.0, 1.0)


def test_five_numbers_whose_listing_takes_long_have_no_floor_unless_right_answers_are_counted() -> None:
    problem = Problem((1, 2, 3, 4, 5), 15)
    assert chance_of(Countdown({5: 1.0}), [problem]) is None
    assert chance_of(Countdown({5: 1.0}), [problem], [10]) is not None


def test_a_tree_of_another_shape_is_refused() -> None:
    for tree in ({"law": "golds", "each": []}, {"law": "other", "each": [1]}, {"law": "values", "each": [-1]}):
        with pytest.raises(ValueError, match="no chance floor"):
            chance_of_tree(tree)
    assert chance_of_tree(None) is None


def test_a_record_keeps_its_floor_and_one_without_it_has_it_computed_again(tmp_path) -> None:
    target = Target("base", "embedded", WorldConfig(counts={2: 1.0}, max_number=5, max_target=25))
    made = evaluate(target, problems=6)
    record = load_record(save_record(made, tmp_path / "a.npz"))
    kept = chance_of_record(record)
    wanted = chance_of(target.evaluated_task, target.problems("test", EVALUATION_SEED, 6, "iid"))
    assert kept is not None and wanted is not None and kept.law == "answers"
    assert kept.each == pytest.approx(wanted.each, abs=1e-12)
    old = {key: value for key, value in record.meta.items() if key != "chance"}
    assert chance_of_record(type(record)(old, record.logps)) == kept
    assert chance_of_record(type(record)(old | {"world": {"name": "elsewhere"}}, record.logps)) is None


def test_a_store_without_a_floor_has_it_computed_again_where_its_task_makes_the_problems() -> None:
    def found(task: str, *ids: str) -> Chance | None:
        return chance_of_store({"identity": {"task": task}}, ids)

    puzzles = KnightsAndKnaves().problems()[:3]
    ids = [p.problem_id for p in puzzles]
    assert found("knights_and_knaves", *ids) == Chance("values", tuple(2.0 ** -len(p.names) for p in puzzles))
    assert found("aime", "1", "2") == Chance("values", (1 / 1000,) * 2)  # of any problem, wherever the rows lie
    assert found("countdown", "2-3=5", "2-3=5 #2") == Chance("answers", (0.25, 0.25), ((2 / 6, 2 / 6),))
    assert found("mine", *ids) is found("knights_and_knaves", "other") is found("countdown", "other") is None
    kept = Chance("values", (0.5,))
    assert chance_of_store({"identity": {"task": "countdown"}, "chance": kept.tree()}, ["2-3=5"]) == kept
    assert chance_of_store({"identity": {"task": "countdown"}, "chance": None}, ["2-3=5"]) is None
