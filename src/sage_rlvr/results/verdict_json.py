"""Verdicts as strict JSON, by docs/reference/verdict.schema.json."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from sage_rlvr.results.distinct import distinct_tree
from sage_rlvr.results.sources import GivenRows
from sage_rlvr.results.summary_io import plain
from sage_rlvr.results.verdict import CurveVerdict
from sage_rlvr.results.verdict_text import headline

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
    arms = dict.fromkeys(given.arm_of(table) for table in evaluation.tables)
    return {
        "path": str(evaluation.path),
        "format": evaluation.format,
        "correct": evaluation.correct,
        "rows": evaluation.rows,
        "arms": list(arms),
    }


def _has_temperature(one: CurveVerdict) -> bool:
    """Whether a temperature is known: where a side is a sample store, or a row of a file has one."""
    sides = one.a.tables, one.b.tables
    return not all(sides) or any(table.group.temperature is not None for tables in sides for table in tables)


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
        "temperature": arm.temperature if _has_temperature(one) else None,
        "problems": len(arm.problems),
        "n": arm.n,
        "seeds": list(arm.seeds),
        "finding": one.finding,
        "sentence": headline(one),
        "gain": crossing.gain,
        "loss": crossing.loss,
        "undecided": crossing.undecided,
        "first_loss": crossing.first_loss,
        "pass": scores,
        "over_k": over_k,
        "solved": asdict(one.solved),
        "clusters": len(set(arm.cluster)) or None,
        "chance": None if chance is None else chance.words,
        "distinct": distinct_tree(one.distinct),
    }
