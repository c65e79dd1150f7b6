"""F-GRPO: prompts that are mostly solved count less (arXiv 2602.06717).

Paper: https://arxiv.org/abs/2602.06717. Recipe: `sage-rlvr train f_grpo --task TASK`.
Numbers worked out by hand: tests/core/objective/test_prompt_weights.py.
"""

from __future__ import annotations

from typing import Unpack

from sage_rlvr.core.advantages import GroupNormalized
from sage_rlvr.core.advantages.prompts import Focal, PlaceboPrompts, PromptWeighted
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import SequenceMean
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored


@METHODS.register(label="F-GRPO", about="mostly solved prompts count less", arxiv="2602.06717")
@anchored(beta=0.05)
def f_grpo(*, gamma: float = 1.0, permuted: bool = False, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = mean_i mean_t [ -min(rho A, clip(rho) A) + beta k3 ], A = (1 - c/n)^gamma times GRPO's (arXiv 2602.06717).

    c: right completions of the group's n. gamma = 0 is GRPO; the paper's gamma was not found, 1 is ours. permuted: the control, the
    step's weights over other prompts of it. On DAPO or CISPO: `compose` with advantage prompt_weighted.
    """
    weight = Focal(gamma)
    advantage = PromptWeighted(GroupNormalized(), PlaceboPrompts(weight) if permuted else weight)
    return Method("f_grpo", advantage, Clip(), anchor_of(**anchor), SequenceMean())
