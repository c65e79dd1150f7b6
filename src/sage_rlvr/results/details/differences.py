"""Differences over k, and at equal pass@1 along the frontiers, as trees of JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sage_rlvr.results.tables import control_of, evaluated, sampled_apart
from sage_rlvr.verdicts.measurements import Measurements
from sage_rlvr.verdicts.pairs import ArmPair
from sage_rlvr.verdicts.results import Results
from sage_rlvr.verdicts.stats.curves import CurveComparison, seed_ks
from sage_rlvr.verdicts.stats.frontier import FrontierPoint, GapCurve, gap_curve
from sage_rlvr.verdicts.stats.paired import FEWEST_SEEDS
from sage_rlvr.verdicts.units import units_of

MOST_GAPS = 12  # panels
Tree = dict[str, Any]


def differences_of(results: Results, summary: Mapping[str, Any]) -> list[Tree]:
    """The paired differences in pass@k with their simultaneous bands, task by task: exact on the main task, else from samples."""
    if exact := _exact(results, summary["baseline"]):
        return [{"task": "", "pairs": exact}]
    found = {task: _sampled(results, task, rows) for task, rows in sampled_apart(summary).items()}
    return [{"task": task, "pairs": pairs} for task, pairs in found.items() if pairs]


def _exact(results: Results, base: str) -> list[Tree]:
    design, arms = results.design, results.table.exact().where(task="").by_arm()
    named = [*((a, b) for a, b, _ in design.pairs()), *((a, base) for a in design.names if a != base)]
    found = []
    for a, b in dict.fromkeys(named):
        sides = ArmPair(a=a, b=b, why="pair", left=arms[a], right=arms[b]).sides() if a in arms and b in arms else None
        if sides is None:
            continue
        left, right = sides
        curve = units_of(left, right, fixed=results.fixed, several=results.several).curve(results.k, ks=seed_ks(results.k))
        found += [] if curve is None else [_band(a, b, curve)]
    return found


def _sampled(results: Results, task: str, rows: Sequence[Mapping[str, Any]]) -> list[Tree]:
    """rows: the sampled policies of the task, the first of them the control."""
    policies = results.table.policies()
    scores = [policies.get((row["policy"], task, row["temperature"]), Measurements()).scores() for row in rows]
    control, found = scores[0], []
    for row, own in zip(rows[1:], scores[1:], strict=True):
        if own is None or control is None or (own.problems, own.n) != (control.problems, control.n):
            continue
        curve = units_of(own, control, fixed=results.fixed).curve(results.k)
        found += [] if curve is None else [_band(row["label"], rows[0]["label"], curve)]
    return found


def _band(a: str, b: str, curve: CurveComparison) -> Tree:
    names = ("over", "ks", "difference", "low", "high", "outcomes")
    return {"a": a, "b": b, **{name: getattr(curve, name) for name in names}}


def gaps_of(summary: Mapping[str, Any]) -> list[Tree]:
    """Every arm along the frontier of its control, and the control along the frontier of the base, for at least three training
    seeds."""
    them, base = evaluated(summary), summary["baseline"]
    control = control_of(summary) or next((name for name in them if name != base), "")
    pairs = [*((name, control) for name in them if name not in (base, control)), (control, base)]
    found = []
    for a, b in pairs[:MOST_GAPS]:
        left, right = ({} if name not in them else them[name].get("frontier_by_seed", {}) for name in (a, b))
        if b == base and right:  # the base has one frontier, which every seed is compared with
            right = dict.fromkeys(left, right["0"])
        shared = [seed for seed in left if seed in right]
        if len(shared) >= FEWEST_SEEDS:
            curve = gap_curve([_points(left[seed]) for seed in shared], [_points(right[seed]) for seed in shared])
            found += [] if curve is None else [_gap(a, b, curve)]
    return found


def _gap(a: str, b: str, curve: GapCurve) -> Tree:
    return {"a": a, "b": b, **{name: getattr(curve, name) for name in ("pass1", "difference", "low", "high", "home")}}


def _points(rows: Sequence[Mapping[str, float]]) -> list[FrontierPoint]:
    return [FrontierPoint(temperature=row["temperature"], pass1=row["pass1"], passk=row["passk"]) for row in rows]
