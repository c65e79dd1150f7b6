"""Checkpoints of tensors and plain state: safetensors and JSON, with a manifest (sizes and SHA-256) written last.

Each is written to a temporary folder, synced to the disk and renamed. Pickle is never used.
"""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sage_rlvr.errors import CheckpointError, DataError
from sage_rlvr.runs.files import (
    file_sha256,
    replacing_folder,
    sync_file,
    to_json,
    write_json_atomic,
    writing,
)
from sage_rlvr.safe_io import read_json, understood

if TYPE_CHECKING:
    from torch import Tensor

MANIFEST = "MANIFEST.json"
STATE = "state.json"
FORMAT = 1
_STEP = re.compile(r"step-(\d{6,})")
_NUMBER = re.compile(r"-(\d+)$")  # of our step-000050 and TRL's checkpoint-50


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint. step: number of finished steps. path: its folder. state: the plain values saved with it."""

    step: int
    path: Path
    state: dict[str, Any] = field(repr=False)

    def load(self, group: str) -> dict[str, Tensor]:
        """Return the tensors of one group ("model", "optimizer"), on the CPU, bit for bit as they were saved.

        Raises CheckpointError for an unknown group and for any file that is not safetensors (pickle can run code).
        """
        if Path(group).suffix in (".pt", ".pth", ".bin", ".pkl", ".ckpt"):
            raise CheckpointError(
                f"{self.path / group}: a pickle file can run code when it is loaded, so it is never loaded; "
                f"if you trust the file, convert it once with safetensors.torch.save_file"
            )
        path = self.path / f"{group}.safetensors"
        if not path.is_file():
            groups = ", ".join(sorted(p.stem for p in self.path.glob("*.safetensors")))
            raise CheckpointError(f"{self.path}: no group {group!r}; groups here: {groups or 'none'}")
        from safetensors import SafetensorError  # of the extra train
        from safetensors.torch import load_file  # of the extra train

        try:
            return load_file(path)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path}: cannot be read ({error}); restore it from a copy, or delete {self.path}") from error


def verify_checkpoint(path: str | Path) -> None:
    """Compare a checkpoint folder, its number and every file, with its manifest.

    Raise CheckpointError with the first difference.
    """
    path = Path(path)
    if not (path / MANIFEST).exists():
        raise CheckpointError(f"{path}: {MANIFEST} is missing, so the checkpoint was never completed")
    manifest = read_json(path / MANIFEST, error=CheckpointError)
    if not isinstance(manifest.get("files"), dict) or manifest.get("format") != FORMAT:
        raise CheckpointError(f"{path / MANIFEST}: not a manifest of format {FORMAT}")
    if (number := _NUMBER.search(path.name)) and manifest.get("step") != int(number[1]):
        raise CheckpointError(
            f"{path}: its manifest is of step {manifest.get('step')}, so this folder is a copy or was renamed; move it away"
        )
    with understood(path / MANIFEST, CheckpointError):
        compare_files(path, manifest["files"], ("*.safetensors", STATE))


def compare_files(
    path: Path,
    files: Mapping[str, Mapping[str, Any]],
    only: Sequence[str] = (),
    sha256: Callable[[Path], str] = file_sha256,
) -> None:
    """Raise CheckpointError with the first difference between a folder and the files that its manifest lists.

    only: patterns of paths that must not be in the folder unless they are listed. sha256: the hash of a file.
    """
    there = {str(file.relative_to(path)) for pattern in only for file in path.glob(pattern)}
    if unlisted := sorted(there - files.keys()):
        raise CheckpointError(f"{path / unlisted[0]}: not in the manifest, so it was added later")
    for name, facts in files.items():
        file = path / name
        if not file.is_file():
            raise CheckpointError(f"{file}: missing")
        if file.stat().st_size != facts["bytes"]:
            raise CheckpointError(
                f"{file}: {file.stat().st_size} bytes, the manifest has {facts['bytes']} (truncated?)"
            )
        if (found := sha256(file)) != facts["sha256"]:
            raise CheckpointError(
                f"{file}: its SHA-256 is {found}, the manifest has {facts['sha256']}, so the content was changed or damaged"
            )


def newest_complete(checkpoints: Sequence[Path], in_place: bool = False) -> Path | None:
    """Return the newest complete checkpoint of `checkpoints`, oldest first; None if there is none.

    A damaged one warns. Raise CheckpointError if there are some and all are damaged.

    in_place: True if they are written without a temporary folder, so that a kill leaves one without a manifest, which does not
    count.
    """
    reasons = []
    for path in reversed(checkpoints):
        try:
            verify_checkpoint(path)
            return path
        except (CheckpointError, DataError) as error:
            reasons += [] if in_place and not (path / MANIFEST).exists() else [str(error)]
            warnings.warn(f"checkpoint skipped: {error}", stacklevel=4)
    if reasons:
        raise CheckpointError(
            f"{checkpoints[0].parent}: none of the {len(checkpoints)} checkpoints is complete ({'; '.join(reasons)}). "
            f"Restore one from a copy, or start again in another run directory"
        )
    return None


def seal(folder: Path, but: Sequence[str] = (), **facts: int | str) -> None:
    """Write the manifest of a folder's files, synced to the disk. but: names of files that may change later."""
    files = {name: known for name, known in sealed_files(folder).items() if name not in but}
    write_json_atomic(folder / MANIFEST, {"format": FORMAT, **facts, "files": files})


