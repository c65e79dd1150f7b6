"""MARA: rewards that make the KL-regularized optimum uniform over right answers (arXiv 2510.20817).

Paper: https://arxiv.org/abs/2510.20817. Recipe: `sage-rlvr train mara --task TASK`.
Numbers worked out by hand: tests/core/objective/test_reward_transforms.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from sage_rlvr.core.advantages import LeaveOneOut
from sage_rlvr.core.advantages.base import Groups, GroupSignals, ZeroVariance
from sage_rlvr.core.anchor import Anchor
from sage_rlvr.core.extras.base import EXTRAS, Extra
from sage_rlvr.core.extras.rewards.base import right_of
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import FixedBudget
from sage_rlvr.core.state import PartState
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.errors import ConfigError


@EXTRAS.register
@dataclass(frozen=True)
class Mara(Extra):
    """r = R (1 + beta (t_z - t)), t = log pi_ref(y), z the right completion of the group with the largest t (arXiv 2510.20817).

    `beta` must be that of the method's reverse KL: with r the optimum pi_ref exp(r / beta) has the same probability at every
    right answer that the group shows, so that the KL no longer prefers the reference's likeliest. A group without a right answer
    has zeros. needs: "ref_logps". DataError for rewards other than 0 and 1.

    beta: beta of the method's reverse KL.
    """

    beta: float = 0.1
    prefers: ClassVar[str] = "the less likely under the reference, until the KL's optimum is uniform"
    needs: ClassVar[frozenset[str]] = frozenset({"ref_logps"})

    def __post_init__(self) -> None:
        if not 0 < self.beta < math.inf:
            raise ConfigError(f"Mara: beta = {self.beta!r}; set the beta of the method's KL, a positive number.")

    @property
    def equation(self) -> str:
        return f"R (1 + {self.beta:g} (max_right t - t)),  t = log pi_ref(y)"

    def dead(self, size: int) -> ZeroVariance:
        """Nonzero in an all-right group, by the reference's probabilities."""
        return ZeroVariance("compared", 0.0, "refused")

    def after_rewards(self, rewards: Groups, seen: GroupSignals, state: PartState) -> Groups:
        right, logps = right_of(rewards, "Mara"), seen.require("reference", "Mara").float()
        most = torch.where(right == 1, logps, -math.inf).amax(dim=1, keepdim=True)
        return torch.where(right == 1, 1.0 + self.beta * (most - logps), 0.0)


@METHODS.register(label="MARA", about="all correct answers equally likely", arxiv="2510.20817")
def mara(*, beta: float = 0.1, source: str = "base") -> Method:
    """L = (1/(B L)) sum_i sum_t -min(rho A_t, clip(rho) A_t), A_t = RLOO's of R (1 + beta (max_right t - t)), t = log pi_ref(y).

    With the sequence-level reverse KL of the same beta in the reward: its optimum is uniform over right answers (arXiv
    2510.20817). One beta for both, as the identity asks for.
    """
    anchor = Anchor(beta, estimator="k1", placement="reward", source=source)
    return Method("mara", LeaveOneOut(), Clip(), anchor, FixedBudget(), extras=(Mara(beta),))
