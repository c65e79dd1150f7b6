"""Clip-Cov and KL-Cov: tokens of high covariance with the advantage get no gradient, or a KL (arXiv 2505.22617).

Paper: https://arxiv.org/abs/2505.22617. Recipe: `sage-rlvr train clip_cov --task TASK`.
Numbers worked out by hand: tests/core/objective/test_token_weights.py, tests/core/objective/test_loss_terms.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Unpack

import torch
from torch import Tensor

from sage_rlvr.core.advantages import GroupNormalized
from sage_rlvr.core.extras.base import EXTRAS, Extra, PerToken
from sage_rlvr.core.extras.tokens.base import TokenWeight, covariance
from sage_rlvr.core.keys import Key
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import TokenMean
from sage_rlvr.core.signals import Batch, Signals
from sage_rlvr.core.state import PartState
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.errors import ConfigError
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored
from sage_rlvr.training.engines import Refuses, declare


@EXTRAS.register
@dataclass(frozen=True)
class ClipCov(TokenWeight):
    """w_t = 0 at `share` of all tokens, drawn at random among those with low < cov_t < high, else 1 (arXiv 2505.22617, Eq. 10).

    cov_t = (A_t - mean A)(log pi_t - mean log pi), means over the tokens of the rollout. At least one token is left out if one is
    in the window, as in the authors' code, so that in a small batch the share is larger than `share`; if the window contains fewer,
    all of it is. needs: "logps".

    share: fraction of counted tokens whose weight is 0. low, high: bounds of the covariance of tokens that may be drawn.
    """

    share: float = 2e-4
    low: float = 1.0
    high: float = 5.0
    needs: ClassVar[frozenset[str]] = frozenset({"advantages", "logps"})
    depends_on: ClassVar[str] = "batch"
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ConfigError(
                f"ClipCov: share = {self.share!r} is a fraction of tokens; set 0 < share < 1, 2e-4 in the paper."
            )
        if not self.low < self.high:
            raise ConfigError(
                f"ClipCov: low = {self.low!r}, high = {self.high!r}; set low < high, 1 and 5 in the paper."
            )

    @property
    def equation(self) -> str:
        return f"0 at {self.share:g} of all tokens, drawn among those with {self.low:g} < cov_t < {self.high:g}, else 1"

    legend: ClassVar[str] = "cov_t = (A - mean A)(log pi_old - mean log pi_old)"

    def token_weights(
        self, signals: Signals, step: int, total_steps: int, key: Key, state: PartState
    ) -> tuple[PerToken, Mapping[str, Tensor]]:
        """(B, T) of 0 and 1: 0 off the mask and at the omitted tokens."""
        mask = signals.mask
        covariances = covariance(signals)
        window = mask & (covariances > self.low) & (covariances < self.high)
        wanted = min(max(1, int(self.share * int(mask.sum()))), int(window.sum()))
        if not wanted:
            return mask.float(), state
        order = torch.where(window, key.uniform(step, "clip_cov", signals.row_ids, signals.positions), torch.inf)
        last = order.flatten().kthvalue(wanted).values
        return (mask & ~(order <= last)).float(), state


@EXTRAS.register
@dataclass(frozen=True)
class KlCov(Extra):
    """+ coefficient * |log pi - log pi_old| at the `share` of all tokens with the largest cov_t (arXiv 2505.22617, Eq. 12).

    cov_t as in `ClipCov`, over the tokens of the rollout, at least one (their code: of a micro-batch). The term and its gradient
    are 0 at the first update of a rollout, where pi = pi_old: with one update per rollout it does nothing. The authors' code
    leaves the other tokens without a clip. needs: "logps".

    share: fraction of all counted tokens with the term; the paper has 2e-4 for its 32B model and 2e-3 for the 7B one.
    coefficient: weight of the term, per nat.
    """

    share: float = 2e-4
    coefficient: float = 1.0
    needs: ClassVar[frozenset[str]] = frozenset({"advantages", "logps"})
    depends_on: ClassVar[str] = "batch"
    legend: ClassVar[str] = "cov_t = (A - mean A)(log pi_old - mean log pi_old)"

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ConfigError(
                f"KlCov: share = {self.share!r} is a share of tokens; set 0 < share < 1, 2e-4 for the paper's 32B model, "
                "2e-3 for its 7B model."
            )
        if not self.coefficient >= 0:
            raise ConfigError(f"KlCov: coefficient = {self.coefficient!r}; set a number >= 0, 1 as released.")

    @property
    def equation(self) -> str:
        return f"+ {self.coefficient:g} |log pi - log pi_old| at the {self.share:g} of all tokens with the largest cov_t"

    def loss_weights(
        self, signals: Signals, step: int, total_steps: int, state: PartState
    ) -> tuple[PerToken, Mapping[str, Tensor]]:
        """(B, T): `coefficient` at the tokens of the largest covariance, 0 elsewhere."""
        mask = signals.mask
        ranked = torch.where(mask, covariance(signals), -torch.inf).flatten()
        held = torch.zeros_like(ranked)
        held[ranked.topk(min(max(1, int(self.share * int(mask.sum()))), int(mask.sum()))).indices] = self.coefficient
        return held.reshape(mask.shape), state

    def on_loss(self, batch: Batch, step: int, total_steps: int) -> PerToken:
        return (batch.logps - batch.old_logps).abs()




declare(
    "extras",
    KlCov,
    trl=Refuses("TRL's loss has no KL to the policy of the rollout"),
    verl=Refuses("verl's loss_mode kl_cov ranks the tokens of a micro-batch by the current policy, and clips none"),
)


@METHODS.register(label="Clip-Cov", about="drops tokens of high covariance", arxiv="2505.22617")
@anchored(beta=0.0)
def clip_cov(*, share: float = 2e-4, low: float = 1.0, high: float = 5.0, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/sum |y|) sum_i sum_t [ -min(rho w_t A, clip(rho) w_t A) + beta k3 ], w_t = 0 at a few tokens (arXiv 2505.22617).

    The masked tokens are drawn among those whose log-prob covaries with their advantage: low < cov_t < high.
    """
    weight = ClipCov(share, low, high)
    return Method("clip_cov", GroupNormalized(), Clip(), anchor_of(**anchor), TokenMean(), extras=(weight,))


@METHODS.register(label="KL-Cov", about="a KL at tokens of high covariance", arxiv="2505.22617")
@anchored(beta=0.0)
def kl_cov(*, share: float = 2e-4, coefficient: float = 1.0, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/sum |y|) sum_i sum_t [ -rho A + coefficient |log pi - log pi_old| at a few tokens + beta k3 ] (arXiv 2505.22617).

    These are the tokens with the largest covariance of log-prob and advantage; no clip, as in the authors' code. share is 2e-4 for
    the paper's 32B model and 2e-3 for its 7B one. The term is 0 at the first update of a
    rollout: with one update per rollout this is plain policy gradient.
    """
    term = KlCov(share, coefficient)
    return Method("kl_cov", GroupNormalized(), Clip(1.0, math.inf), anchor_of(**anchor), TokenMean(), extras=(term,))
