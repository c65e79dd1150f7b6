"""A recipe as the arguments of `python -m sage_rlvr.verl`. Works without verl, so that a dry run can print them anywhere.

One step of a recipe is one step of verl: P prompts x G completions, then epochs x mini-batches. A field that the recipe
sets raises an error in engine.args, so that no value can be set twice; the rest of verl's configuration goes there,
dotted or nested:

    engine: {name: verl, args: {trainer.n_gpus_per_node: 8, actor_rollout_ref: {rollout: {name: vllm}}}}
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from math import gcd
from pathlib import Path
from typing import Any

from sage_rlvr.config import TrainConfig, dump
from sage_rlvr.core.extras import OverlongShaping
from sage_rlvr.core.method import Method
from sage_rlvr.errors import refuse
from sage_rlvr.models.folders import NAMED, adapter_base, folder_of
from sage_rlvr.training.trackers import PROJECT, run_name
from sage_rlvr.training.trl.arguments import CONTINUES, RUN_DIRECTORY, not_owned
from sage_rlvr.training.verl.fields import CLAMP, is_clamped, method_fields
from sage_rlvr.training.verl.problems import SPLITS
from sage_rlvr.training.verl.terms import ACTOR

CHAT = "data.apply_chat_template_kwargs"
ROLLOUT, MODEL = "actor_rollout_ref.rollout", "actor_rollout_ref.model"
OPTIMIZER, MICRO = f"{ACTOR}.optim", f"{ACTOR}.ppo_micro_batch_size_per_gpu"
OWNED = {
    "data.train_files": "task, world or data",
    "data.val_files": "task, world or data",
    "data.train_batch_size": "rollout.prompts_per_step",
    "data.max_response_length": "rollout.max_new_tokens",
    "data.seed": "seed",
    "data.apply_chat_template_kwargs": "chat_template_kwargs",
    f"{ROLLOUT}.n": "rollout.group_size",
    f"{ROLLOUT}.temperature": "rollout.temperature",
    f"{ROLLOUT}.response_length": "rollout.max_new_tokens",
    f"{ACTOR}.ppo_mini_batch_size": "updates.minibatches",
    f"{ACTOR}.ppo_epochs": "updates.epochs",
    f"{OPTIMIZER}.lr": "optimizer.lr",
    f"{OPTIMIZER}.weight_decay": "optimizer.weight_decay",
    f"{OPTIMIZER}.betas": "optimizer.beta1 and beta2",
    f"{OPTIMIZER}.clip_grad": "optimizer.max_grad_norm",
    f"{ACTOR}.grad_clip": "optimizer.max_grad_norm",
    f"{OPTIMIZER}.lr_scheduler_type": "optimizer.schedule",
    f"{OPTIMIZER}.lr_warmup_steps": "optimizer.warmup_steps",
    f"{MODEL}.path": "model",
    f"{MODEL}.lora_rank": "engine.lora.rank",
    f"{MODEL}.lora_alpha": "engine.lora.alpha",
    f"{MODEL}.target_modules": "engine.lora.target_modules",
    "trainer.total_training_steps": "steps",
    "trainer.save_freq": "checkpoint.every",
    "trainer.max_actor_ckpt_to_keep": "checkpoint.keep",
    "trainer.default_local_dir": RUN_DIRECTORY,
    "trainer.resume_mode": CONTINUES,
    "trainer.logger": "report_to",
}
REWARD = {
    "reward.reward_manager.source": "importlib",
    "reward.reward_manager.name": "SageRewardManager",
    "reward.reward_manager.module.path": "pkg://sage_rlvr.training.verl.reward",
}
"""Fields by which verl asks the reward manager of reward.py."""
NOTES = {
    "weight_decay": "optimizer.weight_decay: verl's AdamW also decays biases and norms, unlike the other engines",
    "warmup": "optimizer.warmup_steps: verl's first rate is 0, and the rate changes per step of the recipe instead of per update",
    "cosine": "optimizer.schedule = cosine: verl changes the rate per step of the recipe instead of per update",
    "refills": "dynamic sampling: verl samples until the batch is full; max_refills is not used",
    "overlong": "overlong shaping: computed by this package from the reward; verl's own reward manager dapo is not used",
    "arithmetic": f"arithmetic: bfloat16 over float32 weights, or the value of engine.args.{ACTOR}.fsdp_config.mixed_precision",
    "clamp": CLAMP,
    "signal": "updates.skip_without_signal: not on verl, which also takes the optimizer steps in which every advantage is 0",
    "frozen": "engine.dtype = bfloat16: verl would cast the adapters to it, so the frozen weights stay float32",
}


def flattened(given: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}, "c.d": 2} -> {"a.b": 1, "c.d": 2}. A key that begins with + is one that verl's own files do not have."""
    flat: dict[str, Any] = {}
    for key, value in given.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        flat |= flattened(value, name) if isinstance(value, Mapping) and value else {name: value}
    return flat


