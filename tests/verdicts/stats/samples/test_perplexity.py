"""Perplexity and its tails: by hand, invariances, and an arm that samples like the base."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.stats.samples.perplexity import (
    perplexities,
    perplexities_from_sums,
    perplexity_excess,
    perplexity_tails,
)


def test_eq_39_by_hand():
    values = perplexities([[math.log(1 / 2), math.log(1 / 8)], [math.log(1 / 21)] * 5, [0.0], [-math.inf, 0.0]])
    assert values == pytest.approx([4.0, 21.0, 1.0, math.inf])  # uniform over V tokens: V
    assert perplexities_from_sums([math.log(1 / 16), 0.0], [2, 1]) == pytest.approx([4.0, 1.0])
    for row in ([], [0.1], [math.nan]):
        with pytest.raises(DataError, match=r"logps\[1\]"):
            perplexities([[-1.0], row])
    for sums, lengths in (([-1.0], [0]), ([1.0], [2]), ([-1.0], [1, 2])):
        with pytest.raises(DataError, match="one sum <= 0"):
            perplexities_from_sums(sums, lengths)


def test_tails_by_hand():
    values = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    found = perplexity_tails(values, ["a"] * 5 + ["b"] * 5, [8, 20], quantiles=(0.5, 0.9))
    assert found.quantiles[0.5].value == 5 and found.quantiles[0.9].value == 9
    # each draw is all of a, both, or all of b: medians 3, 5, 8
    assert (found.quantiles[0.5].low, found.quantiles[0.5].high) == (3, 8)
    assert found.above[8].value == pytest.approx(0.2)
    assert found.above[20].value == 0.0 and found.above[20].high > 0.3
    assert (found.samples, found.problems) == (10, 2)
    assert "only 2 problems" in found.caution
    assert perplexity_tails(values, range(10)).caution == ""
    assert perplexity_tails([2.0, 4.0], ["a", "a"]).quantiles[0.5].width == math.inf


def test_tails_do_not_depend_on_the_order_of_samples_and_hold_infinity():
    rng = np.random.default_rng(0)
    values, problems = 1 + rng.exponential(size=60), np.repeat(np.arange(12), 5)
    values[7] = math.inf
    order = rng.permutation(60)
    a = perplexity_tails(values, problems.tolist(), [2.0], resamples=200)
    b = perplexity_tails(values[order], problems[order].tolist(), [2.0], resamples=200)
    assert {q: i.value for q, i in a.quantiles.items()} == {q: i.value for q, i in b.quantiles.items()}
    assert a.quantiles[0.99].value == math.inf and math.isfinite(a.quantiles[0.5].high)
    assert a.above[2.0].value == b.above[2.0].value


def test_excess_is_zero_against_oneself_and_grows_with_the_tail():
    rng = np.random.default_rng(1)
    problems = np.repeat(np.arange(40), 16).tolist()
    level_of = np.repeat(rng.exponential(size=40), 16)
    base, same, heavy = (1 + np.exp(level_of + s * rng.normal(size=640)) for s in (0.5, 0.5, 1.5))
    assert perplexity_excess(base, problems, base, problems, resamples=200).value == 0.0
    assert perplexity_excess(same, problems, base, problems, resamples=200).contains(0.0)
    wide = perplexity_excess(heavy, problems, base, problems, quantile=0.9, resamples=200)
    assert wide.low > 0.0 and wide.high <= 0.9
    inside = np.sort(base)[int(0.9 * 640) - 1]
    assert wide.value == pytest.approx(np.mean(heavy > inside) - np.mean(base > inside))


def test_problems_are_matched_by_name_not_by_order():
    base, policy = [1.0, 2.0, 3.0, 4.0], [9.0, 9.0, 1.0, 1.0]
    a = perplexity_excess(policy, ["x", "x", "x", "y"], base, ["x", "x", "x", "y"], quantile=0.5, resamples=100)
    b = perplexity_excess(policy[::-1], ["y", "x", "x", "x"], base, ["x", "x", "x", "y"], quantile=0.5, resamples=100)
    assert a == b
    with pytest.raises(DataError, match="same problems"):
        perplexity_excess(policy, ["x"] * 4, base, ["x", "x", "y", "y"])
    with pytest.raises(DataError, match="one value >= 1"):
        perplexity_tails([0.5], ["x"])
    with pytest.raises(DataError, match="one value >= 1"):
        perplexity_tails([1.5, math.nan], ["x", "y"])
