"""Methods with a preference among right answers: distinct answers, rare answers, or those of the reference."""

from __future__ import annotations

from typing import Literal, Unpack

from sage_rlvr.core.advantages import (
    DifferentialSmoothing,
    DistinctRight,
    Filtered,
    GroupNormalized,
    LeaveOneOut,
    UniformRight,
)
from sage_rlvr.core.anchor import Anchor
from sage_rlvr.core.extras import Mara, OutcomeCounts, OutcomeRepeats, RightEntropy, Unlikeliness
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import FixedBudget, SequenceMean
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored


@METHODS.register(label="Distinct@k", about="distinct correct answers in k samples")
@anchored(beta=0.0, estimator="k1", placement="reward")
def distinct(*, k: int = 4, power: float = 0.0, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/(B L)) sum_i sum_t -min(rho A, clip(rho) A), A the unbiased gradient of the distinct right answers in k samples.

    power = 1 divides by the group's own estimate of that number: about its logarithm, and more for hard prompts. k at
    most the group's size; at k = G only answers that nobody else of the group gave are rewarded. Needs the task's
    `answer_key`.
    """
    return Method("distinct", DistinctRight(k, power), Clip(), anchor_of(**anchor), FixedBudget())


@METHODS.register(label="alpha-DPG", about="toward the reference's correct answers", arxiv="2512.05962")
def alpha_dpg(
    *,
    alpha: float = 0.5,
    clip: float = 10.0,
    z: Literal["group", "exact"] = "group",
    form: Literal["scaled", "released"] = "scaled",
    source: str = "base",
) -> Method:
    """L = (1/(B L)) sum_i sum_t -min(rho A, clip(rho) A), A from u = r pi_ref(y) / (pi_old(y) Z) (arXiv 2512.05962).

    Toward the reference restricted to right answers; alpha = 0 is the forward KL to it, alpha -> 1 the reverse one. No KL
    term: the reference is in the target. source: which reference, as in `Anchor`. z: "exact" is an oracle, where the task lists its
    right completions: Z = P(right) under the reference, and no estimate of it. form: "released" clips and scales as the authors'
    code does (`Filtered`).
    """
    return Method("alpha_dpg", Filtered(alpha, clip, z, form), Clip(), Anchor(0.0, source=source), FixedBudget())


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


@METHODS.register(label="DS-GRPO", about="spreads correct completions", arxiv="2511.19942")
@anchored(beta=0.05)
def ds_grpo(*, right: float = 0.05, wrong: float = 0.05, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = mean_i mean_t [ -min(rho A, clip(rho) A) + beta k3 ], A = GRPO's - right r l + wrong (1 - r) l, l = log pi_old(y) / |y|.

    Differential smoothing (arXiv 2511.19942): entropy among right completions, against it among wrong ones.
    """
    advantage = DifferentialSmoothing(right, wrong)
    return Method("ds_grpo", advantage, Clip(), anchor_of(**anchor), SequenceMean())


@METHODS.register(label="UCPO", about="gains by how unlikely an answer is", arxiv="2605.00365")
@anchored(beta=0.05)
def ucpo(*, tau: float = 0.2, per_token: bool = True, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = mean_i mean_t [ -min(rho A, clip(rho) A) + beta k3 ], A = GRPO's (1 + tau r (c w - 1)), w = softmax_right(-l).

    Uniform-correct policy optimization (arXiv 2605.00365); l = log pi_old(y) / |y|, c right completions in the group.
    """
    return Method("ucpo", UniformRight(tau, per_token), Clip(), anchor_of(**anchor), SequenceMean())
