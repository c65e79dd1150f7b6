"""What the authors' code reads of a training YAML: the first table of `import_config`.

KEYS["epsilon"]      where their code looks for it, in its order; what it takes where none is given; the type
DERIVED["rollouts"]  what follows from several of them
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from sage_rlvr.errors import nearest

GUIDES = ("branch", "random", "token")
PROJECTIONS = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
SCHEDULES = {"constant": "constant", "constant_with_warmup": "constant", "linear": "linear", "cosine": "cosine"}
REDUCTIONS = {"grpo": "grpo", "bnpo": "grpo_token_mean", "dapo": "grpo_token_mean", "dr_grpo": "dr_grpo"}
REQUIRED = object()


class Key(NamedTuple):
    """places: the first that is there wins. default: theirs; REQUIRED where their code stops without it. kind: an annotation."""

    places: tuple[str, ...]
    default: Any
    kind: Any


def _key(places: str, default: Any, kind: Any = None) -> Key:
    return Key(tuple(places.split()), default, kind or type(default))


KEYS: dict[str, Key] = {
    "seed": _key("seed project.seed", 42),
    "trainer_seed": _key("random_state rl.trainer_seed rl.seed rl.random_state", None, int),
    "model": _key("model_name model.name model.model_name", REQUIRED, str),
    "instruct": _key("instruct model.instruction_tuned model.instruct", True, Any),
    "full": _key("full_ft model.full_finetune model.full_ft do_full_ft", False, Any),
    "sequence": _key("max_seq_len model.max_seq_len model.max_seq_length max_seq_length", 2048),
    "checkpointing": _key("gradient_checkpointing model.gradient_checkpointing", True, Any),
    "data": _key("train_dataset data.train_dataset data.dataset", "open-r1/DAPO-Math-17k-Processed"),
    "subset": _key("train_dataset_config data.train_dataset_config data.dataset_config", "en", str | None),
    "split": _key("train_split data.train_split data.split", "train"),
    "take": _key("max_train_samples data.max_train_samples", None, int | None),
    "vllm": _key("use_vllm generation.use_vllm", False),
    "vllm_mode": _key("vllm_mode generation.vllm_mode", "colocate"),
    "temperature": _key("temperature generation.temperature rl.temperature", 1.0),
    "min_p": _key("min_p generation.min_p vllm.min_p", 0.01, float | None),
    "top_p": _key("top_p generation.top_p vllm.top_p", 1.0),
    "top_k": _key("top_k generation.top_k vllm.top_k", -1),
    "generation_batch": _key("generation_batch_size generation.batch_size generation.generation_batch_size", None, int),
    "prompt": _key("max_prompt_length generation.max_prompt_length", 1024),
    "completion": _key("max_completion_length generation.max_completion_length", 1024),
    "group": _key("context_grpo.num_rollouts grpo.num_rollouts rl.num_rollouts rl.num_generations num_rollouts", 8),
    "steps": _key("max_steps rl.max_steps", 300),
    "save": _key("save_steps rl.save_steps", 50),
    "lr": _key("learning_rate rl.learning_rate", 2e-6),
    "schedule": _key("lr_scheduler rl.lr_scheduler rl.lr_scheduler_type", "constant"),
    "warmup": _key("warmup_ratio rl.warmup_ratio", 0.1),
    "decay": _key("weight_decay rl.weight_decay", 0.01),
    "loss": _key("loss_type rl.loss_type", "grpo"),
    "use_kl": _key("use_kl rl.use_kl", True, Any),
    "beta": _key("beta rl.beta rl.kl_coef", 0.05),
    "epsilon": _key("epsilon rl.epsilon rl.epsilon_high", 0.2),
    "optimizer": _key("optimizer rl.optimizer rl.optim", "adamw_torch"),
    "logging": _key("logging_steps rl.logging_steps", 1),
    "per_device": _key("per_device_train_batch_size rl.per_device_train_batch_size", 8),
    "accumulation": _key("gradient_accumulation_steps rl.gradient_accumulation_steps", 1),
    "rank": _key("lora_rank lora.rank", 8),
    "alpha": _key("lora_alpha lora.alpha", None, float | None),
    "dropout": _key("lora_dropout lora.dropout", 0.0),
    "modules": _key("lora_target_modules lora.target_modules", tuple(sorted(PROJECTIONS)), str | tuple[str, ...]),
    "bias": _key("lora_bias lora.bias", "none"),
    "sage_guide": _key("sage.guide", None, Any),
    "q_min": _key("sage.q_min rl.q_min", 0.6),
    "q_max": _key("sage.q_max rl.q_max", 1.4),
    "branch_ratio": _key("sage.branch.ratio rl.branch.ratio", 0.3),
    "branch_threshold": _key("sage.branch.threshold rl.branch.threshold", 1.2),
    "branch_source": _key("sage.branch.use_source rl.branch.use_source", "new", Any),
    "branch_detach": _key("sage.branch.detach_entropy rl.branch.detach_entropy", None, Any),
    "token_norm": _key("sage.token.norm rl.token.norm", "minmax"),
    "token_source": _key("sage.token.use_source rl.token.use_source", "new"),
    "token_detach": _key("sage.token.detach_surprisal rl.token.detach_surprisal", None, Any),
    "forward": _key("use_fkl", False, Any),
    "wandb": _key("wandb_enabled tracking.enabled tracking.wandb_enabled", None, Any),
    "upload": _key("hf_upload hub.upload hub.hf_upload", False, Any),
    "sft_data": _key("sft.dataset_name", "unsloth/OpenMathReasoning-mini"),
    "sft_split": _key("sft.split", "cot"),
    "sft_take": _key("sft.max_samples", None, int | None),
    "sft_epochs": _key("sft.num_epochs", 1),
    "sft_lr": _key("sft.learning_rate", 2e-5),
    "sft_rows": _key("sft.per_device_train_batch_size", 1),
    "sft_warmup": _key("sft.warmup_steps", 0),
    "sft_logging_steps": _key("sft.logging_steps", 10),
    "sft_decay": _key("sft.weight_decay", 0.0),
    "sft_accumulation": _key("sft.gradient_accumulation_steps", 1),
    "sft_schedule": _key("sft.lr_scheduler_type", "linear"),
    "sft_optim": _key("sft.optim", "adamw_torch"),
}
for _guide in GUIDES:
    KEYS[f"use_{_guide}"] = _key(f"use_{_guide}", False, Any)
for _guide, _bounds in {"random": ("eps", "sig"), "token": ("alpha", "sig")}.items():
    _spell = "sage.{0}.{1} rl.{0}.{1}".format
    for _bound in (f"{_name}_{_end}" for _name in _bounds for _end in ("ub", "lb")):
        KEYS[f"{_guide}_{_bound}"] = _key(_spell(_guide, _bound), REQUIRED, float)
    KEYS[f"{_guide}_cycles"] = _key(f"{_spell(_guide, 'N')} {_spell(_guide, 'num_cycles')}", 1)
    KEYS[f"{_guide}_decay_rate"] = _key(_spell(_guide, "decay_rate"), 0.9)

# Places without a part in the arithmetic, and what they are to their code. Secrets are never repeated.
NAMES = {"project.name": "is read by nothing"} | dict.fromkeys(
    [
        "project.output_root",
        "output_root",
        "algorithm_name",
        "wandb_project",
        "tracking.project",
        "tracking.wandb_project",
        "hf_user_id",
        "hf_username",
        "hub.user_id",
        "hub.hf_user_id",
        "hub.username",
        "hf_private",
        "hub.private",
        "hub.hf_private",
    ],
    "names a folder, a run or an account",
)
SECRETS = [
    "wandb_api_key",
    "WANDB_API_KEY",
    "tracking.api_key",
    "tracking.wandb_api_key",
    "hf_token",
    "hf_pat",
    "hub.token",
    "hub.hf_token",
]


def _guide_of(t: Any) -> str | None:
    """The guide that their code takes, None for none; `plain` reads none."""
    named = t.sage_guide if t.place("sage_guide") else next(iter(t.flags), None)
    return None if t.plain or named in (None, "", "none") else str(named)


def _base_of(t: Any) -> dict[str, Any]:
    beta = t.beta if t.use_kl else 0.0
    source = {"source": "sft"} if beta and not t.instruct else {}
    return {"name": REDUCTIONS[t.loss], "beta": beta, "clip_low": 0.2, "clip_high": t.epsilon, **source}


DERIVED: dict[str, Callable[[Any], Any]] = {
    "rl_seed": lambda t: t.seed if t.trainer_seed is None else t.trainer_seed,
    "flags": lambda t: [name for name in GUIDES if t[f"use_{name}"]],
    "guide": _guide_of,
    "near": lambda t: f"; did you mean {near}?" if (near := nearest(t.guide, GUIDES)) else "",
    "base": _base_of,
    "generated": lambda t: t.per_device if t.generation_batch is None else t.generation_batch,
    "chunks": lambda t: t.generated // t.per_device,
    "rows": lambda t: t.per_device * t.accumulation,
    "problems": lambda t: max(t.generated, t.rows) // t.group,
    "updates": lambda t: max(1, t.chunks // t.accumulation),
    "rollouts": lambda t: -(-t.steps // t.updates),
    "every": lambda t: max(1, t.save // t.updates),
    "constant": lambda t: SCHEDULES[t.schedule] == "constant",
    "warmup_steps": lambda t: math.ceil(t.steps * t.warmup),
    "cycles": lambda t: t[f"{t.guide}_cycles"],
    "same": lambda t: ", which here is the same number" if t.epsilon == 0.2 else "",
    "source_place": lambda t: "method.base.source" if t.guide else "method.source",
    "other_seed": lambda t: t.said("seed"),
    "half": lambda t: t.sequence // 2,
    "cut": lambda t: ", and cuts the others at 1,024, TRL 0.23's default" if t.sequence > 2048 else "",
}

# Place in a recipe -> key, for the comments that say where a value comes from.
TRAIN_ORIGINS = {
    "seed": "trainer_seed",
    "steps": "steps",
    "data.path": "data",
    "data.take": "take",
    "rollout.prompts_per_step": "generation_batch",
    "rollout.group_size": "group",
    "rollout.max_new_tokens": "completion",
    "rollout.temperature": "temperature",
    "optimizer.lr": "lr",
    "optimizer.weight_decay": "decay",
    "optimizer.schedule": "schedule",
    "optimizer.warmup_steps": "warmup",
    "checkpoint": "save",
}
SFT_ORIGINS = {
    "seed": "seed",
    "epochs": "sft_epochs",
    "batch_size": "sft_rows",
    "max_length": "sequence",
    "data.path": "sft_data",
    "optimizer.lr": "sft_lr",
    "optimizer.weight_decay": "sft_decay",
    "optimizer.schedule": "sft_schedule",
    "optimizer.warmup_steps": "sft_warmup",
}
