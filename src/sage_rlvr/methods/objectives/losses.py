"""Methods with GRPO's advantage and another surrogate, or with token weights."""

from __future__ import annotations

import math
from typing import Literal, Unpack

from sage_rlvr.core.advantages import GroupNormalized, Signed
from sage_rlvr.core.anchor import Anchor
from sage_rlvr.core.extras import AdaptiveEntropy, EntropyBonus, KlCov
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import FixedBudget, SequenceMean, TokenMean
from sage_rlvr.core.schedules import Schedule
from sage_rlvr.core.surrogates import Cispo, Clip, Gspo, Pacs
from sage_rlvr.core.token_weights import ClipCov, Eapo, ERank, HighEntropy, ShapedEntropy, Steer
from sage_rlvr.core.token_weights.eapo import LOG_4
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored


@METHODS.register(label="PACS", about="the verdict as a classifier's label", arxiv="2509.02522")
@anchored(beta=0.0)
def pacs(
    *,
    scale: float = 1.0,
    reference: Literal["rollout", "anchor"] = "rollout",
    balanced: bool = True,
    terms: Literal[1, 2] = 1,
    **anchor: Unpack[AnchorKeys],
) -> Method:
    """L = (1/B) sum_i w_i BCE(sigma(psi_i), r_i), psi = scale (log(pi/pi_0)(y) - mean_others) (arXiv 2509.02522).

    reference "rollout": pi_0 is the policy of the rollout, as the released code has it; "anchor": the reference set by
    `source` and `refresh_every`, as in the paper. terms: 1 is the gradient of the released code, 2 the paper's. beta:
    weight of an additional KL term, which neither has.
    """
    there = Anchor(**anchor) if reference == "anchor" else anchor_of(**anchor)
    return Method("pacs", Signed(1.0, 0.0), Pacs(scale, reference, balanced, terms), there, FixedBudget(1))


@METHODS.register(label="CISPO", about="the clipped ratio as a fixed weight", arxiv="2506.13585")
@anchored(beta=0.0)
def cispo(*, low: float = 1.0, high: float = 0.28, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/sum |y|) sum_i sum_t [ -sg[clip(rho, 1 - low, 1 + high)] A log pi + beta k3 ], A = GRPO's (arXiv 2506.13585).

    No token loses its gradient; the ratio is a bounded weight. low = 1: no lower bound, as in the paper.
    """
    return Method("cispo", GroupNormalized(), Cispo(low, high), anchor_of(**anchor), TokenMean())


@METHODS.register(label="GSPO", about="one ratio per completion", arxiv="2507.18071")
@anchored(beta=0.0)
def gspo(*, low: float = 3e-4, high: float = 4e-4, token: bool = False, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = mean_i [ -min(s A, clip(s, 1 - low, 1 + high) A) + beta k3 ], s = (pi(y)/pi_old(y))^(1/|y|) (arXiv 2507.18071).

    One ratio for the completion, which is clipped whole. It differs from GRPO only after the first update of a rollout.
    """
    return Method("gspo", GroupNormalized(), Gspo(low, high, token), anchor_of(**anchor), SequenceMean())


@METHODS.register(label="STEER", about="damps tokens that move entropy most", arxiv="2510.10150")
@anchored(beta=0.0)
def steer(
    *, form: Literal["exact", "paper", "released"] = "paper", min_weight: float = 0.7, **anchor: Unpack[AnchorKeys]
) -> Method:
    """L = (1/sum |y|) sum_i sum_t [ -min(rho w_t A, clip(rho) w_t A) + beta k3 ], w_t = min_weight^(m_t / max m) (arXiv
    2510.10150).

    m_t says how much a step on the token changes the entropy of its state: exactly, by the paper's diagonal part, or as the
    released code has it (`Steer`). Clip .2/.28 and dual clip 10, as released.
    """
    weight = Steer(form, min_weight)
    clip = Clip(0.2, 0.28, 10.0)
    return Method("steer", GroupNormalized(), clip, anchor_of(**anchor), TokenMean(), token_weight=weight)


@METHODS.register(label="High-entropy tokens", about="trains the most uncertain tokens", arxiv="2506.01939")
@anchored(beta=0.0)
def high_entropy(*, share: float = 0.2, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/sum |y|) sum_i sum_t [ -min(rho w_t A, clip(rho) w_t A) + beta k3 ], w_t = 1 at high entropy (arXiv 2506.01939).

    Only the `share` of the rollout's tokens with the highest entropy is trained on; the divisor stays that of all tokens.
    """
    weight = HighEntropy(share)
    clip = Clip(0.2, 0.28, 10.0)
    return Method("high_entropy", GroupNormalized(), clip, anchor_of(**anchor), TokenMean(), token_weight=weight)


@METHODS.register(label="Clip-Cov", about="drops tokens of high covariance", arxiv="2505.22617")
@anchored(beta=0.0)
def clip_cov(*, share: float = 2e-4, low: float = 1.0, high: float = 5.0, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/sum |y|) sum_i sum_t [ -min(rho w_t A, clip(rho) w_t A) + beta k3 ], w_t = 0 at a few tokens (arXiv 2505.22617).

    The masked tokens are drawn among those whose log-prob covaries with their advantage: low < cov_t < high.
    """
    weight = ClipCov(share, low, high)
    return Method("clip_cov", GroupNormalized(), Clip(), anchor_of(**anchor), TokenMean(), token_weight=weight)


