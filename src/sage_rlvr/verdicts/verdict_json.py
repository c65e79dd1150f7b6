"""Verdicts as strict JSON, by docs/reference/verdict.schema.json."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from sage_rlvr.verdicts.distinct import DistinctAnswers
from sage_rlvr.verdicts.sources import GivenRows
from sage_rlvr.verdicts.summary_io import plain
from sage_rlvr.verdicts.text.verdicts import headline
from sage_rlvr.verdicts.verdict import AllRight, CurveVerdict, Unlocked

FORMAT = 1


def tree(
    verdicts: Iterable[CurveVerdict], given: Sequence[GivenRows], notes: Sequence[str], failed: Sequence[str] = ()
) -> dict[str, Any]:
    """The verdicts. given, notes: of the results; failed: sentences of `failures`."""
    made = {
        "format": FORMAT,
        "read": [_file_tree(rows) for rows in given],
        "verdicts": [_tree(verdict) for verdict in verdicts],
        "notes": list(notes),
        "failed": list(failed),
    }
    return dict(plain(made))


def _file_tree(given: GivenRows) -> dict[str, Any]:
    """A file of rows that was read."""
    evaluation = given.evaluation
    return {
        "path": str(evaluation.path),
        "format": evaluation.format,
        "correct": evaluation.correct,
        "rows": evaluation.rows,
        "arms": list(given.arms),
        "full_arms": list(given.arms.values()),
    }


def _all_right_tree(one: AllRight) -> dict[str, Any]:
    sides = {"control": one.control, "arm": one.arm, "difference": one.gap.difference}
    return {"k": one.k, **{name: asdict(side) for name, side in sides.items()}, "p": one.gap.p, "outcome": one.gap.outcome}


def _unlocked_tree(one: Unlocked) -> dict[str, Any]:
    sides = {"gained": one.gained, "lost": one.lost}
    made: dict[str, Any] = {name: None if side is None else asdict(side) for name, side in sides.items()}
    for name, side in sides.items():
        if side is not None:
            for stratum, row in zip(side.strata, made[name]["strata"], strict=True):
                row["outcome"] = stratum.outcome
    return made | {"alone_gained": list(one.alone_gained), "alone_lost": list(one.alone_lost)}


def _distinct_tree(distinct: DistinctAnswers | None) -> dict[str, Any] | None:
    if distinct is None:
        return None
    shown = {
        str(k): {"control": asdict(b), "arm": asdict(a), "difference": asdict(gap.difference), "p": gap.p}
        for k, (a, b, gap) in distinct.shown.items()
    }
    return {
        "answers": distinct.source, "most": distinct.most, "in": shown,
        "without_answer": {"control": distinct.unnamed[1], "arm": distinct.unnamed[0]},
    }  # fmt: skip


def _tree(one: CurveVerdict) -> dict[str, Any]:
    arm, crossing, chance = one.a, one.crossing, one.chance
    over_k = None
    if one.curve is not None:
        names = ("ks", "difference", "low", "high", "outcomes", "level", "over", "n")
        over_k = {name: getattr(one.curve, name) for name in names}
    scores = {}
    for k, (a, b, gap) in one.shown.items():
        scores[str(k)] = {
            "control": asdict(b),
            "arm": asdict(a),
            "difference": asdict(gap.difference),
            "p": gap.p,
            "detectable": gap.mde,
            "chance": None if chance is None else chance.at(k),
            "below_chance": one.below(k),
        }
    return {
        "arm": arm.arm,
        "control": one.b.arm,
        "task": arm.task,
        "temperature": arm.temperature if arm.knows_temperature or one.b.knows_temperature else None,
        "problems": len(arm.problems),
        "n": arm.n,
        "seeds": list(arm.seeds),
        "population": "these problems" if one.fixed else "such problems",
        "finding": one.finding,
        "sentence": headline(one),
        "gain": crossing.gain,
        "loss": crossing.loss,
        "undecided": crossing.undecided,
        "first_loss": crossing.first_loss,
        "pass": scores,
        "over_k": over_k,
        "all_right": None if one.all_right is None else _all_right_tree(one.all_right),
        "unlocked": _unlocked_tree(one.unlocked),
        "clusters": len(set(arm.cluster)) or None,
        "chance": None if chance is None else chance.words,
        "distinct": _distinct_tree(one.distinct),
    }
