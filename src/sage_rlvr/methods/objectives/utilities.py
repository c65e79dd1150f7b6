"""Methods that maximize a function of p = P(right) other than p: RLOO's loss with another advantage."""

from __future__ import annotations

from typing import Literal, Unpack

from sage_rlvr.core.advantages import Advantage, AnalyticPassAtK, PassAtK, PowerNormalized, RiskSeeking, Signed
from sage_rlvr.core.advantages.reinforce import Over
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import FixedBudget, TokenMean
from sage_rlvr.core.schedules import Schedule
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored


def _rloo_with(name: str, advantage: Advantage, **anchor: Unpack[AnchorKeys]) -> Method:
    return Method(name, advantage, Clip(), anchor_of(**anchor), FixedBudget())


@METHODS.register(label="MaxRL", about="log P(correct): divides by the mean", arxiv="2602.02710")
@anchored(beta=0.0, estimator="k1", placement="reward")
def maxrl(*, q: float = 1.0, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/(B L)) sum_i sum_t -min(rho A, clip(rho) A), A = (r - mean) / mean^q: log P(right) at q = 1 (arXiv 2602.02710).

    At q = 1 it ascends log P(right) truncated at order G - 1, exactly; q = 0 is Dr. GRPO. The released scripts divide by the
    mean only, as here. Against a KL its force is up to 1/P times RLOO's: compare arms at equal raw KL, never at equal beta.
    """
    return _rloo_with("maxrl", PowerNormalized(q), **anchor)


@METHODS.register(label="RS-GRPO", about="risk-seeking: an exponential mean", arxiv="2509.24261")
@anchored(beta=0.0, estimator="k1", placement="reward")
def rs_grpo(*, b: float = 2.0, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/(B L)) sum_i sum_t -min(rho A, clip(rho) A), A = (e^(b r) / mean e^(b r) - 1) / b: risk-seeking (arXiv 2509.24261).

    Its utility is (1/b) log E[e^(b r)]: p for b -> 0, and (1/b) log p with a floor of about e^-b under p for large b.
    """
    return _rloo_with("rs_grpo", RiskSeeking(b), **anchor)


@METHODS.register(label="PKPO", about="unbiased gradient of pass@k", arxiv="2505.15201")
@anchored(beta=0.0, estimator="k1", placement="reward")
def pkpo(*, k: int | Schedule = 4, baseline: Literal["sloo1", "sloo"] = "sloo1", **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/(B L)) sum_i sum_t -min(rho A, clip(rho) A), A the unbiased gradient of pass@k (arXiv 2505.15201).

    k at most the group's size. pass@k saturates: the larger k, the lower the pass@1 at which nothing pushes a prompt on. A schedule
    anneals k, as the paper does: {name: linear, start: 8, end: 1} ends as REINFORCE.
    """
    return _rloo_with("pkpo", PassAtK(k, baseline), **anchor)


@METHODS.register(label="Pass@k training", about="analytic advantage of pass@k", arxiv="2508.10751")
@anchored(beta=0.0, estimator="k1", placement="reward")
def passk_training(*, k: int = 4, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/(B L)) sum_i sum_t -min(rho A, clip(rho) A), A the analytic advantage of Chen et al. (arXiv 2508.10751).

    Every k-subset of the group is a group of its own, divided by its own sigma: for large G (2/k) arcsin sqrt(pass@k). 0 at k = G.
    """
    return _rloo_with("passk_training", AnalyticPassAtK(k), **anchor)


@METHODS.register(label="PSR", about="correct completions only", arxiv="2506.01347")
@anchored(beta=0.0, estimator="k1", placement="reward")
def psr(*, normalize_by: Over = "all", **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/(B L)) sum_i sum_t -min(rho A, clip(rho) A), A = r: right completions only (arXiv 2506.01347).

    In expectation REINFORCE, as nsr and w_reinforce are: E[grad log pi] = 0. What is published as their difference can come
    only from noise, from clipping, from several updates of a rollout, or from dropping rows and dividing by what is left, which
    `normalize_by` sets (`Signed`): kept rows of the step, of the group (then it is log P), or kept tokens (with a mean over
    tokens).
    """
    return _signed("psr", Signed(1.0, 0.0, normalize_by), **anchor)


@METHODS.register(label="NSR", about="wrong completions only", arxiv="2506.01347")
@anchored(beta=0.0, estimator="k1", placement="reward")
def nsr(*, normalize_by: Over = "all", **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/(B L)) sum_i sum_t -min(rho A, clip(rho) A), A = -(1 - r): wrong completions only (arXiv 2506.01347).

    In expectation the same as psr, and as RLOO; normalize_by: as in `psr`, where `group` makes it -log(1 - P).
    """
    return _signed("nsr", Signed(0.0, 1.0, normalize_by), **anchor)


@METHODS.register(label="W-REINFORCE", about="wrong ones, and a tenth of correct ones", arxiv="2506.01347")
@anchored(beta=0.0, estimator="k1", placement="reward")
def w_reinforce(*, right: float = 0.1, normalize_by: Over = "all", **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/(B L)) sum_i sum_t -min(rho A, clip(rho) A), A = right * r - (1 - r): both with weights (arXiv 2506.01347).

    In expectation the gradient is 1 + right times RLOO's, which equals a beta smaller by that factor. normalize_by: as
    in `psr`, each sign divided by its own.
    """
    return _signed("w_reinforce", Signed(right, 1.0, normalize_by), **anchor)


def _signed(name: str, advantage: Signed, **anchor: Unpack[AnchorKeys]) -> Method:
    """RLOO's loss with it; a mean over tokens where tokens are what it counts."""
    reduction = TokenMean() if advantage.normalize_by == "tokens" else FixedBudget()
    return Method(name, advantage, Clip(), anchor_of(**anchor), reduction)