def bare_arguments(config: TrainConfig) -> dict[str, Any]:
    """engine.args, flattened, by the names of verl's fields: without the + of those that verl's own files do not have."""
    return {key.lstrip("+"): value for key, value in flattened(config.engine.args).items()}


def rows_per_gpu(config: TrainConfig, given: Mapping[str, Any]) -> int:
    """Completions of a micro-batch on one GPU, unless engine.args say MICRO: all that an update brings there, or as many of them
    as updates.micro_batch has and the rest divides by. given: `bare_arguments`.

    ConfigError if the completions of an update do not split over the workers.
    """
    rollout, updates = config.rollout, config.updates
    ranks = int(given.get("trainer.n_gpus_per_node", 8)) * int(given.get("trainer.nnodes", 1))
    rows = rollout.completions // updates.minibatches
    split = (
        f"rollout.prompts_per_step = {rollout.prompts_per_step}: {rows} completions per update cannot be split evenly "
        f"over {ranks} workers (trainer.n_gpus_per_node x nnodes); choose a number of prompts for which they can"
    )
    refuse((rows % ranks, split))
    here = rows // ranks
    return here if updates.micro_batch is None else gcd(here, updates.micro_batch * rollout.group_size)


def verl_words(config: TrainConfig, folder: Path, *, template: str | None, longest: int | str) -> list[str]:
    """The words of a recipe's run in `folder`. template: a chat template instead of the tokenizer's; longest: tokens of the
    longest prompt, or a text in a dry run, which does not know them.

    ConfigError for a key of engine.args that the recipe owns, and for what verl cannot do.
    """
    given = flattened(config.engine.args)
    bare = bare_arguments(config)
    method_owns = dict.fromkeys(method_fields(config.method, config.rollout.max_new_tokens), "method")
    not_owned(
        bare,
        OWNED
        | method_owns
        | {key: "method, seed and task" for key in bare if key.startswith("sage.")}
        | {key: "chat_template_kwargs" for key in bare if key.startswith(f"{CHAT}.")},
    )
    _check(config)
    fields = (
        _data(config, folder, longest)
        | _rollout(config, bare)
        | _optimizer(config)
        | _model(config, template)
        | _trainer(config, folder)
        | given
    )
    return [f"{key}={written(value)}" for key, value in fields.items()] + _node(config, folder)


def words_of_export(
    folder: Path, counts: Mapping[str, int], model: str, prompts: Any, *, limit: int, options: Mapping[str, Any]
) -> list[str]:
    """The words of a first run on an exported task, by GRPO on one GPU.

    counts: rows by split. prompts: `run.Prompts`. limit: tokens of a completion at most. options: chat_template_kwargs.
    """
    batch, rows = min(64, counts["train"]), 8
    validated = counts.get("validation")
    fields = {
        "data.train_files": str(folder / SPLITS["train"]),
        "data.val_files": str(folder / SPLITS["validation" if validated else "train"]),  # verl does not start without a file
        **({} if validated else {"trainer.val_before_train": False}),
        "data.train_batch_size": batch,
        "data.max_prompt_length": prompts.longest,
        "data.max_response_length": limit,
        f"{MODEL}.path": model,
        **({} if prompts.template is None else {f"{MODEL}.custom_chat_template": prompts.template}),
        **chat_words(options),
        f"{ROLLOUT}.name": "vllm",
        f"{ROLLOUT}.tensor_model_parallel_size": 1,
        f"{ROLLOUT}.n": rows,
        f"{ACTOR}.ppo_mini_batch_size": batch,
        MICRO: rows,
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": rows,
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": rows,
        "trainer.n_gpus_per_node": 1,
        "trainer.logger": ["console"],
        **REWARD,
        "+sage.task": str(folder),
        "+sage.method": "grpo",
    }
    return [f"{key}={written(value)}" for key, value in fields.items()]


