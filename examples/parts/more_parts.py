"""An advantage, a surrogate, a reduction, a rollout plan and a schedule (composed.yaml combines them)."""

from dataclasses import dataclass
from typing import ClassVar

import torch

import sage_rlvr
from sage_rlvr.core import Advantage, Reduction, RolloutPlan, Surrogate


@sage_rlvr.advantage
@dataclass(frozen=True)
class Signs(Advantage):
    """+1 above the mean of the group, -1 below it."""

    equation: ClassVar[str] = "sign(r - mean_group r)"

    def __call__(self, rewards: torch.Tensor) -> torch.Tensor:
        return (rewards.detach().float() - rewards.detach().float().mean(dim=1, keepdim=True)).sign()


@sage_rlvr.surrogate
@dataclass(frozen=True)
class Reinforce(Surrogate):
    """The plain policy gradient: no clip."""

    equation: ClassVar[str] = "-rho A"

    def __call__(self, log_ratios: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor):
        return -log_ratios.exp() * advantages, {}


@sage_rlvr.reduction
@dataclass(frozen=True)
class RowSum(Reduction):
    """Mean over rows of the sum over a row's tokens."""

    equation: ClassVar[str] = "(1/B) sum_i sum_t"
    divisor: ClassVar[str] = "constant"

    def budget(self, mask: torch.Tensor, max_tokens: int | None = None) -> float:
        return float(max(1, mask.shape[0]))

    def __call__(self, per_token: torch.Tensor, mask: torch.Tensor, budget: float | None = None) -> torch.Tensor:
        return torch.where(mask, per_token, 0.0).sum() / (self.budget(mask) if budget is None else budget)


@sage_rlvr.rollout_plan
@dataclass(frozen=True)
class SomeRight(RolloutPlan):
    """Keep the groups with a right completion."""

    max_refills: int = 1
    equation: ClassVar[str] = "keep groups with a right completion"

    def keeps(self, rewards: torch.Tensor) -> torch.Tensor:
        return rewards.amax(dim=1) > 0


@sage_rlvr.schedule
@dataclass(frozen=True)
class Halved:
    """The value, half of it from the middle of the run on."""

    value: float

    def __call__(self, step: int, total_steps: int) -> float:
        return self.value if 2 * step < total_steps else self.value / 2
