"""GRPO with an entropy bonus in the loss: of a fixed weight, or one that holds the entropy at a target."""

from __future__ import annotations

from typing import Unpack

from sage_rlvr.core.advantages import GroupNormalized
from sage_rlvr.core.extras import AdaptiveEntropy, EntropyBonus
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import TokenMean
from sage_rlvr.core.schedules import Schedule
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored


@METHODS.register(label="Entropy bonus", about="an entropy bonus in the loss")
@anchored(beta=0.0)
def entropy_bonus(*, coefficient: float | Schedule = 1e-3, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/sum |y|) sum_i sum_t [ -min(rho A, clip(rho) A) - coefficient H_t + beta k3 ], H_t with its gradient.

    H_t is the policy's entropy at the state, over the whole vocabulary.
    """
    term = EntropyBonus(coefficient)
    return Method("entropy_bonus", GroupNormalized(), Clip(), anchor_of(**anchor), TokenMean(), extras=(term,))


@METHODS.register(label="Adaptive entropy", about="entropy bonus, held at a target", arxiv="2505.22312")
@anchored(beta=0.0)
def adaptive_entropy(
    *,
    target: float = 0.2,
    delta: float = 0.005,
    start_at: float = 0.0,
    min_coef: float = 0.0,
    max_coef: float = 1.0,
    **anchor: Unpack[AnchorKeys],
) -> Method:
    """L = (1/sum |y|) sum_i sum_t [ -min(rho A, clip(rho) A) - c 1[H <= target] H_t + beta k3 ] (Skywork-OR1, arXiv 2505.22312).

    c rises by delta after each rollout whose mean entropy is at most the target, and falls otherwise; c is part of the
    checkpoint.
    """
    term = AdaptiveEntropy(target, delta, start_at, min_coef, max_coef)
    return Method("adaptive_entropy", GroupNormalized(), Clip(), anchor_of(**anchor), TokenMean(), extras=(term,))