def written(value: Any) -> str:
    """A value as hydra reads it: text that is no plain word in quotes."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        plain = value and all(sign.isalnum() or sign in "_-./:~@" for sign in value)
        return value if plain else "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(written, value)) + "]"
    return repr(value)


def notes(config: TrainConfig) -> Iterator[str]:
    """Yield notes on differences from the other engines, as far as the recipe shows them."""
    plan = config.optimizer
    updates = config.updates.per_step
    differs = {
        "weight_decay": plan.weight_decay > 0,
        "warmup": plan.warmup_steps > 0,
        "cosine": plan.schedule == "cosine" and updates > 1,
        "refills": config.method.rollout is not None,
        "overlong": any(isinstance(extra, OverlongShaping) for extra in config.method.extras),
        "arithmetic": not any("fsdp_config.mixed_precision" in key for key in flattened(config.engine.args)),
        "clamp": is_clamped(config.method.anchor),
        "signal": config.updates.skip_without_signal != "never",
        "frozen": config.engine.dtype == "bfloat16",
    }
    yield from (NOTES[name] for name, holds in differs.items() if holds)


def _check(config: TrainConfig) -> None:
    base, lora = config.base_model, config.engine.lora
    undotted = [key for key in flattened(config.engine.args) if "." not in key.lstrip("+")]
    refuse(
        (
            undotted,
            f"engine.args.{', '.join(undotted)}: not a field of verl, whose fields belong to a node, as in "
            "trainer.n_gpus_per_node; set engine.args to fields of verl: --engine.args "
            "'{trainer.n_gpus_per_node: 8}' replaces those of the recipe",
        ),
        (
            adapter_base(folder_of(config.model)) is not None,
            f"model = {config.model!r}: with an adapter, verl's reference is the base model below it instead of the "
            "adapter that training starts from; use the merged policy as the model",
        ),
        (
            lora is not None and lora.dropout > 0,
            f"engine.lora.dropout = {0 if lora is None else lora.dropout}: verl's adapters have no dropout; set it to "
            "0, or use engine.name trl",
        ),
        (
            config.optimizer.schedule == "linear",
            "optimizer.schedule = linear: verl only supports constant and cosine; set one of them (the warm-up "
            "stays), or use engine.name trl",
        ),
        (
            base is not None and base != config.model and _reads_base(config.method),
            f"base_model = {base!r}: the reference source is base, but verl's reference is the model that training "
            f"starts from ({config.model!r}); set source: sft in the method, or train on the loop or TRL",
        ),
    )


def _reads_base(method: Method) -> bool:
    return method.anchor is not None and not method.anchor.is_off and method.anchor.source == "base"


def _data(config: TrainConfig, folder: Path, longest: int | str) -> dict[str, Any]:
    problems = folder / "problems"
    return {
        "data.train_files": str(problems / SPLITS["train"]),
        "data.val_files": str(problems / SPLITS["train"]),  # verl wants a file; test_freq -1 reads nothing of it
        "data.train_batch_size": config.rollout.prompts_per_step,
        "data.max_prompt_length": longest,
        "data.max_response_length": config.rollout.max_new_tokens,
        "data.seed": config.seed,
        **chat_words(config.chat_template_kwargs),
    }


def chat_words(options: Mapping[str, Any]) -> dict[str, Any]:
    """chat_template_kwargs as fields of verl, whose own mapping there is empty."""
    return {f"+{CHAT}.{name}": value for name, value in options.items()}


def _rollout(config: TrainConfig, given: Mapping[str, Any]) -> dict[str, Any]:
    rollout, updates, micro = config.rollout, config.updates, rows_per_gpu(config, given)
    return {
        f"{ROLLOUT}.name": "vllm",
        f"{ROLLOUT}.n": rollout.group_size,
        f"{ROLLOUT}.temperature": rollout.temperature,
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": micro,
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": micro,
        MICRO: micro,
        f"{ACTOR}.ppo_mini_batch_size": rollout.prompts_per_step // updates.minibatches,
        f"{ACTOR}.ppo_epochs": updates.epochs,
        f"{ACTOR}.shuffle": updates.minibatches > 1,
        f"{ACTOR}.data_loader_seed": config.seed,
    }


def _optimizer(config: TrainConfig) -> dict[str, Any]:
    plan, updates = config.optimizer, config.updates.per_step
    return {
        f"{OPTIMIZER}.lr": plan.lr,
        f"{OPTIMIZER}.weight_decay": plan.weight_decay,
        f"{OPTIMIZER}.betas": [plan.beta1, plan.beta2],
        f"+{OPTIMIZER}.override_optimizer_config.eps": plan.eps,
        f"{OPTIMIZER}.clip_grad": plan.max_grad_norm,
        f"{ACTOR}.grad_clip": plan.max_grad_norm,
        f"{OPTIMIZER}.lr_scheduler_type": plan.schedule,
        f"{OPTIMIZER}.lr_warmup_steps": -(-plan.warmup_steps // updates),  # a recipe counts updates, verl steps
    }


def _model(config: TrainConfig, template: str | None) -> dict[str, Any]:
    fields: dict[str, Any] = {f"{MODEL}.path": str(folder_of(config.model)) if config.model in NAMED else config.model}
    if (lora := config.engine.lora) is not None:
        scale = int(lora.scale) if lora.scale == int(lora.scale) else lora.scale
        fields |= {f"{MODEL}.lora_rank": lora.rank, f"{MODEL}.lora_alpha": scale, f"{MODEL}.target_modules": lora.target_modules}
    return fields if template is None else fields | {f"{MODEL}.custom_chat_template": template}


def _trainer(config: TrainConfig, folder: Path) -> dict[str, Any]:
    return {
        "trainer.total_training_steps": config.steps,
        "trainer.total_epochs": config.steps,  # an epoch has a step at least
        "trainer.save_freq": config.checkpoint.every,
        "trainer.max_actor_ckpt_to_keep": config.checkpoint.keep,
        f"{ACTOR}.checkpoint.save_contents": ["model", "optimizer", "extra", "hf_model"],
        f"{ACTOR}.checkpoint.load_contents": ["model", "optimizer", "extra"],
        "trainer.default_local_dir": str(folder / "checkpoints"),
        "trainer.project_name": PROJECT,
        "trainer.experiment_name": run_name(folder.parent),
        "trainer.logger": ["file", *config.report_to],
        "trainer.val_before_train": False,
        "trainer.test_freq": -1,
        **REWARD,
        "hydra.run.dir": str(folder / "hydra"),
        "hydra.output_subdir": None,
    }


def _node(config: TrainConfig, folder: Path) -> list[str]:
    """The words of the `sage` node, which this package reads as YAML. Another objective under --fork is run.json's matter."""
    tree = {"method": dump(config)["method"], "seed": config.seed, "task": str(folder / "problems"), "objective_may_change": True}
    return [f"+sage.{key}={json.dumps(value)}" for key, value in tree.items()]


def command(words: list[str]) -> str:
    """The command as it is pasted into a shell."""
    return " \\\n  ".join(["python -m sage_rlvr.verl", *map(shlex.quote, words)])


__all__ = [
    *("MICRO", "OWNED", "REWARD", "bare_arguments", "chat_words", "command", "CHAT"),
    *("flattened", "notes", "rows_per_gpu", "verl_words", "words_of_export", "written"),
]
