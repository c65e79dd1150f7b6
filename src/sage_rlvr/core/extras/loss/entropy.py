"""Entropy in the loss: with a fixed coefficient, or with a coefficient that keeps the entropy at a target."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sage_rlvr.core.extras.base import EXTRAS, Extra, PerToken
from sage_rlvr.core.schedules import Schedule, as_schedule, show
from sage_rlvr.core.signals import Batch, Signals, masked_mean
from sage_rlvr.core.state import PartState
from sage_rlvr.errors import ConfigError, DataError

ASCENDS = (
    "the mean entropy at the visited states (this is not the entropy of whole completions, whose states change too)"
)


def _entropies(batch: Batch, who: str) -> PerToken:
    if batch.entropies is None:
        raise DataError(f"{who} needs Batch.entropies in the graph, which is None; compute it (method.needs).")
    return -torch.where(batch.mask, batch.entropies.float(), 0.0)


@EXTRAS.register
@dataclass(frozen=True)
class EntropyBonus(Extra):
    """- coefficient * H_t, H_t the policy's entropy at the state, over the whole vocabulary at the sampling temperature.

    Nats, with gradient: each state is pulled toward uniform, whatever earns a reward there; with rewards only the optimum of a
    state is exp(r / coefficient), a temperature without a direction. It divides as the method's reduction does, like
    verl 0.9.1's; TRL takes a mean over tokens. 0 is no term. The logits of an update stay in memory: (tokens, vocabulary) float32.
    needs: "entropy_gradient".

    coefficient: loss per nat of entropy.
    """

    coefficient: float | Schedule = 1e-3
    needs: ClassVar[frozenset[str]] = frozenset({"entropy_gradient"})
    ascends: ClassVar[str] = ASCENDS

    def __post_init__(self) -> None:
        if not isinstance(self.coefficient, Schedule) and not math.isfinite(self.coefficient):
            raise ConfigError(
                f"EntropyBonus: coefficient = {self.coefficient!r}; set a finite number, typically 0.001."
            )

    @property
    def equation(self) -> str:
        return f"- {show(self.coefficient)} H_t"

    def loss_weights(
        self, signals: Signals, step: int, total_steps: int, state: PartState
    ) -> tuple[PerToken, Mapping[str, Tensor]]:
        return signals.mask.float() * as_schedule(self.coefficient)(step, total_steps), state

    def on_loss(self, batch: Batch, step: int, total_steps: int) -> PerToken:
        return _entropies(batch, "EntropyBonus")


@EXTRAS.register
@dataclass(frozen=True)
class AdaptiveEntropy(Extra):
    """- c 1[H <= target] H_t, where each rollout moves c by `delta`: up where its mean entropy H <= target, else down.

    start_at: c before the first rollout.

    The coefficient is the state, within [min_coef, max_coef]; the rollout is weighed before it moves (Skywork-OR1, arXiv
    2505.22312).
    TRL's `use_adaptive_entropy` goes by the entropy of the optimizer step before. A target above what the policy ever has
    keeps the bonus on and drives c to `max_coef`: read policy/entropy first. needs: "entropies", "entropy_gradient".

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
        entropy = masked_mean(signals.require("entropies", "AdaptiveEntropy"), signals.mask)
        low = entropy <= self.target
        weights = signals.mask.float() * (state["coefficient"].float() if low else 0.0)
        moved = state["coefficient"] + (self.delta if low else -self.delta)
        return weights, {"coefficient": moved.clamp(self.min_coef, self.max_coef)}

    def on_loss(self, batch: Batch, step: int, total_steps: int) -> PerToken:
        return _entropies(batch, "AdaptiveEntropy")
