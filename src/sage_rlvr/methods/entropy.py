"""GRPO with an entropy bonus in the loss."""

from __future__ import annotations

from typing import Unpack

from sage_rlvr.core.advantages import GroupNormalized
from sage_rlvr.core.extras import EntropyBonus
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import TokenMean
from sage_rlvr.core.schedules import Schedule
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored


@METHODS.register(label="Entropy bonus", about="an entropy bonus in the loss")
@anchored(beta=0.0)
def entropy_bonus(*, coefficient: float | Schedule = 1e-3, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/sum |y|) sum_i sum_t [ -min(rho A, clip(rho) A) - coefficient H_t + beta k3 ], H_t with its gradient.

    H_t is the policy's entropy at the state, over the full vocabulary.
    """
    term = EntropyBonus(coefficient)
    return Method("entropy_bonus", GroupNormalized(), Clip(), anchor_of(**anchor), TokenMean(), extras=(term,))
