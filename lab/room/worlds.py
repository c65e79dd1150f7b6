"""Our own worlds on the same axis: exact pass@1, 8, 64 and 256 of stored experiments, and what they leave open of pass@11."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import optimize

from sage_rlvr.errors import DataError

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
ARMS = (  # name, experiment, arm
    ("easy Countdown, 250 steps, GRPO without KL", "2026-11-21_table1", "no_kl"),
    ("easy Countdown, 250 steps, GRPO", "2026-11-21_table1", "grpo"),
    ("easy Countdown, 2,000 steps, GRPO without KL", "2026-11-25_countdown_easy_betas", "grpo_0"),
    ("easy Countdown, 2,000 steps, GRPO", "2026-11-25_countdown_easy_betas", "grpo_0.1"),
    ("hard Countdown, 500 steps, GRPO without KL", "2026-11-23_countdown_hard_frontier", "grpo_0"),
    ("hard Countdown, 500 steps, GRPO", "2026-11-23_countdown_hard_frontier", "grpo_0.0125"),
)
# q = 1 - p on which a distribution over problems may lie; dense near 1, where large powers differ
GRID = 1 - np.concatenate([[0.0], np.geomspace(1e-5, 1.0, 1200)])
SLACK = 1e-6


@dataclass(frozen=True, kw_only=True)
class OwnArm:
    """A mean over training seeds: exact at the stored ks, an interval of possible values at k. seeds: how many."""

    name: str
    experiment: str
    arm: str
    seeds: int
    base: tuple[float, float]
    after: tuple[float, float]
    base8: float
    after8: float

    @property
    def room(self) -> tuple[float, float]:
        return 1 - self.base[1], 1 - self.base[0]

    @property
    def change(self) -> tuple[float, float]:
        return self.after[0] - self.base[1], self.after[1] - self.base[0]


def possible(scores: Mapping[int, float], k: int) -> tuple[float, float]:
    """The lowest and highest pass@k of any distribution of p over problems that has these pass@ks, by linear programming."""
    ks = sorted(scores)
    misses = np.array([1 - scores[one] for one in ks])
    moments = np.stack([GRID**one for one in ks])
    whole = np.ones((1, len(GRID)))
    ends = []
    for sign in (1, -1):
        found = optimize.linprog(
            sign * GRID**k,
            A_ub=np.concatenate([moments, -moments]),
            b_ub=np.concatenate([misses + SLACK, -misses + SLACK]),
            A_eq=whole,
            b_eq=[1.0],
            bounds=(0, 1),
            method="highs",
        )
        if not found.success:
            raise DataError(
                f"no distribution over problems has pass@k {dict(scores)}: the scores contradict each other."
            )
        ends.append(1 - sign * float(found.fun))
    return min(ends), max(ends)


def own_arms(k: int) -> list[OwnArm]:
    """Every arm of `ARMS` at k, from the stored summaries."""
    found = []
    for name, experiment, arm in ARMS:
        summary = json.loads((EXPERIMENTS / experiment / "summary.json").read_text(encoding="utf-8"))
        base = {int(one): float(value) for one, value in summary["base"]["pass"].items()}
        after = {int(one): float(value["value"]) for one, value in summary["arms"][arm]["pass"].items()}
        found.append(
            OwnArm(
                name=name,
                experiment=experiment,
                arm=arm,
                seeds=len(summary["arms"][arm]["pass_by_seed"]),
                base=possible(base, k),
                after=possible(after, k),
                base8=base[8],
                after8=after[8],
            )
        )
    return found
