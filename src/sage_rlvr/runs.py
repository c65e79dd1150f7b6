"""The run directory: resolved config, versions, lock, atomic checkpoints, metrics.

    run.json               what was run: resolved configuration, versions, git state, platform
    metrics.jsonl          one strict-JSON line a step; keys under "time/" are exempt from bitwise equality
    checkpoints/step-000050/   safetensors and JSON, MANIFEST.json (sizes and SHA-256) written last
    lock, lock.owner.json  the operating system's lock, and who holds it

Killed at any instant, a run continues from its last complete checkpoint: a checkpoint is written beside its place,
synced to the disk and renamed; rows of metrics after it are dropped and made again. No pickle is written or read.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import threading
import uuid
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from sage_rlvr.errors import CheckpointError, ConfigError, DataError, RunLocked, SageError

if TYPE_CHECKING:
    from torch import Tensor

DEAD_STEPS = 20  # steps without a single living group, after which a run says so
MANIFEST = "MANIFEST.json"
STATE = "state.json"
FORMAT = 1
_STEP = re.compile(r"step-(\d{6,})")
_PACKAGES = ("torch", "transformers", "numpy", "safetensors")
STRETCHED = frozenset({"linear", "cosine", "cosine_cycles"})  # schedules that read how many steps a run has
_BINDING = ("torch", "transformers")  # a resume under other versions of these would not be the same run


# ------------------------------------------------------------------------------------------------------------------
# files


def file_sha256(path: str | Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes, read in pieces of 1 MiB."""
    digest = hashlib.sha256()
    with open(path, "rb") as handle:
        while piece := handle.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def write_text_atomic(path: str | Path, text: str) -> None:
    """Replace a file's text so that a reader, or a kill at any instant, finds the old or the new one."""
    path = Path(path)
    temporary = path.with_name(f".tmp-{path.name}-{uuid.uuid4().hex[:8]}")
    try:
        with open(temporary, "w", encoding="utf-8") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def write_json_atomic(path: str | Path, value: Any) -> None:
    """`write_text_atomic` of strict JSON; raises DataError for NaN, infinity and what JSON has no form for."""
    write_text_atomic(path, _to_json(value, str(path), indent=2) + "\n")


