"""What a checkpoint on TRL keeps beside TRL's own files: the objective in words, and the reference where the run became it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from sage_rlvr.core.anchor import Anchor
from sage_rlvr.core.method import Method
from sage_rlvr.errors import ConfigError
from sage_rlvr.runs import replacing, write_json_atomic
from sage_rlvr.training.state import load_tensors, model_tensors
from sage_rlvr.training.trl.adapters import ADAPTER, copy_adapter, is_of
from sage_rlvr.training.trl.reference_model import Reference, policy_of, sharded

REFERENCE, TENSORS = "sage_reference.json", "sage_reference.safetensors"  # in a checkpoint's folder
OBJECTIVE = "sage_objective.json"  # in a checkpoint's folder
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # of objects without a repr of their own: another in every process


def objective_words(method: Method | None, anchor: Anchor | None) -> str:
    """A method by its `describe()`, which begins with its name; else the guide, KL estimator and beta beside TRL's loss."""
    if method is not None:
        words = f"method {method.describe()}"
    elif anchor is not None:
        words = f"guide={anchor.guide!r}, estimator {anchor.estimator}, beta {anchor.beta!r}"
    else:
        words = "no KL term"
    return _ADDRESS.sub("", words)


def save_objective(trainer: Any, folder: Path) -> None:
    """Beside a checkpoint's files."""
    if trainer.args.should_save:
        write_json_atomic(folder / OBJECTIVE, {"objective": objective_words(trainer.method, trainer.anchor)})


def check_objective(trainer: Any, checkpoint: str | None) -> None:
    """ConfigError where the run that wrote `checkpoint` optimized something else; silent where it does not say."""
    record = None if checkpoint is None else Path(checkpoint) / OBJECTIVE
    if record is None or trainer.objective_may_change or not record.is_file():
        return
    was, now = (
        json.loads(record.read_text(encoding="utf-8"))["objective"],
        objective_words(trainer.method, trainer.anchor),
    )
    if was != now:
        raise ConfigError(
            f"{checkpoint}: the run that wrote it had another objective:\n{was}\nThis one has:\n{now}\nGive the trainer the "
            "guide or method that it was started with, start anew without resume_from_checkpoint, or go on with the new one "
            "on purpose: trainer.objective_may_change = True."
        )


# ---- the reference


def save_reference(trainer: Any, folder: Path) -> None:
    """Beside a checkpoint's files: what the reference is, and its weights where the run itself became it."""
    reference = trainer.reference
    if reference is None or not trainer.args.should_save:
        return
    record = {"source": reference.source, "how": reference.how, "step": reference.step}
    record |= {"fingerprint": _fingerprint(trainer)}
    if reference.step:
        with replacing(folder / TENSORS) as path:
            save_file(_tensors(trainer), path)
    write_json_atomic(folder / REFERENCE, record)


def restore_reference(trainer: Any, checkpoint: str | None) -> None:
    """Inverse of `save_reference`, once TRL has loaded the policy.

    ConfigError where the checkpoint lacks a reference that the run had become, or where its reference was another one.
    """
    reference = trainer.reference
    if reference is None or checkpoint is None:
        return
    folder = Path(checkpoint)
    due = reference.due(json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))["global_step"])
    kept = json.loads((folder / REFERENCE).read_text(encoding="utf-8")) if (folder / REFERENCE).is_file() else None
    if due and (kept is None or kept["step"] != due or not (folder / TENSORS).is_file()):
        raise ConfigError(
            f"{folder}: the reference is to be the policy after step {due}, which this checkpoint does not hold; take an "
            "earlier checkpoint, or start anew."
        )
    if due:
        _put(trainer, load_file(folder / TENSORS))
        reference.step = due
        return
    own = policy_of(trainer)
    stray = trainer.ref_model is None and ADAPTER in own.peft_config and "adapter disabled" in reference.how
    if stray or (kept is not None and (kept["step"] or kept["fingerprint"] != _fingerprint(trainer))):
        raise ConfigError(
            f"{folder}: the run that wrote it had another reference ({_was(kept, reference)}) than this one "
            f"({reference.words}), so going on would change the objective; give the trainer the model, source and base_model "
            "that it was started with."
        )


def _was(kept: Mapping[str, Any] | None, reference: Reference) -> str:
    """The reference that a checkpoint records; where it has the same words as `reference`, what differs all the same."""
    if kept is None:
        return "with an adapter 'ref'"
    if (kept["source"], kept.get("how", reference.how)) != (reference.source, reference.how):
        return f"{kept['source']}: {kept['how']}" if "how" in kept else f"source {kept['source']!r}"
    if kept["step"]:
        return f"that of step {kept['step']}"
    why = "the policy object handed over had been trained already"
    if "loaded from" in reference.how:
        why = "the files there have changed"
    return f"same source, other weights: {why}"


def _tensors(trainer: Any) -> dict[str, Tensor]:
    """The reference's own weights by name: of its model, or of the adapter; nothing where an adapter is disabled."""
    if trainer.ref_model is not None:
        return model_tensors(trainer.accelerator.unwrap_model(trainer.ref_model))
    values = {**dict(policy_of(trainer).named_parameters()), **dict(policy_of(trainer).named_buffers())}
    return {name: value.detach().contiguous() for name, value in values.items() if is_of(ADAPTER, name)}


@torch.no_grad()
def _put(trainer: Any, tensors: dict[str, Tensor]) -> None:
    if trainer.ref_model is not None:
        load_tensors(trainer.accelerator.unwrap_model(trainer.ref_model), tensors)
        return
    copy_adapter(policy_of(trainer))
    values = {**dict(policy_of(trainer).named_parameters()), **dict(policy_of(trainer).named_buffers())}
    for name, value in tensors.items():
        values[name].copy_(value)


def _fingerprint(trainer: Any) -> str | None:
    """A digest of the reference's weights, from sums of their bits; None where it has none of its own, or in pieces."""
    if sharded(trainer):
        return None
    digest = hashlib.sha256()
    tensors = _tensors(trainer)
    for name, value in sorted(tensors.items()):
        bits = value.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[value.element_size()])
        digest.update(f"{name} {tuple(value.shape)} {value.dtype} {int(bits.sum(dtype=torch.int64))};".encode())
    return digest.hexdigest() if tensors else None
