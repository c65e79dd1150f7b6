"""CISPO: the clipped ratio is a detached weight, and every token has a gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass

from jaxtyping import Bool
from torch import Tensor

from sage_rlvr.core.signals import masked_mean
from sage_rlvr.core.surrogates.base import SURROGATES, PerToken, Surrogate, bounded_ratio
from sage_rlvr.errors import ConfigError


@SURROGATES.register
@dataclass(frozen=True)
class Cispo(Surrogate):
    """-sg[clip(rho, 1 - low, 1 + high)] A log(pi / pi_old): CISPO (MiniMax-M1, arXiv 2506.13585, Eqs. 4 and 5).

    The gradient of a token is that of REINFORCE times its clipped ratio: where Clip has none, this one is only bounded.
    low = 1 is the paper's setting, no lower bound. The value of the loss is that of A log(pi / pi_old), whose constant does
    not matter. In the first update of a rollout the ratio is 1, and it is Clip's gradient exactly.

    low, high: the weight rho is clamped to 1 - low and 1 + high.
    """

    low: float = 1.0
    high: float = 0.28

    def __post_init__(self) -> None:
        if not 0 <= self.low <= 1:
            raise ConfigError(
                f"Cispo: low = {self.low!r} must be in [0, 1]; the weight is at least 1 - low; 1 = no bound."
            )
        if not 0 <= self.high < math.inf:
            raise ConfigError(
                f"Cispo: high = {self.high!r}; set a finite number >= 0: the weight is at most 1 + high."
            )

    @property
    def equation(self) -> str:
        return f"-sg[clip(rho, {1 - self.low:g}, {1 + self.high:g})] A log rho"

    def __call__(
        self, log_ratios: PerToken, advantages: Tensor, mask: Bool[Tensor, "B T"]
    ) -> tuple[PerToken, dict[str, float]]:
        ratios, stats = bounded_ratio(log_ratios.detach(), mask)
        weights = ratios.clamp(1.0 - self.low, 1.0 + self.high)
        clipped = masked_mean(weights != ratios, mask)
        return -weights * advantages * log_ratios, {"surrogate/clipped_frac": clipped, **stats}
