"""Advantages: rewards of a group -> advantages, frozen callables (P, G) -> (P, G) float32 without a gradient.

Read base.py first (`Advantage` and shared helpers), then group.py (GRPO, Dr. GRPO, RLOO). Each other file
is a family of papers: power.py (MaxRL), pass_at_k.py, distinct.py, risk.py, reinforce.py and more. placebo.py is the
control that permutes an advantage among correct completions.
"""

from sage_rlvr.core.advantages.base import (
    ADVANTAGES,
    Advantage,
    Dead,
    Groups,
    Seen,
    at_step,
    expected_of,
    sees,
    silent_of_labels,
)
from sage_rlvr.core.advantages.beta import BetaNormalized, beta_parameters
from sage_rlvr.core.advantages.distinct import DistinctRight
from sage_rlvr.core.advantages.filtered import Filtered
from sage_rlvr.core.advantages.group import GroupCentered, GroupNormalized, LeaveOneOut
from sage_rlvr.core.advantages.pass_at_k import AnalyticPassAtK, PassAtK
from sage_rlvr.core.advantages.placebo import PlaceboRight
from sage_rlvr.core.advantages.power import PowerNormalized
from sage_rlvr.core.advantages.reinforce import Signed
from sage_rlvr.core.advantages.risk import RiskSeeking
from sage_rlvr.core.advantages.smoothing import DifferentialSmoothing
from sage_rlvr.core.advantages.ucpo import UniformRight

__all__ = [
    "ADVANTAGES",
    "Advantage",
    "AnalyticPassAtK",
    "BetaNormalized",
    "Dead",
    "DifferentialSmoothing",
    "DistinctRight",
    "Filtered",
    "GroupCentered",
    "GroupNormalized",
    "Groups",
    "LeaveOneOut",
    "PassAtK",
    "PlaceboRight",
    "PowerNormalized",
    "RiskSeeking",
    "Seen",
    "Signed",
    "UniformRight",
    "at_step",
    "beta_parameters",
    "expected_of",
    "sees",
    "silent_of_labels",
]
