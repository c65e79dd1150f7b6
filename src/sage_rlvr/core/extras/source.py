"""The kind of extra that rewards completions instead of the verifier, by the policy's probability of a reference answer."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sage_rlvr.core.extras.base import Extra, MethodParts, the_one
from sage_rlvr.errors import DataError

Baseline = Literal["initial", "current", "none"]


@dataclass(frozen=True, eq=False)
class Substituted:
    """B completions with the reference answer instead of their own, scored token by token; nats, no gradient.

    logps, mask    (B, M) log-probs of the reference's tokens, placed after the completion's text before its answer
    before         (B, M) the same tokens placed directly after the prompt, under the same mask; None if nothing is subtracted
    formed         (B,) false for a completion without an answer to replace (truncated, malformed): its row of mask is empty
    repeated       (B,) count of the completion's most frequent n-gram of tokens
    """

    logps: Float[Tensor, "B M"]
    mask: Bool[Tensor, "B M"]
    before: Float[Tensor, "B M"] | None
    formed: Bool[Tensor, " B"]
    repeated: Int[Tensor, " B"]

    def __post_init__(self) -> None:
        wrong = (self.mask.any(dim=1) != self.formed).nonzero()
        if len(wrong):
            raise DataError(
                f"Substituted: row {int(wrong[0])} counts {int(self.mask[wrong[0]].sum())} reference tokens, but "
                f"formed is {bool(self.formed[wrong[0]])}; a formed completion must have at least one, any other none."
            )


@dataclass(frozen=True, eq=False)
class SourceRewards:
    """Rewards (B,) float32 of completions, and their support (B,) float32: the part that a filter by spread looks at."""

    rewards: Float[Tensor, " B"]
    support: Float[Tensor, " B"]


class RewardSource(Extra):
    """An extra that rewards completions instead of the verifier, which then only gives metrics; a method has at most one.

    A subclass is a frozen dataclass with `equation`, r as one line, and `rewards_of`. `ascends` describes the effect of the reward
    term in expectation.
    """

    kind_name: ClassVar[str] = "reward_source"

    @property
    def baseline(self) -> Baseline:
        """Weights under which `Substituted.before` is scored; "none", the default, does not score it."""
        return "none"

    @property
    def given(self) -> float:
        """Share of the reference's tokens, from the first, that are replaced by the completion's own; 0 by default."""
        return 0.0

    @property
    def ngram(self) -> int:
        """Length in tokens of the n-grams of `Substituted.repeated`; 10 by default."""
        return 10

    @abstractmethod
    def rewards_of(self, seen: Substituted) -> SourceRewards:
        """Return the rewards of B completions, each computed by itself, without gradient."""

    def conflict(self, method: MethodParts) -> str:
        if (buffer := the_one(method.extras, "buffer")) is not None:
            return (
                f"replaces the verifier, but {type(buffer).__name__} stores right answers, which needs one: remove one of "
                "the two."
            )
        return super().conflict(method)

    @property
    def hook(self) -> str:
        return "rewards_of"

    @property
    def changes_credit(self) -> bool:
        return True


def most_repeated(tokens: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"], n: int) -> Int[Tensor, " B"]:
    """Return how often the most frequent n-gram of counted tokens occurs in each row; 0 if a row has fewer than n tokens."""
    rows = [row[kept].unfold(0, n, 1) if int(kept.sum()) >= n else None for row, kept in zip(tokens, mask, strict=True)]
    counts = [0 if grams is None else int(torch.unique(grams, dim=0, return_counts=True)[1].max()) for grams in rows]
    return torch.tensor(counts, device=tokens.device)


def rank_metrics(rewards: Float[Tensor, "P G"], right: Bool[Tensor, "P G"]) -> dict[str, float]:
    """Return how well rewards rank completions by their verdicts: P(reward of a correct one > of a wrong one), ties one half.

    `reward/auc` is over all pairs of the step; `reward/auc_in_groups` over pairs within a group, which is what group advantages
    see. Each is omitted if it has no pair.
    """
    metrics = {"reward/auc": _auc(rewards.reshape(1, -1), right.reshape(1, -1)), "reward/auc_in_groups": _auc(rewards, right)}
    return {name: value for name, value in metrics.items() if value is not None}


def _auc(rewards: Float[Tensor, "P G"], right: Bool[Tensor, "P G"]) -> float | None:
    """Return the AUC by midranks within rows (Mann and Whitney 1947); None without a pair."""
    values = rewards.detach().double()
    below, upto = (torch.searchsorted(values.sort(dim=1).values, values, side=side) for side in ("left", "right"))
    ranks = (below + upto + 1).double() / 2
    many, wrong = right.sum(dim=1).double(), (~right).sum(dim=1).double()
    pairs = float((many * wrong).sum())
    above = torch.where(right, ranks, 0.0).sum(dim=1) - many * (many + 1) / 2
    return float(torch.where(wrong > 0, above, 0.0).sum()) / pairs if pairs else None
