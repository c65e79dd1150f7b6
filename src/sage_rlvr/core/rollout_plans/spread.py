"""Rollout plans that choose the first token of each completion; the rest of it is sampled from the policy as usual.

    log pi(. | x)  ->  `first`: a token for each completion of the group  ->  the policy continues from there

A completion is then distributed as mu(y_1) pi(y_2, ... | y_1), mu(y_1) the share of the group that begins with y_1. A plan that
`weighs` corrects that by the weight w = pi(y_1) / mu(y_1) of a completion in the loss; without it the ratio treats y_1 as
sampled from pi.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TypeGuard

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sage_rlvr.core.keys import Key
from sage_rlvr.core.rollout_plans.base import Rewards, RolloutPlan


class Spread(RolloutPlan):
    """A rollout plan that chooses first tokens, and keeps every group."""

    @property
    @abstractmethod
    def note(self) -> str:
        """Note on the expected gradient, for `describe`. Required."""

    @abstractmethod
    def first(
        self, logits: Float[Tensor, "P V"], size: int, numbers: Int[Tensor, " P"], step: int, key: Key
    ) -> Int[Tensor, "P size"]:
        """Return the first token of each of `size` completions of P prompts, from the logits of the first tokens.

        Args:
            logits: (P, V).
            size: completions per prompt.
            numbers: of the groups within the step, the addresses of random numbers.
            step: the optimizer step.
            key: the run's key.
        """

    def keeps(self, rewards: Rewards) -> Bool[Tensor, " P"]:
        """Return (P,) true: all groups are kept."""
        return torch.ones(len(rewards), dtype=torch.bool, device=rewards.device)


def is_spread(plan: object) -> TypeGuard[Spread]:
    """Return True if a rollout plan chooses first tokens."""
    return isinstance(plan, Spread)


def first_shares(first: Int[Tensor, "P G"]) -> Float[Tensor, "P G"]:
    """Return mu(y_1): the share of the group's completions with the same first token."""
    return (first[:, :, None] == first[:, None, :]).float().mean(dim=2)
