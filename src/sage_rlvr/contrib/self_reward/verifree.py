"""VeriFree: the policy's product of the probabilities of a reference answer's tokens as the reward (arXiv 2505.21493).

Paper: https://arxiv.org/abs/2505.21493. Recipe: `sage-rlvr train verifree --task TASK`.
Numbers worked out by hand: tests/core/test_reward_sources.py.
"""

from __future__ import annotations

from typing import Unpack

from sage_rlvr.contrib.self_reward.rlpr import ReferenceProbability
from sage_rlvr.core.advantages import LeaveOneOut
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import FixedBudget
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored


@METHODS.register(label="VeriFree's reward", about="probability of a reference answer", arxiv="2505.21493")
@anchored(beta=0.0, estimator="k1", placement="reward")
def verifree(*, given: float = 0.0, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/(B L)) sum_i sum_t -min(rho A, clip(rho) A), A = r - mean_others r, r = prod_m pi(y*_m | x, z, y*_<m).

    The product of token probabilities as RLPR compares it: E[r] is the probability that the policy answers y* after its reasoning.
    The term of VeriFree's gradient that goes through r, r grad log pi(y* | x, z), which teaches y* itself, is not included.
    """
    source = ReferenceProbability("product", debias="none", format_weight=0.0, repetition=0.0, given=given)
    return Method("verifree", LeaveOneOut(), Clip(), anchor_of(**anchor), FixedBudget(), extras=(source,))
