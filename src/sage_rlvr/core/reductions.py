"""Reductions of per-token losses to one number: (per_token, mask, budget) -> scalar.

`budget` is what the sum is divided by. Take it once from the whole update, `reduction.budget(mask, max_tokens)`, and
hand it to each micro-batch: then their losses and gradients add up to those of the whole. Values off the mask never
matter, NaN included, neither in the value nor in the gradient.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from sage_rlvr.core.parts import Part, check_part
from sage_rlvr.core.signals import Mask
from sage_rlvr.errors import ConfigError
from sage_rlvr.registry import Registry

PerToken = Float[Tensor, "B T"]
Divisor = Literal["row", "batch", "constant"]


@dataclass(frozen=True, eq=False, repr=False)
class Reduction(Part):
    """A sum over counted tokens divided by a budget. A subclass is a frozen dataclass with all four members.

    `divisor` declares what a token's weight depends on: its own row (1/|y|, which depends on the sampled tokens
    and so enters expected gradients), the batch, or nothing. A misspelled member raises ConfigError.
    """

    @property
    @abstractmethod
    def divisor(self) -> Divisor:
        """Kind of dependence of a token's weight: row, batch or nothing. Required."""

    @abstractmethod
    def budget(self, mask: Mask, max_tokens: int | None = None) -> float:
        """Return the divisor of the sum over a complete update, so that the losses of its micro-batches add up.

        mask: (B, T) of the update. max_tokens: the limit on a completion, for a budget that counts it.
        """

    @abstractmethod
    def __call__(self, per_token: PerToken, mask: Mask, budget: float | None = None) -> Float[Tensor, ""]:
        """Return the sum over counted tokens divided by the budget (by that of this batch if None)."""


REDUCTIONS: Registry[type] = Registry(
    "reduction",
    check=check_part(Reduction, "the mean", divisor='divisor: ClassVar[str] = "row", "batch" or "constant"'),
    form="sage_rlvr.core.Reduction as its base, equation, divisor, budget(self, mask, max_tokens) and "
    "__call__(self, per_token, mask, budget)",
)


def _counted(per_token: PerToken, mask: Mask) -> PerToken:
    return torch.where(mask, per_token, torch.zeros((), dtype=per_token.dtype, device=per_token.device))


@REDUCTIONS.register
@dataclass(frozen=True)
class SequenceMean(Reduction):
    """Mean over rows of the mean over a row's tokens (GRPO): (1/B) sum_i (1/|y_i|) sum_t. An empty row adds 0."""

    equation: ClassVar[str] = "(1/B) sum_i (1/|y_i|) sum_t"
    divisor: ClassVar[Divisor] = "row"

    def budget(self, mask: Mask, max_tokens: int | None = None) -> float:
        """The number of rows."""
        return float(max(1, mask.shape[0]))

    def __call__(self, per_token: PerToken, mask: Mask, budget: float | None = None) -> Float[Tensor, ""]:
        lengths = mask.sum(dim=1).clamp(min=1)
        rows = _counted(per_token, mask).sum(dim=1) / lengths
        return rows.sum() / (self.budget(mask) if budget is None else budget)


@REDUCTIONS.register
@dataclass(frozen=True)
class TokenMean(Reduction):
    """Mean over all counted tokens of the update (DAPO, arXiv 2503.14476): sum_i sum_t / sum_i |y_i|."""

    equation: ClassVar[str] = "(1/sum_i |y_i|) sum_i sum_t"
    divisor: ClassVar[Divisor] = "batch"

    def budget(self, mask: Mask, max_tokens: int | None = None) -> float:
        """The number of counted tokens, at least 1."""
        return float(max(1, int(mask.sum())))

    def __call__(self, per_token: PerToken, mask: Mask, budget: float | None = None) -> Float[Tensor, ""]:
        return _counted(per_token, mask).sum() / (self.budget(mask) if budget is None else budget)


@REDUCTIONS.register
@dataclass(frozen=True)
class FixedBudget(Reduction):
    """Sum divided by rows * tokens, a constant (Dr. GRPO, arXiv 2503.20783): (1/(B L)) sum_i sum_t.

    `tokens` is L, the tokens granted to a completion; None takes the `max_tokens` of the batch.

    tokens: L; null is the recipe's limit on a completion.
    """

    divisor: ClassVar[Divisor] = "constant"
    tokens: int | None = None

    def __post_init__(self) -> None:
        if self.tokens is not None and self.tokens < 1:
            raise ConfigError(f"FixedBudget: tokens = {self.tokens!r}; set the completion limit (>= 1), or None.")

    @property
    def equation(self) -> str:
        return "(1/B) sum_i sum_t" if self.tokens == 1 else f"(1/(B * {self.tokens or 'max_tokens'})) sum_i sum_t"

    def budget(self, mask: Mask, max_tokens: int | None = None) -> float:
        """Rows * tokens; raises ConfigError if neither `tokens` nor `max_tokens` is set."""
        tokens = self.tokens or max_tokens
        if tokens is None:
            raise ConfigError(
                "FixedBudget: neither tokens nor the batch's max_tokens is set; pass FixedBudget(tokens=...) or "
                "Batch(max_tokens=...), because the width of a padded batch varies."
            )
        return float(max(1, mask.shape[0]) * tokens)

    def __call__(self, per_token: PerToken, mask: Mask, budget: float | None = None) -> Float[Tensor, ""]:
        return _counted(per_token, mask).sum() / (self.budget(mask) if budget is None else budget)
