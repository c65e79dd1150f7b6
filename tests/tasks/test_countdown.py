"""The world: pure functions of (world, split, seed, index), disjoint splits, weights that hold, errors that teach."""

from __future__ import annotations

from collections import Counter
from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.tasks.countdown import (
    SPLITS,
    WORLDS,
    Countdown,
    Problem,
    draws,
    parse_prompt,
    render,
    solutions,
    split_of,
    verify,
)
from sage_rlvr.tasks.countdown.draws import BLOCK, UNIFORM_BLOCK

GOLDEN = [("3 4 12 12=45:", "12/4*(12+3)"), ("2 2 4 5=4:", "2-2*(4-5)"), ("2 2 4 9=5:", "9-2*4/2")]
GOLDEN_UNIFORM = [("1 2 8 9=33:", "2*(8+9)-1"), ("5 9 10 11=49:", "9*11-10*5"), ("1 4 4 5=3:", "4+4-1*5")]
GOLDEN_SPLITS = ["validation", "train", "train", "train", "test", "train"]
TINY = Countdown({2: 1.0}, max_number=4, max_target=8)
TINY_UNIFORM = Countdown({2: 1.0}, max_number=4, max_target=8, targets="uniform")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n == "demo-5")) for n in sorted(WORLDS)])
def test_examples_are_right_and_stay_inside_their_world_and_split(name: str):
    world, n = WORLDS[name], 32 if name == "countdown-5" else 100
    for split in SPLITS:
        for problem, text in world.examples(split, 5, 0, n):
            assert world.min_target <= problem.target <= world.max_target and len(problem.numbers) in world.counts
            assert 1 <= min(problem.numbers) <= max(problem.numbers) <= world.max_number
            assert list(problem.numbers) == sorted(problem.numbers)
            assert split_of(problem) == split and verify(problem, text).right


@pytest.mark.slow
def test_an_example_is_a_pure_function_of_its_address():
    world = WORLDS["countdown-base"]
    batch = world.examples("train", 3, BLOCK - 5, 10)
    draws.block.cache_clear()
    singles = [world.examples("train", 3, index, 1)[0] for index in reversed(range(BLOCK - 5, BLOCK + 5))]
    assert singles[::-1] == batch
    assert Countdown({4: 0.15, 3: 0.85}).examples("train", 3, 0, 5) == world.examples("train", 3, 0, 5)
    assert world.examples("train", 4, 0, 20) != world.examples("train", 3, 0, 20)
    assert world.examples("train", 3, BLOCK, 20) != world.examples("train", 3, 0, 20)


def test_golden_examples_pin_the_stream():
    """These texts may only change with a note in the changelog: recipes and shipped weights rest on them."""
    drawn = [(render(problem), text) for problem, text in Countdown({4: 1.0}).examples("test", 0, 0, 3)]
    assert drawn == GOLDEN
    drawn = [(render(problem), text) for problem, text in WORLDS["countdown-4"].examples("test", 0, 0, 3)]
    assert drawn == GOLDEN_UNIFORM
    assert [split_of(Problem((3, 5, 7, 11), target)) for target in (24, 25, 26, 27, 28, 29)] == GOLDEN_SPLITS


@pytest.mark.slow
def test_splits_never_share_a_problem_up_to_order():
    keys = {split: {p.key for p, _ in WORLDS["countdown-3"].examples(split, 0, 0, 8000)} for split in SPLITS}
    assert not (keys["train"] & keys["test"] or keys["train"] & keys["validation"] or keys["validation"] & keys["test"])
    sizes = [len(keys[split]) for split in SPLITS]
    assert 0.7 < sizes[0] / sum(sizes) < 0.9 and min(sizes) > 300


@given(st.lists(st.integers(1, 99), min_size=1, max_size=6), st.integers(-5, 999), st.randoms())
@settings(max_examples=50)
def test_split_and_id_ignore_the_order_of_the_numbers(numbers, target, random):
    problem = Problem(tuple(numbers), target)
    random.shuffle(numbers)
    other = Problem(tuple(numbers), target)
    assert (other.key, other.problem_id, split_of(other)) == (problem.key, problem.problem_id, split_of(problem))
    assert parse_prompt(render(problem)) == problem


def test_counts_are_weights_of_what_comes_out():
    sizes = Counter(
        len(problem.numbers) for problem in WORLDS["countdown-base"].problems("train", 9, 8000, distinct=False)
    )
    assert set(sizes) == {3, 4}
    assert abs(sizes[4] / 8000 - 0.15) < 4 * (0.15 * 0.85 / 8000) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize("world", [TINY, TINY_UNIFORM])
