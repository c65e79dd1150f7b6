"""Distinct answers, answer entropy and token entropy: by hand, against all subsets, laws."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sage_rlvr.errors import DataError
from sage_rlvr.stats.samples.diversity import (
    answer_entropy,
    distinct_correct,
    expected_distinct,
    expected_distinct_correct,
    token_entropy,
)

samples = st.lists(st.tuples(st.sampled_from([None, "a", "b", "c"]), st.booleans()), min_size=1, max_size=8)


def distinct(rows):
    return len({answer for answer, right in rows if right and answer is not None})


@given(samples)
def test_rarefaction_is_the_mean_over_all_subsets(rows):
    answers, correct = zip(*rows, strict=True)
    ks = range(1, len(rows) + 1)
    wanted = [np.mean([distinct(subset) for subset in combinations(rows, k)]) for k in ks]
    found = expected_distinct_correct(answers, correct, ks)
    assert found == pytest.approx(wanted, abs=1e-12)
    assert found[-1] == pytest.approx(distinct_correct(answers, correct)) == distinct(rows)


def test_distinct_by_hand():
    answers, correct = ["3+4", "4+3", "3+4", "9-1", None], [True, True, True, False, False]
    assert distinct_correct(answers, correct) == 2
    # 3+4 in two of five, 4+3 in one: in k = 2 of them (1 - 3/10) + (1 - 6/10)
    assert expected_distinct_correct(answers, correct, [1, 2]) == pytest.approx([3 / 5, 0.7 + 0.4])
    with pytest.raises(DataError, match="fewer than k"):
        expected_distinct_correct(answers, correct, [6])


def test_answer_entropy_by_hand():
    assert answer_entropy(["5", "5", "1", "2"]) == pytest.approx(1.0397, abs=5e-5)  # shares 1/2, 1/4, 1/4
    assert answer_entropy(["5"] * 8) == 0.0
    assert answer_entropy(["5", None]) == pytest.approx(math.log(2))  # no answer is a class of its own
    assert answer_entropy(["None", None]) == pytest.approx(math.log(2))
    assert answer_entropy([None, None]) == 0.0
    assert answer_entropy(["5", "5", "1", "2"], miller_madow=True) == pytest.approx(1.0397 + 2 / 8, abs=5e-5)
    with pytest.raises(DataError, match="no answers"):
        answer_entropy([])


@given(st.lists(st.sampled_from([None, "a", "b", "c", "d"]), min_size=1, max_size=30), st.randoms())
def test_answer_entropy_is_bounded_and_blind_to_order_and_names(answers, random):
    value = answer_entropy(answers)
    assert -1e-12 <= value <= math.log(len(set(answers))) + 1e-12
    shuffled = list(answers)
    random.shuffle(shuffled)
    renamed = [None if a is None else a + "!" for a in shuffled]
    assert answer_entropy(renamed) == pytest.approx(value)
    assert answer_entropy(answers * 3) == pytest.approx(value)


def test_miller_madow_mends_most_of_the_bias():
    rng = np.random.default_rng(0)
    draws = [[str(a) for a in rng.integers(8, size=64)] for _ in range(300)]
    plain = np.mean([answer_entropy(d) for d in draws])
    mended = np.mean([answer_entropy(d, miller_madow=True) for d in draws])
    assert plain < math.log(8) - 0.04 and abs(mended - math.log(8)) < 0.01


def test_token_entropy_counts_each_response_once():
    assert token_entropy([[1.0, 3.0], [5.0]]) == pytest.approx(3.5)  # not 3, the mean over tokens
    assert token_entropy([[math.log(21)] * 7]) == pytest.approx(math.log(21))  # uniform over V: ln V
    for rows in ([[1.0], []], [[1.0], [-0.1]], [[1.0], [math.nan]]):
        with pytest.raises(DataError, match=r"entropies\[1\]"):
            token_entropy(rows)
    with pytest.raises(DataError, match="no responses"):
        token_entropy([])


def test_many_problems_at_once_are_the_problems_one_by_one():
    rows = (["a", "a", "b", None, "c"], [1, 1, 1, 1, 0]), (["x"] * 3, [0, 0, 0]), (["x", "y", "z", "x"], [1, 1, 1, 1])
    found = expected_distinct([5, 3, 4], [[2, 1], [], [2, 1, 1]], (1, 2, 3))
    assert found == pytest.approx(np.array([expected_distinct_correct(answers, right, (1, 2, 3)) for answers, right in rows]))
    assert expected_distinct(4, [[], []], (1, 4)).tolist() == [[0, 0], [0, 0]]
    with pytest.raises(DataError):
        expected_distinct(4, [[2]], (5,))
