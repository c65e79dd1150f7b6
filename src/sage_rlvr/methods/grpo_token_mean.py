"""GRPO with one mean over all tokens in place of a mean over rows: what TRL's loss_type="bnpo" computes."""

from __future__ import annotations

from sage_rlvr.core.advantages import GroupNormalised
from sage_rlvr.core.anchor import Placement
from sage_rlvr.core.divergences import Divergence
from sage_rlvr.core.kl import Estimator
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import TokenMean
from sage_rlvr.core.schedules import Schedule
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.methods.anchors import anchor_of


@METHODS.register
def grpo_token_mean(
    *,
    beta: float | Schedule = 0.05,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    estimator: Estimator = "k3",
    placement: Placement = "loss",
    source: str = "base",
    refresh_every: int | None = None,
    divergence: Divergence | None = None,
    alpha: float | None = None,
) -> Method:
    """L = (1/sum_i |y_i|) sum_i sum_t [ -min(rho A, clip(rho, 1 - low, 1 + high) A) + beta * k3(pi, pi_ref) ].

    A = (r - mean) / (std + 1e-4) within the group, as in GRPO. On one process without gradient accumulation this is
    TRL's loss_type="bnpo". With several of either, TRL divides by the tokens of each micro-batch and averages the
    quotients, so that its loss depends on how the batch was cut; here the divisor is the token count of the update.

    No Beta density exists there: papers that ran "BNPO" through that flag ran this, and not arXiv 2506.02864 (`bnpo`).
    """
    anchor = anchor_of(beta, estimator, placement, source, refresh_every, divergence, alpha)
    return Method("grpo_token_mean", GroupNormalised(), Clip(clip_low, clip_high), anchor, TokenMean())
