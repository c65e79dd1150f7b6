"""The entropy among right answers as a reward.

Recipe: `sage-rlvr train right_entropy --task TASK`.
Numbers worked out by hand: tests/core/objective/test_reward_transforms.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Unpack

from sage_rlvr.core.advantages import LeaveOneOut
from sage_rlvr.core.advantages.base import Groups, GroupSignals, ZeroVariance, mean_where
from sage_rlvr.core.extras.base import EXTRAS, Extra
from sage_rlvr.core.extras.rewards.base import right_of
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import FixedBudget
from sage_rlvr.core.state import PartState
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.errors import ConfigError
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored


@EXTRAS.register
@dataclass(frozen=True)
class RightEntropy(Extra):
    """r = R (1 - gamma (s - mean over the right of the group of s)), s = log pi_old(y): the entropy H(pi | right) as a reward.

    Right answers that are rarer than the others of their group are rewarded more, by gamma per nat, and the group's mean reward is
    unchanged. For large G it adds gamma P grad H(pi | right) to what the advantage ascends, whose only fixed point is uniform over
    right answers; a single right completion in its group is rewarded 1. needs: "logps". DataError for rewards other than 0 and 1.

    gamma: reward per nat that a right completion is rarer than the others.
    """

    gamma: float = 0.1
    prefers: ClassVar[str] = "the less likely, until all are alike"
    needs: ClassVar[frozenset[str]] = frozenset({"logps"})

    def __post_init__(self) -> None:
        if not 0 <= self.gamma < math.inf:
            raise ConfigError(f"RightEntropy: gamma = {self.gamma!r}; set a finite number >= 0, typically 0.05 to 0.2.")

    @property
    def equation(self) -> str:
        return f"R (1 - {self.gamma:g} (s - mean_right s)),  s = log pi_old(y)"

    def dead(self, size: int) -> ZeroVariance:
        """Nonzero in an all-right group, by the policy's probabilities."""
        return ZeroVariance("compared" if self.gamma else 1.0, 0.0, "refused")

    def after_rewards(self, rewards: Groups, seen: GroupSignals, state: PartState) -> Groups:
        right, logps = right_of(rewards, "RightEntropy"), seen.policy.float()
        return right * (1.0 - self.gamma * (logps - mean_where(logps, right)))


@METHODS.register(label="Right entropy", about="entropy among correct answers")
@anchored(beta=0.0, estimator="k1", placement="reward")
def right_entropy(*, gamma: float = 0.1, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/(B L)) sum_i sum_t -min(rho A, clip(rho) A), A = RLOO's of r = R (1 - gamma (s - mean_right s)), s = log pi_old(y).

    RLOO with the entropy among right answers as a reward; the group's mean reward is unchanged.
    """
    extras = (RightEntropy(gamma),)
    return Method("right_entropy", LeaveOneOut(), Clip(), anchor_of(**anchor), FixedBudget(), extras=extras)
