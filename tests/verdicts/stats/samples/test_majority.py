"""maj@k: worked by hand, against all subsets, and exact against sampled."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.stats.samples.majority import maj_at_k


def by_enumeration(answers, correct, k):
    """Votes of every subset; the winner's credit is the share of right samples that gave it."""
    given_by = {a: [c for b, c in zip(answers, correct, strict=True) if a == b] for a in answers}
    scores = []
    for subset in combinations(answers, k):
        votes = Counter(a for a in subset if a is not None)
        best = [a for a in votes if votes[a] == max(votes.values())]
        scores.append(np.mean([np.mean(given_by[a]) for a in best]) if best else 0.0)
    return np.mean(scores)


samples = st.lists(st.tuples(st.sampled_from([None, "a", "b", "c", "d"]), st.booleans()), min_size=1, max_size=9)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(samples)
def test_equals_the_mean_over_all_subsets(rows):
    answers, correct = zip(*rows, strict=True)
    found = maj_at_k(answers, correct, range(1, len(rows) + 1))
    wanted = [by_enumeration(answers, correct, k) for k in range(1, len(rows) + 1)]
    assert found.values == pytest.approx(wanted, abs=1e-12)
    assert found.exact.all()


def test_ties_are_split_evenly():
    two_each = maj_at_k(["7", "7", "3", "3"], [1, 1, 0, 0], [1, 2, 4])
    # k = 2 of 4: {7,7} wins, {3,3} loses, four mixed pairs tie
    assert two_each.values == pytest.approx([0.5, (1 + 0 + 4 * 0.5) / 6, 0.5])
    three = maj_at_k(["1", "2", "3"], [0, 1, 0], [3])
    assert three.values == pytest.approx([1 / 3])


def test_none_takes_a_place_and_never_wins():
    found = maj_at_k([None, None, None, "7"], [0, 0, 0, 1], [1, 2, 4])
    assert found.values == pytest.approx([1 / 4, 1 / 2, 1.0])  # a lone vote beats three silent samples
    assert maj_at_k([None, None], [0, 0], [2]).values == [0.0]
    assert maj_at_k(["None", None], [1, 0], [1]).values == pytest.approx([0.5])  # the word is an answer


def test_one_vote_is_avg_at_n_and_all_votes_are_the_plain_majority():
    answers = ["4"] * 5 + ["9"] * 3 + ["1"] * 4
    found = maj_at_k(answers, [a == "4" for a in answers], [1, 12])
    assert found.values == pytest.approx([5 / 12, 1.0])
    assert maj_at_k(answers, [a == "9" for a in answers], [12]).values == [0.0]


def test_an_answer_judged_differently_counts_by_its_share():
    assert maj_at_k(["7", "7", "7", "2"], [1, 1, 0, 0], [4]).values == pytest.approx([2 / 3])


def test_sampling_agrees_with_the_exact_value_and_is_seeded():
    rng = np.random.default_rng(0)
    answers = [str(a) for a in rng.geometric(0.2, 200)]
    correct = [a == "1" for a in answers]
    exact = maj_at_k(answers, correct, [5, 40], method="exact")
    sampled = maj_at_k(answers, correct, [5, 40], method="sample", draws=5000)
    assert np.all(np.abs(sampled.values - exact.values) < 4 * sampled.standard_errors)
    assert np.all(sampled.standard_errors > 0) and not sampled.exact.any()
    again = maj_at_k(answers, correct, [40], method="sample", draws=5000)
    assert again.values[0] == sampled.values[1]


def test_auto_samples_only_what_is_too_large():
    answers = ["1"] * 6_000 + ["2"] * 4_000
    found = maj_at_k(answers, [a == "1" for a in answers], [3, 2_000], draws=200)
    assert found.exact.tolist() == [True, False]
    p, q = 0.6, 0.4
    assert found.values[0] == pytest.approx(p**3 + 3 * p * p * q, abs=1e-4)  # nearly independent draws
    assert found.values[1] == pytest.approx(1.0)


def test_refusals():
    for k in (0, 3):
        with pytest.raises(DataError, match=f"k = {k} of n = 2"):
            maj_at_k(["1", "2"], [1, 0], [k])
    with pytest.raises(DataError, match="2 answers"):
        maj_at_k(["1", "2"], [1], [1])
    with pytest.raises(DataError, match="0 answers"):
        maj_at_k([], [], [1])
