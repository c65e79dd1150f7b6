"""GRPO: group-normalised rewards, PPO clip, k3 to the reference in the loss (Shao et al., arXiv 2402.03300)."""

from __future__ import annotations

from sage_rlvr.core.advantages import GroupNormalised
from sage_rlvr.core.anchor import Placement
from sage_rlvr.core.divergences import Divergence
from sage_rlvr.core.kl import Estimator
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import SequenceMean
from sage_rlvr.core.schedules import Schedule
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.methods.anchors import anchor_of


@METHODS.register
def grpo(
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
    """L = (1/B) sum_i (1/|y_i|) sum_t [ -min(rho A, clip(rho, 1 - low, 1 + high) A) + beta * k3(pi, pi_ref) ].

    A = (r - mean) / (std + 1e-4) within the group. beta = 0.05 is the value SAGE's authors released (arXiv
    2605.18864); DeepSeekMath used 0.04. With beta = 0 there is no anchor.
    """
    anchor = anchor_of(beta, estimator, placement, source, refresh_every, divergence, alpha)
    return Method("grpo", GroupNormalised(), Clip(clip_low, clip_high), anchor, SequenceMean())
