"""GRPODropout (arXiv 2610.11854) as an extra: one file, which runs on the loop, on TRL and on verl.

    sage-rlvr train grpo_dropout --plugin examples/grpo_dropout.py --task countdown
    sage-rlvr train grpo_dropout --plugin examples/grpo_dropout.py --task math --engine.name trl
    sage-rlvr show grpo_dropout --plugin examples/grpo_dropout.py
"""

from dataclasses import dataclass
from typing import ClassVar, Unpack

import torch
from torch import Tensor

import sage_rlvr
from sage_rlvr.core import Clip, Extra, GroupNormalized, GroupSignals, Method, TokenMean
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored


@sage_rlvr.extra
@dataclass(frozen=True)
class RolloutDropout(Extra):
    """Drop the completions of a group that lower the entropy most, likely right and unlikely wrong ones, and center the rest anew.

    push_i = A_i (s_i - mean_group s), s_i = -log pi_old(y_i) / |y_i|, says how reinforcing y_i moves the entropy. By push, largest
    first, completions are kept while the sum of their pushes is above 0, and at least a quarter of the group. Then A'_i = (A_i -
    sum_j w_j A_j) / std A over the kept, w their softmax of log pi(y) / |y|; a dropped one has A' = 0.

    As the authors' released code (its variant "balance"), but for this: a dropped completion stays in the divisor of the loss and
    under a KL term; where all pushes are 0 nothing is drawn at random, because A' is 0 there anyway.

    rescale: divide by the std of the kept, as an advantage does that divides by the group's; false for GroupCentered.
    """

    rescale: bool = True
    needs: ClassVar[frozenset[str]] = frozenset({"logps"})
    legend: ClassVar[str] = "w = softmax over the kept of log pi_old(y) / |y|; dropped: those that lower the entropy most"
    prefers: ClassVar[str] = "the less likely, because the likeliest are dropped"

    @property
    def equation(self) -> str:
        return "A' = (A - sum_kept w A)" + (" / std_kept A" if self.rescale else "") + " for the kept, 0 for the dropped"

    def on_advantages(self, advantages: Tensor, rewards: Tensor, seen: GroupSignals, state: object) -> Tensor:
        values, size = advantages.double(), advantages.shape[1]
        logps = seen.policy.double() / seen.lengths.clamp(min=1)
        pushes = values * (logps.mean(dim=1, keepdim=True) - logps)
        order = pushes.argsort(dim=1, descending=True, stable=True)
        above = (pushes.gather(1, order).cumsum(dim=1) > 1e-12).sum(dim=1, keepdim=True)
        kept = order.argsort(dim=1) < above.clamp(min=max(1, size // 4))
        weights = torch.where(kept, logps, -torch.inf).softmax(dim=1)
        centered = values - (weights * values).sum(dim=1, keepdim=True)
        count = kept.sum(dim=1, keepdim=True)
        mean = torch.where(kept, values, 0.0).sum(dim=1, keepdim=True) / count
        spread = torch.where(kept, values - mean, 0.0).square().sum(dim=1, keepdim=True) / (count - 1).clamp(min=1)
        differ = spread > 1e-12  # else only rounding is left of the centered ones
        scaled = centered / spread.clamp(min=1e-12).sqrt() if self.rescale else centered
        return torch.where(kept & differ, scaled, 0.0).float()


@sage_rlvr.method(label="GRPODropout", about="drops completions that lower the entropy most", arxiv="2610.11854")
@anchored(beta=0.0)
def grpo_dropout(*, rescale: bool = True, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/sum |y|) sum_i sum_t [ -min(rho A', clip(rho) A') + beta k3 ], A' = GRPO's advantage after `RolloutDropout`."""
    extras = (RolloutDropout(rescale),)
    return Method("grpo_dropout", GroupNormalized(), Clip(), anchor_of(**anchor), TokenMean(), extras=extras)