def sealed_files(folder: Path) -> dict[str, dict[str, Any]]:
    """Sync the files of a folder to the disk; return relative path -> SHA-256 and size in bytes of each, for `compare_files`."""
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST):
        sync_file(path)
        files[str(path.relative_to(folder))] = {"sha256": file_sha256(path), "bytes": path.stat().st_size}
    return files


def _own_storage(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors that safetensors can write: CPU, contiguous, no two sharing memory. Tied weights are written twice, equal."""
    seen: set[int] = set()
    result = {}
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        storage = plain.untyped_storage()
        shared = storage.data_ptr() in seen or storage.nbytes() != plain.numel() * plain.element_size()
        result[name] = plain.clone() if shared else plain
        seen.add(storage.data_ptr())
    return result


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    from safetensors.torch import save_file  # of the extra train

    save_file(dict(tensors), path)


def steps_in(folder: Path) -> dict[Path, int]:
    """Return path -> steps of every checkpoint in a folder, valid or not, oldest first."""
    steps = {path: int(match[1]) for path in folder.glob("step-*") if (match := _STEP.fullmatch(path.name))}
    return dict(sorted(steps.items(), key=lambda one: one[1]))


def save_checkpoint(
    folder: Path,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    keep: int,
    metrics_rows: int = 0,
) -> Path:
    """Write a checkpoint and verify it.

    Then remove all older ones except the newest `keep` - 1. Raise CheckpointError on failure.
    """
    groups = {name: _own_storage(group) for name, group in tensors.items()}
    text = to_json(state, f"checkpoint state at step {step}")
    needed = len(text) + sum(t.nbytes + 128 for group in groups.values() for t in group.values())
    home = folder / f"step-{step:06d}"
    with writing("checkpoint", folder, needed), replacing_folder(home) as partial:
        for name, group in groups.items():
            _write_tensors(partial / f"{name}.safetensors", group)
        (partial / STATE).write_text(text, encoding="utf-8")
        seal(partial, step=step, metrics_rows=metrics_rows)
    verify_checkpoint(home)
    older = [path for path, number in steps_in(folder).items() if number < step]
    for path in older[: len(older) - (keep - 1)]:
        shutil.rmtree(path.rename(path.with_name(f".tmp-{path.name}")))
    return home


def metrics_rows(folder: Path, step: int) -> int | None:
    """Return the number of metrics rows at the checkpoint of `step`.

    None if there is no such checkpoint, or it does not record them.
    """
    manifest = folder / f"step-{step:06d}" / MANIFEST
    count = read_json(manifest, error=CheckpointError).get("metrics_rows") if manifest.is_file() else None
    return count if type(count) is int and count >= 0 else None
