"""Detectable difference: a published value, the normal limit, a simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from sage_rlvr.errors import DataError
from sage_rlvr.evaluation import detectable


def test_published_values():
    assert detectable(1.0, 34) == pytest.approx(0.495, abs=0.001)  # G*Power: effect 0.5 needs n = 34 (33.37)
    assert detectable(0.01, 100_000) == pytest.approx(2.8016 * 0.01 / math.sqrt(100_000), rel=1e-3)


@pytest.mark.parametrize("n", [3, 6, 60])
def test_is_found_four_times_in_five(n):
    shift = detectable(0.2, n)
    rng = np.random.default_rng(n)
    gaps = rng.normal(shift, 0.2, (4000, n))
    found = stats.ttest_1samp(gaps, 0.0, axis=1).pvalue < 0.05
    assert found.mean() == pytest.approx(0.8, abs=0.025)


def test_ends():
    assert detectable(0.1, 1) == math.inf
    assert detectable(0.0, 10) == 0.0
    assert math.isfinite(detectable(0.1, 2))
    assert detectable(0.1, 40) > detectable(0.1, 400)
    with pytest.raises(DataError, match="sd"):
        detectable(-1.0, 5)
