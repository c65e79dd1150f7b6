"""summary.json: write and read rows and their design as strict JSON.

format    3
rows      the list of comparisons: a, b, metric {name, k, at, temperature, matched}, task, why, family, difference, p, adjusted,
          family_size, outcome, reason, mde, mde_limit, over, mean_a, mean_b, problems, left_out, covers, chance, below,
          rising
chance    task -> `chance.Chance` on its problems, or null
arms ...  scores and training, see `results.summary`
answer    the answer in words, one text per paragraph
baseline  the name of the base or of the control
states    arm -> training seed -> state of the run; run_versions, runs_wanted, swept, starts, learning, grids: what was run

The page is made of the summary and of nothing else. A summary that `report` or `compare --out` writes also has

differences   task by task, pairs {a, b, over, ks, difference, low, high, outcomes} with a band that holds at all k at once
gaps          pairs {a, b, pass1, difference, low, high, home} at equal pass@1
training      arm -> one {metric: [value of each step]} per run
cards         of each arm: name, facts, equation, config
kinds         classifications of right answers: arm -> class -> share, kept, gained, lost; effective, reached
patterns, distinct, perplexity      of samples, see `results.details.answers`
verdicts      as docs/reference/verdict.schema.json; each with curves: side -> k -> interval
sources, model    the paths that were read, and the base outside of a sweep
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from sage_rlvr.errors import DataError, suggest
from sage_rlvr.safe_io import read_json, understood
from sage_rlvr.verdicts.design import BASE, Arm, Design, Envelope, questions_of
from sage_rlvr.verdicts.metric import Metric
from sage_rlvr.verdicts.row import Row
from sage_rlvr.verdicts.stats.intervals import Interval
from sage_rlvr.verdicts.stats.paired import PairedDifference, Reason

FORMAT = 3


def read_summary(path: Path) -> dict[str, Any]:
    """Read a summary.json. Raises DataError with the path for a file that cannot be read or has invalid comparisons."""
    again = f"create it again with: {suggest('sweep', 'DESIGN')}"
    summary: dict[str, Any] = read_json(path, advice=again)
    if (known := summary.get("format")) != FORMAT:
        raise DataError(f"{path}: format {known!r}; this version reads {FORMAT}, use the version that wrote it")
    with understood(path, advice=again):
        rows_of_summary(summary)
        design_of_summary(summary)
    return summary


def design_of_summary(summary: Mapping[str, Any]) -> Design:
    """The design of a stored summary: arms, control and questions. The rows contain the controls that were found by structure."""
    arms = tuple(
        Arm(
            name=row["label"], key=key, recipe=row["recipe"], why=row["why"], guided="dose" in row,
            matched=tuple(row.get("matched", ())),
        )
        for key, row in summary["arms"].items()
    )
    control = summary["arms"].get(summary["control"], {}).get("label", summary["control"] or None)
    # a task that cannot list its right answers has only samples of the base
    base = summary["base"] or any(row["policy"] == BASE for row in summary["sampled"])
    return Design(
        arms=arms, base=BASE if base else None, control=control,
        seeds=tuple(summary["seeds"]), title=summary["title"], notes=summary["notes"],
        questions=questions_of(summary["questions"]),
        baselines=tuple(Envelope(name=e["name"], arms=tuple(e["arms"])) for e in summary["baselines"]),
        oracle=summary["oracle"], discarded=tuple(summary["discarded"]), facts=summary,
    )  # fmt: skip


def rows_of_summary(summary: Mapping[str, Any]) -> list[Row]:
    """The comparisons of a summary as they were written."""
    return [row_of_tree(row) for row in summary["rows"]]


_OF_COMPARISON = ("p", "outcome", "reason", "mde", "mde_limit", "over", "mean_a", "mean_b", "problems", "fixed")
_OF_ROW = ("a", "b", "task", "why", "family", "adjusted", "family_size", "left_out", "covers")


def row_tree(row: Row) -> dict[str, Any]:
    """A row as strict JSON."""
    tree = {name: getattr(row, name) for name in _OF_ROW} | {name: getattr(row.comparison, name) for name in _OF_COMPARISON}
    tree |= {"metric": asdict(row.metric), "difference": asdict(row.comparison.difference)}
    tree |= {} if row.chance is None else {"chance": row.chance, "below": row.below}
    tree |= {"rising": True} if row.rising else {}
    return dict(plain(tree))


def row_of_tree(tree: Mapping[str, Any]) -> Row:
    """A row from strict JSON, with the family and p that it was written with."""
    comparison = PairedDifference(
        difference=interval(tree["difference"]), p=_number(tree["p"]), outcome=tree["outcome"], reason=Reason(tree["reason"]),
        mde=_number(tree["mde"], math.inf), over=tree["over"], mean_a=_number(tree["mean_a"]), mean_b=_number(tree["mean_b"]),
        problems=tree["problems"], fixed=tree["fixed"],
    )  # fmt: skip
    metric = Metric.parse(tree["metric"])
    return Row(
        a=tree["a"], b=tree["b"], metric=metric, comparison=comparison.of_shares() if metric.name == "pass" else comparison,
        task=tree["task"], why=tree["why"],
        family=tree["family"], adjusted=_number(tree["adjusted"]), family_size=tree["family_size"],
        left_out=tree["left_out"], covers=tuple(tree["covers"]) if tree["covers"] else None,
        chance=tree.get("chance"), below=tuple(tree.get("below", (False, False))),
        rising=bool(tree.get("rising")),
    )  # fmt: skip


def interval(tree: Mapping[str, Any]) -> Interval:
    """An interval from JSON; null ends are infinite."""
    low, high = _number(tree["low"], -math.inf), _number(tree["high"], math.inf)
    return Interval(
        value=_number(tree["value"]), low=low, high=high, level=tree["level"], over=tree["over"], n=tree["n"]
    )


def _number(x: float | None, otherwise: float = math.nan) -> float:
    return otherwise if x is None else x


def plain(value: Any) -> Any:
    """The value as strict JSON: numpy arrays become lists and numbers, NaN and infinities None."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [plain(v) for v in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, (str, int, bool, type(None))) else str(value)
