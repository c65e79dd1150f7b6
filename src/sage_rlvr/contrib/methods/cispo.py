"""CISPO: the clipped ratio is a detached weight, and every token has a gradient (arXiv 2506.13585).

Paper: https://arxiv.org/abs/2506.13585. Recipe: `sage-rlvr train cispo --task TASK`.
Numbers worked out by hand: tests/core/objective/test_surrogates_of_papers.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Unpack

from jaxtyping import Bool
from torch import Tensor

from sage_rlvr.core.advantages import GroupNormalized
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import TokenMean
from sage_rlvr.core.signals import masked_mean
from sage_rlvr.core.surrogates.base import SURROGATES, PerToken, Surrogate, bounded_ratio
from sage_rlvr.errors import ConfigError
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored
from sage_rlvr.training.engines import NOT_COMPARED, OF_VERL, EngineRow, Of, Refuses, Sets, declare


@SURROGATES.register
@dataclass(frozen=True)
class Cispo(Surrogate):
    """-sg[clip(rho, 1 - low, 1 + high)] A log(pi / pi_old): CISPO (MiniMax-M1, arXiv 2506.13585, Eqs. 4 and 5).

    The gradient of a token is that of REINFORCE times its clipped ratio: if Clip has none, this one is only bounded.
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


def bounded_below(method: Method) -> bool:
    """Cispo's weight has a lower bound."""
    return type(method.surrogate) is Cispo and method.surrogate.low < 1


def cispo_per_row(method: Method) -> bool:
    """Return whether the method has Cispo under a mean that is not over tokens."""
    return type(method.surrogate) is Cispo and type(method.reduction) is not TokenMean


declare(
    "surrogate",
    Cispo,
    trl=Sets(
        {
            "loss_type": "cispo",
            "epsilon": 0.2,
            "epsilon_high": Of("1 + high", lambda method, _: 1.0 + method.surrogate.high),  # type: ignore[attr-defined]
            "delta": None,
            "importance_sampling_level": "token",
        }
    ),
    verl=Refuses(NOT_COMPARED.format("verl has loss_mode cispo"), OF_VERL.format("cispo")),
    also=(
        EngineRow(
            "surrogate",
            "Cispo's low below 1",
            Refuses("TRL bounds this weight from above alone", "set low = 1"),
            Sets(),
            bounded_below,
            "surrogate.low",
        ),
        EngineRow(
            "surrogate",
            "Cispo with another mean than token_mean",
            Refuses("TRL's loss_type cispo is a mean over tokens", "use token_mean"),
            Sets(),
            cispo_per_row,
            "reduction",
        ),
    ),
)


@METHODS.register(label="CISPO", about="the clipped ratio as a fixed weight", arxiv="2506.13585")
@anchored(beta=0.0)
def cispo(*, low: float = 1.0, high: float = 0.28, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/sum |y|) sum_i sum_t [ -sg[clip(rho, 1 - low, 1 + high)] A log pi + beta k3 ], A = GRPO's (arXiv 2506.13585).

    No token loses its gradient; the ratio is a bounded weight. low = 1: no lower bound, as in the paper.
    """
    return Method("cispo", GroupNormalized(), Cispo(low, high), anchor_of(**anchor), TokenMean())
