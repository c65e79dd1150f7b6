"""The reference of a run: where pi_ref is loaded from, when it becomes a copy of the policy, how it is checkpointed.

A reference from files is read from them again. One that came from the run itself (source snapshot@N, or `refresh_every`) is in
every checkpoint from that step on, as the group "reference" next to "model" and "optimizer".
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sage_rlvr.config import TrainConfig
from sage_rlvr.core.anchor import Anchor
from sage_rlvr.errors import ConfigError
from sage_rlvr.models.devices import dtype_of, placed
from sage_rlvr.models.enumeration.solutions import log_right
from sage_rlvr.models.llama.net import adjacent
from sage_rlvr.models.policy import Tokens, load_policy
from sage_rlvr.runs import Checkpoint
from sage_rlvr.training.groups import Groups
from sage_rlvr.training.loop_state import TrainState
from sage_rlvr.training.state import load_tensors, model_tensors

GROUP, REFERENCE_STEP = "reference", "kl/reference_step"  # of a checkpoint; of the metrics


def load_reference(config: TrainConfig, policy: PreTrainedModel, tokens: Tokens) -> PreTrainedModel | None:
    """Return the initial reference of a run, without gradient; None if its method reads none.

    Raises ConfigError if there is nothing to load, or if policy and reference do not share a vocabulary.
    """
    if config.reference is None:
        return None
    model, own = load_policy(config.reference, dtype_of(config.engine))
    check_vocabularies((config.model, policy, tokens), (config.reference, model, own))
    return frozen(placed(model, config.engine.device))


def load_initial(config: TrainConfig, policy: PreTrainedModel, reference: PreTrainedModel | None) -> PreTrainedModel | None:
    """Return the initial policy of the run, before any checkpoint is loaded, if the reward source reads it; else None.

    It is the reference itself if that is the same model and does not change, else a copy.
    """
    source = config.method.reward_source
    if source is None or source.baseline != "initial":
        return None
    return reference if stays_first(config) else frozen(copy.deepcopy(policy))


def stays_first(config: TrainConfig) -> bool:
    """Return True if the reference is the initial policy of the run, to its end."""
    return config.reference == config.model and not moves(config.method.anchor)


def frozen(model: PreTrainedModel) -> PreTrainedModel:
    """Return the model in eval mode, without gradients."""
    # eval: with dropout the reference would differ from an equal policy, and the KL start above 0.
    return adjacent(model.eval().requires_grad_(False))


def check_vocabularies(
    policy: tuple[str, PreTrainedModel, Tokens], reference: tuple[str, PreTrainedModel, Tokens]
) -> None:
    """Raise ConfigError, with both names and sizes, unless a token's number means the same text to both models."""
    (name, model, tokens), (other_name, other_model, other_tokens) = policy, reference
    words, other_words = tokens.tokenizer.get_vocab(), other_tokens.tokenizer.get_vocab()
    sizes, other_sizes = (len(words), model.config.vocab_size), (len(other_words), other_model.config.vocab_size)
    if words == other_words and sizes == other_sizes:
        return
    word = next((w for w, i in words.items() if other_words.get(w, i) != i), None)
    example = (
        "" if word is None else f" (token {word!r} is {words[word]} in the policy and {other_words[word]} in the reference)"
    )
    raise ConfigError(
        f"policy {name!r} has {sizes[0]:,} tokens and {sizes[1]:,} logits, its reference {other_name!r} has "
        f"{other_sizes[0]:,} tokens and {other_sizes[1]:,} logits{example}: they do not share a vocabulary, so their "
        "log-probs cannot be compared; use a reference with the policy's tokenizer and vocabulary size"
    )


def due(snapshot: int | None, every: int | None, done: int) -> int:
    """Return the step that the reference is from after `done` steps: it becomes the policy at one step or every so many.

    0 is the initial reference.
    """
    if snapshot is not None:
        return snapshot if done >= snapshot else 0
    return done // every * every if every else 0