def test_expressions_are_uniform_over_the_solutions_of_their_problem(world):
    drawn: dict[Problem, Counter[str]] = {}
    for problem, text in world.examples("train", 0, 0, 8192):
        drawn.setdefault(problem, Counter())[text] += 1
    assert len(drawn) > 10
    for problem, texts in drawn.items():
        correct = solutions(problem)
        assert set(texts) <= set(correct)
        if (n := texts.total()) > 200:
            share = 1 / len(correct)
            assert all(abs(texts[text] / n - share) <= 5 * (share * (1 - share) / n) ** 0.5 for text in correct)


@pytest.mark.slow
@pytest.mark.parametrize("split", SPLITS)
def test_uniform_targets_are_uniform_over_what_the_numbers_reach_in_the_split(split):
    """Against a list made from `solutions` and `split_of` alone: every problem's share is known exactly."""
    pairs = [(a, b) for a in range(1, 5) for b in range(1, 5)]
    reach = {
        pair: [t for t in range(1, 9) if solutions(Problem(pair, t)) and split_of(Problem(pair, t)) == split]
        for pair in pairs
    }
    usable = [pair for pair in pairs if reach[pair]]
    expected: Counter[tuple[tuple[int, ...], int]] = Counter()
    for pair in usable:
        for target in reach[pair]:
            expected[Problem(pair, target).key] += 1 / len(usable) / len(reach[pair])
    n = 6000
    drawn = Counter(problem.key for problem, _ in TINY_UNIFORM.examples(split, 2, 0, n))
    assert set(drawn) == set(expected)
    assert all(abs(drawn[key] / n - share) <= 5 * (share * (1 - share) / n) ** 0.5 for key, share in expected.items())


@pytest.mark.slow
def test_uniform_examples_are_pure_and_hold_their_counts():
    world = Countdown({3: 3.0, 4: 1.0}, targets="uniform")
    batch = world.examples("validation", 3, UNIFORM_BLOCK - 5, 10)
    draws.block.cache_clear()
    singles = [world.examples("validation", 3, index, 1)[0] for index in reversed(range(UNIFORM_BLOCK - 5, UNIFORM_BLOCK + 5))]
    assert singles[::-1] == batch
    assert all(split_of(problem) == "validation" and verify(problem, text).right for problem, text in batch)
    sizes = Counter(len(problem.numbers) for problem, _ in world.examples("train", 0, 0, 4000))
    assert abs(sizes[4] / 4000 - 0.25) < 5 * (0.25 * 0.75 / 4000) ** 0.5


def test_uniform_problems_have_fewer_solutions():
    def mean(world):
        return sum(len(solutions(problem)) for problem, _ in world.examples("train", 0, 0, 128)) / 128

    assert mean(Countdown(targets="uniform")) < 0.7 * mean(Countdown())


def test_distinct_problems_are_distinct_and_a_prefix():
    problems = WORLDS["countdown-4"].problems("validation", 0, 500)
    assert len({problem.key for problem in problems}) == 500
    assert WORLDS["countdown-4"].problems("validation", 0, 50) == problems[:50]


@pytest.mark.slow
@pytest.mark.parametrize("world", [TINY, TINY_UNIFORM])
def test_a_world_that_runs_dry_says_so(world):
    with pytest.raises(DataError, match="this world gave only"):
        world.problems("train", 0, 5000)


@pytest.mark.parametrize("targets", ["expression", "uniform"])
def test_an_impossible_world_says_so(monkeypatch, targets):
    monkeypatch.setattr(draws, "MAX_DRAWS", 1 << 16)
    with pytest.raises(DataError, match="too rare"):
        Countdown({2: 1.0}, max_number=3, min_target=50, max_target=60, targets=targets).examples("train", 0, 0, 1)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"counts": {}}, "name at least one"),
        ({"counts": {1: 1.0}}, "from 2 to 5"),
        ({"counts": {6: 1.0}}, "from 2 to 5"),
        ({"counts": {3: -1.0}}, "not negative"),
        ({"counts": {3: 0.0}}, "not all zero"),
        ({"counts": {3: float("nan")}}, "finite"),
        ({"max_number": 0}, "max_number"),
        ({"max_target": 0}, "min_target"),
        ({"min_target": 101}, "min_target"),
        ({"targets": "even"}, "expression, uniform"),
    ],
)
def test_worlds_that_mean_nothing_are_refused(arguments, words):
    with pytest.raises(ConfigError, match=words):
        Countdown(**arguments)


