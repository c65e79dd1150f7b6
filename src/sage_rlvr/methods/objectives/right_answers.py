"""Methods with a preference among right answers: distinct answers, rare answers, or those of the reference."""

from __future__ import annotations

from typing import Literal, Unpack

from sage_rlvr.core.advantages import GroupNormalized, LeaveOneOut
from sage_rlvr.core.anchor import Anchor
from sage_rlvr.core.extras import Mara, OutcomeCounts, OutcomeRepeats, RightEntropy, Unlikeliness
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import FixedBudget, SequenceMean
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored


@METHODS.register(label="Right entropy", about="entropy among correct answers")
@anchored(beta=0.0, estimator="k1", placement="reward")
def right_entropy(*, gamma: float = 0.1, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/(B L)) sum_i sum_t -min(rho A, clip(rho) A), A = RLOO's of r = R (1 - gamma (s - mean_right s)), s = log pi_old(y).

    RLOO with the entropy among right answers as a reward; the group's mean reward stays.
    """
    extras = (RightEntropy(gamma),)
    return Method("right_entropy", LeaveOneOut(), Clip(), anchor_of(**anchor), FixedBudget(), extras=extras)


@METHODS.register(label="MARA", about="all correct answers equally likely", arxiv="2510.20817")
def mara(*, beta: float = 0.1, source: str = "base") -> Method:
    """L = (1/(B L)) sum_i sum_t -min(rho A_t, clip(rho) A_t), A_t = RLOO's of R (1 + beta (max_right t - t)), t = log pi_ref(y).

    With the sequence-level reverse KL of the same beta in the reward: its optimum is uniform over right answers (arXiv
    2510.20817). One beta for both, as the identity asks for.
    """
    anchor = Anchor(beta, estimator="k1", placement="reward", source=source)
    return Method("mara", LeaveOneOut(), Clip(), anchor, FixedBudget(), extras=(Mara(beta),))


@METHODS.register(label="Outcome counts", about="a bonus for answers seldom seen", arxiv="2509.06941")
@anchored(beta=0.0, estimator="k1", placement="reward")
def outcome_counts(
    *,
    bonus: float = 0.2,
    bonus_on: Literal["correct", "all"] = "all",
    memory: int = 100_000,
    **anchor: Unpack[AnchorKeys],
) -> Method:
    """L = (1/(B L)) sum_i sum_t -min(rho A, clip(rho) A), A = RLOO's of r = R + bonus / sqrt(max(N, 1)) (arXiv 2509.06941).

    N: how often this answer was given to this problem in earlier steps; historical exploration with the mean as baseline.
    The counts are part of the checkpoint. bonus_on: "correct" gives the bonus only to correct answers, "all" also to wrong
    ones, as in the paper.
    """
    extras = (OutcomeCounts(bonus, bonus_on, memory),)
    return Method("outcome_counts", LeaveOneOut(), Clip(), anchor_of(**anchor), FixedBudget(), extras=extras)


@METHODS.register(label="Outcome repeats", about="a charge for repeats in a group", arxiv="2509.06941")
@anchored(beta=0.0, estimator="k1", placement="reward")
def outcome_repeats(
    *, weight: float = 0.2, bonus_on: Literal["correct", "all"] = "all", **anchor: Unpack[AnchorKeys]
) -> Method:
    """L = (1/(B L)) sum_i sum_t -min(rho A, clip(rho) A), A = RLOO's of r = R - weight (m - 1) / G (arXiv 2509.06941).

    m: how often the completion's answer occurs in its group; batch exploration. bonus_on: as in `outcome_counts`.
    """
    extras = (OutcomeRepeats(weight, bonus_on),)
    return Method("outcome_repeats", LeaveOneOut(), Clip(), anchor_of(**anchor), FixedBudget(), extras=extras)


@METHODS.register(label="Unlikeliness", about="unlikely correct answers earn more", arxiv="2506.02355")
@anchored(beta=0.05)
def unlikeliness(*, weight: float = 0.25, per_token: bool = False, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = mean_i mean_t [ -min(rho A, clip(rho) A) + beta k3 ], A = GRPO's of r = R (1 - weight * rank / G) (arXiv 2506.02355).

    rank by log pi_old(y), the likeliest of the group last: right completions that are unlikely earn more. per_token: rank by
    log pi_old(y) / |y|, as the authors' code does, so that length does not decide.
    """
    extras = (Unlikeliness(weight, per_token),)
    return Method("unlikeliness", GroupNormalized(), Clip(), anchor_of(**anchor), SequenceMean(), extras=extras)
