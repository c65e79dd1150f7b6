"""Rollout plans: which groups of a rollout a step trains on, and how many more completions a prompt gets.

Read base.py first, then dynamic_sampling.py (DAPO) and stages.py (a second stage). `ROLLOUT_PLANS` has those of
sage_rlvr.contrib too, by name.
"""

from sage_rlvr.core.rollout_plans.base import ROLLOUT_PLANS, Baseline, RolloutPlan, Staged, kept_by, learned_by
from sage_rlvr.core.rollout_plans.dynamic_sampling import DynamicSampling
from sage_rlvr.core.rollout_plans.stages import (
    FIRST_EXTRA_ROW,
    GuidedStages,
    is_guided,
    is_staged,
    rows_of_stages,
    trained_on,
)  # fmt: skip

__all__ = [
    "FIRST_EXTRA_ROW", "ROLLOUT_PLANS", "Baseline", "DynamicSampling", "GuidedStages", "RolloutPlan", "Staged", "is_guided",
    "is_staged", "kept_by", "learned_by", "rows_of_stages", "trained_on",
]  # fmt: skip
