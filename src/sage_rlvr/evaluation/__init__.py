"""Evaluation: scores in, numbers with intervals and verdicts out. numpy and scipy only."""

from __future__ import annotations

from sage_rlvr.evaluation.compare import (
    Comparison,
    CurveComparison,
    adjust,
    could_only,
    holm,
    paired,
    paired_curve,
    paired_seeds,
    sentence,
    sign_flip_p,
    signed,
)
from sage_rlvr.evaluation.frontier import (
    AtEqualPass1,
    FrontierPoint,
    Gap,
    at_equal_pass1,
    best_pass1,
    frontier,
    gap_to_frontier,
    passk_at,
)
from sage_rlvr.evaluation.intervals import (
    Interval,
    bootstrap_means,
    column_intervals,
    mean_interval,
    seed_interval,
    wilson,
)
from sage_rlvr.evaluation.passk import curve, exact_pass_at_k, pass_at_k
from sage_rlvr.evaluation.power import detectable, detectable_paired, fewest_units
from sage_rlvr.evaluation.support import SupportChange, reachable, success_probability, support, support_change

__all__ = [
    "AtEqualPass1",
    "Comparison",
    "CurveComparison",
    "FrontierPoint",
    "Gap",
    "Interval",
    "SupportChange",
    "adjust",
    "at_equal_pass1",
    "best_pass1",
    "bootstrap_means",
    "column_intervals",
    "could_only",
    "curve",
    "detectable",
    "detectable_paired",
    "exact_pass_at_k",
    "fewest_units",
    "frontier",
    "gap_to_frontier",
    "holm",
    "mean_interval",
    "paired",
    "paired_curve",
    "paired_seeds",
    "pass_at_k",
    "passk_at",
    "reachable",
    "seed_interval",
    "sentence",
    "sign_flip_p",
    "signed",
    "success_probability",
    "support",
    "support_change",
    "wilson",
]
