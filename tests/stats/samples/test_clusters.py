"""Ratios over clustered samples: by hand, never without width, and coverage by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sage_rlvr.errors import DataError
from sage_rlvr.stats.intervals import column_intervals
from sage_rlvr.stats.samples.clusters import clusters, is_sparse, pooled_share, ratio_interval


def test_numbers_problems_in_order_of_appearance():
    of, n = clusters(["b", "a", "b", 7, "a"])
    assert of.tolist() == [0, 1, 0, 2, 1] and n == 3


def test_a_ratio_with_equal_bottoms_is_the_interval_of_the_mean():
    tops = np.random.default_rng(0).random(30)
    ratio, mean = ratio_interval(tops, np.full(30, 4.0)), column_intervals(tops[:, None] / 4)[0]
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((mean.value, mean.low, mean.high))
    assert ratio.n == 30 and ratio.over == "problems"


def test_values_and_degenerate_cases():
    assert ratio_interval([1, 3], [4, 4]).value == pytest.approx(0.5)
    assert ratio_interval([1], [4]).width == math.inf and pooled_share([1], [4]).width == math.inf
    none, every = pooled_share([0] * 20, [16] * 20), pooled_share([16] * 20, [16] * 20)
    assert (none.value, none.low) == (0.0, 0.0) and 0.1 < none.high < 0.2  # as 20 samples, not as 320
    assert (every.value, every.high) == (1.0, 1.0) and every.low == pytest.approx(1 - none.high)
    alike = pooled_share([4] * 20, [16] * 20)
    assert alike.low < 0.25 < alike.high
    assert pooled_share([1, 0, 2], [4, 0, 4]).n == 2  # a problem without samples says nothing


def test_sparse_means_few_problems_with_hits_or_misses():
    assert is_sparse([1] * 9 + [0] * 50, [16] * 59) and not is_sparse([1] * 10 + [0] * 50, [16] * 60)
    assert is_sparse([16] * 50 + [0] * 9, [16] * 59)


@pytest.mark.parametrize("problems", [40, 320])
def test_clustered_shares_are_covered(problems):
    rng, misses, rounds = np.random.default_rng(3), 0, 200
    for _ in range(rounds):
        p = rng.beta(0.3, 0.9, problems)  # mean 1/4, samples of a problem much alike
        sizes = rng.integers(1, 17, problems)
        misses += not pooled_share(rng.binomial(sizes, p), sizes, resamples=400).contains(0.25)
    assert misses <= 0.1 * rounds  # 5 % wanted; treating samples as independent misses about half the time


def test_refusals():
    with pytest.raises(DataError, match=r"hits\[1\] = 5"):
        pooled_share([1, 5], [4, 4])
    with pytest.raises(DataError, match="one top and one bottom"):
        ratio_interval([1, 2], [4])
    for bottoms in ([0, 0], [-1, 4], [math.nan, 4]):
        with pytest.raises(DataError, match="finite tops and bottoms"):
            ratio_interval([1, 2], bottoms)
