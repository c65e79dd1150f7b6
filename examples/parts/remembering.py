"""An advantage with state: the reward minus a running mean (remembering.yaml)."""

from dataclasses import dataclass
from typing import ClassVar

import torch

import sage_rlvr
from sage_rlvr.core import Advantage


@sage_rlvr.advantage
@dataclass(frozen=True)
class AboveBefore(Advantage):
    """The reward minus a running mean of earlier steps, in place of the group's."""

    share: float = 0.1
    equation: ClassVar[str] = "r - running mean of r"

    def start(self) -> dict[str, torch.Tensor]:
        return {"mean": torch.zeros(())}

    def __call__(self, rewards: torch.Tensor, state: dict[str, torch.Tensor]):
        values = rewards.detach().float()
        return values - state["mean"], {"mean": torch.lerp(state["mean"], values.mean(), self.share)}
