"""The groups a step trains on: problems, completions, rewards, and what a rollout plan keeps and refills.

    draw prompts_per_step groups -> verify -> keep those that the plan marks -> draw as many new ones as are missing -> ...

The groups of a step are numbered as they are drawn. The problem of group n is a function of (seed, step, n), and its
completions are functions of the policy and of (seed, step, n * group_size + member): how many groups were kept, or in
how many refills they came, changes neither. Two arms of one seed see the same prompts, refills included.

A plan with stages (core/stages.py) gives some prompts more completions in a second stage, drawn after the first has been judged. A step then has
groups of several sizes, each size a `Groups` of its own; `Rows` puts their completions one after another for the updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sage_rlvr.core.stages import Staged, is_staged, rows_of_stages
from sage_rlvr.models.sampler import Rollout, joined, sample
from sage_rlvr.tasks.base import answer_id, answer_key, verdicts

if TYPE_CHECKING:
    from sage_rlvr.training.loop import Loop


@dataclass(frozen=True, eq=False)
class Groups:
    """P prompts with G completions each; row = place of the group * G + member.

    problems, prompts (token lists): P each. rollout: the P * G completions. rewards (P, G): 1 right, 0 wrong or undecided,
    as the verifier says, before any transform. undecided (P, G) bool. numbers (P,): which group of the step each is.
    answers (P, G) int64: equal for two completions that give the same answer; None where the method reads none.
    first: how many of the G are of the first stage; None = all.
    """

    problems: list[Any]
    prompts: list[list[int]]
    rollout: Rollout
    rewards: Tensor
    undecided: Tensor
    numbers: Tensor
    answers: Tensor | None = None
    first: int | None = None

    @property
    def row_ids(self) -> Tensor:
        """(P * G,) number of each completion within the step."""
        size = self.rewards.shape[1]
        return rows_of_stages(self.numbers, size, size if self.first is None else self.first).reshape(-1)

    @property
    def problem_ids(self) -> Tensor:
        """(P * G,) int64, the problem of each completion, the same number whenever it comes back."""
        ids = torch.tensor([answer_id(str(problem.problem_id)) for problem in self.problems], device=self.rewards.device)
        return ids.repeat_interleave(self.rewards.shape[1])

    def keep(self, kept: Tensor) -> Groups:
        """The marked ones, kept (P,) bool, at least one."""
        if bool(kept.all()):
            return self
        places = kept.nonzero().squeeze(1)
        rollout = self.rollout.rows(rows_of_groups(places, self.rewards.shape[1]))
        problems, prompts = ([part[i] for i in places.tolist()] for part in (self.problems, self.prompts))
        answers = None if self.answers is None else self.answers[places]
        columns = (self.rewards[places], self.undecided[places], self.numbers[places])
        return Groups(problems, prompts, rollout, *columns, answers, self.first)


@dataclass(frozen=True, eq=False)
class Drawn:
    """What was drawn for a step: `everything`, all groups of the first stage, and `second`, the completions of the second.

    kept (P,) bool: which prompts it trains on. groups: with what, the groups of each size; none where none is kept.
    """

    everything: Groups
    kept: Tensor
    refills: int
    groups: tuple[Groups, ...]
    second: tuple[Groups, ...] = ()


@dataclass(frozen=True, eq=False)
class Rows:
    """The B completions that a step trains on: those of its groups of one size, then of the next; padded to the widest."""

    groups: tuple[Groups, ...]
    rollout: Rollout

    @classmethod
    def of(cls, groups: Sequence[Groups], pad_id: int) -> Rows:
        """At least one."""
        rollouts = [part.rollout for part in groups]
        return cls(tuple(groups), rollouts[0] if len(rollouts) == 1 else joined(rollouts, pad_id))

    @cached_property
    def prompts(self) -> list[list[int]]:
        return [prompt for part in self.groups for prompt in part.prompts]

    @cached_property
    def owners(self) -> Tensor:
        """(B,) place of each completion's group, ascending."""
        sizes = torch.cat([torch.full((len(part.prompts),), part.rewards.shape[1]) for part in self.groups])
        return torch.arange(len(sizes)).repeat_interleave(sizes).to(self.rollout.tokens.device)

    @property
    def group_size(self) -> int | None:
        """G; None where there are several."""
        return self.groups[0].rewards.shape[1] if len(self.groups) == 1 else None

    def column(self, name: str) -> Tensor:
        """(B,) of what each of the groups has under that name."""
        return torch.cat([getattr(part, name).reshape(-1) for part in self.groups])

    def split(self, values: Tensor) -> list[Tensor]:
        """Values of all completions, (B,) or (P, G), as those of the groups of each size."""
        found = values.reshape(-1).split([part.rewards.numel() for part in self.groups])
        return [one.reshape(part.rewards.shape) for one, part in zip(found, self.groups, strict=True)]


