"""The content of the model card of a policy that TRL trained. Every value is read from the trainer, so that the card names the
objective that was run also for a script; it takes the place of TRL's own card."""

from __future__ import annotations

import hashlib
import inspect
import os
from typing import Any

from sage_rlvr.core.describe import described_on_engine
from sage_rlvr.runs import installed
from sage_rlvr.training.engines import SAMPLING, other_sampling
from sage_rlvr.training.model_card import PACKAGES, anchor_facts, named, named_verifier, plain, without_paths
from sage_rlvr.training.trl.protocols import PolicyTrainer
from sage_rlvr.verifiers.versions import version_hash

# Fields of GRPOConfig that decide what is optimized or sampled, whoever set them.
TELLING = (
    "loss_type", "beta", "use_bias_correction_kl", "scale_rewards", "epsilon", "epsilon_high", "delta",
    "importance_sampling_level", "num_generations", "generation_batch_size", "per_device_train_batch_size",
    "gradient_accumulation_steps", "steps_per_generation", "num_iterations", "max_completion_length", "temperature",
    "top_p", "top_k", "min_p", "repetition_penalty", "mask_truncated_completions", "sync_ref_model", "use_vllm",
    "vllm_mode", "vllm_importance_sampling_correction", "learning_rate", "lr_scheduler_type", "warmup_steps", "optim",
    "weight_decay", "max_grad_norm", "max_steps", "bf16", "fp16", "seed", "top_entropy_quantile",
)  # fmt: skip
# Of GRPOConfig.generation_kwargs, which also changes what the other fields say: what leaves the distribution of a token as it is.
NO_CUT = (
    "bos_token_id", "cache_config", "cache_implementation", "disable_compile", "eos_token_id", "max_new_tokens", "max_tokens",
    "pad_token_id", "prefill_chunk_size", "seed", "stop", "stop_strings", "stop_token_ids", "use_cache",
)  # fmt: skip


def facts(trainer: PolicyTrainer) -> dict[str, Any]:
    """The content of the card as plain values, also for run records and comparisons."""
    anchor, args = trainer.anchor, trainer.args
    method = None if trainer.method is None else without_paths(trainer.method)
    policy = str(getattr(trainer.model.config, "_name_or_path", ""))
    reference = trainer.reference_description
    return {
        "engine": "trl",
        "policy": policy,
        "method": None if method is None else method.name,
        "objective": None if method is None else described_on_engine(method),
        "anchor": None if anchor is None else anchor_facts(anchor, "trl"),
        "reference": _elsewhere(reference, policy, *([] if anchor is None else [anchor.source])),
        "rewards": {name: reward_identity(function) for name, function in _rewards(trainer).items()},
        "settings": "GRPOConfig",
        "arguments": {name: plain(getattr(args, name)) for name in TELLING if hasattr(args, name)},
        "truncated_sampling": truncated(args),
        "trained": f"{trainer.state.global_step} optimizer steps, ranks {trainer.accelerator.num_processes}",
        "versions": installed(PACKAGES),
    }


def truncated(args: Any) -> list[str]:
    """Each setting of TRL under which the sampler leaves out or reweights tokens, so that samples are not the policy's own."""
    given = dict(getattr(args, "generation_kwargs", None) or {})
    known = (*SAMPLING["trl"], *NO_CUT)
    same = {"temperature": getattr(args, "temperature", None)}
    more = [f"{name}={value}" for name, value in given.items() if name not in known and same.get(name) != value]
    return other_sampling("trl", lambda name: given.get(name, getattr(args, name, None))) + more


def reward_identity(function: Any) -> str:
    """The origin of a reward's verdicts: "verifier math-v2-...", "source SHA-256 ..." (16 digits), or "source unknown" where
    Python has none.

    Of a task's reward its verifier, a user's function included. Of this package's mathematics reward the version of the verifier,
    with its options, limits and libraries (`sage_rlvr.verifiers.versions`). Of any other function its own source and, where it
    names what it judges with in an attribute `verifiers`, their modules.
    """
    if (known := getattr(function, "verifier_hash", None)) is not None:
        return named_verifier(str(known))
    owner = function if inspect.isroutine(function) else type(function)
    if owner.__module__.startswith("sage_rlvr.verifiers"):
        return named_verifier(version_hash("math", options=_options(function)))
    try:
        text = inspect.getsource(owner)
        for module in getattr(function, "verifiers", ()):
            text += inspect.getsource(module)
    except (OSError, TypeError):
        return "source unknown"
    return named_verifier(hashlib.sha256(text.encode()).hexdigest())


def _options(function: Any) -> str:
    """The settings of a reward; of a pool of its own the limits, which decide what stays undecided."""
    options = dict(vars(function)) if hasattr(function, "__dict__") else {}
    pool = options.pop("pool", None)
    limits = None if pool is None else (pool.seconds, pool.memory_mb, pool.function)
    return repr((sorted(options.items()), limits))


def _rewards(trainer: PolicyTrainer) -> dict[str, Any]:
    names = getattr(trainer, "reward_func_names", None) or [str(i) for i in range(len(trainer.reward_funcs))]
    return dict(zip(names, trainer.reward_funcs, strict=True))


def _elsewhere(text: str, *places: str) -> str:
    """A text that names policies, with those of local folders `named`."""
    for folder in sorted(filter(os.path.isabs, places), key=len, reverse=True):  # a folder before its parent
        text = text.replace(folder, named(folder))
    return text
