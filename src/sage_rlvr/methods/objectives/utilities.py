"""Methods that maximize a function of p = P(right) other than p: RLOO's loss with another advantage."""

from __future__ import annotations

from typing import Unpack

from sage_rlvr.core.advantages import Signed
from sage_rlvr.core.advantages.reinforce import Over
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import FixedBudget, TokenMean
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored


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
