"""The training data of a step: problems, completions and rewards, in groups of one size or of several sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sage_rlvr.core.rollout_plans import rows_of_stages
from sage_rlvr.core.state import State
from sage_rlvr.models.sampler import Rollout, joined
from sage_rlvr.tasks.base import answer_id
from sage_rlvr.verifiers import Verdict

COLUMNS = ("rewards", "undecided", "answers", "right", "support", "guided")
"""Fields of `Groups` with one value per completion, (P, G)."""


@dataclass(frozen=True, eq=False)
class Groups:
    """P prompts with G completions each; row = place of the group * G + member.

    problems, prompts  P each; prompts are token lists
    rollout      the P * G completions
    rewards      (P, G): 1 correct, 0 wrong or undecided by the verifier, or the method's reward source; before any transform
    undecided    (P, G) bool
    numbers      (P,): number of each group within the step
    answers      (P, G) int64: equal for two completions that give the same answer; None if the method reads none
    right        (P, G) bool: the verifier's verdicts, if rewards come from a reward source
    support      (P, G): the values that a rollout plan then uses
    guided       (P, G) bool: true if the completion was sampled under guidance, which is not in `prompts`; None if none could be
    verdicts     of the P * G completions
    first        number of the G completions in the first stage; None = all
    """

    problems: list[Any]
    prompts: list[list[int]]
    rollout: Rollout
    rewards: Tensor
    undecided: Tensor
    numbers: Tensor
    answers: Tensor | None = None
    right: Tensor | None = None
    support: Tensor | None = None
    guided: Tensor | None = None
    verdicts: Sequence[Verdict] = ()
    first: int | None = None

    @property
    def looked_at(self) -> Tensor:
        """Values that the rollout plan uses, (P, G): rewards, or the reward source's support."""
        return self.rewards if self.support is None else self.support

    @property
    def row_ids(self) -> Tensor:
        """Number of each completion within the step, (P * G,)."""
        size = self.rewards.shape[1]
        return rows_of_stages(self.numbers, size, size if self.first is None else self.first).reshape(-1)

    @property
    def problem_ids(self) -> Tensor:
        """Problem of each completion, (P * G,) int64, the same number each time the problem is asked."""
        ids = torch.tensor([answer_id(str(problem.problem_id)) for problem in self.problems], device=self.rewards.device)
        return ids.repeat_interleave(self.rewards.shape[1])

    def columns(self) -> dict[str, Tensor]:
        """Return the fields of `COLUMNS` that are not None."""
        return {name: value for name in COLUMNS if (value := getattr(self, name)) is not None}

    def keep(self, kept: Tensor) -> Groups:
        """Return the marked groups, kept (P,) bool, at least one."""
        if bool(kept.all()):
            return self
        places = kept.nonzero().squeeze(1)
        rows = rows_of_groups(places, self.rewards.shape[1])
        rollout, verdicts = self.rollout.rows(rows), [self.verdicts[i] for i in rows.tolist()]
        problems, prompts = ([part[i] for i in places.tolist()] for part in (self.problems, self.prompts))
        columns: dict[str, Any] = {name: value[places] for name, value in self.columns().items()}
        columns |= {"numbers": self.numbers[places], "verdicts": verdicts}
        return replace(self, problems=problems, prompts=prompts, rollout=rollout, **columns)


@dataclass(frozen=True, eq=False)
class DrawnGroups:
    """The groups drawn for a step, and those that it trains on.

    first_stage   all groups; of a rollout plan with two stages those of the first
    kept_mask     (P,) bool: the prompts of the first stage that the step trains on
    refills       how often missing groups were replaced
    parts         the running state of the method's parts after it, in which only the rollout plan's has changed
    groups        the groups that the step trains on, one entry per size; empty if none is kept
    second_stage  the completions of the second stage
    """

    first_stage: Groups
    kept_mask: Tensor
    refills: int
    parts: State
    groups: tuple[Groups, ...]
    second_stage: tuple[Groups, ...] = ()


@dataclass(frozen=True, eq=False)
class RolloutBatch:
    """The B completions that a step trains on: those of its groups of one size, then of the next; padded to the widest."""

    groups: tuple[Groups, ...]
    rollout: Rollout

    @classmethod
    def of(cls, groups: Sequence[Groups], pad_id: int) -> RolloutBatch:
        """Return the batch of these groups, at least one."""
        rollouts = [part.rollout for part in groups]
        return cls(tuple(groups), rollouts[0] if len(rollouts) == 1 else joined(rollouts, pad_id))

    @cached_property
    def prompts(self) -> list[list[int]]:
        """Token ids of the prompt of each group, in the order of the groups."""
        return [prompt for part in self.groups for prompt in part.prompts]

    @cached_property
    def owners(self) -> Tensor:
        """Place of each completion's group, (B,), ascending."""
        sizes = torch.cat([torch.full((len(part.prompts),), part.rewards.shape[1]) for part in self.groups])
        return torch.arange(len(sizes)).repeat_interleave(sizes).to(self.rollout.tokens.device)

    @property
    def group_size(self) -> int | None:
        """Group size G; None if there are several sizes."""
        return self.groups[0].rewards.shape[1] if len(self.groups) == 1 else None

    @property
    def rewards(self) -> list[Tensor]:
        """Rewards (P, G) of the groups of each size."""
        return [part.rewards for part in self.groups]

    def column(self, name: str) -> Tensor:
        """Return the field of all groups called `name`, (B,)."""
        return torch.cat([getattr(part, name).reshape(-1) for part in self.groups])

    def split(self, values: Tensor) -> list[Tensor]:
        """Return values of all completions, (B,) or (P, G), split by the size of the groups."""
        parts = values.reshape(-1).split([part.rewards.numel() for part in self.groups])
        return [one.reshape(part.rewards.shape) for one, part in zip(parts, self.groups, strict=True)]


def together(parts: Sequence[Groups], pad_id: int) -> Groups:
    """Return the groups of several draws, all of one size, as one; rollouts padded to the widest."""
    columns: dict[str, Any] = {
        name: torch.cat([getattr(part, name) for part in parts]) for name in (*parts[0].columns(), "numbers")
    }
    problems, prompts = ([one for part in parts for one in getattr(part, name)] for name in ("problems", "prompts"))
    columns["verdicts"] = [one for part in parts for one in part.verdicts]
    return Groups(problems, prompts, joined([part.rollout for part in parts], pad_id), **columns)


def union(first: Groups, second: Groups, pad_id: int) -> Groups:
    """Return both stages of the prompts of `second` as one group each, the first stage's completions first."""
    own = first.keep(torch.isin(first.numbers, second.numbers))
    before = own.rewards.shape[1]
    places = torch.cat([torch.arange(part.rewards.numel()).reshape(part.rewards.shape) for part in (own, second)], 1)
    places[:, before:] += own.rewards.numel()
    rollout = joined([own.rollout, second.rollout], pad_id).rows(places.reshape(-1).to(own.rewards.device))
    verdicts = [*own.verdicts, *second.verdicts]
    columns: dict[str, Any] = {name: torch.cat([value, getattr(second, name)], 1) for name, value in own.columns().items()}
    columns["verdicts"] = [verdicts[i] for i in places.reshape(-1).tolist()]
    return replace(own, rollout=rollout, first=before, **columns)


def rows_of_groups(groups: Tensor, group_size: int) -> Tensor:
    """Return the row numbers (g * group_size,) of group numbers (g,)."""
    return (groups[:, None] * group_size + torch.arange(group_size, device=groups.device)).reshape(-1)
