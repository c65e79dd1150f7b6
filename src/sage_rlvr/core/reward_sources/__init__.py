"""Reward sources: what pays a completion in the place of the verifier; frozen, no gradient."""

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
