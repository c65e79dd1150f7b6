"""The advantages of GRPO, Dr. GRPO and RLOO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sage_rlvr.core.advantages.base import ADVANTAGES, Advantage, Groups, centered
from sage_rlvr.errors import ConfigError


@ADVANTAGES.register
@dataclass(frozen=True)
class GroupNormalized(Advantage):
    """(r - mean) / (std + eps), std with G - 1 in the denominator (GRPO, arXiv 2402.03300, as TRL computes it).

    eps: added to the standard deviation, so that groups of nearly equal rewards do not get huge advantages.
    """

    eps: float = 1e-4
    takes_group_mean: ClassVar[bool] = True
    against_kl: ClassVar[str] = (
        "the reward is divided by the group's std, the KL is not: against the raw reward beta acts as beta * std for "
        "large G, and never as less than beta / sqrt(G)"
    )
    equation: ClassVar[str] = "(r - mean_group r) / (std_group r + eps)"
    ascends: ClassVar[str] = (
        "(1/std_group) grad E[r], each prompt by its own std: for rewards 0 and 1 and large G, grad 2 arcsin sqrt(P(right))"
    )

    def __post_init__(self) -> None:
        if not self.eps > 0:
            raise ConfigError(f"GroupNormalized: eps = {self.eps!r} must be positive; the paper's scale is 1e-4.")

    def __call__(self, rewards: Groups) -> Groups:
        values = centered(rewards, 2, "GroupNormalized")
        return values / (rewards.detach().float().std(dim=1, keepdim=True) + self.eps)


@ADVANTAGES.register
@dataclass(frozen=True)
class GroupCentered(Advantage):
    """r - mean (Dr. GRPO, arXiv 2503.20783): no division by the group's std."""

    takes_group_mean: ClassVar[bool] = True
    equation: ClassVar[str] = "r - mean_group r"
    ascends: ClassVar[str] = "(G-1)/G grad E[r], the same for every prompt"

    def __call__(self, rewards: Groups) -> Groups:
        return centered(rewards, 1, "GroupCentered")


@ADVANTAGES.register
@dataclass(frozen=True)
class LeaveOneOut(Advantage):
    """r minus the mean of the other rewards of the group (RLOO, arXiv 2402.14740) = (r - mean) * G / (G - 1)."""

    equation: ClassVar[str] = "r - mean_others r"
    ascends: ClassVar[str] = "grad E[r], the same for every prompt"

    def __call__(self, rewards: Groups) -> Groups:
        values = centered(rewards, 2, "LeaveOneOut")
        return values * (rewards.shape[1] / (rewards.shape[1] - 1))