def draw_groups(loop: Loop, step: int) -> Drawn:
    """`prompts_per_step` groups, all kept. With a rollout plan as many as it keeps, after at most `max_refills` refills."""
    plan, wanted = loop.method.rollout, loop.config.rollout.prompts_per_step
    parts = [draw(loop, step, 0, wanted)]
    if plan is None:
        return Drawn(parts[0], torch.ones_like(parts[0].numbers, dtype=torch.bool), 0, (parts[0],))
    if is_staged(plan):
        return with_second_stage(loop, step, plan, parts[0])
    kept = [plan.keeps(parts[0].rewards)]
    while (missing := wanted - sum(int(k.sum()) for k in kept)) and len(parts) <= plan.max_refills:
        parts.append(draw(loop, step, sum(len(part.prompts) for part in parts), missing))
        kept.append(plan.keeps(parts[-1].rewards))
    everything, chosen = together(parts, loop.tokens.pad_id), torch.cat(kept)
    return Drawn(everything, chosen, len(parts) - 1, (everything.keep(chosen),) if chosen.any() else ())


def with_second_stage(loop: Loop, step: int, plan: Staged, first: Groups) -> Drawn:
    """The second stage of groups that were drawn and judged, as the plan gives it to them, and what of both is kept."""
    extra = plan.extra(first.rewards)
    second = tuple(draw_more(loop, step, first, extra, int(size)) for size in extra.unique() if size)
    if plan.baseline == "union":
        even = [first.keep(extra == 0)] if bool((extra == 0).any()) else []
        trained = even + [union(first, more, loop.tokens.pad_id) for more in second]
    else:
        trained = ([first] if plan.baseline == "stages" else []) + list(second)
    marks = [plan.keeps(part.rewards) for part in trained]
    numbers = torch.cat([part.numbers[mark] for part, mark in zip(trained, marks, strict=True)] or [first.numbers[:0]])
    groups = tuple(part.keep(mark) for part, mark in zip(trained, marks, strict=True) if mark.any())
    return Drawn(first, torch.isin(first.numbers, numbers), 0, groups, second)


def draw_more(loop: Loop, step: int, groups: Groups, extra: Tensor, size: int) -> Groups:
    """`size` more completions of each prompt for which `extra` (P,) says so."""
    places = (extra == size).nonzero().squeeze(1)
    problems, prompts = ([part[i] for i in places.tolist()] for part in (groups.problems, groups.prompts))
    numbers = groups.numbers[places]
    rollout = sampled(loop, prompts, step, size, rows_of_stages(numbers, size, 0).reshape(-1))
    rewards, undecided = rewards_of(loop, problems, rollout)
    answers = None if groups.answers is None else answers_of(loop, problems, rollout)
    return Groups(problems, prompts, rollout, rewards, undecided, numbers, answers, first=0)


