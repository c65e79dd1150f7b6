"""The control for advantages that treat correct answers of a prompt differently: the same advantages, permuted among them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from sage_rlvr.core.advantages.base import (
    ADVANTAGES,
    Advantage,
    Groups,
    GroupSignals,
    ZeroVariance,
    checked,
    mean_where,
    require_binary,
    sees,
)
from sage_rlvr.core.keys import Key, chosen_first
from sage_rlvr.core.state import has_state
from sage_rlvr.errors import ConfigError


@ADVANTAGES.register
@dataclass(frozen=True)
class PlaceboRight(Advantage):
    """The advantages of `advantage`, permuted among the correct completions of each group: the control for which of them gets more.

    Each group keeps the multiset of advantages of its correct completions, so also their sum and scale; wrong completions keep
    theirs. So f'(P), how much a prompt counts, does not change. The permutation is uniform at each step, a function of key, step
    and row numbers: a resumed run permutes in the same way, and the order of rows does not matter. In expectation each correct
    completion of a group gets the mean advantage of the correct ones.

    A preference does not vanish completely: a group still counts according to the correct answers in it. A rare answer raises the
    sum of its group, and each of the c correct completions gets 1/c of that in expectation, all of it if c = 1. So if P(right) G is
    1 or less, the placebo is nearly the method; it is exactly the method if all correct completions get the same (GRPO, RLOO,
    MaxRL).

    Correct means the verifier's verdict before an extra changes the reward; the extra's preference is permuted away too. Verdicts
    other than 0 and 1 raise DataError.

    advantage: the advantage to permute; must have no running state.
    """

    advantage: Advantage
    random: ClassVar[bool] = True
    evens: ClassVar[bool] = True
    prefers: ClassVar[str] = (
        "advantages permuted: no preference on average within a group, although groups still weigh by their right "
        "answers"
    )

    def __post_init__(self) -> None:
        if not isinstance(self.advantage, Advantage):
            raise ConfigError(
                f"PlaceboRight: {self.advantage!r} is not an advantage; pass one, for example "
                "PlaceboRight(DistinctRight(8))."
            )
        if has_state(self.advantage) or self.advantage.random:
            raise ConfigError(
                f"PlaceboRight: {self.advantage!r} has a running state or draws at random; use an advantage of rewards "
                "and completions only, for example DistinctRight(8)."
            )

    @property
    def needs(self) -> frozenset[str]:
        """Signals of the permuted advantage; an empty set at least, because row numbers are read."""
        return self.advantage.needs or frozenset()

    @property
    def least_group(self) -> int:
        """Smallest group of the permuted advantage; the next five members are the permuted advantage's as well."""
        return self.advantage.least_group

    @property
    def couples_prompts(self) -> bool:
        return self.advantage.couples_prompts

    @property
    def takes_group_mean(self) -> bool:
        return self.advantage.takes_group_mean

    @property
    def against_kl(self) -> str:
        return self.advantage.against_kl

    @property
    def counts(self) -> str | None:
        return self.advantage.counts

    @property
    def legend(self) -> str:
        return self.advantage.legend

    @property
    def equation(self) -> str:
        return f"[{self.advantage.equation}] permuted among the right completions of its group"

    @property
    def ascends(self) -> str:
        own = self.advantage.ascends
        return f"that of ({own}) with each right completion given the mean over those of its group" if own else ""

    def at(self, step: int, total_steps: int) -> PlaceboRight:
        """Return the placebo of the permuted advantage at a step."""
        own = self.advantage.at(step, total_steps)
        return self if own is self.advantage else replace(self, advantage=own)

    def dead(self, size: int) -> ZeroVariance:
        """Return `dead` of the permuted advantage: a permutation changes nothing if all are correct or all wrong."""
        return replace(self.advantage.dead(size), none_right="refused")

    def __call__(self, rewards: Groups, seen: GroupSignals, step: int, key: Key) -> Groups:
        advantages, right = self._advantages_and_right(rewards, seen)
        rows = seen.require("rows", "PlaceboRight")
        words = key.bits(step, "placebo_right/order", rows.reshape(-1), 0).reshape(rows.shape)
        # from the order of row numbers to that of the words: both are the rows' own, wherever in the group they stand
        given, taken = chosen_first(right, rows), chosen_first(right, words)
        return torch.where(right, advantages.scatter(1, taken, advantages.gather(1, given)), advantages)

    def expected(self, rewards: Groups, seen: GroupSignals) -> Groups:
        """Return the mean over the permutations: each correct completion gets the mean of the group's correct ones."""
        advantages, right = self._advantages_and_right(rewards, seen)
        return torch.where(right, mean_where(advantages, right.float()), advantages)

    def _advantages_and_right(self, rewards: Groups, seen: GroupSignals) -> tuple[Groups, Tensor]:
        """Return the advantages to permute and which completions are correct, both (P, G)."""
        labels = checked(rewards if seen.verdicts is None else seen.verdicts, 2, "PlaceboRight")
        require_binary(
            labels, "PlaceboRight",
            advice="it permutes among right completions, so verdicts must be 0 or 1: use a verifier with right and wrong, or "
            f"{type(self.advantage).__name__} without its placebo",
        )  # fmt: skip
        advantages: Tensor = self.advantage(rewards, *((seen,) if sees(self.advantage) else ()))
        return advantages, labels == 1
