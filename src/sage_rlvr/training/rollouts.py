"""Sampling and rewards of the groups of a step: draw problems, sample completions, judge them; and their metrics.

samplers.py decides which groups a step draws, in how many parts, and which of them it keeps.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, cycle, islice
from typing import Any

import torch
from torch import Tensor

from sage_rlvr.core.extras import Extra
from sage_rlvr.core.rollout_plans import GuidedStages, Spread, is_guided, is_spread, rows_of_stages
from sage_rlvr.errors import ConfigError
from sage_rlvr.models.episodes import responses_of, sample_episodes
from sage_rlvr.models.sampler import Rollout, sample
from sage_rlvr.tasks.base import Response, answer_id, guided, turns_of, verdicts
from sage_rlvr.tasks.chat import encodable
from sage_rlvr.tasks.teachers import hint_of
from sage_rlvr.tasks.unanswered import elsewhere_of, read_at
from sage_rlvr.training.first_tokens import first_logits, sample_behind
from sage_rlvr.training.groups import DrawnGroups, Groups, RolloutBatch, rows_of_groups
from sage_rlvr.training.loop_state import TrainState
from sage_rlvr.training.scores import reuses_sampling
from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.reasons import Elsewhere, Reasons


def draw(loop: TrainState, step: int, first: int, count: int) -> Groups:
    """Return groups number `first` to `first + count` of a step: sampled from the current policy, and verified."""
    problems = problems_of_step(loop, step, first, count)
    prompts = [list(loop.ask(p).ids) for p in problems]
    rollout = draw_rollout(loop, prompts, step, first, problems)
    return judged(loop, problems, prompts, rollout, first + torch.arange(count))


def draw_more(loop: TrainState, step: int, groups: Groups, extra: Tensor, size: int) -> Groups:
    """Return `size` more completions of each prompt for which `extra` (P,) equals `size`."""
    places = (extra == size).nonzero().squeeze(1)
    problems, prompts = ([part[i] for i in places.tolist()] for part in (groups.problems, groups.prompts))
    numbers = groups.numbers[places]
    drawing, marked = prompts, None
    if is_guided(loop.method.rollout):
        drawing, marked = guided_prompts(loop, groups, places.tolist()), torch.ones(len(prompts), size, dtype=torch.bool)
    rollout = sampled(loop, drawing, step, size, rows_of_stages(numbers, size, 0).reshape(-1), problems)
    return replace(judged(loop, problems, prompts, rollout, numbers), first=0, guided=marked)


def guided_prompts(loop: TrainState, groups: Groups, places: list[int]) -> list[list[int]]:
    """Return the prompts of these groups with the teacher's hint for the first completion of each.

    Raise ConfigError if one leaves no room for a completion in the policy's positions.
    """
    teacher, size, window = loop.config.teacher, groups.rewards.shape[1], loop.policy.config.max_position_embeddings
    assert teacher is not None, "TrainConfig asks for one"
    attempts, with_hints = responses_of(loop.tokens, groups.rollout), []
    for group in places:
        problem, attempt = groups.problems[group], attempts[group * size]
        (verdict,) = verdicts(loop.task, [(problem, attempt)])
        hint, _ = hint_of(teacher, loop.task, problem, [attempt] if isinstance(attempt, str) else attempt, verdict)
        ids = list(loop.ask(guided(loop.task, problem, encodable(hint, loop.tokens.tokenizer))).ids)
        if len(ids) + loop.config.rollout.max_new_tokens > window:
            raise ConfigError(
                f"problem {problem.problem_id!r}: the prompt with its hint has {len(ids)} tokens, and with "
                f"max_new_tokens = {loop.config.rollout.max_new_tokens} it does not fit into the {window} positions of "
                "the policy; use a teacher with shorter hints, or a policy with more positions"
            )
        with_hints.append(ids)
    return with_hints


def guided_weights(plan: GuidedStages, rows: RolloutBatch, logps: Tensor) -> tuple[Tensor | None, dict[str, float]]:
    """Return the weights (B,) of completions sampled with guidance, 1 for all others; and metrics of the former.

    logps (B, T): under the prompts without guidance. None if no prompt had guidance.
    """
    marked, mask = rows.column("guided"), rows.rollout.drawn
    if not bool(marked.any()):
        return None, {"hints/frac": 0.0}
    unguided, drawn = (torch.where(mask, part.detach(), 0.0).double().sum(1) for part in (logps, rows.rollout.logps))
    weights = torch.where(marked, plan.weights(unguided, drawn).to(logps), 1.0)
    cut = 0.0 if plan.clip is None else float((weights[marked] >= plan.clip).float().mean())
    metrics = {
        "hints/frac": float(marked.float().mean()),
        "hints/weight_mean": float(weights[marked].mean()),
        "hints/weight_cut_frac": cut,
        "hints/reward_mean": float(rows.column("rewards")[marked].mean()),
    }
    return weights, metrics


def judged(loop: TrainState, problems: list[Any], prompts: list[list[int]], rollout: Rollout, numbers: Tensor) -> Groups:
    """Return sampled groups with their rewards, from the verifier or from the reward source."""
    rewards, undecided, right, judgements = rewards_of(loop, problems, rollout)
    answers = answers_of(loop, problems, rollout) if "answers" in loop.method.needs else None
    numbers = numbers.to(rewards.device)
    if loop.method.reward_source is None:
        return Groups(problems, prompts, rollout, rewards, undecided, numbers, answers, verdicts=judgements)
    from sage_rlvr.training.source_rewards import source_rewards_of  # late: most methods take the verifier's rewards

    computed = source_rewards_of(loop, problems, prompts, rollout)
    earned, support = (part.reshape(rewards.shape) for part in (computed.rewards, computed.support))
    return Groups(problems, prompts, rollout, earned, undecided, numbers, answers, right, support, verdicts=judgements)


def problems_of_step(loop: TrainState, step: int, first: int, count: int) -> list[Any]:
    """Return problems number `first` to `first + count` of a step: its own, then all others in an order of this step.

    Its own: epoch after epoch over the training problems, each epoch in another order, `prompts_per_step` per step; an extra may
    choose other ones. After all others the step's own follow, and then the list repeats: a pool is never too small to refill from.
    """
    per_step, total = loop.config.rollout.prompts_per_step, len(loop.problems)
    places = range(step * per_step, (step + 1) * per_step)  # of an order without end: epoch after epoch
    epochs = {e: loop.key.permutation(e, "prompts", total) for e in {i // total for i in places}}
    own = [int(epochs[i // total][i % total]) for i in places]
    for extra in loop.method.extras:
        if extra.chooses_problems:
            own = chosen_by(extra, loop, own, step)
    if first + count <= per_step:
        return [loop.problems[i] for i in own[first : first + count]]
    seen, order = set(own), loop.key.permutation(step, "refill", total).tolist()
    refill = sorted(order, key=lambda i: i in seen)  # a stable sort: the order stays within the new and within the seen
    numbers = islice(chain(own, cycle(refill)), first, first + count)
    return [loop.problems[i] for i in numbers]


def chosen_by(extra: Extra, loop: TrainState, selected: list[int], step: int) -> list[int]:
    """Return the places of the problems that an extra chooses instead of `selected`.

    Raise ConfigError for a wrong number or place.
    """
    state, total = extra.own_state(loop.parts), len(loop.problems)
    chosen: list[int] = extra.before_rollout(torch.tensor(selected), loop.problem_ids, step, loop.key, state).tolist()
    if len(chosen) != len(selected) or not all(0 <= index < total for index in chosen):
        raise ConfigError(
            f"{type(extra).__name__}.before_rollout must return {len(selected)} places among the {total} problems, "
            f"got {chosen!r:.80}"
        )
    return chosen


def draw_rollout(
    loop: TrainState, prompts: list[list[int]], step: int, first: int = 0, problems: list[Any] | None = None
) -> Rollout:
    """Return `group_size` completions of each prompt at the training temperature; the prompts are groups `first` and on."""
    size, numbers, plan = loop.config.rollout.group_size, first + torch.arange(len(prompts)), loop.method.rollout
    rows = rows_of_groups(numbers, size)
    if is_spread(plan):
        return spread(loop, plan, prompts, step, numbers, rows)
    return sampled(loop, prompts, step, size, rows, problems, trace=reuses_sampling(loop))


def spread(loop: TrainState, plan: Spread, prompts: list[list[int]], step: int, numbers: Tensor, row_ids: Tensor) -> Rollout:
    """Return `group_size` completions of each prompt whose first tokens the plan chooses."""
    config, tokens, logits = loop.config.rollout, loop.tokens, first_logits(loop.policy, prompts)
    return sample_behind(
        loop.policy,
        prompts,
        logits,
        plan.first(logits, config.group_size, numbers, step, loop.key),
        eos_id=tokens.eos_ids,
        pad_id=tokens.pad_id,
        max_new_tokens=config.max_new_tokens,
        temperature=config.temperature,
        key=loop.key,
        step=step,
        row_ids=row_ids,
    )


def sampled(
    loop: TrainState,
    prompts: list[list[int]],
    step: int,
    group_size: int,
    row_ids: Tensor,
    problems: list[Any] | None = None,
    trace: bool = False,
) -> Rollout:
    """Return `group_size` completions of each prompt at the training temperature; for a task with turns, episodes.

    Args:
        loop: the training state.
        prompts: P token lists.
        step: the step.
        group_size: completions per prompt.
        row_ids: (P * group_size,) numbers of the completions.
        problems: the problems that the environment plays, for a task with turns.
        trace: true to record the sampler's activations.
    """
    config, tokens = loop.config.rollout, loop.tokens
    settings: dict[str, Any] = {
        "group_size": group_size,
        "max_new_tokens": config.max_new_tokens,
        "temperature": config.temperature,
        "key": loop.key,
        "step": step,
        "row_ids": row_ids,
    }
    if turns_of(loop.task) > 1:
        assert problems is not None, "an episode is of a problem"
        return sample_episodes(loop.policy, loop.ask, problems, prompts, **settings)
    # the training forward computes the entropies, with the rest of the signals
    return sample(loop.policy, prompts, eos_id=tokens.eos_ids, pad_id=tokens.pad_id, entropies=False, trace=trace, **settings)


def pairs_of(loop: TrainState, problems: list[Any], rollout: Rollout) -> list[tuple[Any, Response]]:
    """Return (problem, response) of each completion; the `len(tokens) / len(problems)` completions of a problem are consecutive."""
    size = len(rollout.tokens) // len(problems)
    return [(problems[i // size], completion) for i, completion in enumerate(responses_of(loop.tokens, rollout))]


def rewards_of(loop: TrainState, problems: list[Any], rollout: Rollout) -> tuple[Tensor, Tensor, Tensor, list[Verdict]]:
    """Return rewards (P, G), undecided and correct ones, both (P, G) bool, and the verdicts.

    Rewards are `Verdict.reward`: as a rule 1 for correct and 0 for wrong or undecided.
    """
    size, device = len(rollout.tokens) // len(problems), rollout.tokens.device
    judgements = verdicts(loop.task, pairs_of(loop, problems, rollout))
    rewards = torch.tensor([v.reward for v in judgements], device=device)
    undecided = torch.tensor([v.label == "undecided" for v in judgements], device=device)
    right = torch.tensor([v.right for v in judgements], device=device)
    return rewards.reshape(-1, size), undecided.reshape(-1, size), right.reshape(-1, size), judgements


def answers_of(loop: TrainState, problems: list[Any], rollout: Rollout) -> Tensor:
    """Return `answer_id` of the answer of each completion, (P, G) int64."""
    ids = [answer_id(loop.task.answer_key(problem, completion)) for problem, completion in pairs_of(loop, problems, rollout)]
    return torch.tensor(ids, device=rollout.tokens.device).reshape(len(problems), -1)


def rollout_metrics(drawn: DrawnGroups) -> dict[str, float]:
    """Return metrics of all sampled completions, kept or not, and their cost in tokens."""
    rewards, rollout = drawn.first_stage.rewards, drawn.first_stage.rollout
    metrics = {
        **reasons_of(drawn.first_stage).metrics(),
        "reward/mean": float(rewards.mean()),
        "reward/zero_variance_frac": float((rewards == rewards[:, :1]).all(1).float().mean()),
        "completions/length_mean": float(rollout.drawn.sum(1).float().mean()),
        "completions/unfinished_frac": float((~rollout.finished).float().mean()),
        "rollout/tokens": float(sum(part.rollout.drawn.sum() for part in (drawn.first_stage, *drawn.second_stage))),
    }
    if rollout.own is not None:
        metrics |= episode_metrics(rollout)
    if drawn.first_stage.right is not None and drawn.first_stage.support is not None:
        from sage_rlvr.training.source_rewards import source_metrics  # late, as in `judged`

        metrics |= source_metrics(rewards, drawn.first_stage.support, drawn.first_stage.right)
    return metrics


def reasons_of(groups: Groups) -> Reasons:
    """Return the reasons for which completions got no reward."""
    return Reasons.of(groups.verdicts, (~groups.rollout.finished).tolist())


def show(loop: TrainState, step: int, groups: Groups) -> None:
    """Pass the completions of a step to the watch, with their texts for places at which an answer would have been found."""

    def elsewhere() -> Elsewhere | None:
        return elsewhere_of(loop.task, pairs_of(loop, groups.problems, groups.rollout), groups.verdicts)

    loop.reasons.see(step, reasons_of(groups), read_at(loop.task), elsewhere)


def episode_metrics(rollout: Rollout) -> dict[str, float]:
    """Return metrics of episodes: turns of the policy, and tokens of the environment, per episode."""
    own = rollout.drawn
    first = own & ~torch.nn.functional.pad(own, (1, 0))[:, :-1]
    replies = (rollout.mask & ~own).sum(1)
    return {"episodes/turns_mean": float(first.sum(1).float().mean()), "episodes/reply_tokens_mean": float(replies.float().mean())}


def stage_metrics(drawn: DrawnGroups) -> dict[str, float]:
    """Return metrics of a step with a second stage: completions of both, mean reward of those trained on, who got more and how
    many.
    """
    first, more = drawn.first_stage.rewards.numel(), sum(part.rewards.numel() for part in drawn.second_stage)
    extended = sum(len(part.prompts) for part in drawn.second_stage) / len(drawn.first_stage.prompts)
    largest = max((part.rewards.shape[1] for part in drawn.second_stage), default=0)
    metrics = {
        "rollout/completions": float(first + more),
        "rollout/second_stage": float(more),
        "rollout/extended_frac": extended,
        "rollout/extra_max": float(largest),
    }
    trained = [part.rewards.reshape(-1) for part in drawn.groups]
    if trained:
        metrics["reward/kept_mean"] = float(torch.cat(trained).mean())
    return metrics


def kept_metrics(rewards: Tensor, kept: Tensor, wanted: int, refills: int) -> dict[str, float]:
    """Return metrics of the groups that a rollout plan kept: rewards (P', G), of which a step wants `wanted` groups. NaN: none."""
    metrics = {
        "rollout/completions": float(rewards.numel()),
        "rollout/groups_kept": float(len(kept)),
        "rollout/missing_groups_frac": 1.0 - len(kept) / wanted,
        "rollout/refills": float(refills),
    }
    if len(kept):
        metrics["reward/kept_mean"] = float(kept.nanmean())
    return metrics
