"""BNPO: advantages divided by a Beta density that is fitted to the batch (Xiao et al., arXiv 2506.02864)."""

from __future__ import annotations

from typing import Unpack

from sage_rlvr.core.advantages import BetaNormalized
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import FixedBudget
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored


@METHODS.register(label="BNPO", about="a Beta density normalizes rewards", arxiv="2506.02864")
@anchored(beta=0.0)
def bnpo(
    *, clip_low: float = 0.2, clip_high: float = 0.28, dual: float | None = 10.0, **anchor: Unpack[AnchorKeys]
) -> Method:
    """L = (1/B) sum_i sum_t [ -max(min(rho A, clip(rho, 1 - low, 1 + high) A), dual min(A, 0)) + beta * k3(pi, pi_ref) ].

    A = (r - p) / f_N(p), p the group's share of right completions and f_N the density of a Beta whose parameters are
    fitted to the p of all prompts of the step (`BetaNormalized`). Clip, dual clip and the sum over tokens are those of
    the authors' recipe, which has no KL. `beta` is the weight of the KL; the Beta's own parameters are never set.

    This is not TRL's loss_type="bnpo", in which no Beta density exists: that is `grpo_token_mean`.
    """
    return Method("bnpo", BetaNormalized(), Clip(clip_low, clip_high, dual), anchor_of(**anchor), FixedBudget(1))
