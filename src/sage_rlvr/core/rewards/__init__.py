"""Reward transforms: rewards of a group -> rewards, applied before the advantage; frozen, without a gradient.

Read base.py first (the protocol `RewardTransform`). Each other file is the transform of a paper: overlong.py (DAPO),
outcomes.py (outcome-based exploration), unlikeliness.py, mara.py, right_entropy.py.
"""

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
