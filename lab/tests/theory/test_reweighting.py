"""Theorem 4.3 as arithmetic: tilts by hand, the two laws, and the oracles against brute force."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from lab.theory.reweighting import (
    Masses,
    best_support,
    best_tilt,
    distinct,
    efficiency,
    fit,
    influence,
    pass_at,
    scale_for,
    sensitivity,
    tilted,
)
from sage_rlvr.errors import DataError

seeds = st.integers(min_value=0, max_value=2**31 - 1)


def made(seed: int, problems: int = 3, each: int = 6, spread: float = 1.0) -> Masses:
    """Random problems with at least one right and one wrong completion."""
    drawn = np.random.default_rng(seed)
    right = drawn.random((problems, each)) < 0.5
    right[:, 0], right[:, 1] = True, False
    mass = drawn.dirichlet(np.full(each, spread), problems) * 0.999 + 0.001 / each
    repeats = drawn.integers(1, 3, problems).astype(float)
    return Masses(np.repeat(np.arange(problems), each), right.reshape(-1), mass.reshape(-1), repeats)


def one(mass: list[float], right: list[bool]) -> Masses:
    return Masses(np.zeros(len(mass), dtype=int), np.array(right), np.array(mass), np.ones(1))


def test_the_theorem_by_hand():
    """pi = (.6, .3, .1), q = (1, 1, 1.4): E[q] = 1.04, so the third gets .14 / 1.04 and the KL is known."""
    masses = one([0.6, 0.3, 0.1], [False, False, True])
    after, kl = tilted(masses, np.log([1.0, 1.0, 1.4]))
    assert after.mass == pytest.approx([0.6 / 1.04, 0.3 / 1.04, 0.14 / 1.04])
    assert kl[0] == pytest.approx(0.14 / 1.04 * math.log(1.4) - math.log(1.04))
    assert pass_at(after, 2)[0] == pytest.approx(1 - (0.9 / 1.04) ** 2)


def test_what_is_counted_by_hand():
    """Right 0.1 and 0.2, k = 2: 1 - .7^2 passes, (1 - .9^2) + (1 - .8^2) distinct."""
    masses = one([0.1, 0.2, 0.7], [True, True, False])
    assert pass_at(masses, 2)[0] == pytest.approx(0.51)
    assert distinct(masses, 2)[0] == pytest.approx(0.19 + 0.36)
    assert influence(masses, "distinct", 2).tolist() == pytest.approx([1.8, 1.6, 0.0])
    assert influence(masses, "pass", 2).tolist() == pytest.approx([1.4, 1.4, 0.0])


def test_unsorted_problems_are_refused():
    with pytest.raises(DataError, match="sort by problem"):
        Masses(np.array([1, 0]), np.array([True, True]), np.array([1.0, 1.0]), np.ones(2))


@settings(max_examples=30, deadline=None)
@given(seed=seeds, shift=st.floats(-50, 50))
def test_mass_is_kept_and_a_constant_factor_does_nothing(seed, shift):
    masses = made(seed)
    log_q = np.random.default_rng(seed + 1).normal(size=len(masses.mass))
    after, kl = tilted(masses, log_q)
    assert after.sums(after.mass) == pytest.approx(masses.sums(masses.mass)) and (kl >= 0).all()
    again, same = tilted(masses, log_q + shift * (1 + masses.problem))
    assert again.mass == pytest.approx(after.mass, rel=1e-9) and same == pytest.approx(kl, abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(seed=seeds)
def test_law_1_the_log_odds_move_by_the_ratio_of_means(seed):
    masses = made(seed)
    log_q = np.random.default_rng(seed + 1).normal(size=len(masses.mass))
    after, _ = tilted(masses, log_q)
    p, new = masses.success, after.success
    up = masses.sums(masses.mass * masses.right * np.exp(log_q)) / p
    down = masses.sums(masses.mass * ~masses.right * np.exp(log_q)) / (1 - p)
    assert np.log(new / (1 - new)) - np.log(p / (1 - p)) == pytest.approx(np.log(up / down), abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(seed=seeds, k=st.integers(1, 300))
def test_law_1_a_guide_that_cannot_tell_right_from_wrong_moves_no_pass_at_k(seed, k):
    """q is shifted so that its mean among right and among wrong completions is the same; distinct answers do move."""
    masses = made(seed)
    log_q = np.random.default_rng(seed + 1).normal(size=len(masses.mass))
    for kind in (masses.right, ~masses.right):
        mean = masses.sums(masses.mass * kind * np.exp(log_q)) / masses.sums(masses.mass * kind)
        log_q = np.where(kind, log_q - np.log(mean)[masses.problem], log_q)
    after, kl = tilted(masses, log_q)
    assert pass_at(after, k) == pytest.approx(pass_at(masses, k), abs=1e-9)
    assert kl.max() > 1e-3


def test_law_1_distinct_moves_where_pass_at_k_cannot():
    masses = one([0.4, 0.1, 0.5], [True, True, False])
    after, _ = tilted(masses, np.log([0.25 / 0.4, 0.25 / 0.1, 1.0]))
    assert pass_at(after, 8) == pytest.approx(pass_at(masses, 8))
    assert distinct(after, 8)[0] > distinct(masses, 8)[0] + 0.1


def test_law_1_where_pass_at_k_is_sensitive():
    """k p (1-p)^k is the slope in the log odds, and largest, just under 1/e, at p = 1/(k+1)."""
    p, step, k = 0.01, 1e-6, 256
    odds = math.log(p / (1 - p))
    values = [1 - (1 - 1 / (1 + math.exp(-(odds + d)))) ** k for d in (-step, step)]
    assert sensitivity(np.array([p]), k)[0] == pytest.approx((values[1] - values[0]) / (2 * step), rel=1e-6)
    grid = np.linspace(1e-4, 0.2, 20001)
    assert grid[np.argmax(sensitivity(grid, k))] == pytest.approx(1 / (k + 1), rel=0.01)
    assert 0.36 < sensitivity(grid, k).max() < 1 / math.e


@settings(max_examples=20, deadline=None)
@given(seed=seeds)
def test_law_2_the_gain_of_a_small_budget_is_a_correlation(seed):
    masses, k, budget = made(seed), 4, 1e-8
    log_q = np.random.default_rng(seed + 1).normal(size=len(masses.mass))
    h = influence(masses, "distinct", k)
    best = math.sqrt(2 * budget * masses.mean(masses.sums(masses.mass * masses.centered(h) ** 2)))
    for values in (log_q, h):
        after, kl = tilted(masses, scale_for(masses, values, budget) * values)
        assert masses.mean(kl) == pytest.approx(budget, rel=1e-4)
        gain = masses.mean(distinct(after, k) - distinct(masses, k))
        assert gain == pytest.approx(best * efficiency(masses, values, h), abs=0.02 * best)
    assert efficiency(masses, h, h) == pytest.approx(1.0)


def test_law_2_the_regression_is_the_best_combination():
    masses = made(3, problems=20)
    features = np.random.default_rng(0).normal(size=(len(masses.mass), 3))
    h = influence(masses, "distinct", 8)
    found = efficiency(masses, features @ fit(masses, features, h), h)
    others = np.random.default_rng(1).normal(size=(200, 3))
    assert found >= max(efficiency(masses, features @ c, h) for c in others)
    both = np.column_stack([features, h])
    assert efficiency(masses, both @ fit(masses, both, h), h) == pytest.approx(1.0, abs=1e-4)


def test_a_budget_that_no_scale_reaches_is_infinite():
    assert scale_for(made(0), np.zeros(18), 0.01) == math.inf


@pytest.mark.slow
@pytest.mark.parametrize("goal", ["distinct", "pass"])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_best_tilt_against_a_general_optimizer(goal, seed):
    """SLSQP over the softmax of free log q, KL bounded; the oracle must do as well and hold the KL budget."""
    masses, k, budget = made(seed, problems=2, each=4), 5, 0.05
    worth = distinct if goal == "distinct" else pass_at

    def value(log_q: np.ndarray) -> float:
        return masses.mean(worth(tilted(masses, log_q)[0], k))

    room = {"type": "ineq", "fun": lambda x: budget - masses.mean(tilted(masses, x)[1])}
    tries = [np.random.default_rng(i).normal(scale=0.3, size=8) for i in range(3)]
    settings = {"maxiter": 1000, "ftol": 1e-12}
    found = [minimize(lambda x: -value(x), x, constraints=[room], options=settings) for x in tries]
    wanted = max(-one.fun for one in found if one.success)
    log_q = best_tilt(masses, goal, k, budget)
    assert masses.mean(tilted(masses, log_q)[1]) <= budget * (1 + 1e-6)
    assert value(log_q) == pytest.approx(wanted, abs=1e-7)


@pytest.mark.slow
def test_the_limited_tilt_keeps_its_limit():
    masses = made(5)
    limit = np.full(len(masses.mass), 0.1)
    log_q = best_tilt(masses, "distinct", 5, 0.05, limit)
    assert (log_q <= 0.1 + 1e-12).all() and (log_q[~masses.right] == 0).all() and log_q.max() > 0.05


def projected(pi: np.ndarray, held: list[int], eps: float) -> float:
    """min KL(P || pi) with P >= eps on `held`, by SLSQP."""
    cons = [
        {"type": "eq", "fun": lambda x: x.sum() - 1},
        *({"type": "ineq", "fun": lambda x, i=i: x[i] - eps} for i in held),
    ]
    start = np.maximum(pi, np.where(np.isin(np.arange(len(pi)), held), eps, 0.0))
    found = minimize(
        lambda x: (x * np.log(x / pi)).sum(), start / start.sum(), bounds=[(1e-9, 1)] * len(pi), constraints=cons
    )
    return float(found.fun)


@pytest.mark.parametrize("budget", [0.01, 0.05, 0.2])
def test_the_best_support_against_every_choice(budget):
    """One problem, all sets of right completions: the largest that can be held above eps at the KL budget."""
    pi, eps = np.array([0.02, 0.05, 0.15, 0.08, 0.7]), 0.1
    right = [True, True, True, True, False]
    masses = one(pi.tolist(), right)
    most = max(n for n in range(5) for held in combinations(range(4), n) if projected(pi, list(held), eps) <= budget)
    found = best_support(masses, eps, budget)
    after, kl = tilted(masses, found.log_q)
    above = (after.mass > eps) & masses.right
    assert above.sum() == most == 1 + found.gained <= 1 + found.bound
    assert kl[0] == pytest.approx(found.budget) and found.budget <= budget
    assert np.array_equal(found.chosen, above & (pi <= eps))


def test_the_supports_budget_is_shared_between_problems():
    """The cheap completion of the second problem is bought before the dear one of the first."""
    mass = np.array([0.001, 0.999, 0.095, 0.905])
    masses = Masses(np.array([0, 0, 1, 1]), np.array([True, False, True, False]), mass, np.ones(2))
    assert best_support(masses, 0.1, 1e-3).chosen.tolist() == [False, False, True, False]


def test_a_limit_passes_over_what_it_cannot_lift():
    masses = one([0.01, 0.08, 0.91], [True, True, False])
    found = best_support(masses, 0.1, 10.0, np.full(3, math.log(1.4)))
    assert found.gained == 1 and found.log_q[1] <= math.log(1.4) and found.log_q[0] == 0
    assert best_support(masses, 0.1, 10.0).gained == 2


def test_what_is_just_inside_is_held_while_another_is_lifted():
    """Lifting .05 to .1 would push .105 to .0995: both are held at .1, and the rest pays."""
    masses = one([0.105, 0.05, 0.845], [True, True, False])
    found = best_support(masses, 0.1, 1.0)
    after, kl = tilted(masses, found.log_q)
    assert after.mass == pytest.approx([0.1, 0.1, 0.8], abs=1e-8)
    assert kl[0] == pytest.approx(projected(masses.mass, [0, 1], 0.1), abs=1e-6)
    assert found.chosen.tolist() == [False, True, False]
