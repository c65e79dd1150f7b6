"""pass@k against brute force: every subset of k samples, and sampling."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations, pairwise
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.stats.passk import (
    EVERY,
    avg_at_n,
    cover_at_tau,
    curve,
    curve_ks,
    curve_table,
    exact_pass_at_k,
    pass_at_all_k,
    pass_at_k,
    pass_hat_k,
    sampling_variance,
)


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


def test_a_large_matrix_has_the_value_of_its_parts():
    correct = np.random.default_rng(0).integers(0, 1025, 10_000)
    values = pass_at_k(1024, correct[:, None], 2 ** np.arange(11))
    assert values.shape == (10_000, 11)
    np.testing.assert_allclose(values[:, 0], correct / 1024, atol=1e-12)
    samples = np.where(np.arange(10_000) % 2, 1024, 1100)  # several n take another way through the tables
    mixed = pass_at_k(samples[:, None], correct[:, None], 2 ** np.arange(11))
    np.testing.assert_array_equal(mixed[1::2], values[1::2])


counts = st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n)))


@given(counts)
def test_every_k_of_a_curve_is_the_share_of_subsets(pair):
    n, c = pair
    row = pass_at_all_k(n, [c])[0]
    assert row == pytest.approx([by_enumeration(n, c, k) for k in range(1, n + 1)], abs=1e-14)


@given(counts, st.data())
def test_pass_hat_k_is_the_share_of_subsets_that_are_all_right_and_mirrors_pass_at_k(pair, data):
    n, c = pair
    k = data.draw(st.integers(1, n))
    subsets = list(combinations([1] * c + [0] * (n - c), k))
    assert pass_hat_k(n, c, k) == pytest.approx(np.mean([all(s) for s in subsets]), abs=1e-14)
    assert pass_hat_k(n, c, k) == pytest.approx(1 - pass_at_k(n, n - c, k), abs=1e-14)
    assert pass_hat_k(n, c, 1) == pytest.approx(avg_at_n(n, c)) == pytest.approx(c / n)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_both_are_unbiased_by_an_exact_sum_over_all_outcomes(k):
    n, p = 6, 0.3
    chance = [comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    assert np.dot(chance, pass_at_k(n, np.arange(n + 1), k)) == pytest.approx(1 - (1 - p) ** k)
    assert np.dot(chance, pass_hat_k(n, np.arange(n + 1), k)) == pytest.approx(p**k)


def test_a_whole_curve_is_exact_at_ten_thousand_samples_and_rises():
    n = 10_000
    rows = pass_at_all_k(n, [0, 1, 7, 9_000, n])
    for row, c in zip(rows, (0, 1, 7, 9_000, n), strict=True):
        for k in (1, 2, 256, 5_000, 9_999, n):
            assert row[k - 1] == pytest.approx(1 - Fraction(comb(n - c, k), comb(n, k)), rel=1e-13)
        assert np.all(np.diff(row) >= 0)
    # where 1 - pass@k has lost all its digits, pass^k has them
    assert pass_hat_k(n, 50, 20) == pytest.approx(float(Fraction(comb(50, 20), comb(n, 20))), rel=1e-11)


MANY = st.one_of(st.integers(4097, 20_000), st.integers(20_000, 10**9))


@given(MANY, st.data())
def test_many_samples_are_exact_by_the_product(n, data):
    """1 - prod over j < min(c, k) of 1 - max(c, k) / (n - j), in whole numbers; few wrong samples left over, too."""
    fewer = data.draw(st.integers(0, 400))
    left = data.draw(st.one_of(st.integers(0, 40), st.integers(0, n - fewer)))
    more = max(n - fewer - left, 1)
    c, k = (fewer, more) if data.draw(st.booleans()) or not fewer else (more, fewer)
    miss, all_ways = 1, 1
    for j in range(min(c, k)):
        miss *= max(n - max(c, k) - j, 0)
        all_ways *= n - j
    assert pass_at_k(n, c, k) == pytest.approx(float(1 - Fraction(miss, all_ways)), rel=1e-12, abs=1e-300)
    missed = Fraction(miss, all_ways)
    assert pass_hat_k(n, n - c, k) == pytest.approx(float(missed) if missed > 1e-300 else 0.0, rel=1e-10, abs=1e-299)


@given(st.integers(1, 10**9))
def test_a_curve_has_every_k_where_that_is_cheap_and_a_grid_beyond(top):
    ks = curve_ks(top)
    assert ks[: min(top, EVERY)] == tuple(range(1, min(top, EVERY) + 1)) and ks[-1] == top
    assert all(a < b <= max(a + 1, 1.021 * a) for a, b in pairwise(ks)) and len(ks) < 1800


def test_a_curve_of_a_million_samples_has_the_values_of_pass_at_k():
    n, c = 1_000_000, np.array([0, 1, 3, 40, 2_000, 999_999, 1_000_000])
    table, which = curve_table(n, c, curve_ks)
    assert table.shape[1] == len(curve_ks(n)) and table.size < 20_000
    np.testing.assert_allclose(table[which], pass_at_k(n, c[:, None], np.array(curve_ks(n))), rtol=1e-11)
    assert pass_at_all_k(n, c, 3).shape == (7, 3)


def test_the_samples_variance_of_many_is_that_of_a_binomial_and_continues_that_of_few():
    p = np.array([0.0, 1e-6, 0.003, 0.5, 1.0])
    np.testing.assert_allclose(sampling_variance(p, 1_000_000, 1), p * (1 - p) / 1e6, rtol=1e-9, atol=1e-20)
    at_edge, beyond = sampling_variance(p, 4096, 64), sampling_variance(p, 4097, 64)
    np.testing.assert_allclose(at_edge, beyond, rtol=1e-3, atol=1e-15)


def test_curves_end_at_the_smallest_n():
    rows = pass_at_all_k([4, 6, 4], [2, 1, 2])
    assert rows.shape == (3, 4)
    np.testing.assert_allclose(rows[1], [1 / 6, 2 / 6, 3 / 6, 4 / 6])
    np.testing.assert_allclose(rows[0], pass_at_k(4, 2, np.arange(1, 5)))
    with pytest.raises(DataError, match="c has shape"):
        pass_at_all_k(4, [[1]])
    with pytest.raises(DataError, match="c = 5"):
        pass_at_all_k(4, [1, 5])
    with pytest.raises(DataError, match="n = 0"):
        pass_at_all_k([4, 0], [1, 0])


def test_cover_at_tau_by_hand():
    values = cover_at_tau(10, np.array([0, 1, 3, 10])[:, None], [0.1, 0.1 + 0.2, 0.31, 1.0])
    assert values.tolist() == [[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]]
    assert cover_at_tau(10, 3, 0.3) == 1.0
    for tau in (0.0, 1.01, float("nan")):
        with pytest.raises(DataError, match="tau ="):
            cover_at_tau(10, 3, tau)


def test_pass_at_k_is_the_mean_of_cover_at_tau_under_its_beta_density():
    p, k, n = np.array([0, 3, 40, 100, 600, 1000]), 16, 1000  # problems whose p is c / n
    edges = (np.arange(n) + 0.5) / n  # Cover is constant between multiples of 1/n
    cover = cover_at_tau(n, p[:, None], edges).mean(axis=0)
    mass = (1 - np.arange(n) / n) ** k - (1 - np.arange(1, n + 1) / n) ** k  # of the density k (1 - tau)^(k-1)
    assert cover @ mass == pytest.approx(np.mean(exact_pass_at_k(p / n, k)), rel=1e-12)


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
