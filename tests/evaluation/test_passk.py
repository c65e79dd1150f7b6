"""pass@k against brute force: every subset of k samples, and sampling."""

from __future__ import annotations

import time
from itertools import combinations
from math import comb

import numpy as np
import pytest

from sage_rlvr.errors import DataError
from sage_rlvr.evaluation import curve, exact_pass_at_k, pass_at_k


def by_enumeration(n: int, c: int, k: int) -> float:
    outcomes = [1] * c + [0] * (n - c)
    subsets = list(combinations(outcomes, k))
    return sum(any(s) for s in subsets) / len(subsets)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_equals_the_share_of_subsets_with_a_correct_sample(n):
    for c in range(n + 1):
        for k in range(1, n + 1):
            assert pass_at_k(n, c, k) == pytest.approx(by_enumeration(n, c, k), abs=1e-14)


@pytest.mark.parametrize(("n", "c", "k"), [(10_000, 1, 1), (10_000, 3, 256), (10_000, 9_000, 999), (10_000, 50, 5_000)])
def test_stays_exact_at_ten_thousand_samples(n, c, k):
    exact = (comb(n, k) - comb(n - c, k)) / comb(n, k)
    assert pass_at_k(n, c, k) == pytest.approx(exact, rel=1e-12)


def test_broadcasts_and_returns_floats_for_scalars():
    values = pass_at_k(np.array([[4], [6]]), np.array([[1], [2]]), np.array([1, 2, 4]))
    assert values.shape == (2, 3)
    assert values[1, 1] == pytest.approx(1 - comb(4, 2) / comb(6, 2))
    assert isinstance(pass_at_k(4, 2, 1), float)
    assert pass_at_k(np.array([], dtype=int), np.array([], dtype=int), np.array([], dtype=int)).shape == (0,)


def test_ten_thousand_problems_take_well_under_a_second():
    correct = np.random.default_rng(0).integers(0, 1025, 10_000)
    start = time.perf_counter()
    values = pass_at_k(1024, correct[:, None], 2 ** np.arange(11))
    assert time.perf_counter() - start < 1.0
    assert values.shape == (10_000, 11)
    np.testing.assert_allclose(values[:, 0], correct / 1024, atol=1e-12)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((4, 1, 5), ["n = 4", "k = 5", "fewer than k"]),
        ((4, 5, 2), ["c = 5", "more correct"]),
        ((4, -1, 2), ["c = -1", "negative"]),
        ((-4, 0, 2), ["n = -4", "negative"]),
        ((4, 1, 0), ["k = 0", "starts at 1"]),
        ((4, 0.5, 2), ["whole numbers", "0.5"]),
        (([4, 4], [1, 1], [2, 9]), ["k = 9", "index [1]"]),
    ],
)
def test_refusals_name_the_values(args, words):
    with pytest.raises(DataError) as refusal:
        pass_at_k(*args)
    for word in words:
        assert word in str(refusal.value)


def test_exact_agrees_with_the_estimator_in_the_mean():
    rng, p, k = np.random.default_rng(1), 0.07, 8
    estimates = pass_at_k(64, rng.binomial(64, p, 20_000), k)
    error = estimates.std() / np.sqrt(len(estimates))
    assert abs(estimates.mean() - exact_pass_at_k(p, k)) < 4 * error


def test_exact_keeps_digits_for_tiny_p_and_ends():
    assert exact_pass_at_k(1e-18, 256) == pytest.approx(256e-18, rel=1e-12)
    assert exact_pass_at_k(1.0, 1) == 1.0 and exact_pass_at_k(0.0, 256) == 0.0
    assert exact_pass_at_k(1 + 5e-7, 3) == 1.0  # float32 rounding of a sum


@pytest.mark.parametrize("p", [-0.1, 1.01, float("nan"), -3.2])
def test_exact_refuses_what_is_no_probability(p):
    with pytest.raises(DataError, match="not a probability"):
        exact_pass_at_k(p, 4)
    with pytest.raises(DataError, match=r"p\[1, 0\]"):
        curve([0.5, p], [1, 2])


def test_curve_has_a_row_a_problem():
    values = curve([0.0, 0.5, 1.0], [1, 2, 4])
    np.testing.assert_allclose(values, [[0, 0, 0], [0.5, 0.75, 0.9375], [1, 1, 1]])