def moves(anchor: Anchor | None) -> bool:
    """Return True if the policy of the run becomes the reference at some step."""
    return anchor is not None and (anchor.snapshot_step is not None or anchor.refresh_every is not None)


def follow(loop: TrainState, done: int) -> None:
    """Replace the reference by a copy of the policy after `done` steps, if this is the step for it."""
    anchor = loop.method.anchor
    if anchor is not None and loop.reference is not None and due(anchor.snapshot_step, anchor.refresh_every, done) == done:
        # A copy: the policy itself would move with every update, and the KL stay 0. Checkpoints keep a reference with a step.
        loop.reference, loop.reference_step = frozen(copy.deepcopy(loop.policy)), done


def reference_right(loop: TrainState, groups: Groups) -> Tensor:
    """Return the log-probability of a correct completion of each row's problem under the reference, (P * G,).

    It is at the rollout's temperature. Each problem is computed once, by itself, so that a resumed run finds the same numbers.
    Raise ConfigError for a task that cannot list its correct completions.
    """
    plan, logps = loop.config.rollout, []
    assert loop.reference is not None
    for problem in groups.problems:
        key = (loop.reference_step, str(problem.problem_id))
        if key not in loop.solved:
            loop.solved[key] = log_right(loop.reference, loop.tokens, loop.task, problem, plan.temperature, plan.max_new_tokens)
        logps.append(loop.solved[key])
    return torch.tensor(logps, device=groups.rewards.device).repeat_interleave(groups.rewards.shape[1])


def reference_metrics(loop: TrainState) -> dict[str, float]:
    """Return the step that the reference is from, if it changes; 0 while it is the one from the files."""
    moving = loop.reference is not None and moves(loop.method.anchor)
    return {REFERENCE_STEP: float(loop.reference_step)} if moving else {}


def kept_reference(loop: TrainState) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Return the tensors and facts of the reference for `checkpoint`: nothing while it is one of the files on disk."""
    if loop.reference is None or not loop.reference_step:
        return {}, {}
    return {GROUP: model_tensors(loop.reference)}, {"reference_step": loop.reference_step}


def restore_reference(loop: TrainState, newest: Checkpoint | None) -> None:
    """Restore the reference from `kept_reference`, for a run that continues.

    Raises ConfigError if it needs a snapshot of a step that this directory has passed without saving it.
    """
    anchor = loop.method.anchor
    if newest is None or loop.reference is None or anchor is None or not moves(anchor):
        return
    step, snapshot = int(newest.state.get("reference_step", 0)), anchor.snapshot_step
    if snapshot is not None and step != snapshot:
        if newest.step >= snapshot:
            raise ConfigError(
                f"{newest.path}: the reference should be the policy after step {snapshot}, but this run is at step "
                f"{newest.step} and did not save that policy; start in a new directory"
            )
        return
    if step:
        loop.reference, loop.reference_step = frozen(copy.deepcopy(loop.policy)), step
        load_tensors(loop.reference, newest.load(GROUP))


def copy_of(policy: PreTrainedModel) -> PreTrainedModel:
    """Return a second model of the policy's class and config with the policy's current weights, each in its dtype.

    No deep copy: a forward that another trainer has wrapped may refer to the policy's own, and a reference that
    computes with the policy's weights follows it silently. Raise ConfigError if the class does not have these weights.
    """
    from accelerate import init_empty_weights  # of the trl extra

    with init_empty_weights(include_buffers=False):
        twin = type(policy)(copy.deepcopy(policy.config))
    state = {name: value.detach().clone() for name, value in policy.state_dict().items()}
    try:
        twin.load_state_dict(state, assign=True)
    except RuntimeError as error:
        raise ConfigError(
            "SageTrainer: the policy differs from a model built by its class and config, so it cannot be copied as "
            f"the reference (source='sft'): {error}. Save it with save_pretrained and pass that path to the trainer."
        ) from error
    twin.tie_weights()
    buffers = dict(twin.named_buffers())
    for name, value in policy.named_buffers():  # those that are no part of the state, such as rotary frequencies
        buffers[name].data = value.detach().clone()
    return twin.to(policy.device)
