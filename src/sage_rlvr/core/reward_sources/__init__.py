"""Reward sources: rewards that the policy computes in place of the verifier; frozen, without a gradient.

Read base.py (the protocol `RewardSource`). The sources are in sage_rlvr.contrib.self_reward.
"""

from sage_rlvr.core.reward_sources.base import (
    REWARD_SOURCES,
    Paid,
    RewardSource,
    Substituted,
    most_repeated,
    rank_metrics,
)

__all__ = [
    "REWARD_SOURCES",
    "Paid",
    "RewardSource",
    "Substituted",
    "most_repeated",
    "rank_metrics",
]
