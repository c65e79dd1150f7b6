"""Adaptive entropy: an entropy bonus whose coefficient holds the entropy at a target (Skywork-OR1, arXiv 2505.22312).

Paper: https://arxiv.org/abs/2505.22312. Recipe: `sage-rlvr train adaptive_entropy --task TASK`.
Numbers worked out by hand: tests/core/objective/test_loss_terms.py.
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
from sage_rlvr.core.extras.loss.entropy import ASCENDS, entropies_of
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import TokenMean
from sage_rlvr.core.signals import Batch, Signals, masked_mean
from sage_rlvr.core.state import PartState
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.errors import ConfigError
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored
from sage_rlvr.training.engines import Refuses, declare


@EXTRAS.register
@dataclass(frozen=True)
class AdaptiveEntropy(Extra):
    """- c 1[H <= target] H_t, where each rollout moves c by `delta`: up where its mean entropy H <= target, else down.

    start_at: c before the first rollout.

    The coefficient is the state, within [min_coef, max_coef]; the rollout is weighed before it moves (Skywork-OR1, arXiv
    2505.22312). TRL's `use_adaptive_entropy` uses the entropy of the previous optimizer step. A target above the policy's entropy
    at all times keeps the bonus on and drives c to `max_coef`: read policy/entropy first. needs: "entropies", "entropy_gradient".

    target: entropy in nats below which the bonus is active. delta: change of c per rollout.
    """

    target: float = 0.2
    delta: float = 0.005
    start_at: float = 0.0
    min_coef: float = 0.0
    max_coef: float = 1.0
    needs: ClassVar[frozenset[str]] = frozenset({"entropies", "entropy_gradient"})
    depends_on: ClassVar[str] = "batch"
    ascends: ClassVar[str] = f"{ASCENDS}; while it is at most the target"

    def __post_init__(self) -> None:
        if not 0 < self.target < math.inf or not 0 < self.delta < math.inf:
            raise ConfigError(
                f"AdaptiveEntropy: target = {self.target!r}, delta = {self.delta!r}; set two positive numbers, the first in nats."
            )
        if not 0 <= self.min_coef <= self.start_at <= self.max_coef < math.inf:
            raise ConfigError(
                f"AdaptiveEntropy: min_coef = {self.min_coef!r}, start_at = {self.start_at!r}, max_coef = "
                f"{self.max_coef!r}; set 0 <= min_coef <= start_at <= max_coef."
            )

    @property
    def equation(self) -> str:
        return f"- c 1[H <= {self.target:g}] H_t"

    @property
    def legend(self) -> str:
        return (
            f"c from {self.start_at:g}, by {self.delta:g} per rollout up where its mean entropy H <= {self.target:g}, else down, "
            f"in [{self.min_coef:g}, {self.max_coef:g}]"
        )

    def start(self) -> dict[str, Tensor]:
        """coefficient, float64."""
        return {"coefficient": torch.tensor(self.start_at, dtype=torch.float64)}

    def loss_weights(
        self, signals: Signals, step: int, total_steps: int, state: PartState
    ) -> tuple[PerToken, Mapping[str, Tensor]]:
        """(B, T): c at counted tokens while their mean entropy is at most the target, else 0; and c after this rollout."""
        entropy = masked_mean(signals.require("entropies", "AdaptiveEntropy"), signals.mask)
        low = entropy <= self.target
        weights = signals.mask.float() * (state["coefficient"].float() if low else 0.0)
        moved = state["coefficient"] + (self.delta if low else -self.delta)
        return weights, {"coefficient": moved.clamp(self.min_coef, self.max_coef)}

    def on_loss(self, batch: Batch, step: int, total_steps: int) -> PerToken:
        return entropies_of(batch, "AdaptiveEntropy")


declare(
    "extras",
    AdaptiveEntropy,
    trl=Refuses("TRL's use_adaptive_entropy goes by the entropy of the optimizer step before", "use EntropyBonus"),
    verl=Refuses("entropy_coeff is one number", "use EntropyBonus"),
)


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
