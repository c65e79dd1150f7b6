"""MARA: rewards that make the KL-regularized optimum uniform over right answers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from sage_rlvr.core.advantages.base import Dead, Groups, Seen
from sage_rlvr.core.extras.base import EXTRAS, Extra
from sage_rlvr.core.extras.rewards.base import right_of
from sage_rlvr.core.state import PartState
from sage_rlvr.errors import ConfigError


@EXTRAS.register
@dataclass(frozen=True)
class Mara(Extra):
    """r = R (1 + beta (t_z - t)), t = log pi_ref(y), z the right completion of the group with the largest t (arXiv 2510.20817).

    `beta` must be that of the method's reverse KL: with r the optimum pi_ref exp(r / beta) has the same probability at every
    right answer that the group shows, so that the KL no longer prefers the reference's likeliest. A group without a right
    answer keeps its zeros. needs: "ref_logps". DataError for rewards other than 0 and 1.

    beta: beta of the method's reverse KL.
    """

    beta: float = 0.1
    prefers: ClassVar[str] = "the less likely under the reference, until the KL's optimum is uniform"
    needs: ClassVar[frozenset[str]] = frozenset({"ref_logps"})

    def __post_init__(self) -> None:
        if not 0 < self.beta < math.inf:
            raise ConfigError(f"Mara: beta = {self.beta!r}; set the beta of the method's KL, a positive number.")

    @property
    def equation(self) -> str:  # type: ignore[override]
        return f"R (1 + {self.beta:g} (max_right t - t)),  t = log pi_ref(y)"

    def dead(self, size: int) -> Dead:
        """Where all are right, still what tells them apart: the reference."""
        return Dead("compared", 0.0, "refused")

    def after_rewards(self, rewards: Groups, seen: Seen, state: PartState) -> Groups:
        right, logps = right_of(rewards, "Mara"), seen.require("reference", "Mara").float()
        most = torch.where(right == 1, logps, -math.inf).amax(dim=1, keepdim=True)
        return torch.where(right == 1, 1.0 + self.beta * (most - logps), 0.0)
