"""MaxRL and its family: advantages scaled by a power of the group mean."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sage_rlvr.core.advantages.base import ADVANTAGES, Advantage, Groups, centered
from sage_rlvr.errors import ConfigError, DataError


@ADVANTAGES.register
@dataclass(frozen=True)
class PowerNormalized(Advantage):
    """(r - mean) / mean^q; 0 in a group whose rewards are all equal. q = 0 is Dr. GRPO, q = 1 MaxRL (arXiv 2602.02710).

    For rewards 0 and 1 and q = 1 the expected gradient is exactly ((1 - (1 - P)^(G-1)) / P) grad P, the gradient of
    log P(right) truncated at order G - 1: -sum_{k<G} (1 - P)^k / k. (The paper's order G belongs to the form without a
    baseline.) For 0 < q < 1 it tends to P^-q grad P, Tsallis' logarithm (P^(1-q) - 1)/(1 - q), as G grows.

    The mean is clamped to 1/G from below, which matters only for rewards other than 0 and 1. A negative reward raises
    DataError. Against a KL the force is up to 1/P that of RLOO: match arms on raw KL, never on beta.
    """

    q: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.q <= 2:
            raise ConfigError(f"PowerNormalized: q = {self.q!r}; set a number from 0 (Dr. GRPO; 1 is MaxRL) to 2.")

    @property
    def takes_group_mean(self) -> bool:
        """False at q = 1: there the completion's own reward in the mean truncates the series of log P and scales nothing."""
        return self.q != 1

    @property
    def equation(self) -> str:
        return (
            "r - mean_group r"
            if self.q == 0
            else f"(r - mean_group r) / (mean_group r){f'^{self.q:g}' if self.q != 1 else ''}"
        )

    @property
    def ascends(self) -> str:
        if self.q == 1:
            return "((1 - (1 - P)^(G-1)) / P) grad P, P = P(right): log P truncated at order G - 1"
        if self.q == 0:
            return "(G-1)/G grad E[r], the same for every prompt"
        return f"about P^-{self.q:g} grad P, P = P(right)"

    def __call__(self, rewards: Groups) -> Groups:
        values = centered(rewards, 2, "PowerNormalized")
        if bool((rewards < 0).any()):
            prompt, member = (rewards < 0).nonzero()[0].tolist()
            raise DataError(
                f"PowerNormalized: the reward of prompt {prompt}, completion {member} is "
                f"{float(rewards[prompt, member]):g}; it divides by the group mean, so rewards must be >= 0: remove "
                "the extra that changes them, or use GroupCentered."
            )
        scale = rewards.detach().float().mean(dim=1, keepdim=True).clamp(min=1 / rewards.shape[1])
        return torch.where(values == 0, 0.0, values / scale**self.q)