@METHODS.register(label="Entropy-shaped advantage", about="entropy added to the advantage", arxiv="2506.14758")
@anchored(beta=0.0)
def shaped_entropy(*, entropy_coef: float = 0.4, kappa: float = 2.0, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/sum |y|) sum_i sum_t [ -min(rho A_t, clip(rho) A_t) + beta k3 ], A_t = A + min(entropy_coef H_t, |A| / kappa).

    Cheng et al., arXiv 2506.14758, A = GRPO's, `entropy_coef` its alpha: uncertain tokens are rewarded more and punished less.
    """
    weight = ShapedEntropy(entropy_coef, kappa)
    return Method("shaped_entropy", GroupNormalized(), Clip(), anchor_of(**anchor), TokenMean(), token_weight=weight)


@METHODS.register(label="EAPO", about="credit by entropy and sign of the advantage", arxiv="2609.33781")
@anchored(beta=0.0)
def eapo(*, kappa: float = LOG_4, decay_steps: int | None = None, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/sum |y|) sum_i sum_t [ -min(rho w_t A, clip(rho) w_t A) + beta k3 ], w_t = exp(kappa sign(A) h_t) over its mean
    (arXiv 2609.33781).

    h_t is the entropy of the state, scaled to [0, 1] by quantiles of the rollout (`Eapo`): right completions are credited at
    uncertain tokens, wrong ones blamed at certain tokens. A = GRPO's, clip .2/.28 and no KL, as released.
    """
    weight, clip = Eapo(kappa, decay_steps), Clip(0.2, 0.28)
    return Method("eapo", GroupNormalized(), clip, anchor_of(**anchor), TokenMean(), token_weight=weight)


@METHODS.register(label="ERank", about="effective rank of hidden states (VERL)", arxiv="2509.23808")
@anchored(beta=0.0)
def erank(
    *,
    scale: float = 1.0,
    kappa: float = 2.0,
    gain: float = 2.0,
    share: float = 0.3,
    stride: int = 40,
    last: int = 512,
    whole_rank: bool = False,
    **anchor: Unpack[AnchorKeys],
) -> Method:
    """L = mean_i mean_t [ -min(rho A', clip(rho) A') + beta k3 ], A' = A + min(scale max(Phi, 0), |A| / kappa).

    VERL (arXiv 2509.23808). A = GRPO's. Phi compares the effective rank of a completion's last hidden states, and how
    it grows, with running means of earlier rollouts, which are part of the checkpoint (`ERank`). scale = 0 is GRPO and
    only measures: that is what the released script trains, because its bonus is the difference of two rewards that are
    equal there. stride: tokens per window, 40 as released; a completion with fewer than two windows has no velocity.
    whole_rank: the rank is over the whole completion, as released, and velocity and acceleration over its last 512
    tokens.
    """
    weight = ERank(scale, kappa, gain, share, stride, last, whole_rank)
    return Method("erank", GroupNormalized(), Clip(), anchor_of(**anchor), SequenceMean(), token_weight=weight)


@METHODS.register(label="KL-Cov", about="a KL at tokens of high covariance", arxiv="2505.22617")
@anchored(beta=0.0)
def kl_cov(*, share: float = 2e-4, coefficient: float = 1.0, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/sum |y|) sum_i sum_t [ -rho A + coefficient |log pi - log pi_old| at a few tokens + beta k3 ] (arXiv 2505.22617).

    Those whose log-prob goes most with their advantage; no clip, as in the authors' code. share is 2e-4 for the paper's 32B model
    and 2e-3 for its 7B one. The term is 0 at the first update of a
    rollout: with one update per rollout this is plain policy gradient.
    """
    term = KlCov(share, coefficient)
    return Method("kl_cov", GroupNormalized(), Clip(1.0, math.inf), anchor_of(**anchor), TokenMean(), extras=(term,))


@METHODS.register(label="Entropy bonus", about="an entropy bonus in the loss")
@anchored(beta=0.0)
def entropy_bonus(*, coefficient: float | Schedule = 1e-3, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/sum |y|) sum_i sum_t [ -min(rho A, clip(rho) A) - coefficient H_t + beta k3 ], H_t with its gradient.

    H_t is the policy's entropy at the state, over the whole vocabulary.
    """
    term = EntropyBonus(coefficient)
    return Method("entropy_bonus", GroupNormalized(), Clip(), anchor_of(**anchor), TokenMean(), extras=(term,))


@METHODS.register(label="Adaptive entropy", about="entropy bonus, held at a target", arxiv="2505.22312")
@anchored(beta=0.0)
def adaptive_entropy(
    *,
    target: float = 0.2,
    delta: float = 0.005,
    start_at: float = 0.0,
    min_coef: float = 0.0,
    max_coef: float = 1.0,
    **anchor: Unpack[AnchorKeys],
) -> Method:
    """L = (1/sum |y|) sum_i sum_t [ -min(rho A, clip(rho) A) - c 1[H <= target] H_t + beta k3 ] (Skywork-OR1, arXiv 2505.22312).

    c rises by delta after each rollout whose mean entropy is at most the target, and falls otherwise; c is part of the
    checkpoint.
    """
    term = AdaptiveEntropy(target, delta, start_at, min_coef, max_coef)
    return Method("adaptive_entropy", GroupNormalized(), Clip(), anchor_of(**anchor), TokenMean(), extras=(term,))
