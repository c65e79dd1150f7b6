"""Theorem 4.3 as arithmetic: what a guide does to each completion if Eq. (4) is reached, at which cost, and the best q.

    pi_SAGE(y) = pi_RLVR(y) q(y) / E_{pi_RLVR}[q]          (arXiv 2605.18864, proof of Theorem 4.3)
    budget       = KL(pi_SAGE || pi_RLVR) = E_{pi_SAGE}[log q] - log E_{pi_RLVR}[q]

Two laws follow (tests/theory/test_reweighting.py).

1. Within a problem pass@k is a function of the mass p of right answers, and q moves its log odds by
   log E[q | right] - log E[q | wrong]. A guide that cannot tell right from wrong leaves every pass@k as it is; one that can
   moves pass@k by k p (1-p)^k a nat of log odds, which is at most 1/e and is reached at p = 1/(k+1).
2. For a small KL budget d a guide with log q = l gains sqrt(2 d) Cov(l, h) / sd(l) of a functional whose influence is h, the best
   q gains sqrt(2 d) sd(h), and so **the guide's share of the best gain is the correlation of l and h** under pi_RLVR.

Masses are numpy arrays over the completions of all problems together, sorted by problem.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sage_rlvr.errors import DataError

Floats = NDArray[np.float64]
Goal = Literal["distinct", "pass"]


@dataclass(frozen=True, eq=False)
class Masses:
    """A completions of P problems under one policy.

    problem (A,) 0..P-1, ascending, each at least once; right (A,) bool; mass (A,) probability of each completion, or of the
    part of the wrong ones that a sampled one stands for. repeats (P,): how often each problem counts.
    """

    problem: NDArray[np.int64]
    right: NDArray[np.bool_]
    mass: Floats
    repeats: Floats

    def __post_init__(self) -> None:
        steps = np.diff(self.problem, prepend=-1)
        if len(self.problem) == 0 or np.any((steps < 0) | (steps > 1)) or self.problem[-1] + 1 != len(self.repeats):
            raise DataError(
                "Masses.problem must ascend from 0 in steps of 0 or 1 to len(repeats) - 1; sort by problem."
            )

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """(P,) place of each problem's first completion."""
        return np.flatnonzero(np.diff(self.problem, prepend=-1))

    def sums(self, values: Floats) -> Floats:
        """(A,) -> (P,) sums over the completions of each problem."""
        return np.asarray(np.bincount(self.problem, weights=values, minlength=len(self.repeats)), dtype=np.float64)

    def mean(self, values: Floats) -> float:
        """(P,) -> mean over problems, each as often as it counts."""
        return float(np.average(values, weights=self.repeats))

    @property
    def success(self) -> Floats:
        """(P,) p, the mass of right answers."""
        return np.minimum(self.sums(np.where(self.right, self.mass, 0.0)), 1.0)

    def centered(self, values: Floats) -> Floats:
        """(A,) values less their mean under the policy, problem by problem."""
        return np.asarray(values - (self.sums(self.mass * values) / self.sums(self.mass))[self.problem])


def tilted(masses: Masses, log_q: Floats) -> tuple[Masses, Floats]:
    """pi_SAGE and, (P,), KL(pi_SAGE || pi_RLVR) in nats; log_q (A,) of whole completions. Mass is conserved."""
    top = np.maximum.reduceat(log_q, masses.starts)[masses.problem]
    weight = masses.mass * np.exp(log_q - top)
    norm = (masses.sums(weight) / masses.sums(masses.mass))[masses.problem]
    new = weight / norm
    return replace(masses, mass=new), np.maximum(masses.sums(new * (log_q - top - np.log(norm))), 0.0)


def scale_for(masses: Masses, log_q: Floats, budget: float, most: float = 1e4) -> float:
    """The factor s > 0 for which q**s has the mean budget `budget`, nats per completion; inf where no factor up to `most` has."""

    def found(scale: float) -> float:
        return masses.mean(tilted(masses, scale * log_q)[1])

    low, high = 0.0, 1e-3
    while found(high) < budget:
        low, high = high, 2 * high
        if high > most:
            return math.inf
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if found(middle) < budget else (low, middle)
    return high


def pass_at(masses: Masses, k: int) -> Floats:
    """(P,) 1 - (1 - p)^k."""
    with np.errstate(divide="ignore"):
        return np.asarray(-np.expm1(k * np.log1p(-masses.success)))


def distinct(masses: Masses, k: int) -> Floats:
    """(P,) expected number of different right completions among k samples, sum of 1 - (1 - pi(y))^k over the right ones."""
    with np.errstate(divide="ignore"):
        seen = -np.expm1(k * np.log1p(-np.minimum(masses.mass, 1.0)))
    return masses.sums(np.where(masses.right, seen, 0.0))


def influence(masses: Masses, goal: Goal, k: int) -> Floats:
    """(A,) h, the derivative of pass@k or of the distinct right answers by the mass of each completion; 0 for wrong ones."""
    at = masses.mass if goal == "distinct" else masses.success[masses.problem]
    return np.where(masses.right, k * (1.0 - np.minimum(at, 1.0)) ** (k - 1), 0.0)


