"""The groups a step trains on: problems, completions, rewards, and what a rollout plan keeps and refills.

    draw prompts_per_step groups -> verify -> keep those that the plan marks -> draw as many new ones as are missing -> ...

The groups of a step are numbered as they are drawn. The problem of group n is a function of (seed, step, n), and its
completions are functions of the policy and of (seed, step, n * group_size + member): how many groups were kept, or in
how many refills they came, changes neither. Two arms of one seed see the same prompts, refills included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sage_rlvr.core.dynamic_sampling import kept_by, learned_by
from sage_rlvr.core.reward_sources import Paid, rank_metrics
from sage_rlvr.core.state import State
from sage_rlvr.models.sampler import Rollout, joined, sample
from sage_rlvr.models.substituted import Answered, substituted
from sage_rlvr.tasks.base import answer_id, answer_key, answer_span, reference, verdicts

if TYPE_CHECKING:
    from sage_rlvr.training.loop import Loop


@dataclass(frozen=True, eq=False)
class Groups:
    """P prompts with G completions each; row = place of the group * G + member.

    problems, prompts (token lists): P each. rollout: the P * G completions. rewards (P, G): 1 right, 0 wrong or undecided,
    as the verifier says, or as the method's reward source pays, before any transform. undecided (P, G) bool. numbers (P,): which
    group of the step each is.
    answers (P, G) int64: equal for two completions that give the same answer; None where the method reads none.
    right (P, G) bool, the verifier's word beside rewards that are not its own; support (P, G), what a plan looks at then.
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

    @property
    def looked_at(self) -> Tensor:
        """(P, G) what a rollout plan decides by."""
        return self.rewards if self.support is None else self.support

    @property
    def row_ids(self) -> Tensor:
        """(P * G,) number of each completion within the step."""
        return rows_of_groups(self.numbers, self.rewards.shape[1])

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
        more = (None if one is None else one[places] for one in (self.answers, self.right, self.support))
        return Groups(problems, prompts, rollout, self.rewards[places], self.undecided[places], self.numbers[places], *more)


@dataclass(frozen=True, eq=False)
class Drawn:
    """All groups that were drawn for a step, `kept` (P,) bool, the ones it trains on, the number of refills, and the running state
    of the method's parts after it, in which only the rollout plan's has moved."""

    everything: Groups
    kept: Tensor
    refills: int
    parts: State

    @property
    def groups(self) -> Groups:
        """The kept ones; there must be one."""
        return self.everything.keep(self.kept)


def draw_groups(loop: Loop, step: int) -> Drawn:
    """`prompts_per_step` groups, all kept. With a rollout plan as many as it keeps, after at most `max_refills` refills."""
    plan, wanted = loop.method.rollout, loop.config.rollout.prompts_per_step
    parts = [draw(loop, step, 0, wanted)]
    if plan is None:
        return Drawn(parts[0], torch.ones_like(parts[0].numbers, dtype=torch.bool), 0, loop.parts)
    kept = [kept_by(plan, parts[0].looked_at, loop.parts)]
    while (missing := wanted - sum(int(k.sum()) for k in kept)) and len(parts) <= plan.max_refills:
        parts.append(draw(loop, step, sum(len(part.prompts) for part in parts), missing))
        kept.append(kept_by(plan, parts[-1].looked_at, loop.parts))
    everything = together(parts, loop.tokens.pad_id)
    return Drawn(everything, torch.cat(kept), len(parts) - 1, learned_by(plan, everything.looked_at, loop.parts))


def draw(loop: Loop, step: int, first: int, count: int) -> Groups:
    """Groups number `first` to `first + count` of a step: sampled from the policy as it is, and verified."""
    problems = problems_of_step(loop, step, first, count)
    prompts = [list(loop.ask(p).ids) for p in problems]
    rollout = draw_rollout(loop, prompts, step, first)
    rewards, undecided, right = rewards_of(loop, problems, rollout)
    answers = answers_of(loop, problems, rollout) if "answers" in loop.method.needs else None
    numbers = first + torch.arange(count, device=rewards.device)
    if loop.method.reward_source is None:
        return Groups(problems, prompts, rollout, rewards, undecided, numbers, answers)
    paid = paid_by_policy(loop, problems, prompts, rollout)
    earned, support = (part.reshape(rewards.shape) for part in (paid.rewards, paid.support))
    return Groups(problems, prompts, rollout, earned, undecided, numbers, answers, right, support)


