"""The model card (README.md) of a trained policy on every engine: its objective, reference, verifier and settings.

`render(facts_of(config))` on the loop and verl, from the recipe of the run; `render(facts(trainer))` on TRL, from the trainer
(training/trl/card.py).
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from sage_rlvr.config import TrainConfig, dump, task_of
from sage_rlvr.core.anchor import Anchor, is_sampled
from sage_rlvr.core.guides import is_flat
from sage_rlvr.core.method import Method
from sage_rlvr.models.folders import EMBEDDED, long_name
from sage_rlvr.models.hashes import CARD, NO_RESULTS
from sage_rlvr.models.policy import weights_hash
from sage_rlvr.models.smollm2_names import HUB_ID, LONG_NAMES
from sage_rlvr.runs import installed
from sage_rlvr.tasks.base import Task

PACKAGES = ("sage-rlvr", "trl", "transformers", "torch", "accelerate", "peft", "math-verify", "vllm", "deepspeed")
ESTIMATED = "k3 of the sampled token (the engine's estimate, in place of the exact sum of the objective)"
def facts_of(config: TrainConfig) -> dict[str, Any]:
    """The content of the card of a finished run on the loop or on verl."""
    method, task, engine = without_paths(config.method), task_of(config), config.engine.name
    return {
        "engine": engine,
        "policy": config.model,
        "method": method.name,
        "objective": replace(config, method=method).objective,
        "anchor": None if method.anchor is None else anchor_facts(method.anchor, engine),
        "reference": None if config.reference is None else named(config.reference),
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
    """`named_verifier` of a task; "source unknown" for code without a file, as in a notebook."""
    try:
        return named_verifier(task.verifier_hash)
    except (OSError, TypeError):
        return "source unknown"


def named_verifier(verifier_hash: str) -> str:
    """A `Task.verifier_hash` as a card prints it: the version of a verifier of this package, else 16 digits of a hash of source."""
    by_source = re.fullmatch("[0-9a-f]{64}", verifier_hash)
    return f"source SHA-256 {verifier_hash[:16]}" if by_source else f"verifier {verifier_hash}"


def _settings(config: TrainConfig) -> dict[str, Any]:
    """Return the sections of a recipe that decide what is sampled and how it is used, flat."""
    sections = {name: dump(getattr(config, name)) for name in ("rollout", "updates", "optimizer", "engine")}
    flat = {f"{name}.{key}": value for name, section in sections.items() for key, value in section.items()}
    return {key: value for key, value in flat.items() if value not in (None, {})}


def named(model: str) -> str:
    """A model as readers elsewhere know it: a local folder by its weights, since the path means nothing to them."""
    return f"local policy, SHA-256 {weights_hash(model)[:16]}" if Path(model).is_dir() else long_name(model)


def _on_hub(model: str) -> str | None:
    """The id under which the Hub has a model; None for one that only exists on this machine."""
    if model in LONG_NAMES:
        return HUB_ID
    return None if not model or model == EMBEDDED or Path(model).is_dir() else model


def _source(anchor: Anchor) -> str:
    """Return `Anchor.source`, a local folder named by its weights."""
    of_run = anchor.source in ("base", "sft") or anchor.snapshot_step is not None
    return anchor.source if of_run else named(anchor.source)


def without_paths(method: Method) -> Method:
    """A method to be described to readers elsewhere: its reference and its file of answers without folders of this machine."""
    anchor, extras = method.anchor, method.extras
    if anchor is not None:
        anchor = replace(anchor, source=_source(anchor))
    if (buffer := method.buffer) is not None and buffer.file is not None:
        extras = tuple(replace(buffer, file=Path(buffer.file).name) if one is buffer else one for one in extras)
    return replace(method, anchor=anchor, extras=extras)


def render(card: dict[str, Any]) -> str:
    """The card as Markdown with the Hub's front matter."""
    policy, cut = card["policy"], ""
    if card["truncated_sampling"]:
        from sage_rlvr.training.engines import (
            sampling_warning,  # late: only on TRL, the card says what its sampler leaves out
        )

        cut = sampling_warning(card["truncated_sampling"])
    on_hub = _on_hub(policy)
    tags = [*(["trl"] if card["engine"] == "trl" else []), "grpo", "sage-rlvr", *([card["method"]] if card["method"] else [])]
    lines = [
        "---",
        *([] if on_hub is None else [f"base_model: {on_hub}"]),
        "library_name: transformers",
        "tags:",
        *(f"- {json.dumps(tag)}" for tag in dict.fromkeys(tags)),
        *("---", "", CARD, ""),
        *(["```text", card["objective"], "```", ""] if card["objective"] else []),
        *([f"- trained from: {long_name(policy)}"] if policy in LONG_NAMES else []),
        *_anchor_lines(card["anchor"], card["reference"]),
        *(f"- reward `{name}`: {identity}" for name, identity in card["rewards"].items()),
        *(f"- trained: {card['trained']}", ""),
        *([f"Note: {cut}.", ""] if cut else []),
        *(f"| {card['settings']} | |", "|---|---|"),
        *(f"| {name} | {json.dumps(value)} |" for name, value in card["arguments"].items()),
        *("", "Versions: " + ", ".join(f"{name} {number}" for name, number in card["versions"].items()) + ".", ""),
        NO_RESULTS,
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


def anchor_facts(anchor: Anchor, engine: str) -> dict[str, Any]:
    """The KL term of a run on that engine, as the card has it."""
    exact = f"exact, divergence {anchor.divergence}" if anchor.estimator == "exact" else anchor.estimator
    return {
        "beta": plain(anchor.beta),
        "placement": anchor.placement,
        "estimator": ESTIMATED if engine != "loop" and is_sampled(anchor) else exact,
        "guide": "none (Flat)" if is_flat(anchor.guide) else repr(anchor.guide),
        "source": _source(anchor),
        "effect": anchor.effect.text,
    }


def plain(value: Any) -> Any:
    """A value that JSON can hold; enums by their value, anything else by its repr."""
    value = getattr(value, "value", value)
    return value if isinstance(value, str | int | float | bool | None) else repr(value)