def union(first: Groups, second: Groups, pad_id: int) -> Groups:
    """Both stages of the prompts of `second` as one group each, the first stage's completions first."""
    own = first.keep(torch.isin(first.numbers, second.numbers))
    before = own.rewards.shape[1]
    places = torch.cat([torch.arange(part.rewards.numel()).reshape(part.rewards.shape) for part in (own, second)], 1)
    places[:, before:] += own.rewards.numel()
    rollout = joined([own.rollout, second.rollout], pad_id).rows(places.reshape(-1).to(own.rewards.device))
    columns = [torch.cat([getattr(part, name) for part in (own, second)], 1) for name in ("rewards", "undecided")]
    answers = None if own.answers is None or second.answers is None else torch.cat([own.answers, second.answers], 1)
    return Groups(own.problems, own.prompts, rollout, columns[0], columns[1], own.numbers, answers, first=before)


def draw(loop: Loop, step: int, first: int, count: int) -> Groups:
    """Groups number `first` to `first + count` of a step: sampled from the policy as it is, and verified."""
    problems = problems_of_step(loop, step, first, count)
    prompts = [list(loop.ask(p).ids) for p in problems]
    rollout = draw_rollout(loop, prompts, step, first)
    rewards, undecided = rewards_of(loop, problems, rollout)
    answers = answers_of(loop, problems, rollout) if "answers" in loop.method.needs else None
    numbers = first + torch.arange(count, device=rewards.device)
    return Groups(problems, prompts, rollout, rewards, undecided, numbers, answers)


def together(parts: Sequence[Groups], pad_id: int) -> Groups:
    """The groups of several draws as one, rollouts padded to the widest."""
    return Groups(
        [problem for part in parts for problem in part.problems],
        [prompt for part in parts for prompt in part.prompts],
        joined([part.rollout for part in parts], pad_id),
        *(torch.cat([getattr(part, name) for part in parts]) for name in ("rewards", "undecided", "numbers")),
        None if parts[0].answers is None else torch.cat([part.answers for part in parts if part.answers is not None]),
    )


