"""The control for advantages that reward right answers of a prompt differently: the same advantages, permuted among them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from sage_rlvr.core.advantages.base import (
    ADVANTAGES,
    Advantage,
    Dead,
    Groups,
    Seen,
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
    """The advantages of `advantage`, permuted among the right completions of each group: the control for which of them earns more.

    Each group keeps what its right completions earn, as a multiset, so its sum and its scale; its wrong ones keep theirs. So f'(P),
    how much a prompt counts, is the method's own. Which right completion gets which is drawn at each step, uniformly, by key, step
    and row numbers: a resumed run draws the same, and the order of rows does not matter. Given its group, each right completion
    earns the mean of the right ones on average.

    What is left of a preference: a group still counts by the right answers that it holds. A rare one raises the sum of its group,
    of which each of c right completions gets 1/c on average, all of it where c = 1. So where P(right) G is 1 or less, the placebo
    is nearly the method; it is the method itself where all right completions are rewarded alike (GRPO, RLOO, MaxRL).

    Right is what the verifier says, before an extra changes it, whose preference is permuted away too. DataError if the verifier
    says neither 0 nor 1.

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
        """Those of the permuted advantage; an empty set too, as the row numbers are read."""
        return self.advantage.needs or frozenset()

    @property
    def least_group(self) -> int:
        """That of the permuted advantage, as are the next five."""
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
        """With the permuted advantage as it is at a step."""
        own = self.advantage.at(step, total_steps)
        return self if own is self.advantage else replace(self, advantage=own)

    def dead(self, size: int) -> Dead:
        """What the permuted advantage pays: where all are right or all wrong, a permutation takes nothing away."""
        return replace(self.advantage.dead(size), none_right="refused")

    def __call__(self, rewards: Groups, seen: Seen, step: int, key: Key) -> Groups:
        advantages, right = self._advantages_and_right(rewards, seen)
        rows = seen.require("rows", "PlaceboRight")
        words = key.bits(step, "placebo_right/order", rows.reshape(-1), 0).reshape(rows.shape)
        # from the order of row numbers to that of the words: both are the rows' own, wherever in the group they stand
        given, taken = chosen_first(right, rows), chosen_first(right, words)
        return torch.where(right, advantages.scatter(1, taken, advantages.gather(1, given)), advantages)

    def expected(self, rewards: Groups, seen: Seen) -> Groups:
        """The mean over the draws: each right completion earns the mean of the group's right ones."""
        advantages, right = self._advantages_and_right(rewards, seen)
        return torch.where(right, mean_where(advantages, right.float()), advantages)

    def _advantages_and_right(self, rewards: Groups, seen: Seen) -> tuple[Groups, Tensor]:
        """(P, G) what the permuted advantage pays, and which completions are right."""
        labels = checked(rewards if seen.verdicts is None else seen.verdicts, 2, "PlaceboRight")
        require_binary(
            labels, "PlaceboRight",
            advice="it permutes among right completions, so verdicts must be 0 or 1: use a verifier with right and wrong, or "
            f"{type(self.advantage).__name__} without its placebo",
        )  # fmt: skip
        advantages: Tensor = self.advantage(rewards, *((seen,) if sees(self.advantage) else ()))
        return advantages, labels == 1
