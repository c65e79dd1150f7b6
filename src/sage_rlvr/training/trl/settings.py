"""A recipe as the arguments of TRL's GRPOConfig. Needs no TRL, so that a dry run can print them anywhere.

    P prompts a step x G completions = micro-batch x accumulation x ranks x mini-batches         (rows of one rollout)

One step of a recipe is one rollout with its updates; TRL's max_steps counts updates. What a recipe owns is refused in
engine.args, so that no number can be said twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields as dataclass_fields
from dataclasses import replace
from difflib import get_close_matches
from math import gcd
from typing import Any

from sage_rlvr.config import OptimizerConfig, TrainConfig
from sage_rlvr.core.method import Method
from sage_rlvr.errors import ConfigError

# Field of GRPOConfig and of SFTConfig -> the key of an RL or SFT recipe that sets it.
OWNED_BY_BOTH = {
    "output_dir": "the run directory (--run)",
    "seed": "seed",
    "data_seed": "seed",
    "learning_rate": "optimizer.lr",
    "weight_decay": "optimizer.weight_decay",
    "adam_beta1": "optimizer.beta1",
    "adam_beta2": "optimizer.beta2",
    "adam_epsilon": "optimizer.eps",
    "max_grad_norm": "optimizer.max_grad_norm",
    "lr_scheduler_type": "optimizer.schedule",
    "warmup_steps": "optimizer.warmup_steps",
    "warmup_ratio": "optimizer.warmup_steps",
    "save_steps": "checkpoint.every",
    "save_strategy": "checkpoint.every",
    "save_total_limit": "checkpoint.keep",
    "model_init_kwargs": "engine.dtype",
    "resume_from_checkpoint": "nothing: the same command continues",
}

# Field of GRPOConfig -> the key of the recipe that sets it.
OWNED = OWNED_BY_BOTH | {
    "max_steps": "steps",
    "num_train_epochs": "steps",
    "num_generations": "rollout.group_size",
    "generation_batch_size": "rollout.prompts_per_step",
    "temperature": "rollout.temperature",
    "max_completion_length": "rollout.max_new_tokens",
    "num_iterations": "updates.epochs",
    "steps_per_generation": "updates.minibatches",
    "gradient_accumulation_steps": "updates.micro_batch (or engine.args.per_device_train_batch_size)",
    "remove_unused_columns": "nothing: the reward reads the columns",
}

# Where these are left at TRL's defaults nobody would be served; a recipe may say otherwise in engine.args.
DEFAULTS: dict[str, Any] = {
    "logging_steps": 1,
    "report_to": "none",
    "optim": "adamw_torch",
    "gradient_checkpointing": False,
    "disable_tqdm": True,
}


def grpo_arguments(config: TrainConfig, folder: str, world_size: int = 1) -> dict[str, Any]:
    """The fields of GRPOConfig of a recipe, its method's included, for `world_size` ranks; engine.args passed on.

    `ConfigError` for a key of engine.args that the recipe owns, naming that key's place, and for a rollout that does
    not split evenly over ranks, micro-batches and updates.
    """
    from sage_rlvr.training.trl.mapping import PART, grpo_config

    given = dict(config.engine.args)
    for key in given:
        place = OWNED.get(key) or PART.get(key)
        if place is not None:
            raise ConfigError(f"engine.args.{key} = {given[key]!r}: the recipe owns this; set {place} instead")
    return (
        DEFAULTS
        | {"output_dir": folder, "seed": config.seed, "data_seed": config.seed}
        | _rollout(config, given.pop("per_device_train_batch_size", None), world_size)
        | optimiser_arguments(config.optimizer)
        | {"model_init_kwargs": {"dtype": config.engine.dtype}, "remove_unused_columns": False}
        | grpo_config(method_of(config))
        | given
    )


def rows_of_rank(batch_size: int, ranks: int) -> int:
    """Rows that each rank has in one optimiser step of fine-tuning. ConfigError where they do not split evenly."""
    if batch_size % ranks:
        raise ConfigError(
            f"batch_size = {batch_size} rows an optimiser step do not split over {ranks} ranks; take a multiple of {ranks}, or "
            f"launch {batch_size} or fewer"
        )
    return batch_size // ranks


def updates_a_step(config: TrainConfig) -> int:
    """Optimiser steps of one step of the recipe: epochs x mini-batches."""
    return config.updates.epochs * config.updates.minibatches


def method_of(config: TrainConfig) -> Method:
    """The recipe's method with its reference's steps (snapshot@N, refresh_every) counted as TRL counts: in updates."""
    method, times = config.method, updates_a_step(config)
    anchor = method.anchor
    if anchor is None or times == 1:
        return method
    moved: dict[str, Any] = {}
    if anchor.snapshot_step is not None:
        moved["source"] = f"snapshot@{anchor.snapshot_step * times}"
    if anchor.refresh_every is not None:
        moved["refresh_every"] = anchor.refresh_every * times
    return replace(method, anchor=replace(anchor, **moved)) if moved else method


def check_fields(kind: type, given: Mapping[str, Any]) -> None:
    """ConfigError where engine.args names what `kind` (GRPOConfig, SFTConfig) has no field for, or a value of another type."""
    fields = {field.name: field for field in dataclass_fields(kind)}
    for name, value in given.items():
        if name not in fields:
            near = get_close_matches(name, fields, 1)
            hint = f"did you mean {near[0]}?" if near else "its documentation lists them"
            raise ConfigError(f"engine.args.{name}: {kind.__name__} of this TRL has no such field; {hint}")
        usual = fields[name].default
        number = isinstance(usual, int | float)
        if number and value is not None and isinstance(value, bool) is not isinstance(usual, bool):
            raise ConfigError(f"engine.args.{name} = {value!r}: {kind.__name__} takes values like {usual!r} there")
        if number and isinstance(value, str):
            raise ConfigError(
                f"engine.args.{name} = {value!r} is text; {kind.__name__} takes values like {usual!r} there"
            )


def _rollout(config: TrainConfig, micro: Any, world_size: int) -> dict[str, Any]:
    rollout, updates = config.rollout, config.updates
    rows = rollout.completions // updates.minibatches  # of one update, over all ranks
    here = rows // world_size
    if here * world_size != rows:
        raise ConfigError(
            f"rollout.prompts_per_step = {rollout.prompts_per_step}: {rows} completions an update do not split over "
            f"{world_size} ranks; take a number of prompts whose completions do"
        )
    if micro is None:
        micro = here if updates.micro_batch is None else gcd(here, updates.micro_batch * rollout.group_size)
    if not isinstance(micro, int) or isinstance(micro, bool) or micro < 1 or here % micro:
        raise ConfigError(
            f"engine.args.per_device_train_batch_size = {micro!r}: must divide the {here} completions that a rank has in "
            f"one update (rollout.prompts_per_step x rollout.group_size / updates.minibatches / {world_size} ranks)"
        )
    accumulate = here // micro
    return {
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": accumulate,
        "steps_per_generation": accumulate * updates.minibatches,
        "num_iterations": updates.epochs,
        "num_generations": rollout.group_size,
        "temperature": rollout.temperature,
        "max_completion_length": rollout.max_new_tokens,
        "max_steps": config.steps * updates_a_step(config),
        "save_strategy": "steps",
        "save_steps": config.checkpoint.every * updates_a_step(config),
    }


def optimiser_arguments(given: OptimizerConfig) -> dict[str, Any]:
    """The optimiser's fields of GRPOConfig and SFTConfig. Their warm-up starts at 0: the first step of one moves nothing."""
    constant = "constant_with_warmup" if given.warmup_steps else "constant"
    return {
        "learning_rate": given.lr,
        "weight_decay": given.weight_decay,
        "adam_beta1": given.beta1,
        "adam_beta2": given.beta2,
        "adam_epsilon": given.eps,
        "max_grad_norm": given.max_grad_norm,
        "lr_scheduler_type": constant if given.schedule == "constant" else given.schedule,
        "warmup_steps": given.warmup_steps,
    }
