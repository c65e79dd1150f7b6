"""Dr. GRPO: no division by the group's std and none by the length (Liu et al., arXiv 2503.20783)."""

from __future__ import annotations

from typing import Unpack

from sage_rlvr.core.advantages import GroupCentered
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import FixedBudget
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored


@METHODS.register(label="Dr. GRPO", about="GRPO without std and length division", arxiv="2503.20783")
@anchored(beta=0.0)
def dr_grpo(*, clip_low: float = 0.2, clip_high: float = 0.2, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/(B L)) sum_i sum_t [ -min(rho A, clip(rho, 1 - low, 1 + high) A) + beta * k3(pi, pi_ref) ], A = r - mean.

    L is the completion limit, `max_tokens` of the batch. The paper uses no KL (beta = 0). With placement="reward" and
    estimator="k1" the KL is folded into the advantage: A_t = A - beta (G - 1)/G (K_t - mean_others K_t), in expectation
    (G - 1)/G times the gradient of the sequence-level KL(pi || pi_ref), the factor that the centered reward has too.
    """
    return Method("dr_grpo", GroupCentered(), Clip(clip_low, clip_high), anchor_of(**anchor), FixedBudget())
