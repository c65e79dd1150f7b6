"""The spread of arms that were chosen among, beside that of their seeds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sage_rlvr.errors import DataError
from sage_rlvr.stats.selection import spread


def test_by_hand():
    """Means 1, 2, 6; residuals (1/2, -1/2) in the first two arms and (-1, 1) in the third: 3 over 2 degrees of freedom."""
    found = spread([[1.5, 0.5], [2.5, 1.5], [5.0, 7.0]])
    assert found.arms == pytest.approx(7**0.5)  # (4 + 1 + 9) / 2
    assert found.seeds == pytest.approx((1.5 / 2) ** 0.5)
    assert found.p == pytest.approx(1 / (1 + 7 / 0.75))  # of F with 2 and 2 degrees of freedom the tail is 1 / (1 + F)


@given(st.integers(2, 6), st.integers(2, 5), st.integers(0, 99))
def test_what_a_seed_does_to_all_arms_and_the_unit_change_nothing(arms: int, seeds: int, key: int):
    scores = np.random.default_rng(key).normal(size=(arms, seeds))
    found, moved = spread(scores), spread(3 * (scores + np.arange(seeds)))
    assert moved.p == pytest.approx(found.p) and moved.arms == pytest.approx(3 * found.arms)
    assert moved.seeds == pytest.approx(3 * found.seeds)


def test_equal_arms_are_told_apart_at_the_stated_rate():
    rng = np.random.default_rng(0)
    low = np.mean([spread(rng.normal(size=(5, 3))).p < 0.05 for _ in range(2000)])
    assert low == pytest.approx(0.05, abs=0.015)  # three standard errors
    assert spread(rng.normal(size=(5, 3)) + 9 * np.arange(5)[:, None]).p < 1e-4


def test_without_noise():
    assert spread([[1, 1], [1, 1]]).p == 1 and spread([[1, 1], [2, 2]]).p == 0


@pytest.mark.parametrize("scores", [[[1, 2]], [[1], [2]], [1, 2], [[1, np.nan], [1, 2]]])
def test_fewer_than_two(scores):
    with pytest.raises(DataError, match="at least 2 arms"):
        spread(scores)
