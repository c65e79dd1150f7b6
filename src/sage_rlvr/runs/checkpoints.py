"""Checkpoints of tensors and plain state: safetensors and JSON, with a manifest (sizes and SHA-256) written last.

Each is written beside its place, synced to the disk and renamed. No pickle is written or read.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sage_rlvr.errors import CheckpointError
from sage_rlvr.runs.files import file_sha256, read_json, sync_file, sync_folder, to_json, write_json_atomic, writing

if TYPE_CHECKING:
    from torch import Tensor

MANIFEST = "MANIFEST.json"
STATE = "state.json"
FORMAT = 1
_STEP = re.compile(r"step-(\d{6,})")


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint. step: steps that were done. path: its folder. state: what `save_checkpoint` was given."""

    step: int
    path: Path
    state: dict[str, Any] = field(repr=False)

    def load(self, group: str) -> dict[str, Tensor]:
        """The tensors of one group ("model", "optimizer"), on the CPU, bit for bit as they were saved.

        Raises CheckpointError for an unknown group and for any file that is not safetensors (pickle can run code).
        """
        if Path(group).suffix in (".pt", ".pth", ".bin", ".pkl", ".ckpt"):
            raise CheckpointError(
                f"{self.path / group}: a pickle file can run code when it is read, so it is never read here; "
                f"convert it once with safetensors.torch.save_file where you trust it"
            )
        path = self.path / f"{group}.safetensors"
        if not path.is_file():
            groups = ", ".join(sorted(p.stem for p in self.path.glob("*.safetensors")))
            raise CheckpointError(f"{self.path}: no group {group!r}; groups here: {groups or 'none'}")
        from safetensors.torch import load_file

        return load_file(path)


def verify_checkpoint(path: str | Path) -> None:
    """Compare every file of a checkpoint folder with its manifest; raises CheckpointError with the first difference."""
    path = Path(path)
    if not (path / MANIFEST).is_file():
        raise CheckpointError(f"{path}: {MANIFEST} is missing, so the checkpoint was never completed")
    manifest = read_json(path / MANIFEST)
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(files, dict) or manifest.get("format") != FORMAT:
        raise CheckpointError(f"{path / MANIFEST}: not a manifest of format {FORMAT}")
    for name, facts in files.items():
        file = path / name
        if not file.is_file():
            raise CheckpointError(f"{file}: missing")
        if file.stat().st_size != facts["bytes"]:
            raise CheckpointError(
                f"{file}: {file.stat().st_size} bytes, the manifest says {facts['bytes']} (truncated?)"
            )
        if file_sha256(file) != facts["sha256"]:
            raise CheckpointError(f"{file}: its SHA-256 is not the manifest's, so the content was changed or damaged")


def seal(folder: Path, **facts: int) -> None:
    """Write the manifest of a folder's files, synced to the disk, which `verify_checkpoint` later holds them against."""
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST):
        sync_file(path)
        files[str(path.relative_to(folder))] = {"sha256": file_sha256(path), "bytes": path.stat().st_size}
    write_json_atomic(folder / MANIFEST, {"format": FORMAT, **facts, "files": files})


