"""What a surrogate is: the policy-gradient term per token."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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

    A member that is no method may be a class attribute, a field or a property. ConfigError for a misspelled one.
    """

    if TYPE_CHECKING:  # read-only, so that a part may give each as a class attribute, a field or a property

        @property
        def ascends(self) -> str:
            """What the expected gradient ascends, in place of the advantage's text, where that does not hold; "" = it holds."""

        @property
        def needs(self) -> frozenset[str]:
            """The optional signals that it reads; none by default."""

        @property
        def sees_batch(self) -> bool:
            """Whether it is called with the `Batch` after the mask: it reads the reference, or the other rows of a group."""

        @property
        def reads_labels(self) -> bool:
            """Whether its advantages must be labels, 0 or 1 per completion, as the advantage gives them."""

    else:  # plain values: a field of a dataclass without a default would take a property for its default
        ascends = ""
        needs = frozenset()
        sees_batch = reads_labels = False

    @abstractmethod
    def __call__(
        self, log_ratios: PerToken, advantages: Tensor, mask: Bool[Tensor, "B T"], *batch: Any, **none: Any
    ) -> tuple[PerToken, dict[str, float]]:
        """The loss of each token, (B, T), and statistics.

        log_ratios: (B, T) log(pi / pi_old) in the graph, 0 off the mask. advantages: without a gradient; they broadcast to (B, T).
        batch: the `Batch`, where `sees_batch`.
        """


SURROGATES: Registry[Any] = Registry(
    "surrogate",
    check=check_part(Surrogate, "the loss of a token"),
    form="sage_rlvr.core.Surrogate as its base, equation and __call__(self, log_ratios, advantages, mask)",
)


def bounded_ratio(log_ratios: PerToken, mask: Bool[Tensor, "B T"]) -> tuple[PerToken, dict[str, float]]:
    """pi / pi_old with the log-ratio clamped to +-20 nats, as verl does, and the statistics of ratio and bound.

    So rho stays finite and a token with A = 0 adds 0 however far it has moved; a held token has no gradient.
    """
    ratios = torch.exp(log_ratios.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO))
    return ratios, {
        "surrogate/clamped_frac": masked_mean(log_ratios.abs() > LARGEST_LOG_RATIO, mask),
        "surrogate/ratio_mean": masked_mean(ratios, mask),
    }
