"""statsmodels as an oracle: what another well-kept library computes for the same question."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from lab.published.tables import Cell, welch
from sage_rlvr.verdicts.stats.intervals import seed_interval, share_limits, wilson
from sage_rlvr.verdicts.stats.paired import holm
from sage_rlvr.verdicts.stats.power import detectable

multitest = pytest.importorskip("statsmodels.stats.multitest")
power = pytest.importorskip("statsmodels.stats.power")
proportion = pytest.importorskip("statsmodels.stats.proportion")
weightstats = pytest.importorskip("statsmodels.stats.weightstats")


@pytest.mark.slow
def test_holm():
    ps = np.random.default_rng(0).random(17) ** 3
    assert holm(ps) == pytest.approx(multitest.multipletests(ps, method="holm")[1])


@pytest.mark.parametrize(("c", "n"), [(0, 40), (3, 60), (24, 60), (134, 134)])
def test_wilson(c, n):
    ours = wilson(c, n)
    assert (ours.low, ours.high) == pytest.approx(proportion.proportion_confint(c, n, method="wilson"), abs=1e-12)


@pytest.mark.parametrize(("c", "n"), [(0, 40), (3, 60), (24, 60), (134, 134)])
def test_beta_binomial_limits_without_within_problem_scatter_are_clopper_pearsons(c, n):
    """All-or-nothing shares: the effective size is n but for the step from z to t."""
    size = n * (stats.norm.ppf(0.025) / stats.t.ppf(0.025, n - 1)) ** 2
    low, high = share_limits(c / n, c / n * (1 - c / n), n)
    assert (low, high) == pytest.approx(proportion.proportion_confint(size * c / n, size, method="beta"), abs=1e-9)


@pytest.mark.parametrize("n", [3, 10, 60])
def test_detectable_difference(n):
    effect = power.TTestPower().solve_power(nobs=n, alpha=0.05, power=0.8, alternative="two-sided")
    assert detectable(0.2, n) == pytest.approx(0.2 * effect, rel=2e-3)


def test_student_over_seeds():
    gaps = [0.01, 0.03, -0.01, 0.02]
    ours = seed_interval(gaps)
    assert (ours.low, ours.high) == pytest.approx(weightstats.DescrStatsW(gaps).tconfint_mean())


def test_welch():
    rng = np.random.default_rng(1)
    a, b = rng.normal(0.3, 0.1, 5), rng.normal(0.4, 0.02, 5)
    ours = welch(Cell(a.mean(), a.std(ddof=1)), Cell(b.mean(), b.std(ddof=1)))
    t, p, df = weightstats.ttest_ind(b, a, usevar="unequal")
    assert (ours.t, ours.p, ours.df) == pytest.approx((t, p, df)) and math.isfinite(t)