def together(parts: Sequence[Groups], pad_id: int) -> Groups:
    """The groups of several draws as one, rollouts padded to the widest."""

    def column(name: str) -> Tensor | None:
        found = [getattr(part, name) for part in parts]
        return None if found[0] is None else torch.cat(found)

    return Groups(
        [problem for part in parts for problem in part.problems],
        [prompt for part in parts for prompt in part.prompts],
        joined([part.rollout for part in parts], pad_id),
        *(torch.cat([getattr(part, name) for part in parts]) for name in ("rewards", "undecided", "numbers")),
        *map(column, ("answers", "right", "support")),
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
    config = loop.config.rollout
    return sample(
        loop.policy,
        prompts,
        group_size=config.group_size,
        max_new_tokens=config.max_new_tokens,
        eos_id=loop.tokens.eos_ids,
        pad_id=loop.tokens.pad_id,
        key=loop.key,
        step=step,
        temperature=config.temperature,
        row_ids=rows_of_groups(first + torch.arange(len(prompts)), config.group_size),
        entropies=False,  # the training forward computes them, with the rest of the signals
    )


def rewards_of(loop: Loop, problems: list[Any], rollout: Rollout) -> tuple[Tensor, Tensor, Tensor]:
    """Rewards (P, G), `Verdict.reward`: as a rule 1 for right and 0 for wrong or undecided. Which were undecided, and which right,
    (P, G) bool."""
    size, device = len(rollout.tokens) // len(problems), rollout.tokens.device
    said = verdicts(loop.task, [(problems[i // size], text) for i, text in enumerate(loop.tokens.texts(rollout))])
    rewards = torch.tensor([v.reward for v in said], device=device)
    undecided = torch.tensor([v.label == "undecided" for v in said], device=device)
    right = torch.tensor([v.right for v in said], device=device)
    return rewards.reshape(-1, size), undecided.reshape(-1, size), right.reshape(-1, size)


def paid_by_policy(loop: Loop, problems: list[Any], prompts: list[list[int]], rollout: Rollout) -> Paid:
    """What the method's reward source pays each completion: one more pass of the policy, and of its initial weights over the
    prompts where the source asks for those. A completion that was cut off has no answer."""
    source, config, size = loop.method.reward_source, loop.config, len(rollout.tokens) // len(problems)
    assert source is not None
    references = [reference(loop.task, problem) for problem in problems]
    rows = zip(rollout.tokens.tolist(), rollout.lengths.tolist(), rollout.finished.tolist(), strict=True)
    found = []
    for i, ((row, length, finished), text) in enumerate(zip(rows, loop.tokens.texts(rollout), strict=True)):
        span = answer_span(loop.task, problems[i // size], text) if finished else None
        ids = row[: length - finished]  # without the end token
        found.append(Answered(ids, text, span, i // size, references[i // size]))
    at_once = None if config.updates.micro_batch is None else config.updates.micro_batch * size
    models, heat = (loop.policy, loop.initial), config.rollout.temperature
    return source(substituted(source, *models, loop.tokens, prompts, found, temperature=heat, at_once=at_once))


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

    With a rollout plan also how much of it was kept, `rollout/...`, and the mean reward of that.
    """
    rewards, rollout, undecided = drawn.everything.rewards, drawn.everything.rollout, drawn.everything.undecided
    found = {
        "verifier/undecided_share": int(undecided.sum()) / undecided.numel(),
        "reward/mean": float(rewards.mean()),
        "reward/dead_group_share": float((rewards == rewards[:, :1]).all(1).float().mean()),
        "completions/length_mean": float(rollout.lengths.float().mean()),
        "completions/unfinished_share": float((~rollout.finished).float().mean()),
        "rollout/tokens": float(rollout.lengths.sum()),
    }
    if drawn.everything.right is not None and drawn.everything.support is not None:
        found |= source_metrics(rewards, drawn.everything.support, drawn.everything.right)
    if loop.method.rollout is None:
        return found
    return found | kept_metrics(rewards, rewards[drawn.kept], loop.config.rollout.prompts_per_step, drawn.refills)


def source_metrics(rewards: Tensor, support: Tensor, right: Tensor) -> dict[str, float]:
    """Of rewards (P, G) that the policy computed: the verifier's word on the same completions, and how well they rank by it."""
    means = {"reward/support_mean": float(support.mean()), "verifier/right_share": float(right.float().mean())}
    return means | rank_metrics(rewards, right)


def kept_metrics(rewards: Tensor, kept: Tensor, wanted: int, refills: int) -> dict[str, float]:
    """What a rollout plan kept of rewards (P', G): those of the `kept` groups, of which a step wants `wanted`. NaN: none."""
    found = {
        "rollout/completions": float(rewards.numel()),
        "rollout/groups_kept": float(len(kept)),
        "rollout/short_share": 1.0 - len(kept) / wanted,
        "rollout/refills": float(refills),
    }
    return found | {"reward/kept_mean": float(kept.nanmean())} if len(kept) else found
