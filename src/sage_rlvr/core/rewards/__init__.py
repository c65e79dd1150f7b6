"""Reward transforms: rewards of a group become rewards, before the advantage; frozen, no gradient. One a file."""

from sage_rlvr.core.rewards.base import REWARD_TRANSFORMS, RewardTransform
from sage_rlvr.core.rewards.mara import Mara
from sage_rlvr.core.rewards.outcomes import OutcomeCounts, OutcomeRepeats
from sage_rlvr.core.rewards.overlong import OverlongShaping
from sage_rlvr.core.rewards.right_entropy import RightEntropy
from sage_rlvr.core.rewards.unlikeliness import Unlikeliness

__all__ = [
    "REWARD_TRANSFORMS",
    "Mara",
    "OutcomeCounts",
    "OutcomeRepeats",
    "OverlongShaping",
    "RewardTransform",
    "RightEntropy",
    "Unlikeliness",
]
