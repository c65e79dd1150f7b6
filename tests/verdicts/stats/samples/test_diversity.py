"""Distinct answers, answer entropy and token entropy: by hand, against all subsets, laws."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.stats.samples.diversity import (
    answer_entropy,
    distinct_correct,
    expected_distinct,
    expected_distinct_correct,
    pcmd,
    pcmd_interval,
    token_entropy,
)
from sage_rlvr.verdicts.stats.support import exact_pcmd

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


def test_pcmd_by_hand():
    """Right: 3+4 twice, 4+3 once; two of their three pairs differ. A wrong one, and a right one without an answer, do not count."""
    answers, correct = ["3+4", "4+3", "3+4", "9-1", None], [True, True, True, False, True]
    assert pcmd(answers, correct) == pytest.approx(2 / 3)
    assert pcmd(["a", "a", "b"], [True, True, False]) == 0.0 and pcmd(["a", "b", "c"], [True] * 3) == 1.0
    assert math.isnan(pcmd(["a", "b", None], [True, False, True]))  # one right answer has no pair


@given(samples)
def test_pcmd_is_the_mean_over_all_pairs_of_right_answers(rows):
    right = [answer for answer, is_right in rows if is_right and answer is not None]
    pairs = [one != other for one, other in combinations(right, 2)]
    found = pcmd(*zip(*rows, strict=True))
    assert (math.isnan(found) and not pairs) or found == pytest.approx(np.mean(pairs))


@given(samples, st.randoms())
def test_pcmd_is_blind_to_order_names_and_wrong_samples(rows, random):
    changed = [(answer and answer + "!", right) for answer, right in rows] + [("d", False)]
    random.shuffle(changed)
    one, other = (pcmd(*zip(*some, strict=True)) for some in (rows, changed))
    assert one == pytest.approx(other, nan_ok=True)


@pytest.mark.slow
def test_pcmd_is_unbiased_and_copies_lower_it():
    """Right answers with .5, .3, .2 of the right half: 1 - .38 = .62, at every number of samples; each sample twice lowers it."""
    rng, shares = np.random.default_rng(0), [0.25, 0.15, 0.1, 0.5]
    assert exact_pcmd([np.log(shares[:3]), [-np.inf], []])[0] == pytest.approx(0.62)
    assert np.isnan(exact_pcmd([np.log(shares[:3]), [-np.inf], []])[1:]).all()
    for n in (6, 40):
        drawn = [rng.choice(list("abcw"), size=n, p=shares) for _ in range(4000)]
        once, twice = ([pcmd(list(d) * times, [a != "w" for a in d] * times) for d in drawn] for times in (1, 2))
        assert pcmd_interval(once).value == pytest.approx(0.62, abs=0.02)
        assert pcmd_interval(twice).value < pcmd_interval(once).value - 0.008


def test_pcmd_over_problems_says_how_many_have_it():
    found = pcmd_interval([0.5, math.nan, 0.75, 0.25])
    assert found.value == pytest.approx(0.5) and found.n == 3 and found.over == "problems with two correct answers"
    none = pcmd_interval([math.nan, math.nan])
    assert none.n == 0 and math.isnan(none.value)


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