def problems_of_step(loop: Loop, step: int, first: int, count: int) -> list[Any]:
    """Problems number `first` to `first + count` of a step: its own, then all others in an order of this step.

    Its own: epoch after epoch over the training problems, each epoch in its own order, `prompts_per_step` a step. Where the
    others are used up the step's own follow, and then it begins again: a pool is never too small to refill from.
    """
    asked, total, last = loop.config.rollout.prompts_per_step, len(loop.problems), first + count
    places = range(step * asked, (step + 1) * asked)  # of an order without end: epoch after epoch
    epochs = {e: loop.key.permutation(e, "prompts", total) for e in {i // total for i in places}}
    own = [int(epochs[i // total][i % total]) for i in places]
    if last <= asked:
        return [loop.problems[i] for i in own[first:last]]
    seen, order = set(own), loop.key.permutation(step, "refill", total).tolist()
    again = sorted(order, key=lambda i: i in seen)  # a stable sort: the order stays within the new and within the seen
    return [loop.problems[own[n] if n < asked else again[(n - asked) % total]] for n in range(first, last)]


def draw_rollout(loop: Loop, prompts: list[list[int]], step: int, first: int = 0) -> Rollout:
    """`group_size` completions of each prompt at the training temperature; the prompts are groups `first` and on."""
    size = loop.config.rollout.group_size
    return sampled(loop, prompts, step, size, rows_of_groups(first + torch.arange(len(prompts)), size))


def sampled(loop: Loop, prompts: list[list[int]], step: int, group_size: int, row_ids: Tensor) -> Rollout:
    """`group_size` completions of each prompt at the training temperature, numbered by `row_ids` (P * group_size,)."""
    config = loop.config.rollout
    return sample(
        loop.policy,
        prompts,
        group_size=group_size,
        max_new_tokens=config.max_new_tokens,
        eos_id=loop.tokens.eos_ids,
        pad_id=loop.tokens.pad_id,
        key=loop.key,
        step=step,
        temperature=config.temperature,
        row_ids=row_ids,
        entropies=False,  # the training forward computes them, with the rest of the signals
    )


def rewards_of(loop: Loop, problems: list[Any], rollout: Rollout) -> tuple[Tensor, Tensor]:
    """Rewards (P, G), `Verdict.reward`: as a rule 1 for right and 0 for wrong or undecided. Which were undecided, (P, G) bool."""
    size, device = len(rollout.tokens) // len(problems), rollout.tokens.device
    said = verdicts(loop.task, [(problems[i // size], text) for i, text in enumerate(loop.tokens.texts(rollout))])
    rewards = torch.tensor([v.reward for v in said], device=device)
    undecided = torch.tensor([v.label == "undecided" for v in said], device=device)
    return rewards.reshape(-1, size), undecided.reshape(-1, size)


def answers_of(loop: Loop, problems: list[Any], rollout: Rollout) -> Tensor:
    """(P, G) int64, `answer_id` of what each completion answers."""
    size, texts = len(rollout.tokens) // len(problems), loop.tokens.texts(rollout)
    found = [answer_id(answer_key(loop.task, problems[i // size], text)) for i, text in enumerate(texts)]
    return torch.tensor(found, device=rollout.tokens.device).reshape(-1, size)


def rows_of_groups(groups: Tensor, group_size: int) -> Tensor:
    """Group numbers (g,) -> row numbers (g * group_size,)."""
    return (groups[:, None] * group_size + torch.arange(group_size, device=groups.device)).reshape(-1)


def rollout_metrics(loop: Loop, drawn: Drawn) -> dict[str, float]:
    """Of everything that was drawn, kept or not: what the policy does, and what it cost in tokens.

    With a rollout plan also how much of it was kept, `rollout/...`, and the mean reward of that. Means over completions are
    those of the first stage, which has as many of each prompt; tokens and completions are those of both.
    """
    rewards, rollout, undecided = drawn.everything.rewards, drawn.everything.rollout, drawn.everything.undecided
    found = {
        "verifier/undecided_share": int(undecided.sum()) / undecided.numel(),
        "reward/mean": float(rewards.mean()),
        "reward/dead_group_share": float((rewards == rewards[:, :1]).all(1).float().mean()),
        "completions/length_mean": float(rollout.lengths.float().mean()),
        "completions/unfinished_share": float((~rollout.finished).float().mean()),
        "rollout/tokens": float(rollout.lengths.sum() + sum(part.rollout.lengths.sum() for part in drawn.second)),
    }
    plan, wanted = loop.method.rollout, loop.config.rollout.prompts_per_step
    if plan is None:
        return found
    found |= kept_metrics(rewards, rewards[drawn.kept], wanted, drawn.refills)
    return found | stage_metrics(drawn) if is_staged(plan) else found


def stage_metrics(drawn: Drawn) -> dict[str, float]:
    """Of a step with a second stage: completions of both, the mean reward of those trained on, who got more, and how much."""
    first, more = drawn.everything.rewards.numel(), sum(part.rewards.numel() for part in drawn.second)
    extended = sum(len(part.prompts) for part in drawn.second) / len(drawn.everything.prompts)
    largest = max((part.rewards.shape[1] for part in drawn.second), default=0)
    found = {
        "rollout/completions": float(first + more),
        "rollout/second_stage": float(more),
        "rollout/extended_share": extended,
        "rollout/extra_max": float(largest),
    }
    trained = [part.rewards.reshape(-1) for part in drawn.groups]
    return found | ({"reward/kept_mean": float(torch.cat(trained).mean())} if trained else {})


def kept_metrics(rewards: Tensor, kept: Tensor, wanted: int, refills: int) -> dict[str, float]:
    """What a rollout plan kept of rewards (P', G): those of the `kept` groups, of which a step wants `wanted`. NaN: none."""
    found = {
        "rollout/completions": float(rewards.numel()),
        "rollout/groups_kept": float(len(kept)),
        "rollout/short_share": 1.0 - len(kept) / wanted,
        "rollout/refills": float(refills),
    }
    return found | {"reward/kept_mean": float(kept.nanmean())} if len(kept) else found
