"""A reward without a verifier: the probability of the reference answer's least likely token (least.yaml)."""

from dataclasses import dataclass
from typing import ClassVar

import torch

import sage_rlvr
from sage_rlvr.core import RewardSource
from sage_rlvr.core.extras.source import SourceRewards, Substituted  # their fields: help(Substituted)


@sage_rlvr.extra
@dataclass(frozen=True)
class Least(RewardSource):
    """The probability of the reference's least likely token."""

    given: float = 0.5
    equation: ClassVar[str] = "min_m pi(y*_m | x, z, y*_<m)"
    legend: ClassVar[str] = "z the text before the answer, y* the reference"
    ascends: ClassVar[str] = "grad E[r] with r held as paid"

    def rewards_of(self, seen: Substituted) -> SourceRewards:
        least = torch.where(seen.mask, seen.logps.detach(), 0.0).amin(dim=1).exp()
        earned = torch.where(seen.formed, least, 0.0)
        return SourceRewards(earned, earned)
