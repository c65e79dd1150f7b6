"""RS-GRPO: the exponential mean of the rewards (arXiv 2509.24261).

Paper: https://arxiv.org/abs/2509.24261. Recipe: `sage-rlvr train rs_grpo --task TASK`.
Numbers worked out by hand: tests/core/objective/test_utilities.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Unpack

import torch

from sage_rlvr.core.advantages.base import ADVANTAGES, Advantage, Groups, all_equal, checked
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import FixedBudget
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.errors import ConfigError
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored


@ADVANTAGES.register
@dataclass(frozen=True)
class RiskSeeking(Advantage):
    """(e^(b r) / mean_group e^(b r) - 1) / b: risk-seeking RL (arXiv 2509.24261). b -> 0 is Dr. GRPO.

    Its utility is (1/b) log E[e^(b r)]; for rewards 0 and 1, f'(P) = (e^b - 1) / (b (1 + P (e^b - 1))) as G grows: MaxRL's
    1/P with a floor under P of about e^-b. `b` is in units of one reward; 0 in a group whose rewards are all equal.
    """

    b: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.b < math.inf:
            raise ConfigError(
                f"RiskSeeking: b = {self.b!r}; set a positive number, 1 to 8 in the paper; b -> 0 is GroupCentered."
            )

    @property
    def takes_group_mean(self) -> bool:
        return True

    @property
    def equation(self) -> str:
        return f"(e^({self.b:g} r) / mean_group e^({self.b:g} r) - 1) / {self.b:g}"

    @property
    def ascends(self) -> str:
        gain = math.expm1(self.b)
        return f"({gain / self.b:.4g} / (1 + {gain:.4g} P)) grad P for large G, P = P(right): log E[e^({self.b:g} r)] / {self.b:g}"

    def __call__(self, rewards: Groups) -> Groups:
        values = checked(rewards, 2, "RiskSeeking")
        risen = torch.exp(self.b * (values - values.amax(dim=1, keepdim=True)))  # the largest is 1: no overflow
        return torch.where(all_equal(values), 0.0, (risen / risen.mean(dim=1, keepdim=True) - 1.0) / self.b)


@METHODS.register(label="RS-GRPO", about="risk-seeking: an exponential mean", arxiv="2509.24261")
@anchored(beta=0.0, estimator="k1", placement="reward")
def rs_grpo(*, b: float = 2.0, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/(B L)) sum_i sum_t -min(rho A, clip(rho) A), A = (e^(b r) / mean e^(b r) - 1) / b: risk-seeking (arXiv 2509.24261).

    Its utility is (1/b) log E[e^(b r)]: p for b -> 0, and (1/b) log p with a floor of about e^-b under p for large b.
    """
    return Method("rs_grpo", RiskSeeking(b), Clip(), anchor_of(**anchor), FixedBudget())
