"""The model card (README.md) of a trained policy on every engine: its objective, reference, verifier and settings.

`render(facts(trainer))` on TRL, where every value is read from the trainer, so that the card names the objective that was run also
for a script; it takes the place of TRL's own card. `render(facts_of(config))` on the loop and verl, from the recipe of the run.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from sage_rlvr.config import TrainConfig, dump, task_of
from sage_rlvr.core.anchor import Anchor, is_sampled
from sage_rlvr.core.describe import described_on_engine
from sage_rlvr.core.guides import is_flat
from sage_rlvr.core.method import Method
from sage_rlvr.models import smollm2
from sage_rlvr.models.folders import EMBEDDED, long_name
from sage_rlvr.models.policy import weights_hash
from sage_rlvr.runs import installed
from sage_rlvr.tasks.base import Task
from sage_rlvr.training.state import CARD
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
PACKAGES = ("sage-rlvr", "trl", "transformers", "torch", "accelerate", "peft", "math-verify", "vllm", "deepspeed")
ESTIMATED = "k3 of the sampled token (the engine's estimate, in place of the exact sum of the objective)"
CUTS = {"top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0}  # the values that leave sampling whole


def facts(trainer: PolicyTrainer) -> dict[str, Any]:
    """The content of the card as plain values, also for run records and comparisons."""
    anchor, args = trainer.anchor, trainer.args
    method = None if trainer.method is None else _without_paths(trainer.method)
    policy = str(getattr(trainer.model.config, "_name_or_path", ""))
    reference = trainer.reference_description
    return {
        "engine": "trl",
        "policy": policy,
        "method": None if method is None else method.name,
        "objective": None if method is None else described_on_engine(method),
        "anchor": None if anchor is None else _anchor(anchor, "trl"),
        "reference": _elsewhere(reference, policy, *([] if anchor is None else [anchor.source])),
        "rewards": {name: reward_identity(function) for name, function in _rewards(trainer).items()},
        "settings": "GRPOConfig",
        "arguments": {name: _plain(getattr(args, name)) for name in TELLING if hasattr(args, name)},
        "truncated_sampling": truncated(args),
        "trained": f"{trainer.state.global_step} optimizer steps, ranks {trainer.accelerator.num_processes}",
        "versions": installed(PACKAGES),
    }


def facts_of(config: TrainConfig) -> dict[str, Any]:
    """The content of the card of a finished run on the loop or on verl."""
    method, task, engine = _without_paths(config.method), task_of(config), config.engine.name
    return {
        "engine": engine,
        "policy": config.model,
        "method": method.name,
        "objective": replace(config, method=method).objective,
        "anchor": None if method.anchor is None else _anchor(method.anchor, engine),
        "reference": None if config.reference is None else _named(config.reference),
        "rewards": {task.name: _identity_of(task)},
        "settings": "recipe",
        "arguments": {"seed": config.seed, "steps": config.steps, **_settings(config)},
        "truncated_sampling": [],
        "trained": f"{config.steps} steps, {config.steps * config.updates.per_step} updates{_skipped(config)}",
        "versions": installed(PACKAGES),
    }


def _skipped(config: TrainConfig) -> str:
    skip = config.updates.skip_without_signal
    return "" if skip == "never" else f", less those without a signal (updates.skip_without_signal: {skip})"


def _identity_of(task: Task) -> str:
    """`_named_verifier` of a task; "source unknown" for code without a file, as in a notebook."""
    try:
        return _named_verifier(task.verifier_hash)
    except (OSError, TypeError):
        return "source unknown"


def _named_verifier(verifier_hash: str) -> str:
    """A `Task.verifier_hash` as a card prints it: the version of a verifier of this package, else 16 digits of a hash of source."""
    by_source = re.fullmatch("[0-9a-f]{64}", verifier_hash)
    return f"source SHA-256 {verifier_hash[:16]}" if by_source else f"verifier {verifier_hash}"


def _settings(config: TrainConfig) -> dict[str, Any]:
    """The sections of a recipe that decide what is sampled and how it is used, flat."""
    sections = {name: dump(getattr(config, name)) for name in ("rollout", "updates", "optimizer", "engine")}
    flat = {f"{name}.{key}": value for name, section in sections.items() for key, value in section.items()}
    return {key: value for key, value in flat.items() if value not in (None, {})}


def _named(model: str) -> str:
    """A model as readers elsewhere know it: a local folder by its weights, since the path means nothing to them."""
    return f"local policy, SHA-256 {weights_hash(model)[:16]}" if Path(model).is_dir() else long_name(model)


def _on_hub(model: str) -> str | None:
    """The id under which the Hub has a model; None for one that only exists on this machine."""
    if model in smollm2.LONG_NAMES:
        return smollm2.HUB_ID
    return None if not model or model == EMBEDDED or Path(model).is_dir() else model


def _source(anchor: Anchor) -> str:
    """`Anchor.source`, a local folder by its weights."""
    of_run = anchor.source in ("base", "sft") or anchor.snapshot_step is not None
    return anchor.source if of_run else _named(anchor.source)


def _elsewhere(text: str, *places: str) -> str:
    """A text that names policies, with those of local folders `_named`."""
    for folder in sorted(filter(os.path.isabs, places), key=len, reverse=True):  # a folder before one that it lies in
        text = text.replace(folder, _named(folder))
    return text


def _without_paths(method: Method) -> Method:
    """A method to be described to readers elsewhere: its reference and its file of answers without folders of this machine."""
    anchor, extras = method.anchor, method.extras
    if anchor is not None:
        anchor = replace(anchor, source=_source(anchor))
    if (buffer := method.buffer) is not None and buffer.file is not None:
        extras = tuple(replace(buffer, file=Path(buffer.file).name) if one is buffer else one for one in extras)
    return replace(method, anchor=anchor, extras=extras)


def truncated(args: Any) -> list[str]:
    """Each setting under which the sampler leaves out or reweights tokens, so that samples are not the policy's own."""
    cuts = [f"{name}={getattr(args, name)}" for name, whole in CUTS.items() if getattr(args, name, whole) != whole]
    return [cut for cut in cuts if cut not in ("top_k=-1", "min_p=0.0", "top_k=None")]


