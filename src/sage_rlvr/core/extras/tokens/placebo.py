"""The control for where a token weight acts: the same weights, permuted within each completion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sage_rlvr.core.extras.base import EXTRAS, PerToken
from sage_rlvr.core.extras.tokens.base import TokenWeight
from sage_rlvr.core.keys import Key, chosen_first
from sage_rlvr.core.signals import Signals, check_needs
from sage_rlvr.core.state import PartState, has_state
from sage_rlvr.errors import ConfigError


@EXTRAS.register
@dataclass(frozen=True)
class PlaceboWeight(TokenWeight):
    """The weights of `weight`, permuted over the counted tokens of each completion: the control for which tokens weigh more.

    Each completion keeps the multiset of its weights, so also their mean, which is the expected weight of each of its tokens.
    For a weight with mean 1, such as `Eapo`, the expected gradient is that of the method without it, and only noise is added.
    The permutation is uniform at each step, a function of key, step, row number and position: a resumed run permutes in the same
    way, and neither padding nor the order of rows matters.

    weight: the token weight to permute; must have no running state.
    """

    weight: TokenWeight
    random: ClassVar[bool] = True
    depends_on: ClassVar[str] = "batch"

    def __post_init__(self) -> None:
        if not isinstance(self.weight, TokenWeight):
            raise ConfigError(
                f"PlaceboWeight: {self.weight!r} is not a token weight; pass one, for example PlaceboWeight(Eapo())."
            )
        if has_state(self.weight):
            raise ConfigError(
                f"PlaceboWeight: {self.weight!r} has a running state; use a token weight of the rollout only, for example Eapo()."
            )

    @property
    def needs(self) -> frozenset[str]:
        """Signals of the permuted weight."""
        return check_needs("PlaceboWeight", self.weight.needs)

    @property
    def files(self) -> tuple[str, ...]:
        """Files of the permuted weight."""
        return self.weight.files

    @property
    def file_contents(self) -> str:
        """Required content of these files."""
        return self.weight.file_contents

    @property
    def equation(self) -> str:
        return f"[{self.weight.equation}] permuted over the tokens of its completion"

    @property
    def legend(self) -> str:
        return self.weight.legend

    def token_weights(
        self, signals: Signals, step: int, total_steps: int, key: Key, state: PartState
    ) -> tuple[PerToken, Mapping[str, Tensor]]:
        """Return the weights (N, T) of `weight`, permuted over the counted tokens of each completion, and the unchanged state."""
        weights, _ = self.weight.token_weights(signals, step, total_steps, key, {})
        words = key.bits(step, "placebo_weight/order", signals.row_ids, signals.positions)
        # from the order of positions to that of the words: both are the tokens' own, wherever padding puts them
        given, taken = chosen_first(signals.mask, signals.positions), chosen_first(signals.mask, words)
        return torch.where(signals.mask, weights.scatter(1, taken, weights.gather(1, given)), weights), state
