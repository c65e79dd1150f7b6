"""Rollout plans: which groups of a rollout a step trains on, and how many more completions a prompt gets.

Read base.py first, then dynamic_sampling.py (DAPO). std_filter.py keeps groups above a running
threshold; stages.py draws a second stage (DARS).
"""

from sage_rlvr.core.rollout_plans.base import ROLLOUT_PLANS, Baseline, RolloutPlan, Staged, kept_by, learned_by
from sage_rlvr.core.rollout_plans.dynamic_sampling import DynamicSampling
from sage_rlvr.core.rollout_plans.stages import (
    FIRST_EXTRA_ROW,
    Dars,
    GuidedStages,
    MarginalValue,
    UniformStages,
    is_guided,
    is_staged,
    rows_of_stages,
    trained_on,
)
from sage_rlvr.core.rollout_plans.std_filter import StdFilter, std_of

__all__ = [
    "FIRST_EXTRA_ROW", "ROLLOUT_PLANS", "Baseline", "Dars", "DynamicSampling", "GuidedStages", "MarginalValue", "RolloutPlan",
    "Staged", "StdFilter", "UniformStages", "is_guided", "is_staged", "kept_by", "learned_by", "rows_of_stages", "std_of",
    "trained_on",
]  # fmt: skip
