"""RLOO: the baseline of a completion is the mean of the other completions (Ahmadian et al., arXiv 2402.14740)."""

from __future__ import annotations

from typing import Unpack

from sage_rlvr.core.advantages import LeaveOneOut
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import FixedBudget
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored


@METHODS.register(label="RLOO", about="leave-one-out baseline, KL in reward", arxiv="2402.14740")
@anchored(beta=0.0, estimator="k1", placement="reward")
def rloo(*, clip_low: float = 0.2, clip_high: float = 0.2, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/(B L)) sum_i sum_t -min(rho A_t, clip(rho, 1 - low, 1 + high) A_t), A_t = (r - beta K_t) - mean_others.

    K_t is the return-to-go of log pi_old - log pi_ref, because RLOO has its KL in the reward. mean_others takes r over
    the other completions of the group, and K_t over those of them that still count at t (0 if there are none). L is
    `max_tokens` of the batch. The clip does nothing in the first update of a rollout, which is the paper's setting.
    """
    return Method("rloo", LeaveOneOut(), Clip(clip_low, clip_high), anchor_of(**anchor), FixedBudget())