def _own_storage(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """CPU, contiguous, no two sharing memory: what safetensors can write. Tied weights are written twice, equal."""
    seen: set[int] = set()
    result = {}
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        address = plain.untyped_storage().data_ptr()
        whole = plain.untyped_storage().nbytes() == plain.numel() * plain.element_size()
        result[name] = plain if whole and address not in seen else plain.clone()
        seen.add(address)
    return result


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    from safetensors.torch import save_file

    save_file(dict(tensors), path)


class Checkpoints:
    """The folder checkpoints/: write beside, sync, rename, verify, and only then delete what is older."""

    def __init__(self, folder: Path):
        self.folder = folder

    def all(self) -> list[tuple[int, Path]]:
        """(step, path) of every checkpoint folder, valid or not, oldest first."""
        if not self.folder.is_dir():
            return []
        found = [(m, p) for p in self.folder.iterdir() if p.is_dir() and (m := _STEP.fullmatch(p.name))]
        return sorted((int(match.group(1)), path) for match, path in found)

    def sweep(self) -> None:
        """Remove what a kill left behind; a checkpoint that was moved aside while it was being replaced comes back."""
        if not self.folder.is_dir():
            return
        for path in self.folder.glob(".old-step-*"):
            home = self.folder / path.name.removeprefix(".old-")
            if home.exists():
                shutil.rmtree(path)
            else:
                path.rename(home)
        for path in self.folder.glob(".tmp-*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def save(
        self,
        step: int,
        tensors: Mapping[str, Mapping[str, Tensor]],
        state: Mapping[str, Any],
        keep: int,
        metrics_rows: int = 0,
    ) -> Path:
        """Written beside its place, renamed, verified; then all but the newest `keep` go. CheckpointError where it fails."""
        groups = {name: _own_storage(group) for name, group in tensors.items()}
        text = to_json(state, f"checkpoint state at step {step}")
        needed = len(text) + sum(t.numel() * t.element_size() + 128 for g in groups.values() for t in g.values())
        home = self.folder / f"step-{step:06d}"
        temporary = self.folder / f".tmp-{home.name}-{uuid.uuid4().hex[:8]}"
        try:
            with writing("checkpoint", self.folder, needed):
                temporary.mkdir(parents=True)
                self.fill(temporary, groups, text, {"step": step, "metrics_rows": metrics_rows})
                self.move(temporary, home)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        verify_checkpoint(home)
        self.prune(step, keep)
        return home

    def fill(
        self, folder: Path, groups: Mapping[str, Mapping[str, Tensor]], state: str, facts: Mapping[str, int]
    ) -> None:
        """The files of one checkpoint, the manifest last."""
        for name, group in groups.items():
            _write_tensors(folder / f"{name}.safetensors", group)
        (folder / STATE).write_text(state, encoding="utf-8")
        seal(folder, **facts)

    def move(self, temporary: Path, home: Path) -> None:
        """Into place. An older checkpoint of the same step steps aside first, and `sweep` returns it after a kill."""
        aside = self.folder / f".old-{home.name}"
        if home.exists():
            os.rename(home, aside)
        os.rename(temporary, home)
        sync_folder(self.folder)
        if aside.exists():
            shutil.rmtree(aside)

    def prune(self, step: int, keep: int) -> None:
        """Of the checkpoints before `step`, which has just been verified, keep the newest keep - 1."""
        older = [path for number, path in self.all() if number < step]
        for path in older[: len(older) - (keep - 1)]:
            doomed = path.with_name(f".tmp-{path.name}-{uuid.uuid4().hex[:8]}")
            os.rename(path, doomed)
            shutil.rmtree(doomed)

    def metrics_rows(self, step: int) -> int | None:
        """Rows of metrics when the checkpoint of `step` was written; None where there is no such checkpoint."""
        manifest = self.folder / f"step-{step:06d}" / MANIFEST
        return int(read_json(manifest)["metrics_rows"]) if manifest.is_file() else None

    def latest(self) -> Checkpoint | None:
        """The newest complete one, None where there never was any. A damaged one warns; CheckpointError if all are."""
        found = self.all()
        reasons = []
        for step, path in reversed(found):
            try:
                verify_checkpoint(path)
                return Checkpoint(step, path, read_json(path / STATE))
            except (CheckpointError, OSError) as error:
                reasons.append(str(error))
                warnings.warn(f"checkpoint skipped: {error}", stacklevel=3)
        if reasons:
            raise CheckpointError(
                f"{self.folder}: none of the {len(found)} checkpoints is complete ({'; '.join(reasons)}). "
                f"Restore one from a copy, or start again in another run directory"
            )
        return None
