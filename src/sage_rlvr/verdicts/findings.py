"""Everything that is compared, once: rows, verdicts, headroom, and the checks of the design."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sage_rlvr.verdicts.comparisons import compare
from sage_rlvr.verdicts.measurements import ExactMeasurements
from sage_rlvr.verdicts.results import Results
from sage_rlvr.verdicts.row import Row
from sage_rlvr.verdicts.verdict import CurveVerdict, verdicts

if TYPE_CHECKING:
    from sage_rlvr.verdicts.baselines import Headroom  # mixtures


@dataclass(frozen=True, kw_only=True, eq=False)
class Findings:
    """rows: the list of comparisons. verdicts: one per arm, for arms compared by samples only. headroom: for a design with
    baselines. relabelled: the control's training seeds against each other; gains: Branch's, with the paper's."""

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
    if not results.table.exact():
        none = {"splits": 0, "have": 0}
        return Findings(rows=rows, verdicts=verdicts(results, rows) if results.sampled_only else (), relabelled=none)
    from sage_rlvr.verdicts.baselines import headroom  # like the rows of records, only with exact scores
    from sage_rlvr.verdicts.checks import paper_gains, relabelled

    design, k, chance = results.design, results.k, results.chances.get("")
    arms = results.table.exact().where(task="").by_arm()
    return Findings(
        rows=rows,
        headroom=headroom(design, arms, results.base_record, k, chance),
        relabelled=relabelled(arms.get(design.control or "", ExactMeasurements()), k, chance, results.fixed),
        gains=paper_gains(design, arms, results.fixed) if results.several else None,
    )
