"""The protocol of surrogates: the policy-gradient term per token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sage_rlvr.core.signals import check_equation, masked_mean
from sage_rlvr.registry import Registry

PerToken = Float[Tensor, "B T"]
LARGEST_LOG_RATIO = 20.0


@runtime_checkable
class Surrogate(Protocol):
    """Per-token loss to minimize, (B, T), and statistics, from

    log_ratios  (B, T) log(pi / pi_old) in the graph, 0 off the mask
    advantages  that broadcast to (B, T), without a gradient
    mask        (B, T) bool

    `equation` is the loss of a token as one line. Optional attributes, read with getattr: `legend`, what its symbols mean;
    `ascends`, in place of the advantage's, where that does not hold; `needs`, optional signals; `sees_batch`, True for
    one that is called with the `Batch` after the mask: a loss that reads the reference, or the other rows of a group;
    `reads_labels`, True for one whose advantages must be labels, 0 or 1 per completion, as the advantage gives them.
    """

    @property
    def equation(self) -> str:
        """The loss of a token as one line of text."""

    @property
    def __call__(self) -> Callable[..., tuple[PerToken, dict[str, float]]]: ...


SURROGATES: Registry[Any] = Registry("surrogate", check=check_equation("the loss of a token"))


def bounded_ratio(log_ratios: PerToken, mask: Bool[Tensor, "B T"]) -> tuple[PerToken, dict[str, float]]:
    """pi / pi_old with the log-ratio clamped to +-20 nats, as verl does, and the statistics of ratio and bound.

    So rho stays finite and a token with A = 0 adds 0 however far it has moved; a held token has no gradient.
    """
    ratios = torch.exp(log_ratios.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO))
    return ratios, {
        "surrogate/clamped_frac": masked_mean(log_ratios.abs() > LARGEST_LOG_RATIO, mask),
        "surrogate/ratio_mean": masked_mean(ratios, mask),
    }
