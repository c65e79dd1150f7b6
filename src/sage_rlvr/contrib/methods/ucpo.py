"""UCPO: the credit of right completions moves toward unlikely ones (arXiv 2605.00365).

Paper: https://arxiv.org/abs/2605.00365. Recipe: `sage-rlvr train ucpo --task TASK`.
Numbers worked out by hand: tests/core/objective/test_utilities.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Unpack

import torch

from sage_rlvr.core.advantages.base import (
    ADVANTAGES,
    Advantage,
    Groups,
    GroupSignals,
    checked,
    require_binary,
    silent_of_labels,
)
from sage_rlvr.core.advantages.group import GroupNormalized
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import SequenceMean
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.errors import ConfigError
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored


@ADVANTAGES.register
@dataclass(frozen=True)
class UniformRight(Advantage):
    """GRPO's advantage times 1 - tau + tau c w at right completions, w ~ 1/v, v = softmax over the right of l (arXiv 2605.00365).

    l = log pi_old(y) / |y|, c right completions, the w of a group sum to 1: the mean factor is 1. With lengths in the exponent
    v is nearly flat, so that at the paper's tau = 0.2 the factors are within a few percent of 1: a very small dose. `per_token =
    False` uses l = log pi_old(y) of the full completion. needs: "logps". DataError for rewards other than 0 and 1.

    tau: fraction of the credit of right completions that is redistributed by unlikeliness; 0 is GRPO's advantage.
    """

    tau: float = 0.2
    per_token: bool = True
    dead = silent_of_labels
    needs: ClassVar[frozenset[str]] = frozenset({"logps"})
    prefers: ClassVar[str] = "the less likely, a little"
    takes_group_mean: ClassVar[bool] = True
    against_kl: ClassVar[str] = GroupNormalized.against_kl

    def __post_init__(self) -> None:
        if not 0 <= self.tau <= 1:
            raise ConfigError(f"UniformRight: tau = {self.tau!r}; set 0 (GRPO) to 1, the paper's is 0.2.")

    @property
    def equation(self) -> str:
        logps = "log pi_old(y) / |y|" if self.per_token else "log pi_old(y)"
        return f"(r - mean_group r) / (std_group r + eps) (1 + {self.tau:g} r (c w - 1)),  w = softmax_right(-l),  l = {logps}"

    @property
    def ascends(self) -> str:
        return f"between prompts as GRPO, {GroupNormalized.ascends}; among right answers more where w is large"

    def __call__(self, rewards: Groups, seen: GroupSignals) -> Groups:
        values = checked(rewards, 2, "UniformRight")
        require_binary(values, "UniformRight")
        logps = seen.policy.float() / (seen.lengths.clamp(min=1) if self.per_token else 1.0)
        right = values == 1
        none = ~right.any(dim=1, keepdim=True)
        shares = torch.softmax(torch.where(right | none, -logps, -torch.inf), dim=1)  # 1/softmax(l), normalized
        factor = 1.0 - self.tau + self.tau * right.sum(dim=1, keepdim=True) * shares
        return GroupNormalized()(values) * torch.where(right, factor, 1.0)


@METHODS.register(label="UCPO", about="gains by how unlikely an answer is", arxiv="2605.00365")
@anchored(beta=0.05)
def ucpo(*, tau: float = 0.2, per_token: bool = True, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = mean_i mean_t [ -min(rho A, clip(rho) A) + beta k3 ], A = GRPO's (1 + tau r (c w - 1)), w = softmax_right(-l).

    Uniform-correct policy optimization (arXiv 2605.00365); l = log pi_old(y) / |y|, c right completions in the group.
    """
    return Method("ucpo", UniformRight(tau, per_token), Clip(), anchor_of(**anchor), SequenceMean())
