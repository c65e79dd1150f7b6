"""Support and reach: worked by hand, and against sampling."""

from __future__ import annotations

import numpy as np
import pytest

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.stats.support import reachable, success_probability, support, support_change

BASE = [np.log([0.5, 0.001]), np.log([0.2]), np.log([0.001, 0.0001]), np.array([])]
POLICY = [np.log([0.4, 0.1]), np.log([0.002]), np.log([0.002, 0.3]), np.array([])]


def test_counts_above_eps():
    assert support(BASE, 0.01).tolist() == [1, 1, 0, 0]
    assert support([np.array([0.0, -np.inf])], 0.0).tolist() == [1]


def test_change_by_hand():
    change = support_change(BASE, POLICY, 0.01)
    assert (change.preserved, change.gained, change.lost, change.outside) == (1, 2, 1, 1)
    assert (change.preserved_problems, change.gained_problems, change.lost_problems) == (1, 1, 1)
    assert change.outside_problems == 1
    assert change.retention == pytest.approx(0.5) and change.discovery == pytest.approx(2 / 3)
    none = support_change([np.array([])], [np.array([])], 0.01)
    assert none.retention == 0.0 and none.discovery == 0.0


def test_success_is_the_sum_and_reach_the_expected_number():
    np.testing.assert_allclose(success_probability(BASE), [0.501, 0.2, 0.0011, 0.0])
    rows = [np.log([0.3, 0.1, 0.02])]
    rng = np.random.default_rng(0)
    draws = rng.choice(4, p=[0.3, 0.1, 0.02, 0.58], size=(20_000, 8))
    found = sum((draws == y).any(axis=1) for y in range(3))
    assert reachable(rows, 8)[0] == pytest.approx(found.mean(), abs=4 * found.std() / np.sqrt(20_000))
    assert reachable(BASE, 1)[0] == pytest.approx(0.501) and reachable(BASE, 4)[3] == 0.0


def test_refusals():
    with pytest.raises(DataError, match="different numbers"):
        support_change(BASE, POLICY[:3], 0.01)
    with pytest.raises(DataError, match=r"logps\[0\]"):
        support([[0.4]], 0.01)
    with pytest.raises(DataError, match=r"policy\[1\]"):
        support_change(BASE, [POLICY[0], [np.nan], *POLICY[2:]], 0.01)
    with pytest.raises(DataError, match="eps = 2"):
        support(BASE, 2.0)
    with pytest.raises(DataError, match="not a probability"):
        success_probability([np.log([0.9, 0.3])])