def efficiency(masses: Masses, log_q: Floats, h: Floats) -> float:
    """Law 2: correlation of log q and h within problems under the policy, pooled; nan for a q that is constant."""
    a, b = masses.centered(log_q), masses.centered(h)
    both, one, two = (masses.mean(masses.sums(masses.mass * x)) for x in (a * b, a * a, b * b))
    return both / math.sqrt(one * two) if one > 1e-12 and two > 0 else math.nan


def sensitivity(p: Floats, k: int) -> Floats:
    """Law 1: the derivative of pass@k by the log odds of p, k p (1-p)^k."""
    return np.asarray(k * p * (1 - p) ** k)


def fit(masses: Masses, features: Floats, h: Floats, ridge: float = 1e-6) -> Floats:
    """Coefficients (F,) of the best small-budget guide log q = features @ coefficients: the regression of h on (A, F).

    By law 2 it maximizes the gain at a given budget among all linear combinations; a ridge keeps doubled columns apart.
    """
    centered = np.stack([masses.centered(column) for column in features.T], axis=1)
    weight = masses.mass * masses.repeats[masses.problem]
    second = centered.T @ (weight[:, None] * centered)
    spread = np.diag(np.maximum(np.diag(second), 1e-12))
    return np.asarray(np.linalg.solve(second + ridge * spread, centered.T @ (weight * masses.centered(h))))


# The oracle: the best q of all that are positive


def best_tilt(masses: Masses, goal: Goal, k: int, budget: float, limit: Floats | None = None) -> Floats:
    """(A,) log q of the q > 0 with the largest mean distinct right answers, or pass@k, at a mean budget of at most `budget`.

    Exact: the goal is concave in the masses and the KL convex, so that where log(P / pi) = h(P) / lam + a constant of the
    problem, P is the optimum; lam is found by bisection. Sequence level: q knows which completions are right. limit (A,),
    for "distinct": log q of right completions is cut there and that of wrong ones is 0, so that the answer is what such a q
    reaches, a lower bound of the optimum in that class; the KL budget may then stay below `budget`.
    """
    if goal == "pass":  # all right answers of a problem are one
        whole, back = _merged(masses)
        return best_tilt(whole, "distinct", k, budget)[back]

    def at(log_lam: float) -> Floats:
        log_q, wrong = _stationary(masses, k, math.exp(log_lam))
        if limit is None:
            return log_q
        return np.where(masses.right, np.minimum(log_q - wrong[masses.problem], limit), 0.0)

    low, high = math.log(1e-4), math.log(1e9)
    for _ in range(34):
        middle = (low + high) / 2
        low, high = (middle, high) if masses.mean(tilted(masses, at(middle))[1]) > budget else (low, middle)
    return at(high)


def _merged(masses: Masses) -> tuple[Masses, NDArray[np.int64]]:
    """Two completions per problem, right and wrong, and the place of each original one among them."""
    p, total = masses.success, masses.sums(masses.mass)
    count = len(masses.repeats)
    mass = np.stack([p, np.maximum(total - p, 1e-300)], axis=1).reshape(-1)
    whole = Masses(np.repeat(np.arange(count), 2), np.tile([True, False], count), mass, masses.repeats)
    return whole, 2 * masses.problem + ~masses.right


def _stationary(masses: Masses, k: int, lam: float) -> tuple[Floats, Floats]:
    """log(P / pi), (A,), with lam log(P / pi) - h(P) constant in each problem and the mass kept; that of wrong ones, (P,)."""
    reach = k / lam
    at, pi = masses.problem[masses.right], masses.mass[masses.right]
    wrong = masses.sums(np.where(masses.right, 0.0, masses.mass))
    total = wrong + np.bincount(at, pi, len(wrong))

    def lifted(base: Floats) -> Floats:
        """x >= base with x - h(pi e^x) / lam = base, by bisection (the left side grows with x)."""
        low, high = base.copy(), base + reach
        for _ in range(26):
            x = (low + high) / 2
            above = x - k * np.maximum(1 - pi * np.exp(np.minimum(x, 50.0)), 0.0) ** (k - 1) / lam > base
            low, high = np.where(above, low, x), np.where(above, x, high)
        return np.asarray((low + high) / 2)

    low, high = np.full(len(wrong), -reach), np.zeros(len(wrong))
    for _ in range(30):
        middle = (low + high) / 2
        mass = wrong * np.exp(middle) + np.bincount(at, pi * np.exp(lifted(middle[at])), len(wrong))
        low, high = np.where(mass > total, low, middle), np.where(mass > total, middle, high)
    base = (low + high) / 2
    log_q = base[masses.problem]
    log_q[masses.right] = lifted(base[at])
    return log_q, base


@dataclass(frozen=True, eq=False)
class Lift:
    """The oracle of the support.

    log_q (A,): of the best q found; its mean budget is `budget`, and it lifts the `chosen` (A,) above eps, `gained` a problem on
    average, while none falls below. bound: no q of the KL budget that was asked for gains more; a fraction of a last completion.
    """

    log_q: Floats
    chosen: NDArray[np.bool_]
    gained: float
    bound: float
    budget: float


