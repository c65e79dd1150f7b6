"""Four extras: a reward, an advantage, a term of the loss, and token weights (common.yaml)."""

from dataclasses import dataclass
from typing import ClassVar

import torch

import sage_rlvr
from sage_rlvr.core import Batch, Extra, GroupSignals, Signals, TokenWeight


@sage_rlvr.extra
@dataclass(frozen=True)
class Brief(Extra):
    """A price per token of the completion."""

    price: float = 0.01
    equation: ClassVar[str] = "R - price * |y|"

    def after_rewards(self, rewards: torch.Tensor, seen: GroupSignals, state) -> torch.Tensor:
        return rewards - self.price * seen.lengths


@sage_rlvr.extra
@dataclass(frozen=True)
class Common(Extra):
    """Divides the advantage of right completions by how many of the group are right.

    power: of that number.
    """

    power: float = 0.5
    equation: ClassVar[str] = "A / n_right^power for right completions"

    def on_advantages(self, advantages: torch.Tensor, rewards: torch.Tensor, seen: GroupSignals, state) -> torch.Tensor:
        right = (rewards > 0).sum(dim=1, keepdim=True).clamp(min=1)
        return torch.where(rewards > 0, advantages / right**self.power, advantages)


@sage_rlvr.extra
@dataclass(frozen=True)
class Near(Extra):
    """A price on moving away from the policy of the rollout."""

    price: float = 0.1
    equation: ClassVar[str] = "+ price (log pi - log pi_old)^2"

    def on_loss(self, batch: Batch, step: int, total_steps: int) -> torch.Tensor:
        return self.price * (batch.logps - batch.old_logps) ** 2


@sage_rlvr.extra
@dataclass(frozen=True)
class Surprising(TokenWeight):
    """Tokens count by their surprisal under the policy that sampled them."""

    equation: ClassVar[str] = "min(-log pi_old, 2)"

    def token_weights(self, signals: Signals, step: int, total_steps: int, key, state):
        return torch.where(signals.mask, (-signals.old_logps).clamp(max=2.0), 0.0), state
