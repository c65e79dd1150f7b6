"""GRPO with a mean over all tokens instead of a mean over rows: TRL's loss_type="bnpo"."""

from __future__ import annotations

from typing import Unpack

from sage_rlvr.core.advantages import GroupNormalized
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import TokenMean
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored


@METHODS.register(label="GRPO token-mean", about="GRPO, one mean over all tokens")
@anchored(beta=0.05)
def grpo_token_mean(*, clip_low: float = 0.2, clip_high: float = 0.2, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/sum_i |y_i|) sum_i sum_t [ -min(rho A, clip(rho, 1 - low, 1 + high) A) + beta * k3(pi, pi_ref) ].

    A = (r - mean) / (std + 1e-4) within the group, as in GRPO. On one process without gradient accumulation this is
    TRL's loss_type="bnpo". With several of either, TRL divides by the tokens of each micro-batch and averages the
    quotients, so that its loss depends on how the batch was split; here the divisor is the token count of the update.

    It has no Beta density: papers that ran "BNPO" through that flag ran this, and not arXiv 2506.02864 (`bnpo`).
    """
    return Method("grpo_token_mean", GroupNormalized(), Clip(clip_low, clip_high), anchor_of(**anchor), TokenMean())
