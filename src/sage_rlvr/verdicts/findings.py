"""Everything that is compared, once: the comparisons, and the verdicts on arms that were compared by samples only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sage_rlvr.verdicts.comparisons import compare
from sage_rlvr.verdicts.results import Results
from sage_rlvr.verdicts.row import Row
from sage_rlvr.verdicts.verdict import CurveVerdict, verdicts


@dataclass(frozen=True, kw_only=True, eq=False)
class Findings:
    """rows: the list of comparisons. verdicts: one per arm, for arms compared by samples only."""

    rows: Sequence[Row]
    verdicts: Sequence[CurveVerdict] = ()


def findings_of(results: Results) -> Findings:
    """Compare everything. A stored summary contains its rows; its other numbers are in `results.stored`."""
    rows = compare(results)
    return Findings(rows=rows, verdicts=verdicts(results, rows) if results.sampled_only else ())
