"""The protocol of token weights: signals -> a factor on the advantage of each token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sage_rlvr.core.signals import Signals, check_needs
from sage_rlvr.registry import Registry

PerToken = Float[Tensor, "B T"]


class TokenWeight(Protocol):
    """Signals become a factor (B, T) on the advantage, computed once per rollout from the policy that generated it.

    `equation` is a text, by which `describe` calls it, else its name. `needs` as in an `Advantage`; `legend`, what its symbols
    mean; `random`, True for one that is called with step and key after the signals; `depends_on`, "batch" for one that compares
    the tokens of the rollout. One whose `needs` have "advantages" reads `Signals.advantages`, those that it weighs. One with a
    running state (core/state.py) gives the factor and its new state. `at`, of one that changes over training, as in `Advantage`.
    """

    @property
    def __call__(self) -> Callable[..., Any]: ...


TOKEN_WEIGHTS: Registry[Any] = Registry("token_weight", check=check_needs)


def paid(signals: Signals) -> PerToken:
    """The advantage of each counted token, (B, T); 0 elsewhere."""
    return torch.where(signals.mask, signals.require("advantages", "a token weight").float()[:, None], 0.0)


def lifted(advantages: PerToken, bonus: PerToken, kappa: float) -> PerToken:
    """(A + min(bonus, |A| / kappa)) / A, for a bonus >= 0; 1 where A is 0. The sign of A stays while kappa > 1."""
    size = torch.where(advantages == 0, 1.0, advantages.abs())
    return 1.0 + advantages.sign() * (bonus / size).clamp(max=1.0 / kappa)


def covariance(signals: Signals) -> PerToken:
    """(A_t - mean A)(log pi_old - mean log pi_old) of arXiv 2505.22617, means over the rollout's counted tokens; 0 elsewhere."""
    return _deviation(paid(signals), signals.mask) * _deviation(signals.old_logps, signals.mask)


def _deviation(values: PerToken, mask: Bool[Tensor, "B T"]) -> PerToken:
    """Values minus their mean over the counted tokens; 0 elsewhere."""
    kept = torch.where(mask, values.float(), 0.0)
    return torch.where(mask, kept - kept.sum() / mask.sum().clamp(min=1), 0.0)
