"""BNPO: advantages divided by a Beta density that is fitted to the batch (Xiao et al., arXiv 2506.02864)."""

from __future__ import annotations

from sage_rlvr.core.advantages import BetaNormalised
from sage_rlvr.core.anchor import Placement
from sage_rlvr.core.divergences import Divergence
from sage_rlvr.core.kl import Estimator
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import FixedBudget
from sage_rlvr.core.schedules import Schedule
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.methods.anchors import anchor_of


@METHODS.register
def bnpo(
    *,
    beta: float | Schedule = 0.0,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual: float | None = 10.0,
    estimator: Estimator = "k3",
    placement: Placement = "loss",
    source: str = "base",
    refresh_every: int | None = None,
    divergence: Divergence | None = None,
    alpha: float | None = None,
) -> Method:
    """L = (1/B) sum_i sum_t [ -max(min(rho A, clip(rho, 1 - low, 1 + high) A), dual min(A, 0)) + beta * k3(pi, pi_ref) ].

    A = (r - p) / f_N(p), p the group's share of right completions and f_N the density of a Beta whose parameters are
    fitted to the p of all prompts of the step (`BetaNormalised`). Clip, dual clip and the sum over tokens are those of
    the authors' recipe, which has no KL. `beta` is the weight of the KL; the Beta's own parameters are never set.

    This is not TRL's loss_type="bnpo", in which no Beta density exists: that is `grpo_token_mean`.
    """
    anchor = anchor_of(beta, estimator, placement, source, refresh_every, divergence, alpha)
    return Method("bnpo", BetaNormalised(), Clip(clip_low, clip_high, dual), anchor, FixedBudget(1))
