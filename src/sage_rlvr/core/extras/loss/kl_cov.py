"""KL-Cov: a KL penalty on the tokens whose log-prob covaries most with their advantage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sage_rlvr.core.extras.base import EXTRAS, Extra, PerToken
from sage_rlvr.core.signals import Batch, Signals
from sage_rlvr.core.state import PartState
from sage_rlvr.core.token_weights.base import covariance
from sage_rlvr.errors import ConfigError


@EXTRAS.register
@dataclass(frozen=True)
class KlCov(Extra):
    """+ coefficient * |log pi - log pi_old| at the `share` of all tokens with the largest cov_t (arXiv 2505.22617, Eq. 12).

    cov_t as in `ClipCov`, over the tokens of the rollout, at least one (their code: of a micro-batch). The term and its gradient
    are 0 at the first update of a rollout, where pi = pi_old: with one update per rollout it does nothing. The authors' code
    leaves the other tokens without a clip. needs: "logps".

    share: of all counted tokens, those with the term; the paper has 2e-4 for its 32B model and 2e-3 for the 7B one.
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
    def equation(self) -> str:  # type: ignore[override]
        return f"+ {self.coefficient:g} |log pi - log pi_old| at the {self.share:g} of all tokens with the largest cov_t"

    def loss_weights(
        self, signals: Signals, step: int, total_steps: int, state: PartState
    ) -> tuple[PerToken, Mapping[str, Tensor]]:
        mask = signals.mask
        ranked = torch.where(mask, covariance(signals), -torch.inf).flatten()
        held = torch.zeros_like(ranked)
        held[ranked.topk(min(max(1, int(self.share * int(mask.sum()))), int(mask.sum()))).indices] = self.coefficient
        return held.reshape(mask.shape), state

    def on_loss(self, batch: Batch, step: int, total_steps: int) -> PerToken:
        return (batch.logps - batch.old_logps).abs()
