"""PPO's clipped ratio, with DAPO's upper bound and the dual clip."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from sage_rlvr.core.signals import masked_mean
from sage_rlvr.core.surrogates.base import SURROGATES, PerToken, Surrogate, bounded_ratio
from sage_rlvr.errors import ConfigError


@SURROGATES.register
@dataclass(frozen=True)
class Clip(Surrogate):
    """-min(rho A, clip(rho, 1 - low, 1 + high) A), rho = pi / pi_old (PPO, arXiv 1707.06347; high > low is DAPO's).

    The gradient of a token is 0 if rho has left the interval in the direction that A pushes it. Log-ratios are
    clamped to +-20 nats (as verl does), so that rho stays finite and a token with A = 0 adds 0 however far it has
    moved; a clamped token has no gradient. Statistics over counted tokens: `surrogate/clipped_frac` (of the first
    case), `surrogate/clamped_frac` (of the second) and `surrogate/ratio_mean`.

    `dual` = c > 1 is the dual clip (arXiv 1912.09729): for A < 0 the loss of a token is at most -c A, so one that
    became more than c times as likely and is to fall has no gradient either; `surrogate/dual_clipped_frac` counts
    those. None = no such bound.
    """

    low: float = 0.2
    high: float = 0.2
    dual: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.low <= 1:
            raise ConfigError(f"Clip: clip_low = {self.low!r} must be in [0, 1]; the ratio is clipped below at 1 - clip_low.")
        if not self.high >= 0:
            raise ConfigError(f"Clip: clip_high = {self.high!r} must be >= 0; the ratio is clipped above at 1 + clip_high.")
        if self.dual is not None and not 1 < self.dual < math.inf:
            raise ConfigError(
                f"Clip: dual = {self.dual!r}; for A < 0 the loss is clipped at -dual * A, and at a ratio of 1 the loss "
                "is already -A: set a number above 1 (verl has 3 by default, the recipes of DAPO and BNPO 10), or "
                "None for no bound."
            )

    @property
    def equation(self) -> str:
        if self.low == 1 and self.high == math.inf and self.dual is None:
            return "-rho A"
        clipped = f"min(rho A, clip(rho, {1 - self.low:g}, {1 + self.high:g}) A)"
        return f"-{clipped}" if self.dual is None else f"-max({clipped}, {self.dual:g} min(A, 0))"

    def __call__(
        self, log_ratios: PerToken, advantages: Tensor, mask: Bool[Tensor, "B T"]
    ) -> tuple[PerToken, dict[str, float]]:
        ratios, stats = bounded_ratio(log_ratios, mask)
        lowest, highest = 1.0 - self.low, 1.0 + self.high
        loss = -torch.minimum(ratios * advantages, ratios.clamp(lowest, highest) * advantages)
        held = ((ratios < lowest) & (advantages < 0)) | ((ratios > highest) & (advantages > 0))
        stats = {"surrogate/clipped_frac": masked_mean(held, mask), **stats}
        if self.dual is not None:
            loss = torch.where(advantages < 0, torch.minimum(loss, -self.dual * advantages), loss)
            too_far = (ratios > self.dual) & (advantages < 0)
            stats["surrogate/dual_clipped_frac"] = masked_mean(too_far, mask)
        return loss, stats
