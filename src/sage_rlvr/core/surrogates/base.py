"""The base class of surrogates: the policy-gradient term per token."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sage_rlvr.core.parts import Part, check_part
from sage_rlvr.core.signals import masked_mean
from sage_rlvr.registry import Registry

PerToken = Float[Tensor, "B T"]
LARGEST_LOG_RATIO = 20.0


@dataclass(frozen=True, eq=False, repr=False)
class Surrogate(Part):
    """Per-token loss to minimize. A subclass is a frozen dataclass with `equation` and `__call__`; the rest has defaults.

    A member that is not a method may be a class attribute, a field or a property. A misspelled one raises ConfigError.
    """

    @property
    def ascends(self) -> str:
        """Quantity that the expected gradient ascends, if the advantage's text does not hold; "" = it holds."""
        return ""

    @property
    def needs(self) -> frozenset[str]:
        """Optional signals that it reads; none by default."""
        return frozenset()

    @property
    def sees_batch(self) -> bool:
        """True if it is called with the `Batch` after the mask: it reads the reference, or the other rows of a group."""
        return False

    @property
    def reads_labels(self) -> bool:
        """True if its advantages must be labels, 0 or 1 per completion, as the advantage gives them."""
        return False

    @abstractmethod
    def __call__(
        self, log_ratios: PerToken, advantages: Tensor, mask: Bool[Tensor, "B T"], *batch: Any, **none: Any
    ) -> tuple[PerToken, dict[str, float]]:
        """Return the loss of each token, (B, T), and statistics.

        Args:
            log_ratios: (B, T) log(pi / pi_old) in the graph, 0 off the mask.
            advantages: without a gradient; they broadcast to (B, T).
            mask: (B, T), true at counted tokens.
            *batch: the `Batch`, if `sees_batch`.
        """


SURROGATES: Registry[Any] = Registry(
    "surrogate",
    check=check_part(Surrogate, "the loss of a token"),
    form="sage_rlvr.core.Surrogate as its base, equation and __call__(self, log_ratios, advantages, mask)",
)


def bounded_ratio(log_ratios: PerToken, mask: Bool[Tensor, "B T"]) -> tuple[PerToken, dict[str, float]]:
    """Return pi / pi_old with the log-ratio clamped to +-20 nats, as verl does, and the statistics of ratio and bound.

    So rho stays finite and a token with A = 0 adds 0 however far it has moved; a clamped token has no gradient.
    """
    ratios = torch.exp(log_ratios.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO))
    return ratios, {
        "surrogate/clamped_frac": masked_mean(log_ratios.abs() > LARGEST_LOG_RATIO, mask),
        "surrogate/ratio_mean": masked_mean(ratios, mask),
    }
