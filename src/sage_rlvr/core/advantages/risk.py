"""RS-GRPO: the exponential mean of the rewards as the objective."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from sage_rlvr.core.advantages.base import ADVANTAGES, Advantage, Groups, all_equal, checked
from sage_rlvr.errors import ConfigError


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
