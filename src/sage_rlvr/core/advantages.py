"""Rewards of a group become advantages: frozen callables (P, G) -> (P, G) float32, no gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from sage_rlvr.errors import ConfigError, DataError

Groups = Float[Tensor, "P G"]


@runtime_checkable
class Advantage(Protocol):
    """Maps the rewards of P groups of G completions to advantages of the same shape.

    `equation` is A as one line of text; `ascends`, where a class has it, says what the expected gradient of the reward
    term ascends at on-policy samples, and `describe` prints it.
    """

    @property
    def equation(self) -> str: ...

    def __call__(self, rewards: Groups) -> Groups: ...


def _centred(rewards: Groups, smallest_group: int, who: str) -> Groups:
    """Rewards minus their group mean; exactly 0 in a group whose rewards are all equal."""
    if rewards.dim() != 2:
        raise DataError(f"{who}: rewards have shape {tuple(rewards.shape)}; give (prompts, completions a prompt).")
    if rewards.shape[1] < smallest_group:
        raise DataError(f"{who}: group_size is {rewards.shape[1]}; it needs at least {smallest_group} a prompt.")
    values = rewards.detach().float()
    equal = values.amax(dim=1, keepdim=True) == values.amin(dim=1, keepdim=True)
    return torch.where(equal, 0.0, values - values.mean(dim=1, keepdim=True))


@dataclass(frozen=True)
class GroupNormalised:
    """(r - mean) / (std + eps), std with G - 1 in the denominator (GRPO, arXiv 2402.03300, as TRL computes it)."""

    eps: float = 1e-4
    equation: ClassVar[str] = "(r - mean_group r) / (std_group r + eps)"
    ascends: ClassVar[str] = (
        "(1/std_group) grad E[r], each prompt by its own std: for rewards 0 and 1 and large G, grad 2 arcsin sqrt(P(right))"
    )

    def __post_init__(self) -> None:
        if not self.eps > 0:
            raise ConfigError(f"GroupNormalised: eps = {self.eps!r} must be positive; the paper's scale is 1e-4.")

    def __call__(self, rewards: Groups) -> Groups:
        centred = _centred(rewards, 2, "GroupNormalised")
        return centred / (rewards.detach().float().std(dim=1, keepdim=True) + self.eps)


@dataclass(frozen=True)
class GroupCentred:
    """r - mean (Dr. GRPO, arXiv 2503.20783): no division by the group's std."""

    equation: ClassVar[str] = "r - mean_group r"
    ascends: ClassVar[str] = "(G-1)/G grad E[r], the same for every prompt"

    def __call__(self, rewards: Groups) -> Groups:
        return _centred(rewards, 1, "GroupCentred")


@dataclass(frozen=True)
class LeaveOneOut:
    """r minus the mean of the other rewards of the group (RLOO, arXiv 2402.14740) = (r - mean) * G / (G - 1)."""

    equation: ClassVar[str] = "r - mean_others r"
    ascends: ClassVar[str] = "grad E[r], the same for every prompt"

    def __call__(self, rewards: Groups) -> Groups:
        centred = _centred(rewards, 2, "LeaveOneOut")
        return centred * (rewards.shape[1] / (rewards.shape[1] - 1))
