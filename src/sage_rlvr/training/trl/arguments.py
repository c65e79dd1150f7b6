"""A recipe as the arguments of TRL's GRPOConfig. Works without TRL, so that a dry run can print them anywhere.

    P prompts per step x G completions = micro-batch x accumulation x ranks x mini-batches         (rows of one rollout)

One step of a recipe is one rollout with its updates; TRL's max_steps counts updates. A field that the recipe sets
raises an error in engine.args, so that no value can be set twice.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import fields as dataclass_fields
from dataclasses import replace
from difflib import get_close_matches
from math import gcd
from pathlib import Path
from typing import Any

from sage_rlvr.config import FinetuneConfig, TrainConfig
from sage_rlvr.core.anchor import Anchor, is_sampled
from sage_rlvr.core.guides import factors
from sage_rlvr.core.method import Method
from sage_rlvr.errors import refuse
from sage_rlvr.training.engines import check, fields_of
from sage_rlvr.training.trackers import PROJECT, run_name

RUN_DIRECTORY, CONTINUES = "the run directory (--run)", "nothing: the same command continues"
COLUMNS = "nothing: the reward reads the columns"
NO_KEY = (RUN_DIRECTORY, CONTINUES, COLUMNS)  # texts instead of a key of the recipe if there is none

# Field of GRPOConfig and of SFTConfig -> the key of an RL or SFT recipe that sets it.
OWNED_BY_BOTH = {
    "output_dir": RUN_DIRECTORY,
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
    "resume_from_checkpoint": CONTINUES,
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
    "remove_unused_columns": COLUMNS,
    "chat_template_kwargs": "chat_template_kwargs",
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
    given = not_owned(config.engine.args, OWNED | PART)
    return (
        DEFAULTS
        | shared_arguments(config, folder, config.updates.per_step)
        | _rollout(config, given, world_size)
        | {"model_init_kwargs": {"dtype": config.engine.dtype}, "remove_unused_columns": False}
        | ({"chat_template_kwargs": dict(config.chat_template_kwargs)} if config.chat_template_kwargs else {})
        | grpo_config(method_of(config))
        | given
    )


def not_owned(given: Mapping[str, Any], owned: Mapping[str, str]) -> dict[str, Any]:
    """A copy of engine.args. ConfigError for a key that the recipe owns, with the place where it is set."""
    message = "engine.args.{} = {!r}: the recipe sets this field; set {} instead"
    refuse(*((True, message.format(key, given[key], owned[key])) for key in given if key in owned))
    return dict(given)


def shared_arguments(config: TrainConfig | FinetuneConfig, folder: str, updates: int = 1) -> dict[str, Any]:
    """The fields that GRPOConfig and SFTConfig have in common; updates: optimizer steps of one step of the recipe.

    Their warm-up starts at 0, so that its first step moves nothing. Without trackers no field of trackers is set.
    """
    rate = config.optimizer
    constant = "constant_with_warmup" if rate.warmup_steps else "constant"
    trackers = {"report_to": list(config.report_to), "project": PROJECT, "run_name": run_name(Path(folder).parent)}
    return {
        "output_dir": folder,
        "seed": config.seed,
        "data_seed": config.seed,
        "learning_rate": rate.lr,
        "weight_decay": rate.weight_decay,
        "adam_beta1": rate.beta1,
        "adam_beta2": rate.beta2,
        "adam_epsilon": rate.eps,
        "max_grad_norm": rate.max_grad_norm,
        "lr_scheduler_type": constant if rate.schedule == "constant" else rate.schedule,
        "warmup_steps": rate.warmup_steps,
        "save_strategy": "steps",
        "save_steps": config.checkpoint.every * updates,
        **(trackers if config.report_to else {}),
    }


def micro_batch(given: dict[str, Any], here: int, usual: int, of: str) -> dict[str, int]:
    """The split of the `here` rows of a rank into micro-batches, by the size taken out of `given` or the `usual` one.

    ConfigError if it does not divide them; of: what they are, in words.
    """
    micro = usual if (size := given.pop("per_device_train_batch_size", None)) is None else size
    whole = isinstance(micro, int) and not isinstance(micro, bool) and micro > 0
    message = f"engine.args.per_device_train_batch_size = {micro!r}: must divide the {here} {of}"
    refuse((not whole or here % micro, message))
    return {"per_device_train_batch_size": micro, "gradient_accumulation_steps": here // micro}


def world_size() -> int:
    """Return the number of ranks of this launch: 1, or the number from torchrun and accelerate."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def check_world(processes: int) -> None:
    """ConfigError if accelerate sees another number of processes than were launched."""
    apart = (
        f"{world_size()} processes were launched (WORLD_SIZE), but accelerate sees {processes}, so each would train separately; "
        "on a CPU launch with ACCELERATE_USE_CPU=true torchrun"
    )
    refuse((processes != world_size(), apart))


def rows_of_rank(batch_size: int, ranks: int) -> int:
    """Rows that each rank has in one optimizer step of fine-tuning. ConfigError if they do not split evenly."""
    split = (
        f"batch_size = {batch_size} rows per optimizer step cannot be split evenly over {ranks} ranks; use a multiple "
        f"of {ranks}, or launch {batch_size} or fewer"
    )
    refuse((batch_size % ranks, split))
    return batch_size // ranks


