"""Methods without a verifier: the policy's own probability of a reference answer is the reward."""

from __future__ import annotations

from typing import Unpack

from sage_rlvr.core.advantages import GroupNormalized, LeaveOneOut
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import FixedBudget, TokenMean
from sage_rlvr.core.reward_sources import ReferenceProbability
from sage_rlvr.core.reward_sources.base import Baseline
from sage_rlvr.core.rollout_plans import StdFilter
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored


@METHODS.register(label="RLPR", about="probability of a reference answer", arxiv="2506.18254")
@anchored(beta=0.0)
def rlpr(
    *,
    debias: Baseline = "initial",
    format_weight: float = 0.1,
    repetition: float = 1.0,
    given: float = 0.0,
    std_filter: bool = True,
    ratio: float = 0.5,
    max_refills: int = 9,
    clip_low: float = 0.2,
    clip_high: float = 0.27,
    **anchor: Unpack[AnchorKeys],
) -> Method:
    """L = (1/sum_i |y_i|) sum_i sum_t -min(rho A, clip(rho) A), A = (r - mean) / (std + 1e-4), r from pi(y*) (arXiv 2506.18254).

    r is the mean probability of the reference answer's tokens behind the completion's own reasoning, less the same without it;
    see `ReferenceProbability`. Groups whose r varies little are dropped (`StdFilter`). The released code keeps an entropy bonus of
    0.001, the default of its framework, which the paper does not name; it is not here.
    """
    return Method(
        "rlpr",
        GroupNormalized(),
        Clip(clip_low, clip_high),
        anchor_of(**anchor),
        TokenMean(),
        rollout=StdFilter(ratio, max_refills=max_refills) if std_filter else None,
        reward_source=ReferenceProbability(
            debias=debias, format_weight=format_weight, repetition=repetition, given=given
        ),
    )


@METHODS.register(label="VeriFree's reward", about="probability of a reference answer", arxiv="2505.21493")
@anchored(beta=0.0, estimator="k1", placement="reward")
def verifree(*, given: float = 0.0, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/(B L)) sum_i sum_t -min(rho A, clip(rho) A), A = r - mean_others r, r = prod_m pi(y*_m | x, z, y*_<m).

    The product of token probabilities as RLPR compares it: E[r] is the probability that the policy answers y* after its
    own reasoning. The term of VeriFree's gradient that goes through r, r grad log pi(y* | x, z), which teaches y*
    itself, is not here.
    """
    source = ReferenceProbability("product", debias="none", format_weight=0.0, repetition=0.0, given=given)
    return Method("verifree", LeaveOneOut(), Clip(), anchor_of(**anchor), FixedBudget(), reward_source=source)
