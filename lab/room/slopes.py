"""How steeply the change falls with the base's score, and how much of that slope the axes have built in.

The base's score stands on both axes, so noise alone makes a slope, and what can be won or lost is bounded by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lab.room.base import probabilities, tempered
from lab.room.cohort import Cohort, pass_at
from sage_rlvr.verdicts.stats.arrays import Floats, Ints
from sage_rlvr.verdicts.stats.intervals import seed_interval


@dataclass(frozen=True, kw_only=True)
class Slope:
    """d change / d room of one reading at pass@k. low, high: a 95 % interval over what `over` names."""

    reading: str
    k: int
    slope: float
    low: float
    high: float
    over: str


def slope_of(room: Floats, change: Floats) -> float:
    """Least squares; 0 where all have the same room."""
    x = room - room.mean()
    spread = float(x @ x)
    return float(x @ change) / spread if spread > 1e-12 else 0.0


def over_groups(room: Floats, change: Floats, groups: Ints) -> tuple[float, float, float]:
    """The slope with Student's interval from the jackknife over whole groups, few as they are."""
    names = np.unique(groups)
    whole, g = slope_of(room, change), len(names)
    without = [slope_of(room[groups != name], change[groups != name]) for name in names]
    reach = seed_interval([(g - 1) * (whole - one) for one in without]).width / 2
    return whole, whole - reach, whole + reach


def quantiles(values: Sequence[float] | Floats) -> tuple[float, float, float]:
    """Mean, and the 2.5 % and 97.5 % quantiles."""
    low, high = np.quantile(values, [0.025, 0.975])
    return float(np.mean(values)), float(low), float(high)


def halves(
    cohort: Cohort, settings: Sequence[Sequence[int]], splits: int, seed: int
) -> dict[str, tuple[float, float, float]]:
    """Three slopes at k = K // 2 over random splits of draws and of problems: mean and quantiles over splits.

    same: room and change from the same base draws. split: room from one part of draws and one half of problems, change from the
    others. nothing: two parts of the base's own draws as before and after, room from the first: RL that changes nothing, with the
    noise that the draws have. Draws are split as well as problems, because a draw's noise is common to all problems.
    """
    rng = np.random.default_rng(seed)
    n, draws = cohort.before.shape[1:]
    k = draws // 2
    found: dict[str, list[float]] = {"same": [], "split": [], "nothing": []}

    def mean(values: Floats, problems: Ints | slice = slice(None)) -> Floats:
        of_runs = values[:, problems].mean(axis=1)
        return np.array([of_runs[list(rows)].mean() for rows in settings])

    for _ in range(splits):
        drawn, order = rng.permutation(draws), rng.permutation(n)
        mine, others, a, b = drawn[:k], drawn[k:], order[: n // 2], order[n // 2 :]
        base_mine, base_others = pass_at(cohort.before[..., mine], k), pass_at(cohort.before[..., others], k)
        rl_mine, rl_others = pass_at(cohort.after[..., mine], k), pass_at(cohort.after[..., others], k)
        found["same"].append(slope_of(1 - mean(base_mine), mean(rl_mine) - mean(base_mine)))
        found["split"].append(slope_of(1 - mean(base_mine, a), mean(rl_others, b) - mean(base_others, b)))
        found["nothing"].append(slope_of(1 - mean(base_mine), mean(base_others) - mean(base_mine)))
    return {name: quantiles(values) for name, values in found.items()}


def shifted(p: Floats, by: float) -> Floats:
    """Probabilities whose logits are all higher by the same number; 0 and 1 stay."""
    up = p * np.exp(by)
    return np.asarray(up / (up + 1 - p))


def common_shift(p: Floats, gain: float) -> float:
    """The shift that raises the mean of p by `gain`, by bisection; 20 at most."""
    low, high = -20.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if shifted(p, middle).mean() - p.mean() < gain else (low, middle)
    return low


def simulated(
    means: Mapping[str, Floats], gain: float, seeds: int, n: int, k: int, draws: int, seed: int
) -> dict[str, tuple[float, float, float]]:
    """Slopes of simulated settings whose problems follow the beta law of their base, k draws before and k after, each problem with
    noise of its own: nothing changes; one shift of logits for all that gives the mean gain of pass@1; every base tempered."""
    rng = np.random.default_rng(seed)
    # a base without any right answer has none to shift: `probabilities` clips its mean away from 0
    p = np.where(means["right"][:, None] > 0, probabilities(means), 0.0)
    p = p[:, np.arange(n) * p.shape[1] // n]
    worlds = {"nothing": p, "shift": shifted(p, common_shift(p, gain)), "tempered": tempered(p)}
    found: dict[str, list[float]] = {name: [] for name in worlds}
    for _ in range(draws):
        before = (rng.binomial(k, p) > 0).mean(axis=1)
        for name, after in worlds.items():
            scores = (rng.binomial(k, np.broadcast_to(after, (seeds, *after.shape))) > 0).mean(axis=(0, 2))
            found[name].append(slope_of(1 - before, scores - before))
    return {name: quantiles(values) for name, values in found.items()}


def unrelated(room: Floats, after: Floats, orders: Ints) -> tuple[float, float, float]:
    """Slopes where the scores after RL belong to other bases: whole domains change places, all orders."""
    return quantiles([slope_of(room, after[order] - (1 - room)) for order in orders])
