"""The control for where a token weight stands: the same weights, permuted within each completion."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from sage_rlvr.core.advantages import at_step
from sage_rlvr.core.keys import Key, chosen_first
from sage_rlvr.core.signals import Signals, check_needs
from sage_rlvr.core.state import has_state
from sage_rlvr.core.token_weights.base import TOKEN_WEIGHTS, PerToken, TokenWeight
from sage_rlvr.errors import ConfigError


@TOKEN_WEIGHTS.register
@dataclass(frozen=True)
class PlaceboWeight:
    """The weights of `weight`, permuted over the counted tokens of each completion: the control for which tokens weigh more.

    Each completion keeps its weights as a multiset, so their mean too: on average over the draws each of its tokens has the mean.
    Of a weight whose mean is 1, such as `Eapo`, the expected gradient is that of the method without it, and noise is what is left.
    Which token gets which weight is drawn at each step, uniformly, by key, step, row number and position: a resumed run draws the
    same, and neither padding nor the order of rows matters.

    weight: the token weight to permute; must have no running state.
    """

    weight: TokenWeight
    random: ClassVar[bool] = True
    depends_on: ClassVar[str] = "batch"

    def __post_init__(self) -> None:
        if isinstance(self.weight, type) or not callable(self.weight):
            raise ConfigError(
                f"PlaceboWeight: {self.weight!r} is not a token weight; pass one, for example PlaceboWeight(Eapo())."
            )
        if has_state(self.weight):
            raise ConfigError(
                f"PlaceboWeight: {self.weight!r} has a running state; use a token weight of the rollout only, for example Eapo()."
            )

    @property
    def needs(self) -> frozenset[str]:
        """Those of the permuted weight."""
        return check_needs("PlaceboWeight", self.weight)

    @property
    def equation(self) -> str:
        own = getattr(self.weight, "equation", type(self.weight).__name__)
        return f"[{own}] permuted over the tokens of its completion"

    @property
    def legend(self) -> str:
        return str(getattr(self.weight, "legend", ""))

    def at(self, step: int, total_steps: int) -> PlaceboWeight:
        """With the permuted weight as it is at a step."""
        own = at_step(self.weight, step, total_steps)
        return self if own is self.weight else replace(self, weight=own)

    def __call__(self, signals: Signals, step: int, key: Key) -> PerToken:
        drawn = (step, key) if getattr(self.weight, "random", False) else ()
        weights: PerToken = self.weight(signals, *drawn)
        words = key.bits(step, "placebo_weight/order", signals.row_ids, signals.positions)
        # from the order of positions to that of the words: both are the tokens' own, wherever padding puts them
        given, taken = chosen_first(signals.mask, signals.positions), chosen_first(signals.mask, words)
        return torch.where(signals.mask, weights.scatter(1, taken, weights.gather(1, given)), weights)
