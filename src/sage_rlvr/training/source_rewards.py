"""Rewards that a reward source computes instead of the verifier's, and their metrics."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sage_rlvr.core.extras.source import SourceRewards, rank_metrics
from sage_rlvr.models.answer_substitution import Answered, substituted
from sage_rlvr.models.sampler import Rollout
from sage_rlvr.tasks.base import reference
from sage_rlvr.training.loop_state import TrainState


def source_rewards_of(loop: TrainState, problems: list[Any], prompts: list[list[int]], rollout: Rollout) -> SourceRewards:
    """The rewards of completions by the method's reward source: one more pass of the policy, and of its initial weights over the
    prompts where the source asks for those. A completion that was cut off has no answer."""
    source, config, size = loop.method.reward_source, loop.config, len(rollout.tokens) // len(problems)
    assert source is not None
    references = [reference(loop.task, problem) for problem in problems]
    rows = zip(rollout.tokens.tolist(), rollout.lengths.tolist(), rollout.finished.tolist(), strict=True)
    answered = []
    for i, ((row, length, finished), text) in enumerate(zip(rows, loop.tokens.texts(rollout), strict=True)):
        span = loop.task.answer_span(problems[i // size], text) if finished else None
        ids = row[: length - finished]  # without the end token
        answered.append(Answered(ids, text, span, i // size, references[i // size]))
    at_once = None if config.updates.micro_batch is None else config.updates.micro_batch * size
    models, heat = (loop.policy, loop.initial), config.rollout.temperature
    given = substituted(source, *models, loop.tokens, prompts, answered, temperature=heat, at_once=at_once)
    return source.rewards_of(given)


def source_metrics(rewards: Tensor, support: Tensor, right: Tensor) -> dict[str, float]:
    """Metrics of rewards (P, G) that the policy computed: verdicts on the same completions, and how well the rewards
    rank them.
    """
    means = {"self_reward/mean": float(support.mean()), "verifier/right_frac": float(right.float().mean())}
    return means | rank_metrics(rewards, right)
