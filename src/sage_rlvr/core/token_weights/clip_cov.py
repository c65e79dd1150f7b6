"""Clip-Cov: no gradient for some tokens whose log-prob covaries with their advantage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from sage_rlvr.core.keys import Key
from sage_rlvr.core.signals import Signals
from sage_rlvr.core.token_weights.base import TOKEN_WEIGHTS, PerToken, covariance
from sage_rlvr.errors import ConfigError


@TOKEN_WEIGHTS.register
@dataclass(frozen=True)
class ClipCov:
    """w_t = 0 at `share` of all tokens, drawn at random among those with low < cov_t < high, else 1 (arXiv 2505.22617, Eq. 10).

    cov_t = (A_t - mean A)(log pi_t - mean log pi), means over the tokens of the rollout. At least one token is left out where
    one is in the window, as in the authors' code, so that in a small batch the share is larger than it says; where the window
    holds fewer than that, all of it. needs: "logps".

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

    def __call__(self, signals: Signals, step: int, key: Key) -> PerToken:
        mask = signals.mask
        found = covariance(signals)
        window = mask & (found > self.low) & (found < self.high)
        wanted = min(max(1, int(self.share * int(mask.sum()))), int(window.sum()))
        if not wanted:
            return mask.float()
        order = torch.where(window, key.uniform(step, "clip_cov", signals.row_ids, signals.positions), torch.inf)
        last = order.flatten().kthvalue(wanted).values
        return (mask & ~(order <= last)).float()