def reward_identity(function: Any) -> str:
    """What a reward's verdicts come from: "verifier math-v1-...", "source SHA-256 ..." (16 digits), or "source unknown" where
    Python has none.

    Of a task's reward its verifier, a user's function included. Of this package's mathematics reward the version of the verifier,
    with its options, limits and libraries (`sage_rlvr.verifiers.versions`). Of any other function its own source and, where it
    names what it judges with in an attribute `verifiers`, their modules.
    """
    if (known := getattr(function, "verifier_hash", None)) is not None:
        return _named_verifier(str(known))
    owner = function if inspect.isroutine(function) else type(function)
    if owner.__module__.startswith("sage_rlvr.verifiers"):
        return _named_verifier(version_hash("math", options=_options(function)))
    try:
        text = inspect.getsource(owner)
        for module in getattr(function, "verifiers", ()):
            text += inspect.getsource(module)
    except (OSError, TypeError):
        return "source unknown"
    return _named_verifier(hashlib.sha256(text.encode()).hexdigest())


def _options(function: Any) -> str:
    """What a reward was made with; of a pool of its own the limits, which decide what stays undecided."""
    options = dict(vars(function)) if hasattr(function, "__dict__") else {}
    pool = options.pop("pool", None)
    limits = None if pool is None else (pool.seconds, pool.memory_mb, pool.function)
    return repr((sorted(options.items()), limits))


def render(card: dict[str, Any]) -> str:
    """The card as Markdown with the Hub's front matter."""
    policy, cuts = card["policy"], ", ".join(card["truncated_sampling"])
    on_hub = _on_hub(policy)
    tags = [*(["trl"] if card["engine"] == "trl" else []), "grpo", "sage-rlvr", *([card["method"]] if card["method"] else [])]
    cut = f"Sampling was truncated ({cuts}), while log-probs are those of the full policy: importance ratios are not exact."
    lines = [
        "---",
        *([] if on_hub is None else [f"base_model: {on_hub}"]),
        "library_name: transformers",
        "tags:",
        *(f"- {json.dumps(tag)}" for tag in dict.fromkeys(tags)),
        *("---", "", CARD, ""),
        *(["```text", card["objective"], "```", ""] if card["objective"] else []),
        *([f"- trained from: {long_name(policy)}"] if policy in smollm2.LONG_NAMES else []),
        *_anchor_lines(card["anchor"], card["reference"]),
        *(f"- reward `{name}`: {identity}" for name, identity in card["rewards"].items()),
        *(f"- trained: {card['trained']}", ""),
        *([cut, ""] if cuts else []),
        *(f"| {card['settings']} | |", "|---|---|"),
        *(f"| {name} | {json.dumps(value)} |" for name, value in card["arguments"].items()),
        *("", "Versions: " + ", ".join(f"{name} {number}" for name, number in card["versions"].items()) + ".", ""),
        "This card contains no evaluation; for pass@k with intervals run `sage-rlvr eval` and `sage-rlvr compare`.",
        "",
    ]
    return "\n".join(lines)


def _anchor_lines(anchor: dict[str, Any] | None, reference: str | None) -> list[str]:
    if anchor is None:
        return ["- KL term: none"]
    return [
        f"- KL term: in the {anchor['placement']}, estimator {anchor['estimator']}, beta {anchor['beta']}",
        f"- guide: {anchor['guide']}",
        f"- expected gradient of the KL term, on-policy: {anchor['effect']}",
        f"- reference: {reference or anchor['source']}",
    ]


def _anchor(anchor: Anchor, engine: str) -> dict[str, Any]:
    exact = f"exact, divergence {anchor.divergence}" if anchor.estimator == "exact" else anchor.estimator
    return {
        "beta": _plain(anchor.beta),
        "placement": anchor.placement,
        "estimator": ESTIMATED if engine != "loop" and is_sampled(anchor) else exact,
        "guide": "none (Flat)" if is_flat(anchor.guide) else repr(anchor.guide),
        "source": _source(anchor),
        "effect": anchor.effect.text,
    }


def _rewards(trainer: PolicyTrainer) -> dict[str, Any]:
    names = getattr(trainer, "reward_func_names", None) or [str(i) for i in range(len(trainer.reward_funcs))]
    return dict(zip(names, trainer.reward_funcs, strict=True))


def _plain(value: Any) -> Any:
    """A value that JSON can hold; enums by their value, anything else by its repr."""
    value = getattr(value, "value", value)
    return value if isinstance(value, str | int | float | bool | None) else repr(value)
