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
    found: Iterable[CurveVerdict], given: Sequence[GivenRows], notes: Sequence[str], failed: Sequence[str] = ()
) -> dict[str, Any]:
    """The verdicts. given, notes: of the results; failed: sentences of `failures`."""
    read = [
        {
            "path": str(one.evaluation.path), "format": one.evaluation.format, "correct": one.evaluation.correct,
            "rows": one.evaluation.rows, "arms": list(dict.fromkeys(one.arm_of(t) for t in one.evaluation.tables)),
        }
        for one in given
    ]  # fmt: skip
    made = {
        "format": FORMAT,
        "read": read,
        "verdicts": list(map(_tree, found)),
        "notes": list(notes),
        "failed": list(failed),
    }
    return dict(plain(made))


def _tree(one: CurveVerdict) -> dict[str, Any]:
    curve = one.curve
    over_k = None
    if curve is not None:
        over_k = {
            name: getattr(curve, name) for name in ("ks", "difference", "low", "high", "outcomes", "level", "over", "n")
        }
    scores = {
        str(k): {
            "control": asdict(b),
            "arm": asdict(a),
            "difference": asdict(gap.difference),
            "p": gap.p,
            "detectable": gap.mde,
            "chance": None if one.chance is None else one.chance.at(k),
            "below_chance": one.below(k),
        }
        for k, (a, b, gap) in one.shown.items()
    }
    return {
        "arm": one.a.arm, "control": one.b.arm, "task": one.a.task, "temperature": one.a.temperature,
        "problems": len(one.a.problems), "n": one.a.n, "seeds": list(one.a.seeds), "finding": one.finding,
        "sentence": headline(one), "gain": one.crossing.gain, "loss": one.crossing.loss, "undecided": one.crossing.undecided,
        "first_loss": one.crossing.first_loss, "pass": scores, "over_k": over_k, "solved": asdict(one.solved),
        "clusters": len(set(one.a.cluster)) or None, "chance": None if one.chance is None else one.chance.words,
        "distinct": distinct_tree(one.distinct),
    }  # fmt: skip
