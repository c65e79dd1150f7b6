"""Parts with a running state, for the tests of what holds, saves and gives it back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from sage_rlvr.core import Advantage, Key, Method, Signals, TokenWeight
from sage_rlvr.methods import grpo


@dataclass(frozen=True)
class Remembered(Advantage):
    """An advantage: rewards minus a running mean of the rewards of earlier steps."""

    share: float = 0.25
    equation: ClassVar[str] = "r - running mean"

    def start(self) -> dict[str, Tensor]:
        return {"mean": torch.zeros(()), "steps": torch.zeros((), dtype=torch.int64)}

    def __call__(self, rewards: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        mean = torch.lerp(state["mean"], rewards.float().mean(), self.share)
        return rewards.float() - state["mean"], {"mean": mean, "steps": state["steps"] + 1}


@dataclass(frozen=True)
class Tiring(TokenWeight):
    """A token weight that reads signals: 1 / (1 + share of the tokens seen so far that were unlikely)."""

    equation: ClassVar[str] = "1 / (1 + u)"
    needs: ClassVar[frozenset[str]] = frozenset({"logps"})

    def start(self) -> dict[str, Tensor]:
        return {"unlikely": torch.zeros(()), "seen": torch.zeros(3)}

    def token_weights(
        self, signals: Signals, step: int, total_steps: int, key: Key, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        below = torch.where(signals.mask, signals.old_logps < -1.0, False).sum()
        seen = state["seen"] + torch.stack([below, signals.mask.sum(), torch.ones_like(below)])
        weight = torch.where(signals.mask, 1.0 / (1.0 + state["unlikely"]), 0.0)
        return weight, {"unlikely": seen[0] / seen[1].clamp(min=1), "seen": seen}


def stateful(beta: float = 0.05) -> Method:
    """GRPO with both."""
    return replace(grpo(beta=beta), name="stateful", advantage=Remembered(), extras=(Tiring(),))
