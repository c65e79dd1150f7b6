"""Rewards that the policy computes, on TRL; they replace the verdicts returned by the reward functions.

    TRL generates and judges  ->  the policy scores reference answers  ->  rewards (P, G) of all ranks

Scored by this package's own forward on the policy's weights, one rank its rows, as on the loop engine.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sage_rlvr.core.extras.source import RewardSource, SourceRewards
from sage_rlvr.errors import refuse
from sage_rlvr.models.answer_substitution import Answered, substituted
from sage_rlvr.models.policy import Tokens
from sage_rlvr.training.reference import copy_of, frozen
from sage_rlvr.training.source_rewards import source_metrics
from sage_rlvr.training.trl.protocols import Inputs, PolicyTrainer, ReferenceAnswer
from sage_rlvr.training.trl.reference_model import sharded


def reference_answer_of(rewards: Any) -> ReferenceAnswer | None:
    """The `reference_answer` of the first reward function that has one: of a row of the data and a completion's text, the right
    answer, and the place of the completion's own."""
    functions = (getattr(one, "reference_answer", None) for one in (rewards if isinstance(rewards, list) else [rewards]))
    return next(filter(None, functions), None)


def initial_of(trainer: PolicyTrainer) -> PreTrainedModel | None:
    """The policy as the trainer was given it, where the method's reward source asks for it. ConfigError for what cannot be scored
    here: no reference answers, an adapter, weights in pieces."""
    source = None if trainer.method is None else trainer.method.reward_source
    if source is None:
        return None
    name, policy = type(source).__name__, trainer.accelerator.unwrap_model(trainer.model)
    refuse(
        (
            trainer._reference_answer is None,
            f"SageTrainer: {name} needs reference answers, but no reward function provides them; pass "
            "reference_answer=, a function (row, completion text) -> (correct answer, span of the completion's "
            "answer), or a reward function with that attribute (math_reward)",
        ),
        (
            hasattr(policy, "peft_config") or sharded(trainer),
            f"SageTrainer: {name} scores reference answers with the full weights of the policy, but the weights are "
            "sharded or an adapter; train the full model on one device, or use the loop engine",
        ),
    )
    return frozen(copy_of(policy)) if source.baseline == "initial" else None


@torch.no_grad()
def pay(trainer: PolicyTrainer, output: Inputs, rows: list[dict[str, Any]], verdicts: Tensor) -> Tensor:
    """The rewards (P, G) of all ranks instead of `verdicts` (P, G). The support, which a rollout plan reads, is put into
    `output`, this rank's rows."""
    assert trainer.method is not None and trainer.method.reward_source is not None
    computed = _source_rewards(trainer, trainer.method.reward_source, output, rows)
    output["sage_support"] = computed.support
    shares: list[Tensor] = [trainer.accelerator.gather(one).reshape(verdicts.shape) for one in (computed.rewards, computed.support)]
    rewards, support = shares
    metrics = source_metrics(rewards, support, verdicts.nan_to_num() >= 1)
    if trainer.method.rollout is None:  # else dynamic_sampling.py logs those of all sampled groups
        dead = (rewards == rewards[:, :1]).all(dim=1).float().mean()
        metrics |= {"reward/mean": float(rewards.mean()), "reward/zero_variance_frac": float(dead)}
    for name, value in metrics.items():
        trainer._metrics["train"][name].append(value)
    return rewards


def looked_at(trainer: PolicyTrainer, output: Inputs, rewards: Tensor) -> Tensor:
    """(P, G) of all ranks: what a rollout plan decides by, the rewards or a source's support. `output`: this rank's."""
    support = output.get("sage_support")
    return rewards if support is None else trainer.accelerator.gather(support).reshape(rewards.shape)


def _source_rewards(trainer: PolicyTrainer, source: RewardSource, output: Inputs, rows: list[dict[str, Any]]) -> SourceRewards:
    policy = trainer.accelerator.unwrap_model(trainer.model)
    tokens = Tokens.of(trainer.processing_class, policy)
    ids, prompt_ids = (
        [row[kept.bool()].tolist() for row, kept in zip(output[f"{part}_ids"], output[f"{part}_mask"], strict=True)]
        for part in ("completion", "prompt")
    )
    finished = [bool(row) and row[-1] in tokens.eos_ids for row in ids]
    prompts: list[list[int]] = []
    answered = []
    for row, prompt, completion, done, text in zip(rows, prompt_ids, ids, finished, tokens.decode(ids, finished), strict=True):
        if not prompts or prompts[-1] != prompt:
            prompts.append(prompt)
        reference, span = trainer._reference_answer(row, text)  # type: ignore[misc]
        answered.append(Answered(completion[: len(completion) - done], text, span if done else None, len(prompts) - 1, reference))
    training = policy.training
    policy.eval()
    try:
        size = trainer.args.per_device_train_batch_size
        models = (policy, trainer.initial)
        given = substituted(source, *models, tokens, prompts, answered, temperature=trainer.temperature, at_once=size)
        return source.rewards_of(given)
    finally:
        policy.train(training)
