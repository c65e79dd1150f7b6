"""Rollout plans: which groups of a rollout a step trains on, how many more completions a prompt gets, and their first tokens.

Read base.py first, then dynamic_sampling.py (DAPO), stages.py (a second stage) and spread.py (first tokens). The registry
`ROLLOUT_PLANS` also contains the plans of sage_rlvr.contrib.
"""

from sage_rlvr.core.rollout_plans.base import ROLLOUT_PLANS, Baseline, RolloutPlan, Staged, kept_by, learned_by
from sage_rlvr.core.rollout_plans.dynamic_sampling import DynamicSampling
from sage_rlvr.core.rollout_plans.spread import Spread, is_spread
from sage_rlvr.core.rollout_plans.stages import (
    FIRST_EXTRA_ROW,
    GuidedStages,
    is_guided,
    is_staged,
    rows_of_stages,
    trained_on,
)  # fmt: skip

__all__ = [
    "FIRST_EXTRA_ROW", "ROLLOUT_PLANS", "Baseline", "DynamicSampling", "GuidedStages", "RolloutPlan", "Spread", "Staged",
    "is_guided", "is_spread", "is_staged", "kept_by", "learned_by", "rows_of_stages", "trained_on",
]  # fmt: skip
