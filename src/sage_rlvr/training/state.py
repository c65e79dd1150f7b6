"""Checkpoints of weights and optimizer state, and the policy that a run writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from sage_rlvr.core.state import state_from, tensors_of
from sage_rlvr.errors import TrainingDiverged, refuse
from sage_rlvr.models.hashes import BESIDE, CARD, README
from sage_rlvr.models.weights import ADAPTER_WEIGHTS
from sage_rlvr.runs import MANIFEST, Checkpoint, RunDir, replacing_folder, seal, writing
from sage_rlvr.runs.record import run_id
from sage_rlvr.safe_io import read_bytes
from sage_rlvr.training.loop_state import TrainState
from sage_rlvr.training.optimizer import Optimizer

PARTS = "parts"  # the group of tensors in a checkpoint
POLICY_FILES = (*BESIDE, "model*.safetensors", ADAPTER_WEIGHTS, MANIFEST)
"""Files that `save_pretrained` and `seal_policy` write: a folder with nothing else in it may be replaced."""


def check_replaceable(out: Path) -> None:
    """Raise ConfigError unless `out` is free, an empty folder, or a folder that contains a saved policy and nothing else.

    A saved policy is replaced as a unit, so any other file in its folder would be lost.
    """
    inside = sorted(out.iterdir()) if out.is_dir() else []
    foreign = [f.name for f in inside if not _of_a_policy(f)]
    listed = ", ".join(foreign[:5]) + (f" and {len(foreign) - 5} more" if len(foreign) > 5 else "")
    known = any((out / name).exists() for name in ("config.json", "adapter_config.json"))
    refuse(
        (
            out.is_symlink() or (out.exists() and not out.is_dir()),
            f"{out}: a policy needs a folder, but this path is a file or a link; choose another path",
        ),
        (
            foreign,
            f"{out}: saving the policy here would replace the whole folder, which contains {listed}; nothing was "
            f"changed. Choose a new folder, for example {out / 'policy'}",
        ),
        (
            inside and not known,
            f"{out}: holds {', '.join(f.name for f in inside[:5])} without a config.json, so it is not a saved policy "
            f"and was not replaced; choose a new folder, for example {out / 'policy'}",
        ),
    )


def _of_a_policy(file: Path) -> bool:
    """Return True for a file that saving a policy writes; for a README.md only if it is a card of this package."""
    if file.name == README and file.is_file():
        return CARD.encode() in read_bytes(file)
    return file.is_file() and any(fnmatch(file.name, known) for known in POLICY_FILES)


def save_policy(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, out: Path, card: str | None = None) -> None:
    """Write config.json, model.safetensors, the tokenizer and a card, loadable by AutoModelForCausalLM, atomically.

    Raises CheckpointError (full disk, read-only folder), ConfigError if `out` contains anything but a former policy.
    """
    check_replaceable(out)
    with writing("policy", out, sum(p.nbytes for p in model.parameters())), replacing_folder(out.absolute()) as partial:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        if card is not None:
            (partial / README).write_text(card, encoding="utf-8")
        seal_policy(partial)
        check_replaceable(out)  # again: training and writing took their time


def seal_policy(folder: Path) -> None:
    """Write the hashes of a policy's files, and its run, for `models.hashes.check_hashes`.

    The card, which a user may change, is left out.
    """
    run = run_id(folder.parent)
    seal(folder, (README,), **({} if run is None else {"run": run}))


def checkpoint(
    run: RunDir,
    model: PreTrainedModel,
    optimizer: Optimizer,
    step: int,
    more: Mapping[str, Mapping[str, Tensor]] | None = None,
    **state: Any,
) -> None:
    """Write weights (tied ones once), optimizer moments, `more` groups of tensors and the step, atomically."""
    groups = {"model": model_tensors(model), "optimizer": optimizer.tensors(), **(more or {})}
    run.save_checkpoint(step, groups, {"step": step, **state})


def resume(run: RunDir, model: PreTrainedModel, optimizer: Optimizer) -> Checkpoint | None:
    """Load the newest complete checkpoint, drop the metrics written after it, return it (None if there is none)."""
    newest = run.latest()
    run.truncate_metrics(newest.step if newest else 0)
    if newest is not None:
        load_tensors(model, newest.load("model"))
        optimizer.load(newest.load("optimizer"))
    return newest


def kept_parts(loop: TrainState) -> dict[str, dict[str, Tensor]]:
    """Return the running state of the method's parts, as a group of tensors; nothing if none has one."""
    tensors = tensors_of(loop.method.parts, loop.parts)
    return {PARTS: tensors} if tensors else {}


def restore_parts(loop: TrainState, newest: Checkpoint | None) -> None:
    """Restore the state of `kept_parts`, for a run that continues. Raise CheckpointError if it belongs to other parts."""
    if newest is None or not loop.method.start():
        return
    tensors = newest.load(PARTS) if (newest.path / f"{PARTS}.safetensors").is_file() else {}
    loop.parts = state_from(loop.method.parts, tensors, str(newest.path))


def model_tensors(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return parameters and persistent buffers by name; a tied tensor appears under its first name only."""
    first = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
    return {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items() if name in first}


def load_tensors(model: PreTrainedModel, tensors: dict[str, Tensor]) -> None:
    """Copy by name into the model (tied weights follow)."""
    state = model.state_dict()
    with torch.no_grad():
        for name, tensor in tensors.items():
            state[name].copy_(tensor)


@contextmanager
def undone_if_diverged(loop: TrainState) -> Iterator[None]:
    """Restore the weights and moments from before the step if one of its updates diverges, not those between two updates."""
    states = (model_tensors(loop.policy), loop.optimizer.tensors())
    weights, moments = ({name: tensor.clone() for name, tensor in state.items()} for state in states)
    try:
        yield
    except TrainingDiverged:
        load_tensors(loop.policy, weights)
        loop.optimizer.load(moments)
        raise
