"""Everything that is compared, once: rows, verdicts, headroom, and the checks of the design."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sage_rlvr.results.baselines import Headroom, headroom
from sage_rlvr.results.checks import paper_gains, relabelled
from sage_rlvr.results.comparisons import compare
from sage_rlvr.results.measurements import ExactMeasurements
from sage_rlvr.results.read import Results
from sage_rlvr.results.row import Row
from sage_rlvr.results.verdict import CurveVerdict, verdicts


@dataclass(frozen=True, kw_only=True, eq=False)
class Findings:
    """rows: the list of comparisons. verdicts: one per arm, of arms that are compared by samples only. headroom: of a design with
    baselines. relabelled: the control's training seeds against each other; gains: of Branch, beside the paper's."""

    rows: Sequence[Row]
    verdicts: Sequence[CurveVerdict] = ()
    headroom: Sequence[Headroom] = ()
    relabelled: Mapping[str, Any] = field(default_factory=dict)
    gains: Sequence[Mapping[str, Any]] | None = None


def findings_of(results: Results) -> Findings:
    """Compare everything. A stored summary has only its rows; its other numbers are in its tree."""
    rows = compare(results)
    if results.stored is not None:
        return Findings(rows=rows)
    design, k, chance = results.design, results.k, results.chances.get("")
    arms = results.table.exact().where(task="").by_arm()
    return Findings(
        rows=rows,
        verdicts=verdicts(results, rows) if results.sampled_only else (),
        headroom=headroom(design, arms, results.base_record, k, chance),
        relabelled=relabelled(arms.get(design.control or "", ExactMeasurements()), k, chance),
        gains=paper_gains(design, arms) if results.several else None,
    )