def _to_json(value: Any, what: str, indent: int | None = None) -> str:
    try:
        return json.dumps(value, allow_nan=False, indent=indent, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise DataError(f"{what}: {error}; JSON holds finite numbers, text, lists and mappings only") from error


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON: {error}") from error


def _sync_folder(folder: Path) -> None:
    """Make renames in a folder durable, where the system lets a folder be opened."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows opens no folders and needs no sync of them
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_file(path: Path) -> None:
    with open(path, "rb+") as handle:
        os.fsync(handle.fileno())


# ------------------------------------------------------------------------------------------------------------------
# checkpoints


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
    manifest = _read_json(path / MANIFEST)
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
        _sync_file(path)
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


@contextlib.contextmanager
def writing(what: str, path: Path, needed: int) -> Iterator[None]:
    """Errors of the file system while `what` (about `needed` bytes) is written to `path` become CheckpointErrors."""
    try:
        yield
    except Exception as error:
        problem = _disk_problem(error, what, path, needed)
        if problem is None:
            raise
        raise problem from error


def _disk_problem(error: Exception, what: str, path: Path, needed: int) -> CheckpointError | None:
    """A CheckpointError for an error of the file system (safetensors reports them as text), None for any other."""
    reported = re.search(r"os error (\d+)", str(error))
    code = error.errno if isinstance(error, OSError) else int(reported.group(1)) if reported else None
    if code is None:
        return None
    kept = "the checkpoints before it are untouched"
    if code in (errno.ENOSPC, errno.EDQUOT):
        free = shutil.disk_usage(next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())).free
        return CheckpointError(
            f"{path}: the disk is full: this {what} needs about {needed:,} bytes, {free:,} are free; {kept}. "
            f"Free some space (or lower checkpoint.keep), then give the same command again to continue"
        )
    return CheckpointError(f"{path}: cannot write a {what}: {os.strerror(code)}; {kept}. Mend that, then run again")


class _Checkpoints:
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
        text = _to_json(state, f"checkpoint state at step {step}")
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
        _sync_folder(self.folder)
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
        return int(_read_json(manifest)["metrics_rows"]) if manifest.is_file() else None

    def latest(self) -> Checkpoint | None:
        """The newest complete one, None where there never was any. A damaged one warns; CheckpointError if all are."""
        found = self.all()
        reasons = []
        for step, path in reversed(found):
            try:
                verify_checkpoint(path)
                return Checkpoint(step, path, _read_json(path / STATE))
            except (CheckpointError, OSError) as error:
                reasons.append(str(error))
                warnings.warn(f"checkpoint skipped: {error}", stacklevel=3)
        if reasons:
            raise CheckpointError(
                f"{self.folder}: none of the {len(found)} checkpoints is complete ({'; '.join(reasons)}). "
                f"Restore one from a copy, or start again in another run directory"
            )
        return None


# ------------------------------------------------------------------------------------------------------------------
# metrics


def jsonable(value: Any) -> Any:
    """A value as strict JSON can hold it: NaN and infinities become the texts "nan", "inf", "-inf"."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):  # numpy and torch scalars
        return jsonable(value.item())
    return value


def comparable(row: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a metrics row that two equal runs share bit for bit: everything but the timings under "time/"."""
    return {key: value for key, value in row.items() if not key.startswith("time/")}


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl (or of the run directory that holds it); a last line without its end is left out.

    Non-finite numbers come as the texts "nan", "inf", "-inf". Raises DataError that names a damaged line.
    """
    path = Path(path)
    path = path / "metrics.jsonl" if path.is_dir() else path
    if not path.exists():
        return []
    *lines, _ = path.read_bytes().split(b"\n")
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            if not isinstance(row, dict) or not isinstance(row.get("step"), int):
                raise ValueError("not a mapping with a step")
        except ValueError as error:
            raise DataError(f"{path}:{number}: damaged line ({error}); delete that line to go on without it") from error
        rows.append(row)
    return rows


# ------------------------------------------------------------------------------------------------------------------
# what was run


def versions() -> dict[str, str]:
    """Versions of Python, of this package and of the libraries that decide a run's numbers."""
    found = {"python": platform.python_version()}
    for name in (*_PACKAGES, "sage-rlvr"):
        try:
            found[name.replace("-", "_")] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name.replace("-", "_")] = "not installed"
    return found


def git_state() -> dict[str, Any] | None:
    """{"commit", "changed"} of the source tree this package runs from; None for an installed copy or without git."""
    folder = Path(__file__).resolve().parent

    def ask(*words: str) -> str:
        command = ["git", "--no-optional-locks", "-C", str(folder), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        ask("ls-files", "--error-unmatch", Path(__file__).name)
        return {"commit": ask("rev-parse", "HEAD"), "changed": bool(ask("status", "--porcelain", "--", "."))}
    except (OSError, subprocess.SubprocessError):
        return None


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def differences(old: Any, new: Any, place: str = "") -> dict[str, tuple[Any, Any]]:
    """dotted place -> (old, new) of every leaf in which two plain trees differ; what one side lacks is "(absent)"."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return {} if old == new and type(old) is type(new) else {place: (old, new)}
    found: dict[str, tuple[Any, Any]] = {}
    for key in [*old, *(key for key in new if key not in old)]:
        inner = f"{place}.{key}" if place else str(key)
        found |= differences(old.get(key, "(absent)"), new.get(key, "(absent)"), inner)
    return found


class RunDir:
    """One run's directory, held by one process. Open it with `RunDir.open`, best in a `with` statement."""

    def __init__(self, path: Path, lock: FileLock, facts: dict[str, Any], keep: int, fresh: bool = False):
        self._fresh = fresh
        self.path = path
        self.facts = facts
        self.keep = keep
        self._lock = lock
        self._dead = 0
        self._checkpoints = _Checkpoints(path / "checkpoints")

    # ---- opening and closing

    @classmethod
    def open(
        cls,
        path: str | Path,
        config: Mapping[str, Any],
        kind: str = "train",
        fork: bool = False,
        data: Mapping[str, Any] | None = None,
    ) -> RunDir:
        """Create a run directory, or reopen one to continue it.

        config: the resolved configuration as a plain tree (`config.dump`). kind: "train", "sft", "eval". data: further
        facts a resume must agree on, such as hashes of the model and the problems. fork: continue under a changed
        configuration, which run.json then records.
        Raises RunLocked when a live process holds the directory, ConfigError with every difference when it holds
        another run (more `steps` alone is allowed where nothing in the recipe is stretched over all of them),
        CheckpointError when run.json is unreadable.
        """
        path = Path(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"{path}: cannot hold a run: {error.strerror}; name a folder that can be written"
            ) from error
        lock = _take_lock(path)
        fresh = not (path / "run.json").exists()
        try:
            facts = _agree(path, _facts(config, kind, data or {}), fork)
            run = cls(path, lock, facts, keep=int(config.get("checkpoint", {}).get("keep", 2)), fresh=fresh)
            run._checkpoints.sweep()
            _sweep_files(path)
            return run
        except BaseException:
            _give_back(path, lock)
            raise

    def close(self) -> None:
        """Release the directory; a second call does nothing."""
        if self._lock.is_locked:
            _give_back(self.path, self._lock)

    def __enter__(self) -> RunDir:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and issubclass(kind, SageError):
            self._forget()
        self.close()

    def _forget(self) -> None:
        """A start that was refused claims no directory: the record goes again where nothing was made of it."""
        made = [p for p in self.path.iterdir() if p.name not in ("run.json", "lock", "lock.owner.json")]
        made = [p for p in made if not p.is_dir() or any(p.iterdir())]
        if self._fresh and not made:
            (self.path / "run.json").unlink(missing_ok=True)

    # ---- checkpoints

    def save_checkpoint(
        self, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any], keep: int | None = None
    ) -> Checkpoint:
        """Write a checkpoint completely or not at all, verify it, then delete older ones beyond `keep`.

        step: steps that were done. tensors: group -> name -> tensor, one safetensors file a group. state: strict JSON.
        keep: default checkpoint.keep of the configuration. The manifest notes how many metrics rows there were.
        Raises CheckpointError (full disk, read-only folder) with the former checkpoints untouched, DataError for a
        state that JSON cannot hold.
        """
        rows = 0
        if self.metrics_path.exists():
            _sync_file(self.metrics_path)  # rows that the checkpoint counts must not be lost after it
            rows = self.metrics_path.read_bytes().count(b"\n")
        home = self._checkpoints.save(step, tensors, state, self.keep if keep is None else keep, rows)
        return Checkpoint(step, home, _read_json(home / STATE))

    def latest(self) -> Checkpoint | None:
        """The newest complete checkpoint; None when there never was one.

        Damaged ones are reported (a warning that names file and reason) and skipped; CheckpointError if all are.
        """
        return self._checkpoints.latest()

    # ---- metrics

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    def log(self, row: Mapping[str, Any]) -> None:
        """Append one row, flushed to the system. `row["step"]` is the step's number from 0.

        Raises DataError without such a step, CheckpointError when the file cannot be written.
        """
        step = row.get("step")
        if not isinstance(step, int) or isinstance(step, bool):
            raise DataError(f"metrics row: step = {step!r}: every row needs the whole number of its step")
        line = _to_json(jsonable(row), f"metrics row of step {step}") + "\n"
        try:
            with open(self.metrics_path, "a", encoding="utf-8") as handle:
                handle.write(line)
        except OSError as error:
            raise CheckpointError(
                f"{self.metrics_path}: cannot append a row: {error.strerror}. Mend that, then give the same command "
                f"again to continue from the last checkpoint"
            ) from error
        self._warn_of_dead_groups(row)

    def _warn_of_dead_groups(self, row: Mapping[str, Any]) -> None:
        """Say it once whenever DEAD_STEPS steps in a row had no group with both right and wrong completions."""
        self._dead = self._dead + 1 if row.get("reward/dead_group_share") == 1 else 0
        if self._dead == DEAD_STEPS:
            rewards = {0: ": every reward was 0", 1: ": every reward was 1"}.get(row.get("reward/mean", math.nan), "")
            warnings.warn(
                f"step {row['step']}: in the last {DEAD_STEPS} steps no group had two different rewards{rewards}, so no "
                "advantage moved the policy, only the KL. Likely causes: problems far too hard or too easy, an answer format "
                "that the verifier does not read (sage-rlvr verify, sage-rlvr audit), or completions cut at the length limit",
                stacklevel=3,
            )

    def read_metrics(self) -> list[dict[str, Any]]:
        """See the function `read_metrics`."""
        return read_metrics(self.path)

    def truncate_metrics(self, step: int) -> int:
        """Before going on from `step`: drop the rows that will be made again, and a last line without its end.

        Kept are the rows that were there when the checkpoint of `step` was written (its manifest says how many);
        where there is no such checkpoint, as at step 0, those of steps below `step`. Returns how many rows were
        dropped. The file is replaced atomically.
        """
        if not self.metrics_path.exists():
            return 0
        rows = self.read_metrics()
        count = self._checkpoints.metrics_rows(step)
        kept = [row for row in rows if row["step"] < step] if count is None else rows[:count]
        if count is not None and len(rows) < count:
            warnings.warn(f"{self.metrics_path}: {count} rows were there at step {step}, {len(rows)} are left")
        text = "".join(_to_json(row, "metrics row") + "\n" for row in kept)
        if text.encode() != self.metrics_path.read_bytes():
            write_text_atomic(self.metrics_path, text)
        return len(rows) - len(kept)


def _sweep_files(path: Path) -> None:
    for residue in path.glob(".tmp-*"):
        residue.unlink()


def _take_lock(path: Path) -> FileLock:
    lock = FileLock(path / "lock", timeout=0, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        raise RunLocked(
            f"{path}: {_owner(path)} is writing to this run directory. Wait for it, stop it, or name another "
            f"directory; the lock goes by itself when that process ends"
        ) from None
    except (OSError, NotImplementedError) as error:
        raise RunLocked(f"{path}: cannot take a lock here ({error}); put the run directory on a local disk") from error
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": _now()}
    try:
        write_json_atomic(path / "lock.owner.json", owner)
    except OSError as error:
        lock.release()
        raise ConfigError(f"{path}: cannot hold a run: {error.strerror}; name a folder that can be written") from error
    return lock


def _owner(path: Path) -> str:
    try:
        owner = _read_json(path / "lock.owner.json")
        return f"process {owner['pid']} on {owner['host']} (since {owner['since']})"
    except (CheckpointError, KeyError, TypeError):  # it is just starting and has not signed yet
        return "another process"


def _give_back(path: Path, lock: FileLock) -> None:
    with contextlib.suppress(OSError):  # a full or vanished disk must not keep the lock
        (path / "lock.owner.json").unlink(missing_ok=True)
    lock.release()


def _facts(config: Mapping[str, Any], kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
    facts = {
        "format": FORMAT,
        "kind": kind,
        "config": config,
        "data": data,
        "versions": versions(),
        "git": git_state(),
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "created": _now(),
        "changes": [],
    }
    as_read_back: dict[str, Any] = json.loads(_to_json(facts, "configuration"))  # text keys, lists
    return as_read_back


def _agree(path: Path, new: dict[str, Any], fork: bool) -> dict[str, Any]:
    """Write run.json, or compare with the one that is there; returns the facts that hold from now on."""
    file = path / "run.json"
    if not file.exists():
        if any((path / "checkpoints").glob("step-*")) or (path / "metrics.jsonl").exists():
            raise CheckpointError(
                f"{file}: missing, though the directory holds results; restore it or name another folder"
            )
        write_json_atomic(file, new)
        return new
    old = _read_json(file)
    if not isinstance(old, dict) or old.get("format") != FORMAT:
        raise CheckpointError(f"{file}: not a run record of format {FORMAT}; name another directory")
    found, code = _binding_differences(old, new), _code_differences(old, new)
    more = set(found) == {"steps"} and found["steps"][1] > found["steps"][0]
    longer = more and not _stretched(old["config"])
    if found and not (longer or fork):
        raise ConfigError(_explain(path, found, _stretched(old["config"]) if more else []))
    if code:
        listed = ", ".join(f"{place} {before} -> {now}" for place, (before, now) in code.items())
        warnings.warn(
            f"{path}: continued by another sage-rlvr ({listed}); its numbers may differ from one code's alone"
        )
    if not (found or code):
        return old
    forked = bool(found) and not longer
    change = {"at": _now(), "fork": forked, "changed": {k: list(v) for k, v in (found | code).items()}}
    facts = old | {key: new[key] for key in ("kind", "config", "data", "versions", "git")}
    facts["changes"] = [*old["changes"], change]
    write_json_atomic(file, facts)
    return facts


def _binding_differences(old: dict[str, Any], new: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    found = differences(old["config"], new["config"])
    found |= differences({"kind": old["kind"], "data": old["data"]}, {"kind": new["kind"], "data": new["data"]})
    before, now = ({name: facts["versions"].get(name) for name in _BINDING} for facts in (old, new))
    return found | differences(before, now, "versions")


def _code_differences(old: dict[str, Any], new: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """This package's version and, where both sides ran from a git tree, its commit: worth a line, not a refusal."""
    name = "sage_rlvr"
    found = differences(old["versions"].get(name), new["versions"].get(name), f"versions.{name}")
    commits = [(facts.get("git") or {}).get("commit") for facts in (old, new)]
    return found | (differences(*commits, "git.commit") if all(commits) else {})


def _stretched(config: Mapping[str, Any]) -> list[str]:
    """What in a resolved configuration is a function of all its steps, as "optimizer.schedule = linear".

    A run that is given more of them would not end as a run that had them from the start.
    """
    rate = config.get("optimizer", {}).get("schedule", "constant")
    found = [] if rate == "constant" else [f"optimizer.schedule = {rate}"]
    return found + _schedules(config.get("method"), "method")


def _schedules(tree: Any, place: str) -> list[str]:
    if isinstance(tree, list):
        return [line for n, item in enumerate(tree) for line in _schedules(item, f"{place}.{n}")]
    if not isinstance(tree, Mapping):
        return []
    here = [f"{place} = {tree['name']}"] if tree.get("name") in STRETCHED else []
    return here + [line for key, item in tree.items() for line in _schedules(item, f"{place}.{key}")]


def _explain(path: Path, found: Mapping[str, tuple[Any, Any]], stretched: list[str]) -> str:
    lines = "".join(f"\n  {place}: {json.dumps(old)} -> {json.dumps(new)}" for place, (old, new) in found.items())
    advice = "Give the recipe it was started with, or name another directory (more steps alone would be allowed)"
    if stretched:
        advice = (
            f"More steps would change what the first ones did, because {', '.join(stretched)} is stretched over all of "
            "them; name another directory for a longer run"
        )
    elif set(found) == {"steps"}:
        advice = "A run can be given more steps, not fewer; name another directory for a shorter one"
    return f"{path}: this directory holds another run:{lines}\n{advice}; --fork continues it under the new settings."


# ------------------------------------------------------------------------------------------------------------------
# signals


class StopFlag:
    """The first SIGINT or SIGTERM asks for a stop after the current step; a second one ends the process at once.

        with StopFlag() as stop:
            for step in range(steps):
                ...
                if stop: save; break

    Truth value: whether a stop was asked for. `exit_code` is 128 + the signal's number, on which schedulers requeue.
    Off the main thread, where Python allows no handlers, it does nothing. The former handlers come back at the end.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._former: dict[signal.Signals, Any] = {}

    def __bool__(self) -> bool:
        return self.received is not None

    @property
    def requested(self) -> bool:
        """Whether a stop was asked for; the truth value of the flag itself."""
        return bool(self)

    @property
    def exit_code(self) -> int:
        """0 without a signal, else 128 + its number (130 for Ctrl-C, 143 for SIGTERM)."""
        return 0 if self.received is None else 128 + int(self.received)

    def __enter__(self) -> StopFlag:
        if threading.current_thread() is threading.main_thread():
            self._former = {number: signal.signal(number, self._handle) for number in self.SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._former.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._former = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            self._restore()
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            raise SystemExit(128 + number)
        self.received = signal.Signals(number)
        # os.write: print is not safe inside a handler
        os.write(2, f"\n{self.received.name}: finishing the step and saving; again to exit at once\n".encode())
