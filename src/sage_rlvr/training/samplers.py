"""Sampling of the groups that a step trains on: one sampler for the entire run, chosen by the method.

    PlainSampler     every prompt once, all groups kept
    SpreadSampler    the same, first tokens chosen by the rollout plan
    DynamicSampler   groups that the rollout plan does not keep are replaced by new prompts
    TwoStageSampler  some prompts get more completions, drawn after the first have been judged
    StoredOnly       trains on stored answers; draws by one of the other samplers, and only in order to store correct answers

The groups of a step are numbered as they are drawn. The problem of group n is a function of (seed, step, n), and its
completions are functions of the policy and of (seed, step, n * group_size + member): neither depends on how many groups were
kept or on the number of refills. Two arms of one seed see the same prompts, refills included.

After two stages a step has groups of several sizes, one `Groups` per size (groups.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sage_rlvr.core.method import Method
from sage_rlvr.core.rollout_plans import (
    RolloutPlan,
    Spread,
    Staged,
    is_guided,
    is_spread,
    is_staged,
    kept_by,
    learned_by,
)
from sage_rlvr.core.state import State
from sage_rlvr.training.first_tokens import first_token_weights
from sage_rlvr.training.groups import DrawnGroups, Groups, RolloutBatch, together, union
from sage_rlvr.training.loop_state import TrainState
from sage_rlvr.training.reference import reference_metrics
from sage_rlvr.training.replay import NoReplay, Replay
from sage_rlvr.training.rollouts import (
    draw,
    draw_more,
    guided_weights,
    kept_metrics,
    rollout_metrics,
    show,
    stage_metrics,
)


def sampler_of(method: Method) -> Sampler:
    """Return the sampler of a method."""
    plan = method.rollout
    sampler: Sampler
    if plan is None:
        sampler = PlainSampler()
    elif is_spread(plan):
        sampler = SpreadSampler(plan)
    else:
        sampler = TwoStageSampler(plan) if is_staged(plan) else DynamicSampler(plan)
    if method.buffer is None or not method.buffer.alone:
        return sampler
    return StoredOnly(sampler if method.buffer.policy else None)


@dataclass(frozen=True, eq=False)
class Collected:
    """The data that a step trains on.

    groups   one entry per size; none if the step has no policy gradient
    parts    the running state of the method's parts, in which only the sampler's own has changed
    metrics  of all sampled completions, trained on or not
    """

    groups: tuple[Groups, ...]
    parts: State
    metrics: dict[str, float]


class Sampler(ABC):
    """Draws and judges the completions of a step, and chooses those that are trained on.

    A sampler has no state. Values that persist between steps are the running state of the method's parts that belong to it,
    in the loop's `parts`: the rollout plan's ("rollout") and the stored answers (the buffer's slot).
    """

    @abstractmethod
    def draw(self, loop: TrainState, step: int) -> DrawnGroups:
        """Return all groups of a step, and which of them are kept."""

    def metrics(self, loop: TrainState, drawn: DrawnGroups) -> dict[str, float]:
        """Return metrics of all sampled completions, kept or not, and their cost in tokens."""
        return rollout_metrics(drawn)

    def weights(self, rows: RolloutBatch, logps: Tensor) -> tuple[Tensor | None, dict[str, float]]:
        """Return each completion's weight in the loss (B,), None if all are 1; and metrics. logps (B, T): of the policy."""
        return None, {}

    def collect(self, loop: TrainState, step: int, replay: Replay) -> Collected:
        """Draw a step's groups; the watch of reasons and the step's replay see all of them."""
        drawn = self.draw(loop, step)
        metrics = self.metrics(loop, drawn) | reference_metrics(loop)
        if loop.method.reward_source is None:  # else the policy computes the rewards, and the verifier only watches
            show(loop, step, drawn.first_stage)
        for part in (drawn.first_stage, *drawn.second_stage):
            replay.see(part)
        return Collected(drawn.groups, drawn.parts, metrics)

    def again(self, loop: TrainState, step: int, replay: Replay) -> tuple[Tensor, Tensor, list[Any]]:
        """Tokens, mask and problems of a step that is taken again, with the weights it was drawn with: the same batch."""
        groups = RolloutBatch.of(self.draw(loop, step).groups, loop.tokens.pad_id)
        return groups.rollout.tokens, groups.rollout.mask, [problem for part in groups.groups for problem in part.problems]


@dataclass(frozen=True)
class PlainSampler(Sampler):
    """`prompts_per_step` groups, all kept."""

    def draw(self, loop: TrainState, step: int) -> DrawnGroups:
        groups = draw(loop, step, 0, loop.config.rollout.prompts_per_step)
        return DrawnGroups(groups, torch.ones_like(groups.numbers, dtype=torch.bool), 0, loop.parts, (groups,))


@dataclass(frozen=True)
class SpreadSampler(PlainSampler):
    """`prompts_per_step` groups, all kept; the plan chooses their first tokens (`rollouts.draw_rollout`)."""

    plan: Spread

    def weights(self, rows: RolloutBatch, logps: Tensor) -> tuple[Tensor | None, dict[str, float]]:
        """Return importance weights of completions with chosen first tokens, if the plan weights them."""
        return first_token_weights(self.plan, rows, logps)


@dataclass(frozen=True)
class DynamicSampler(Sampler):
    """Sampler of `prompts_per_step` groups, of which the plan keeps some, with at most `max_refills` refills."""

    plan: RolloutPlan

    def draw(self, loop: TrainState, step: int) -> DrawnGroups:
        plan, wanted = self.plan, loop.config.rollout.prompts_per_step
        parts = [draw(loop, step, 0, wanted)]
        kept = [kept_by(plan, parts[0].looked_at, loop.parts)]
        while (missing := wanted - sum(int(k.sum()) for k in kept)) and len(parts) <= plan.max_refills:
            parts.append(draw(loop, step, sum(len(part.prompts) for part in parts), missing))
            kept.append(kept_by(plan, parts[-1].looked_at, loop.parts))
        everything, chosen = together(parts, loop.tokens.pad_id), torch.cat(kept)
        groups = (everything.keep(chosen),) if bool(chosen.any()) else ()
        return DrawnGroups(everything, chosen, len(parts) - 1, learned_by(plan, everything.looked_at, loop.parts), groups)

    def metrics(self, loop: TrainState, drawn: DrawnGroups) -> dict[str, float]:
        """Return the metrics with the number of kept groups and their mean reward."""
        return super().metrics(loop, drawn) | _kept(loop, drawn)


@dataclass(frozen=True)
class TwoStageSampler(Sampler):
    """`prompts_per_step` groups, then as many more completions of each prompt as the plan gives it; both stages may be kept."""

    plan: Staged

    def draw(self, loop: TrainState, step: int) -> DrawnGroups:
        plan, first = self.plan, draw(loop, step, 0, loop.config.rollout.prompts_per_step)
        extra = plan.extra(first.looked_at)
        if is_guided(plan):
            first = replace(first, guided=torch.zeros_like(first.undecided))
        second = tuple(draw_more(loop, step, first, extra, int(size)) for size in extra.unique() if size)
        if plan.baseline == "union":
            even = [first.keep(extra == 0)] if bool((extra == 0).any()) else []
            trained = even + [union(first, more, loop.tokens.pad_id) for more in second]
        else:
            trained = ([first] if plan.baseline == "stages" else []) + list(second)
        marks = [plan.keeps(part.looked_at) for part in trained]
        numbers = torch.cat([part.numbers[mark] for part, mark in zip(trained, marks, strict=True)] or [first.numbers[:0]])
        groups = tuple(part.keep(mark) for part, mark in zip(trained, marks, strict=True) if mark.any())
        return DrawnGroups(first, torch.isin(first.numbers, numbers), 0, loop.parts, groups, second)

    def metrics(self, loop: TrainState, drawn: DrawnGroups) -> dict[str, float]:
        """Return the metrics with the number of kept groups and those of the second stage.

        Means over completions are those of the first stage, which has equally many of each prompt; tokens and completions are of
        both.
        """
        return super().metrics(loop, drawn) | _kept(loop, drawn) | stage_metrics(drawn)

    def weights(self, rows: RolloutBatch, logps: Tensor) -> tuple[Tensor | None, dict[str, float]]:
        """Return importance weights of completions that were sampled under guidance, if the plan has any."""
        return guided_weights(self.plan, rows, logps) if is_guided(self.plan) else (None, {})


@dataclass(frozen=True)
class StoredOnly(Sampler):
    """Sampler without groups to train on. by: the sampler of completions from which correct ones are stored; None = no sampling."""

    by: Sampler | None

    def draw(self, loop: TrainState, step: int) -> DrawnGroups:
        assert self.by is not None, "a step without a rollout draws nothing"
        return self.by.draw(loop, step)

    def metrics(self, loop: TrainState, drawn: DrawnGroups) -> dict[str, float]:
        assert self.by is not None
        return self.by.metrics(loop, drawn)

    def collect(self, loop: TrainState, step: int, replay: Replay) -> Collected:
        if self.by is None:
            return Collected((), loop.parts, {"rollout/tokens": 0.0})
        return replace(super().collect(loop, step, replay), groups=())

    def again(self, loop: TrainState, step: int, replay: Replay) -> tuple[Tensor, Tensor, list[Any]]:
        """Without a rollout, the first stored answers of the step."""
        if self.by is None:
            assert not isinstance(replay, NoReplay), "only a method with a buffer trains on stored answers"
            rows = replay.rows(step * loop.config.updates.per_step)
            return rows.answers.tokens, rows.mask, [loop.problems[i] for i in rows.answers.problem.tolist()]
        return super().again(loop, step, replay)


def _kept(loop: TrainState, drawn: DrawnGroups) -> dict[str, float]:
    rewards = drawn.first_stage.rewards
    return kept_metrics(rewards, rewards[drawn.kept_mask], loop.config.rollout.prompts_per_step, drawn.refills)
