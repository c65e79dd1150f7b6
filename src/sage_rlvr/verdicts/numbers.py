"""The numbers of every policy: pass@k with intervals; of exact policies also frontiers, distinct answers and support."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from sage_rlvr.verdicts.measurements import ExactMeasurement, ExactMeasurements, Measurement, Measurements, PolicyKey
from sage_rlvr.verdicts.metric import PAPER, REFERENCE
from sage_rlvr.verdicts.scores import ProblemScores
from sage_rlvr.verdicts.stats.frontier import FrontierPoint, best_pass1
from sage_rlvr.verdicts.stats.intervals import Interval, seed_interval
from sage_rlvr.verdicts.stats.passk import curve, powers
from sage_rlvr.verdicts.stats.support import reachable, support_change

KS = (1, 8, 64, 256)
EPS = 1 / 256
"""A completion is in support if it is more likely than this (Definition 4.1 of the SAGE paper)."""


@dataclass(frozen=True, kw_only=True)
class PassCurve:
    """pass@k of one policy. passes: k -> mean with its interval, over training seeds or, for one, over problems; by_seed: training
    seed -> k -> mean over problems. n: samples of each problem, None for exact scores."""

    n: int | None
    problems: int
    seeds: tuple[int, ...]
    passes: Mapping[int, Interval]
    by_seed: Mapping[int, Mapping[int, float]]


@dataclass(frozen=True, kw_only=True)
class ExactNumbers:
    """Numbers that only exact records of an arm have, with intervals over training seeds.

    tops: for each training seed the temperature with the best pass@1
    best, distinct: best pass@1 over temperatures, and distinct right completions in k samples at T = 1
    frontier: pass@1 and pass@k at every temperature, means
    frontiers: training seed -> the same with distinct answers and pass@k at the shown k
    reached: k -> distinct right completions
    support: right completions of the base preserved, gained and lost"""

    tops: Sequence[FrontierPoint]
    best: Interval
    distinct: Interval | None
    frontier: Sequence[Mapping[str, float]]
    frontiers: Mapping[int, Sequence[Mapping[str, Any]]]
    reached: Mapping[int, Interval] = field(default_factory=dict)
    support: Mapping[str, Interval] = field(default_factory=dict)


def shown_ks(k: int) -> list[int]:
    """The k of the tables: `KS` up to the largest k, which is included."""
    return [*(n for n in KS if n < k), k]


def curves_of(table: Measurements[Measurement], k: int, fixed: bool = False) -> dict[PolicyKey, PassCurve]:
    """The curve of every policy: from samples over powers of two, exact at the temperatures of tables over the shown k. fixed: on
    these problems."""
    curves: dict[PolicyKey, PassCurve] = {}
    for policy, rows in table.policies().items():
        scores = rows.scores()
        if scores is not None and scores.n is not None:
            curves[policy] = _curve(scores, powers(scores.n), fixed)
        elif scores is not None and scores.temperature in (REFERENCE, PAPER):
            more = powers(k) if not scores.task and scores.temperature == REFERENCE else []
            curves[policy] = _curve(scores, sorted({*shown_ks(k), *more}), fixed)
    return curves


def _curve(scores: ProblemScores, ks: Sequence[int], fixed: bool) -> PassCurve:
    means = scores.passes(ks).mean(axis=1).tolist()
    return PassCurve(
        n=scores.n, problems=len(scores.problems), seeds=scores.seeds,
        passes={k: scores.interval(k, fixed=fixed) for k in ks},
        by_seed={seed: dict(zip(ks, row, strict=True)) for seed, row in zip(scores.seeds, means, strict=True)},
    )  # fmt: skip


def numbers_of(
    arm: ExactMeasurements, ks: Sequence[int], base: ExactMeasurements | None = None, reach: Sequence[int] = ()
) -> ExactNumbers:
    """The numbers of the rows of an arm on a task. ks: the shown k; base: to compare the support with; reach: the k of distinct
    right completions."""
    at_reference, runs = arm.where(temperature=REFERENCE).rows, arm.runs
    tops = [best_pass1(run.points) for run in runs.values()]
    return ExactNumbers(
        tops=tops, best=seed_interval([top.pass1 for top in tops]).within(0.0, 1.0),
        distinct=seed_interval([row.distinct for row in at_reference]).within(0.0, math.inf) if at_reference else None,
        reached={k: _reached(at_reference, k) for k in reach if at_reference},
        support=_support(arm, base) if base and at_reference else {},
        frontier=_mean_frontier(arm), frontiers={seed: _frontier(run, ks) for seed, run in runs.items()},
    )  # fmt: skip


def _reached(rows: Sequence[ExactMeasurement], k: int) -> Interval:
    """Distinct right completions in k samples."""
    return seed_interval([float(np.mean(reachable(row.logps, k))) for row in rows]).within(0.0, math.inf)


def _mean_frontier(arm: ExactMeasurements) -> list[dict[str, float]]:
    out = []
    for t in arm.temperatures:
        points = arm.where(temperature=t).points
        pass1, passk = np.mean([point.pass1 for point in points]), np.mean([point.passk for point in points])
        out.append({"temperature": t, "pass1": float(pass1), "passk": float(passk)})
    return out


def _frontier(run: ExactMeasurements, ks: Sequence[int]) -> list[dict[str, Any]]:
    """pass@1, pass@k, pass@k at every shown k and distinct answers of one run at all its temperatures."""
    out = []
    for row in run.rows:
        passes = curve(row.values, ks).mean(axis=0).tolist()
        out.append(asdict(row.point) | {"distinct": row.distinct, "pass": dict(zip(map(str, ks), passes, strict=True))})
    return out


def _support(arm: ExactMeasurements, base: ExactMeasurements) -> dict[str, Interval]:
    changes = [support_change(base.logps, run.logps, EPS) for run in arm.runs.values()]
    kept = {"preserved": [c.preserved for c in changes], "gained": [c.gained for c in changes], "lost": [c.lost for c in changes]}
    return {kind: seed_interval(values).within(0.0, math.inf) for kind, values in kept.items()}


__all__ = ["EPS", "ExactNumbers", "PassCurve", "curves_of", "numbers_of", "shown_ks"]