def scores_rollouts(fields: Mapping[str, Any], reads_logps: bool) -> bool:
    """Return True if the policy scores its own rollout at generation, in addition to the forward passes of training.

    TRL does so if the weights change before it has finished with the rollout, and to correct vLLM's sampling. fields: of a
    GRPOConfig.
    """
    window = fields["steps_per_generation"] * fields["num_iterations"]
    corrected = fields.get("use_vllm") and fields.get("vllm_importance_sampling_correction", True)
    return bool(reads_logps or corrected or fields["gradient_accumulation_steps"] % window)


def reads_whole_batch(anchor: Anchor | None, steps_per_generation: int) -> bool:
    """Return True if q depends on all rows of a generation batch that TRL's loss sees in several parts.

    The policy then scores the batch at generation, so that q is the same with and without gradient accumulation.
    """
    of_batch = anchor is not None and any(part.depends_on == "batch" for part in factors(anchor.guide))
    return of_batch and steps_per_generation != 1


def method_of(config: TrainConfig) -> Method:
    """The recipe's method with its reference's steps (snapshot@N, refresh_every) counted as TRL counts: in updates."""
    method, times = config.method, config.updates.per_step
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
    """ConfigError if engine.args names what `kind` (GRPOConfig, SFTConfig) has no field for, or a value of another type."""
    fields = {field.name: field for field in dataclass_fields(kind)}
    for name, value in given.items():
        near = get_close_matches(name, fields, 1)
        hint = f"did you mean {near[0]}?" if near else "see the documentation of TRL for the fields"
        refuse((name not in fields, f"engine.args.{name}: {kind.__name__} of this TRL has no such field; {hint}"))
        usual = fields[name].default
        number, there = isinstance(usual, int | float), f"{kind.__name__} expects values like {usual!r} there"
        other = value is not None and isinstance(value, bool) is not isinstance(usual, bool)
        refuse(
            (number and other, f"engine.args.{name} = {value!r}: {there}"),
            (number and isinstance(value, str), f"engine.args.{name} = {value!r} is text; {there}"),
        )


def _rollout(config: TrainConfig, given: dict[str, Any], world_size: int) -> dict[str, Any]:
    rollout, updates = config.rollout, config.updates
    rows = rollout.completions // updates.minibatches  # of one update, over all ranks
    here = rows // world_size
    split = (
        f"rollout.prompts_per_step = {rollout.prompts_per_step}: {rows} completions per update cannot be split evenly "
        f"over {world_size} ranks; choose a number of prompts for which they can"
    )
    refuse((rows % world_size, split))
    usual = here if updates.micro_batch is None else gcd(here, updates.micro_batch * rollout.group_size)
    parts = micro_batch(
        given,
        here,
        usual,
        f"completions that a rank has in one update (rollout.prompts_per_step x rollout.group_size / updates.minibatches / "
        f"{world_size} ranks)",
    )
    return parts | {
        "steps_per_generation": parts["gradient_accumulation_steps"] * updates.minibatches,
        "num_iterations": updates.epochs,
        "num_generations": rollout.group_size,
        "temperature": rollout.temperature,
        "max_completion_length": rollout.max_new_tokens,
        "max_steps": config.steps * config.updates.per_step,
    }


# ---- a method

# Field of GRPOConfig -> the part of a method that sets it.
PART = {
    "beta": "method.anchor.beta",
    "use_bias_correction_kl": "method.anchor.estimator",
    "sync_ref_model": "method.anchor.refresh_every",
    "ref_model_sync_steps": "method.anchor.refresh_every",
    "ref_model_mixup_alpha": "method.anchor.refresh_every",
    "loss_type": "method.reduction",
    "scale_rewards": "method.advantage",
    "multi_objective_aggregation": "method.advantage",
    "epsilon": "method.surrogate.low",
    "epsilon_high": "method.surrogate.high",
    "delta": "method.surrogate.dual",
    "importance_sampling_level": "method.surrogate",
}

def grpo_config(method: Method) -> dict[str, Any]:
    """Arguments of GRPOConfig with which TRL optimizes `method`: GRPOConfig(output_dir, **grpo_config(method)).

    They are those of the table of engines (`sage_rlvr.training.engines`, docs/reference/engines.md). ConfigError that lists every
    part that TRL cannot express. The exact forward KL becomes k3, its one-sample estimate (with a UserWarning).

    token_mean is TRL's "dapo" and not its "bnpo", which divides each micro-batch by its own tokens; it is the token count of
    the update if a generation batch is one update, and that of the average update otherwise. TRL's entropy bonus takes the mean
    over each micro-batch's tokens.

    `SageTrainer(method=method)` adds what these fields cannot express and a plain GRPOTrainer would leave out:

    advantages of any other form, extras and token weights: by the core's `advantages_of`
    FixedBudget(n): advantages and beta are multiplied by L / n
    dynamic sampling: the divisor is the kept rows of a generation batch, or of the average update if a batch serves several
    KL in the reward: `beta` makes TRL compute the reference, and the loss has no KL of its own
    schedule of beta: `beta` is its largest value
    the anchor's source
    """
    check(method, "trl")
    if is_sampled(method.anchor):
        warnings.warn(
            f"{method.name} on TRL: the exact forward KL becomes k3, its estimate from the sampled token: the same "
            "expected gradient with more variance, which is stock GRPO; the loop engine sums it exactly.",
            UserWarning,
            stacklevel=2,
        )
    return fields_of(method, "trl")


def making(method: Method, what: str = "") -> str:
    """The call that makes the method, for errors: method=grpo(..., what), inside sage(...) if it has a guide. what: a keyword."""
    base, shaped, _ = method.name.partition("+")
    call = f"{base}(...{', ' if what else ''}{what})"
    return f"method=sage({call}, ...)" if shaped else f"method={call}"