def best_support(masses: Masses, eps: float, budget: float, limit: Floats | None = None) -> Lift:
    """Lift as many right completions above eps as a mean budget allows; exact but for the last completion.

    In a problem the cheapest way to have m right completions at eps is to take the m likeliest, set those below eps to eps,
    and scale all else by one factor: the I-projection. Its KL grows convexly with m, so buying the cheapest next completion
    of all problems first is the optimum. limit (A,): the largest log q that is admitted for each completion (q = 1 elsewhere);
    with it the answer is what is reached by such q, a lower bound of the optimum in that class. Completions beyond their
    limit are passed over.
    """
    eps = eps * (1 + 1e-9)
    offers: list[tuple[float, int, int]] = []
    curves: list[list[tuple[float, float, NDArray[np.int64]]]] = []
    ends = np.append(masses.starts[1:], len(masses.problem))
    for i, (start, end) in enumerate(zip(masses.starts, ends, strict=True)):
        places = start + np.flatnonzero(masses.right[start:end])
        curve = _lifting_costs(masses, places, eps, limit)
        curves.append(curve)
        costs = _convex([0.0, *(cost for cost, _, _ in curve)])
        offers += [(costs[m + 1] - costs[m], i, m) for m in range(len(curve))]
    offers.sort()
    whole, spent, gained, taken = budget * masses.repeats.sum(), 0.0, 0.0, np.zeros(len(curves), dtype=np.int64)
    bound = 0.0
    for price, i, m in offers:
        weight = masses.repeats[i]
        room = whole - spent
        if price * weight > room:
            bound = weight * max(room, 0.0) / (price * weight) if price > 0 else 0.0
            break
        spent, gained, taken[i] = spent + price * weight, gained + weight, max(taken[i], m + 1)
    chosen = np.zeros(len(masses.problem), dtype=bool)
    log_q = np.zeros(len(masses.problem))
    for curve, last in zip(curves, taken.tolist(), strict=True):
        if last:
            _, log_c, lifted = curve[last - 1]
            log_q[lifted] = np.log(eps / masses.mass[lifted]) - log_c
            chosen[lifted] = masses.mass[lifted] <= eps
    count = masses.repeats.sum()
    spent = masses.mean(tilted(masses, log_q)[1])
    return Lift(log_q, chosen, float(gained / count), float((gained + bound) / count), spent)


def _lifting_costs(
    masses: Masses, places: NDArray[np.int64], eps: float, limit: Floats | None
) -> list[tuple[float, float, NDArray[np.int64]]]:
    """For one, two, ... more right completions at eps: (KL, log of the factor on all else, places that are held at eps)."""
    order = places[np.argsort(-masses.mass[places], kind="stable")]
    order = order[masses.mass[order] > 0]
    inside = order[masses.mass[order] > eps]
    outside = order[masses.mass[order] <= eps]
    found: list[tuple[float, float, NDArray[np.int64]]] = []
    lifted: list[int] = []
    for place in outside:
        trial = [*lifted, int(place)]
        cost, log_c, held = _projected(masses.mass, inside, trial, eps)
        if not math.isfinite(cost):
            break
        if limit is not None and math.log(eps / masses.mass[place]) - log_c > limit[place]:
            continue
        lifted = trial
        found.append((cost, log_c, held))
    if limit is not None:  # the factor falls on the way: those that no longer reach eps end the list
        found = [f for f in found if np.all(np.log(eps / masses.mass[f[2]]) - f[1] <= limit[f[2]] + 1e-12)]
    return found


def _projected(
    mass: Floats, inside: NDArray[np.int64], lifted: list[int], eps: float
) -> tuple[float, float, NDArray[np.int64]]:
    """The least KL with `lifted` and `inside` (by falling mass) at eps or above: (KL, log factor, those held at eps)."""
    held, first = list(lifted), len(inside)
    while True:
        room = 1.0 - len(held) * eps
        rest = 1.0 - float(mass[held].sum())
        if room <= 0 or rest <= 1e-12:
            return math.inf, 0.0, np.array(held)
        log_c = math.log(room / rest)
        if first == 0 or mass[inside[first - 1]] * math.exp(log_c) >= eps:
            break
        first -= 1
        held.append(int(inside[first]))
    places = np.array(held)
    return float(eps * np.log(eps / mass[places]).sum() + room * log_c), log_c, places


def _convex(costs: list[float]) -> list[float]:
    """The largest convex function below the costs of 0, 1, 2, ... completions."""
    hull: list[tuple[int, float]] = []
    for m, cost in enumerate(costs):
        while len(hull) > 1 and (hull[-1][1] - hull[-2][1]) * (m - hull[-1][0]) >= (cost - hull[-1][1]) * (
            hull[-1][0] - hull[-2][0]
        ):
            hull.pop()
        hull.append((m, cost))
    return [float(x) for x in np.interp(np.arange(len(costs)), [m for m, _ in hull], [c for _, c in hull])]
