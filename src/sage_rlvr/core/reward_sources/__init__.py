"""Reward sources: rewards that the policy computes in place of the verifier; frozen, without a gradient.

Read base.py first (the protocol `RewardSource`), then reference_probability.py (RLPR).
"""

from sage_rlvr.core.reward_sources.base import (
    REWARD_SOURCES,
    Paid,
    RewardSource,
    Substituted,
    most_repeated,
    rank_metrics,
)
from sage_rlvr.core.reward_sources.reference_probability import ReferenceProbability

__all__ = [
    "REWARD_SOURCES",
    "Paid",
    "ReferenceProbability",
    "RewardSource",
    "Substituted",
    "most_repeated",
    "rank_metrics",
]
