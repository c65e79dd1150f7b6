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
from sage_rlvr.models.weights import ADAPTER, ADAPTER_WEIGHTS
from sage_rlvr.runs import Checkpoint, RunDir, replacing_folder, writing
from sage_rlvr.safe_io import read_bytes
from sage_rlvr.training.loop_state import Loop
from sage_rlvr.training.optimizer import Optimizer

PARTS = "parts"  # the group of tensors in a checkpoint
README = "README.md"
CARD = "# What this policy was trained on"  # the heading of a model card that this package wrote
POLICY_FILES = (
    *("config.json", "generation_config.json", "model*.safetensors", "model.safetensors.index.json"),
    *("tokenizer*.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
    *("vocab.json", "vocab.txt", "merges.txt"),
    *(ADAPTER, ADAPTER_WEIGHTS),
)
"""What `save_pretrained` of a model and a tokenizer writes: a folder with nothing else in it may be replaced."""


def check_replaceable(out: Path) -> None:
    """ConfigError unless `out` is free, an empty folder, or a folder that holds a saved policy and nothing else.

    A saved policy is replaced as a whole, so whatever else lay in its folder would be lost.
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
    """True for a file that saving a policy writes; of a README.md only for a card of this package."""
    if file.name == README and file.is_file():
        return CARD.encode() in read_bytes(file)
    return file.is_file() and any(fnmatch(file.name, known) for known in POLICY_FILES)


def save_policy(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, out: Path, card: str | None = None) -> None:
    """config.json, model.safetensors, the tokenizer and a card, loadable by AutoModelForCausalLM; appears whole or not at all.

    Raises CheckpointError (full disk, read-only folder), ConfigError if `out` holds anything but a former policy.
    """
    check_replaceable(out)
    with writing("policy", out, sum(p.nbytes for p in model.parameters())), replacing_folder(out.absolute()) as partial:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        if card is not None:
            (partial / README).write_text(card, encoding="utf-8")
        check_replaceable(out)  # again: training and writing took their time


def checkpoint(
    run: RunDir,
    model: PreTrainedModel,
    optimizer: Optimizer,
    step: int,
    more: Mapping[str, Mapping[str, Tensor]] | None = None,
    **state: Any,
) -> None:
    """Weights (tied ones once), optimizer moments, `more` groups of tensors and the step, atomically."""
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


def kept_parts(loop: Loop) -> dict[str, dict[str, Tensor]]:
    """The running state of the method's parts, as a group of tensors; nothing if none has one."""
    tensors = tensors_of(loop.method.parts, loop.parts)
    return {PARTS: tensors} if tensors else {}


def restore_parts(loop: Loop, newest: Checkpoint | None) -> None:
    """Inverse of `kept_parts`, for a run that goes on. CheckpointError if the checkpoint holds the state of other parts."""
    if newest is None or not loop.method.start():
        return
    tensors = newest.load(PARTS) if (newest.path / f"{PARTS}.safetensors").is_file() else {}
    loop.parts = state_from(loop.method.parts, tensors, str(newest.path))


def model_tensors(model: PreTrainedModel) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name; a tied tensor appears under its first name only."""
    first = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
    return {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items() if name in first}


def load_tensors(model: PreTrainedModel, tensors: dict[str, Tensor]) -> None:
    """Copy by name into the model (tied weights follow)."""
    state = model.state_dict()
    with torch.no_grad():
        for name, tensor in tensors.items():
            state[name].copy_(tensor)


@contextmanager
def undone_if_diverged(loop: Loop) -> Iterator[None]:
    """A step whose third update diverges leaves the weights and moments from before its first, not from in between."""
    states = (model_tensors(loop.policy), loop.optimizer.tensors())
    weights, moments = ({name: tensor.clone() for name, tensor in state.items()} for state in states)
    try:
        yield
    except TrainingDiverged:
        load_tensors(loop.policy, weights)
        loop.optimizer.load(moments)
        raise
