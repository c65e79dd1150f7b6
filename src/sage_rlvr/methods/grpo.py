"""GRPO: group-normalized rewards, PPO clip, k3 to the reference in the loss (Shao et al., arXiv 2402.03300)."""

from __future__ import annotations

from typing import Unpack

from sage_rlvr.core.advantages import GroupNormalized
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import SequenceMean
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored


@METHODS.register(label="GRPO", about="group-normalized rewards, KL in loss", arxiv="2402.03300")
@anchored(beta=0.05)
def grpo(*, clip_low: float = 0.2, clip_high: float = 0.2, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/B) sum_i (1/|y_i|) sum_t [ -min(rho A, clip(rho, 1 - low, 1 + high) A) + beta * k3(pi, pi_ref) ].

    A = (r - mean) / (std + 1e-4) within the group. beta = 0.05 is the value SAGE's authors released (arXiv 2605.18864);
    DeepSeekMath used 0.04. With beta = 0 there is no KL term.
    """
    return Method("grpo", GroupNormalized(), Clip(clip_low, clip_high), anchor_of(**anchor), SequenceMean())
