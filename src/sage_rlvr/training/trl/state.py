"""Additional files of a checkpoint on TRL: the objective as text, the state of the method's parts, and a reference made
by the run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import TrainerState

from sage_rlvr.core.describe import objective_words
from sage_rlvr.core.state import state_from, tensors_of
from sage_rlvr.errors import CheckpointError, ConfigError
from sage_rlvr.runs import replacing, write_json_atomic
from sage_rlvr.safe_io import read_json
from sage_rlvr.training.trl.adapters import ADAPTER
from sage_rlvr.training.trl.protocols import PolicyTrainer
from sage_rlvr.training.trl.reference_model import Reference, ReferencedTrainer, sharded

REFERENCE, TENSORS = "sage_reference.json", "sage_reference.safetensors"  # in a checkpoint's folder
OBJECTIVE = "sage_objective.json"  # in a checkpoint's folder
PARTS = "sage_parts.safetensors"  # in a checkpoint's folder
EARLIER = "use an earlier checkpoint, or start a new run"


def save_state(trainer: ReferencedTrainer, folder: Path) -> None:
    """Save with a checkpoint's files the objective, the state of the method's parts, and a description of the reference.

    Its weights are saved if it is a former policy of the run.
    """
    reference = trainer.reference
    if not trainer.args.should_save:
        return
    write_json_atomic(folder / OBJECTIVE, {"objective": objective_words(trainer.method, trainer.anchor)})
    if trainer.method is not None and trainer.parts:
        with replacing(folder / PARTS) as path:
            save_file(tensors_of(trainer.method.parts, trainer.parts), path)
    if reference is None:
        return
    if reference.step:
        with replacing(folder / TENSORS) as path:
            save_file(reference.tensors(), path)
    record = {"source": reference.source, "how": reference.how, "step": reference.step}
    write_json_atomic(folder / REFERENCE, record | {"fingerprint": _fingerprint(reference)})


def _record(file: Path) -> dict[str, Any] | None:
    return dict(read_json(file, error=CheckpointError, advice=EARLIER)) if file.is_file() else None


def check_objective(trainer: PolicyTrainer, checkpoint: Path) -> None:
    """Raise ConfigError if the run that wrote `checkpoint` optimized something else; pass if it does not record it."""
    record, now = _record(checkpoint / OBJECTIVE), objective_words(trainer.method, trainer.anchor)
    if record is None or trainer.objective_may_change or record["objective"] == now:
        return
    raise ConfigError(
        f"{checkpoint}: the run that wrote this checkpoint had a different objective:\n{record['objective']}\nThe "
        f"current objective is:\n{now}\nPass the guide or method that the run was started with, start anew without "
        "resume_from_checkpoint, or continue with the new objective on purpose: trainer.objective_may_change = True."
    )


def restore_parts(trainer: PolicyTrainer, folder: Path) -> None:
    """The running state of the method's parts as `save_state` wrote it; CheckpointError if it is that of other parts."""
    if trainer.method is not None and trainer.parts:
        tensors = load_file(folder / PARTS) if (folder / PARTS).is_file() else {}
        trainer.parts = state_from(trainer.method.parts, tensors, str(folder))


def restore_reference(trainer: ReferencedTrainer, folder: Path) -> None:
    """The reference as `save_state` wrote it into a checkpoint, once TRL has loaded the policy.

    ConfigError if the checkpoint lacks a reference that the run had become, or where its reference was another one.
    """
    reference, kept = trainer.reference, _record(folder / REFERENCE)
    if reference is None:
        return
    due = reference.due(TrainerState.load_from_json(str(folder / "trainer_state.json")).global_step)
    if due and (kept is None or kept["step"] != due or not (folder / TENSORS).is_file()):
        raise ConfigError(
            f"{folder}: the reference should be the policy after step {due}, which this checkpoint does not contain; "
            "use an earlier checkpoint, or start a new run."
        )
    if due:
        reference.become(due, load_file(folder / TENSORS))
        return
    stray = reference.model is None and ADAPTER in reference.policy.peft_config and "adapter disabled" in reference.how
    if stray or (kept is not None and (kept["step"] or kept["fingerprint"] != _fingerprint(reference))):
        raise ConfigError(
            f"{folder}: the run that wrote it had a different reference ({_was(kept, reference)}) from this run "
            f"({reference.words}), so resuming would change the objective; pass the model, source and base_model that "
            "the run was started with."
        )


def _was(kept: Mapping[str, Any] | None, reference: Reference) -> str:
    """The reference that a checkpoint records; where it has the same words as `reference`, what differs all the same."""
    if kept is None:
        return "with an adapter 'ref'"
    if (kept["source"], kept.get("how", reference.how)) != (reference.source, reference.how):
        return f"{kept['source']}: {kept['how']}" if "how" in kept else f"source {kept['source']!r}"
    if kept["step"]:
        return f"that of step {kept['step']}"
    why = "the policy object passed to the trainer had already been trained"
    if "loaded from" in reference.how:
        why = "the files at that path have changed"
    return f"same source, different weights: {why}"


def _fingerprint(reference: Reference) -> str | None:
    """The digest of the reference's weights; None if it has none of its own, or in pieces."""
    return fingerprint({} if sharded(reference.trainer) else reference.tensors())


def fingerprint(tensors: Mapping[str, Tensor]) -> str | None:
    """A digest of weights, from sums of their bits, which no order of summation changes; None without any."""
    digest = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        bits = value.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[value.element_size()])
        digest.update(f"{name} {tuple(value.shape)} {value.dtype} {int(bits.sum(dtype=torch.int64))};".encode())
    return digest.hexdigest() if tensors else None
