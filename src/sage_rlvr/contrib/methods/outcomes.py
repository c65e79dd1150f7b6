"""Outcome-based exploration: rare answers get a bonus, counted over the run or within the group (arXiv 2509.06941).

Paper: https://arxiv.org/abs/2509.06941. Recipe: `sage-rlvr train outcome_counts --task TASK`.
Numbers worked out by hand: tests/core/objective/test_reward_transforms.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, Unpack

import torch
from jaxtyping import Int
from torch import Tensor

from sage_rlvr.core.advantages import LeaveOneOut
from sage_rlvr.core.advantages.base import Groups, GroupSignals, ZeroVariance
from sage_rlvr.core.extras.base import EXTRAS, Extra
from sage_rlvr.core.extras.rewards.base import right_of
from sage_rlvr.core.keys import pair_ids
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import FixedBudget
from sage_rlvr.core.state import PartState
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.errors import ConfigError
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored

BonusOn = Literal["correct", "all"]


@EXTRAS.register
@dataclass(frozen=True)
class OutcomeCounts(Extra):
    """r = R + bonus / sqrt(max(N, 1)), N how often this answer was given to this problem in earlier steps.

    With an advantage that subtracts the group's mean it is the paper's UCB with the mean as baseline. `bonus_on`: "all" answers, as
    in the paper, or only "correct" ones. A completion without an answer is rewarded nothing and not counted, and so are groups
    that a rollout plan drops. The counts are the state: of the `memory` most recent pairs of problem and answer; a forgotten one is
    new again. needs: "answers", "problems"; DataError for rewards other than 0 and 1 with "correct".

    bonus: bonus of an answer seen at most once, in units of a right answer's reward.
    """

    bonus: float = 0.2
    bonus_on: BonusOn = "all"
    memory: int = 100_000
    prefers: ClassVar[str] = "those that occurred less often so far"
    needs: ClassVar[frozenset[str]] = frozenset({"answers", "problems"})

    def __post_init__(self) -> None:
        _check("OutcomeCounts", "bonus", self.bonus, self.bonus_on)
        if isinstance(self.memory, bool) or not isinstance(self.memory, int) or self.memory < 1:
            raise ConfigError(
                f"OutcomeCounts: memory = {self.memory!r} is a number of (problem, answer) pairs; set a whole number "
                ">= 1."
            )

    @property
    def equation(self) -> str:
        return f"R + {self.bonus:g}{' R' if self.bonus_on == 'correct' else ''} / sqrt(max(N, 1)),  N earlier ones of this answer"

    def dead(self, size: int) -> ZeroVariance:
        """Nonzero in every group with rare answers, or only in right ones."""
        return _dead(self.bonus, self.bonus_on)

    def start(self) -> dict[str, Tensor]:
        """keys (n,) int64, oldest first, and their counts (n,) int64; the mean bonus and the share of new answers last seen."""
        none = torch.zeros(0, dtype=torch.int64)
        return {"keys": none, "counts": none.clone(), "mean_bonus": torch.zeros(()), "new_frac": torch.zeros(())}

    def after_rewards(self, rewards: Groups, seen: GroupSignals, state: PartState) -> Groups:
        return rewards.detach().float() + self._bonus(rewards, seen, state)[0]

    def learn(self, rewards: Groups, seen: GroupSignals, state: PartState) -> dict[str, Tensor]:
        bonus, keys, counts = self._bonus(rewards, seen, state)
        given = seen.require("answers", "OutcomeCounts") != 0
        known, numbers = _counted(state["keys"], state["counts"], keys[given], self.memory)
        new = (given & (counts == 0)).sum() / given.sum().clamp(min=1)
        return {"keys": known, "counts": numbers, "mean_bonus": bonus.mean(), "new_frac": new}

    def _bonus(
        self, rewards: Groups, seen: GroupSignals, state: PartState
    ) -> tuple[Groups, Int[Tensor, "P G"], Int[Tensor, "P G"]]:
        """The bonus of each completion, the key of its problem and answer, and how often that was counted."""
        answers = seen.require("answers", "OutcomeCounts")
        keys = pair_ids(seen.require("problems", "OutcomeCounts"), answers)
        counts = _counts_of(keys, state["keys"], state["counts"])
        earned = answers != 0
        if self.bonus_on == "correct":
            earned = earned & (right_of(rewards, "OutcomeCounts") == 1)
        return torch.where(earned, self.bonus * counts.clamp(min=1).float().rsqrt(), 0.0), keys, counts


@EXTRAS.register
@dataclass(frozen=True)
class OutcomeRepeats(Extra):
    """r = R - weight (m - 1) / G, m how often the completion's answer occurs in its group: the paper's batch exploration.

    `bonus_on`: "all" answers, as in the paper, or only "correct" ones. A completion without an answer keeps its reward. needs:
    "answers"; DataError for rewards other than 0 and 1 with "correct".

    weight: penalty per repeat, in units of a right answer's reward.
    """

    weight: float = 0.2
    bonus_on: BonusOn = "all"
    prefers: ClassVar[str] = "those that are rarer in the group"
    needs: ClassVar[frozenset[str]] = frozenset({"answers"})

    def __post_init__(self) -> None:
        _check("OutcomeRepeats", "weight", self.weight, self.bonus_on)

    @property
    def equation(self) -> str:
        share = f"{self.weight:g}{' R' if self.bonus_on == 'correct' else ''}"
        return f"R - {share} (m - 1) / G,  m completions of the group with this answer"

    def dead(self, size: int) -> ZeroVariance:
        """Nonzero in every group with repeated answers, or only in right ones."""
        return _dead(self.weight, self.bonus_on)

    def after_rewards(self, rewards: Groups, seen: GroupSignals, state: PartState) -> Groups:
        values = right_of(rewards, "OutcomeRepeats") if self.bonus_on == "correct" else rewards.detach().float()
        answers = seen.require("answers", "OutcomeRepeats")
        others = (answers[:, :, None] == answers[:, None, :]).sum(dim=2) - 1
        charged = (answers != 0) & (values == 1) if self.bonus_on == "correct" else answers != 0
        return values - torch.where(charged, self.weight * others / values.shape[1], 0.0)


def _dead(size: float, bonus_on: BonusOn) -> ZeroVariance:
    if bonus_on == "correct":
        return ZeroVariance("compared" if size else 1.0, 0.0, "refused")
    return ZeroVariance("compared", "compared") if size else ZeroVariance(1.0)


def _check(part: str, name: str, size: float, bonus_on: str) -> None:
    if not 0 <= size < math.inf:
        raise ConfigError(f"{part}: {name} = {size!r}; set a finite number >= 0, in units of a right answer's reward.")
    if bonus_on not in ("correct", "all"):
        raise ConfigError(f"{part}: bonus_on = {bonus_on!r}; set correct or all.")


def _counts_of(keys: Int[Tensor, "P G"], known: Int[Tensor, " N"], counts: Int[Tensor, " N"]) -> Int[Tensor, "P G"]:
    """The count of each key; 0 for an unknown one."""
    if not len(known):
        return torch.zeros_like(keys)
    ordered, order = known.sort()
    index = torch.searchsorted(ordered, keys).clamp(max=len(known) - 1)
    return torch.where(ordered[index] == keys, counts[order[index]], 0)


def _counted(
    known: Int[Tensor, " N"], counts: Int[Tensor, " N"], keys: Int[Tensor, " B"], memory: int
) -> tuple[Int[Tensor, " M"], Int[Tensor, " M"]]:
    """The table with `keys` counted, each row at the place where it was last seen; the oldest are removed if there are too many."""
    every = torch.cat([known, keys])
    unique, row = torch.unique(every, return_inverse=True)
    total = torch.zeros_like(unique).index_add(0, row, torch.cat([counts, torch.ones_like(keys)]))
    last = torch.zeros_like(unique).scatter_reduce(0, row, torch.arange(len(every), device=row.device), "amax")
    kept = last.argsort()[-memory:]
    return unique[kept], total[kept]


@METHODS.register(label="Outcome counts", about="a bonus for answers seldom seen", arxiv="2509.06941")
@anchored(beta=0.0, estimator="k1", placement="reward")
def outcome_counts(
    *,
    bonus: float = 0.2,
    bonus_on: Literal["correct", "all"] = "all",
    memory: int = 100_000,
    **anchor: Unpack[AnchorKeys],
) -> Method:
    """L = (1/(B L)) sum_i sum_t -min(rho A, clip(rho) A), A = RLOO's of r = R + bonus / sqrt(max(N, 1)) (arXiv 2509.06941).

    N: how often this answer was given to this problem in earlier steps; historical exploration with the mean as baseline.
    The counts are part of the checkpoint. bonus_on: "correct" gives the bonus only to correct answers, "all" also to wrong
    ones, as in the paper.
    """
    extras = (OutcomeCounts(bonus, bonus_on, memory),)
    return Method("outcome_counts", LeaveOneOut(), Clip(), anchor_of(**anchor), FixedBudget(), extras=extras)


@METHODS.register(label="Outcome repeats", about="a charge for repeats in a group", arxiv="2509.06941")
@anchored(beta=0.0, estimator="k1", placement="reward")
def outcome_repeats(
    *, weight: float = 0.2, bonus_on: Literal["correct", "all"] = "all", **anchor: Unpack[AnchorKeys]
) -> Method:
    """L = (1/(B L)) sum_i sum_t -min(rho A, clip(rho) A), A = RLOO's of r = R - weight (m - 1) / G (arXiv 2509.06941).

    m: how often the completion's answer occurs in its group; batch exploration. bonus_on: as in `outcome_counts`.
    """
    extras = (OutcomeRepeats(weight, bonus_on),)
    return Method("outcome_repeats", LeaveOneOut(), Clip(), anchor_of(**anchor), FixedBudget(), extras=extras)