def test_addresses_that_mean_nothing_are_refused():
    with pytest.raises(ConfigError, match="train, validation, test"):
        TINY.examples("dev", 0, 0, 1)
    with pytest.raises(ConfigError, match="negative"):
        TINY.examples("train", -1, 0, 1)
    with pytest.raises(DataError, match="int64"):
        Countdown({5: 1.0}, max_number=100_000)


def test_prompt_by_hand():
    assert render(Problem((3, 5, 7, 11), 24)) == "3 5 7 11=24:"
    assert Problem((11, 3, 7, 5), 24).problem_id == "3-5-7-11=24"
    assert parse_prompt("3 5 7 11=24:") == Problem((3, 5, 7, 11), 24)


@pytest.mark.parametrize(
    "text", ["", "=", "3 5=24", "3 5=24: ", "3  5=24:", "3 05=24:", "3 x=24:", "0 5=24:", "=5:", "3 5=24:3"]
)
def test_other_texts_are_no_prompts(text):
    with pytest.raises(DataError, match="should look like"):
        parse_prompt(text)


@pytest.mark.parametrize("numbers, target", [((), 3), ((0, 3), 3), ((-1,), 3), ((2**31,), 3), ((3,), 2**31)])
def test_problems_that_mean_nothing_are_refused(numbers, target):
    with pytest.raises(DataError, match="a problem needs"):
        Problem(numbers, target)


def test_worlds_are_values():
    assert Countdown({3: 1}) == WORLDS["countdown-3"] and hash(Countdown({3: 1})) == hash(WORLDS["countdown-3"])
    assert Countdown(targets="uniform") == WORLDS["countdown-4"] != Countdown()
    assert hash(Countdown(targets="uniform")) == hash(WORLDS["countdown-4"])


def test_the_census_is_every_solvable_problem_of_a_split_once() -> None:
    world = Countdown({3: 1.0}, max_number=5, max_target=12)
    listed = {split: world.census(split) for split in SPLITS}
    keys = [p.key for split in SPLITS for p in listed[split]]
    brute = {
        (numbers, target)
        for numbers in combinations_with_replacement(range(1, 6), 3)
        for target in range(1, 13)
        if solutions(Problem(numbers, target))
    }
    assert len(keys) == len(set(keys)) and set(keys) == brute
    assert all(split_of(p) == split for split in SPLITS for p in listed[split])
    drawn = {p.key for p in world.problems("test", 0, len(listed["test"]))}
    assert drawn == {p.key for p in listed["test"]}  # the draws by expression find the same problems in the end


@pytest.mark.slow
def test_evaluation_problems_are_equally_likely_whatever_their_number_of_answers() -> None:
    world = Countdown({3: 1.0}, max_number=6, max_target=20)
    census = world.census("train")
    half = len(census) // 2
    assert world.sample_of_census("train", 3, half) == world.sample_of_census("train", 3, len(census))[:half]
    answers = {p.key: len(solutions(p)) for p in census}
    mean = np.mean(list(answers.values()))
    means = [np.mean([answers[p.key] for p in world.sample_of_census("train", seed, half)]) for seed in range(40)]
    drawn = np.mean([answers[p.key] for p in world.problems("train", 0, half)])
    assert abs(np.mean(means) - mean) < 3 * np.std(means) / np.sqrt(40) + 1e-9
    assert drawn > mean + 3 * np.std(means)  # the first draws by expression are the easy problems
    with pytest.raises(DataError, match="this world has"):
        world.sample_of_census("train", 0, len(census) + 1)


@pytest.mark.slow
def test_facts_agree_with_what_the_law_draws() -> None:
    world = Countdown({3: 1.0}, max_number=5, max_target=12)
    facts = world.facts("train")
    answers = [len(solutions(p)) for p in world.census("train")]
    assert facts["problems"] == len(answers) and facts["answers_mean"] == pytest.approx(np.mean(answers))
    drawn = [len(solutions(p)) for p in world.problems("train", 5, 20_000, distinct=False)]
    assert facts["answers_mean_by_law"] == pytest.approx(np.mean(drawn), rel=0.03)
    assert facts["longest"] <= 9 and facts["expressions_mean"] <= 1008
