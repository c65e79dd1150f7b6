"""SAGE-Token (arXiv 2605.18864, Eq. 10): surprising tokens get a weaker, noisier KL."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal

import torch

from sage_rlvr.core.guides.base import GUIDES, Banded, DependsOn, PerToken, Source, require_source, row_quantiles
from sage_rlvr.core.keys import Key, widest_float
from sage_rlvr.core.schedules import CosineCycles, Schedule, as_schedule, show
from sage_rlvr.core.signals import Mask, Signals
from sage_rlvr.errors import ConfigError

Norm = Literal["minmax", "rank", "zscore"]
PAPER_ALPHA, PAPER_SIGMA = CosineCycles(0.3, 0.1), CosineCycles(0.25, 0.1)


def minmax_weights(surprisals: PerToken, mask: Mask, low: float = 0.05, high: float = 0.95) -> PerToken:
    """Return surprisals clamped to the row's `low`..`high` quantiles, then scaled to [0, 1]; all 0 if they are equal."""
    bottom, top = row_quantiles(surprisals, mask, (low, high))
    return (surprisals.clamp(bottom, top) - bottom) / (top - bottom).clamp(min=1e-6)  # equal surprisals: 0, and not 0 / 0


def rank_weights(surprisals: PerToken, mask: Mask) -> PerToken:
    """Return the rank within the row scaled to [0, 1]; equal surprisals share their mean rank; a single token gets 0."""
    values = torch.where(mask, surprisals, math.inf)
    ordered = values.sort(dim=1).values
    below = torch.searchsorted(ordered, values, side="left")
    up_to = torch.searchsorted(ordered, values, side="right")
    return (below + up_to - 1) / 2 / (mask.sum(dim=1, keepdim=True) - 1).clamp(min=1)


def zscore_weights(surprisals: PerToken, mask: Mask) -> PerToken:
    """Return sigmoid((s - mean) / std) with the row's population std; 1/2 everywhere if all surprisals are equal."""
    # float64, for the sum of a long row loses digits in float32; where first, for one NaN off the mask would make the mean NaN
    wide = torch.where(mask, surprisals, 0.0).to(widest_float(surprisals.device))
    count = mask.sum(dim=1, keepdim=True).clamp(min=1)
    offset = torch.where(mask, wide - wide.sum(dim=1, keepdim=True) / count, 0.0)
    spread = (offset.square().sum(dim=1, keepdim=True) / count).sqrt()
    return torch.sigmoid(torch.where(spread > 1e-6, offset / spread.clamp(min=1e-6), 0.0)).float()


@GUIDES.register(label="Token")
@dataclass(frozen=True)
class Token(Banded):
    """q_t ~ N(1 + alpha w_t, (sigma w_t)**2), w_t in [0, 1] the row-normalized surprisal -log pi(y_t) (Eq. 10).

    `norm` chooses how surprisals (nats) become weights: minmax between the row's `low_quantile` and `high_quantile`,
    rank, or zscore; all three look at the whole row, so that q_t depends on later tokens too. `signal` takes the
    surprisal from the policy that generated the data or from the reference.

    alpha: increase of the mean of q at the most surprising token of the row. sigma: its standard deviation there.
    """

    name: ClassVar[str] = "token"
    depends_on: ClassVar[DependsOn] = "token"
    looks_ahead: ClassVar[bool] = True
    alpha: float | Schedule = PAPER_ALPHA
    _: KW_ONLY
    sigma: float | Schedule = PAPER_SIGMA
    norm: Norm = "minmax"
    q_min: float = 0.6
    q_max: float = 1.4
    low_quantile: float = 0.05
    high_quantile: float = 0.95
    signal: Source = "policy"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_source("Token", self.signal)
        for value in (self.alpha, self.sigma):
            as_schedule(value)
        if self.norm not in ("minmax", "rank", "zscore"):
            raise ConfigError(f"Token: norm = {self.norm!r}; choose 'minmax', 'rank' or 'zscore'.")
        if not 0 <= self.low_quantile < self.high_quantile <= 1:
            raise ConfigError(
                f"Token: quantiles {self.low_quantile!r}, {self.high_quantile!r}; set 0 <= low < high <= 1."
            )

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"ref_logps"}) if self.signal == "reference" else frozenset()

    @property
    def equation(self) -> str:
        source = "pi_ref" if self.signal == "reference" else "pi_old"
        return (
            f"N(1 + alpha w_t, (sigma w_t)^2);  w_t = {self.norm}(-log {source}(y_t)), "
            f"alpha = {show(self.alpha)}, sigma = {show(self.sigma)}"
        )

    def weights(self, signals: Signals) -> PerToken:
        """Return w, (B, T) in [0, 1] at counted tokens."""
        logps = signals.require("ref_logps", "Token") if self.signal == "reference" else signals.old_logps
        if self.norm == "rank":
            return rank_weights(-logps, signals.mask)
        if self.norm == "zscore":
            return zscore_weights(-logps, signals.mask)
        return minmax_weights(-logps, signals.mask, self.low_quantile, self.high_quantile)

    def raw_q(self, signals: Signals, step: int, total_steps: int, key: Key) -> PerToken:
        alpha, sigma = (as_schedule(value)(step, total_steps) for value in (self.alpha, self.sigma))
        noise = key.normal(step, "token/noise", signals.row_ids, signals.positions)
        return 1.0 + self.weights(signals) * (alpha + sigma * noise)
