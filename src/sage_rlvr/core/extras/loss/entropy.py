"""An entropy bonus in the loss, with a coefficient that may follow a schedule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sage_rlvr.core.extras.base import EXTRAS, Extra, PerToken
from sage_rlvr.core.schedules import Schedule, as_schedule, show
from sage_rlvr.core.signals import Batch, Signals
from sage_rlvr.core.state import PartState
from sage_rlvr.errors import ConfigError, DataError

ASCENDS = (
    "the mean entropy at the visited states (this is not the entropy of whole completions, whose states change too)"
)


def entropies_of(batch: Batch, who: str) -> PerToken:
    """Return the entropies H_t of the counted tokens, in the graph, (B, T) float32, 0 elsewhere.

    Raise DataError if there are none.
    """
    if batch.entropies is None:
        raise DataError(f"{who} needs Batch.entropies in the graph, which is None; compute it (method.needs).")
    return -torch.where(batch.mask, batch.entropies.float(), 0.0)


@EXTRAS.register
@dataclass(frozen=True)
class EntropyBonus(Extra):
    """- coefficient * H_t, H_t the policy's entropy at the state, over the full vocabulary at the sampling temperature.

    Nats, with gradient: each state is pulled toward uniform, whatever is rewarded there; with rewards and no other term the optimum
    of a state is exp(r / coefficient), a temperature without a direction. It is divided by the method's reduction, as in
    verl 0.9.1; TRL takes a mean over tokens. 0 removes the term. The logits of an update stay in memory: (tokens, vocabulary)
    float32.
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
        return entropies_of(batch, "EntropyBonus")
