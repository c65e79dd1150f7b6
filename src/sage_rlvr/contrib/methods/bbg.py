"""Updates at the boundary: only groups without a right completion, or prompts by their effect on pass@k (arXiv 2606.15455).

Paper: https://arxiv.org/abs/2606.15455. Recipe: `sage-rlvr train zero_success --task TASK`.
Numbers worked out by hand: tests/core/objective/test_prompt_weights.py.
"""

from __future__ import annotations

from typing import Unpack

from sage_rlvr.contrib.methods.w_reinforce import Signed
from sage_rlvr.core.advantages.prompt_weight import Of, PromptWeight
from sage_rlvr.core.advantages.prompts import PlaceboPrompts, Posterior, PromptGate, PromptWeighted
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import FixedBudget
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored


@METHODS.register(label="Zero success", about="groups without a right completion only", arxiv="2606.15455")
@anchored(beta=0.0, estimator="k1", placement="reward")
def zero_success(*, permuted: bool = False, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/(B L)) sum_i sum_t -min(rho A, clip(rho) A), A = [c = 0] (r - (1 - r)): signed REINFORCE (arXiv 2606.15455).

    c: right completions of the group. So A = -1 in a group without any, and 0 in all others: the exact expected gradient is that of
    pass@G over G. permuted: the control, as many groups of the step, with any number of right completions, with r in {-1, +1}.
    """
    return _signed("zero_success", PromptGate(at_most=0), permuted, **anchor)


@METHODS.register(label="BBG", about="prompts by their part in pass@k", arxiv="2606.15455")
@anchored(beta=0.0, estimator="k1", placement="reward")
def bbg(*, k: int = 256, of: Of = "group", permuted: bool = False, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/(B L)) sum_i sum_t -min(rho A, clip(rho) A), A = E[k (1 - P)^(k-1)] (r - (1 - r)) (arXiv 2606.15455).

    P ~ Beta(1 + c, 1 + n - c) after c right of n, of the group, or with of="base" of the base model's stored samples. Our reading:
    the paper's gate was not found. permuted: the control, the step's weights over other prompts of it.
    """
    return _signed("bbg", Posterior(k, of), permuted, **anchor)


def _signed(name: str, weight: PromptWeight, permuted: bool, **anchor: Unpack[AnchorKeys]) -> Method:
    """REINFORCE with rewards -1 and +1, each prompt times its weight."""
    advantage = PromptWeighted(Signed(1.0, 1.0), PlaceboPrompts(weight) if permuted else weight)
    return Method(name, advantage, Clip(), anchor_of(**anchor), FixedBudget())
