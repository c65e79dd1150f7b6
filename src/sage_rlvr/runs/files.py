"""Atomic file writes, strict JSON, and error texts for a full or read-only disk. `replacing` is the only atomic writer of the
package: write to a temporary file in the same folder, sync, rename. Also the rows of metrics.jsonl, one strict-JSON line per step;
keys under "time/" are exempt from bitwise equality.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from sage_rlvr.errors import CheckpointError, ConfigError, DataError
from sage_rlvr.safe_io import MIB, opened, parse_json, read_lines

METRICS = "metrics.jsonl"  # of a run: a line per step


def file_sha256(path: str | Path) -> str:
    """Return the hexadecimal SHA-256 of a regular file's bytes."""
    with opened(path, 1 << 60) as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


@contextlib.contextmanager
def replacing(path: str | Path, within: Path | None = None, synced: bool = True) -> Iterator[Path]:
    """A temporary path in the folder `within`, by default that of `path`; the file replaces `path` if the block succeeds. A reader,
    or a kill at any time, finds the old or the new file. Temporary files of killed writers are removed, missing folders created.
    synced: the new name is kept through a power cut too. Raises ConfigError if `path` is a device or a pipe.
    """
    path = Path(path)
    within = path.parent if within is None else within
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ConfigError(f"{path}: a device or a pipe, which a file would replace; pass the path of a file")
    for folder in (path.parent, within):
        folder.mkdir(parents=True, exist_ok=True)
    temporary, held = locked_temporary(within / path.name)
    try:
        yield temporary
        sync_file(temporary)
        os.replace(temporary, path)
    except OSError as error:
        if error.filename in (None, str(temporary)):  # a write's error names no file
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)
        os.close(held)
    if synced:
        sync_folder(path.parent)


def locked_temporary(path: Path) -> tuple[Path, int]:
    """Return a new file next to `path` and its descriptor, locked while this process lives; those of dead writers are removed."""
    for left in os.listdir(path.parent):
        if left.startswith(".tmp-") and left[13:] == f"-{path.name}":
            remove_dead(path.with_name(left))
    while True:
        temporary = path.with_name(f".tmp-{uuid.uuid4().hex[:8]}-{path.name}")  # the suffix stays: np.savez reads it
        held = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        with contextlib.suppress(OSError):  # a file system without locks: then nobody removes what another has left
            fcntl.flock(held, fcntl.LOCK_EX)
        if temporary.exists():
            return temporary, held
        os.close(held)  # another writer took it for a dead one's before it was locked


def remove_dead(file: Path) -> bool:
    """Remove the locked file of a process that has ended: its lock ended with it. Return whether no live process has it."""
    try:
        held = os.open(file, os.O_RDWR)
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with contextlib.suppress(FileNotFoundError):
            if os.stat(file).st_ino == os.fstat(held).st_ino:  # otherwise it is another writer's by now
                file.unlink()
    except OSError:  # held by a live writer, of another user, or no locks here
        return False
    finally:
        os.close(held)
    return True


def create_whole(path: Path, content: bytes) -> bool:
    """Create a file with this content; if it exists, change nothing and return False. A kill at any time leaves no part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, held = locked_temporary(path)
    try:
        temporary.write_bytes(content)
        sync_file(temporary)
        try:
            os.link(temporary, path)  # fails if the file exists, as a rename would not
        except FileExistsError:
            return False
        except OSError:  # a file system without links
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
        os.close(held)
    sync_folder(path.parent)
    return True


@contextlib.contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty temporary folder that replaces `folder` if the block succeeds.

    After a kill in between, `sweep` restores the former folder. Folder and files follow the umask; safetensors would write files
    that only their owner can read.
    """
    partial, former = folder.with_name(f".tmp-{folder.name}"), folder.with_name(f".old-{folder.name}")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        yield partial
        for file in partial.rglob("*"):
            if file.is_file() and not file.is_symlink():
                file.chmod(partial.stat().st_mode & 0o666)
        if folder.exists():
            shutil.rmtree(former, ignore_errors=True)
            folder.rename(former)
        partial.rename(folder)
        sync_folder(folder.parent)
        shutil.rmtree(former, ignore_errors=True)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if former.exists() and not folder.exists():
            former.rename(folder)


def sweep(folder: Path) -> None:
    """Remove leftovers of a kill from a folder; a folder that was being replaced is restored."""
    for path in folder.glob(".old-*"):
        home = folder / path.name.removeprefix(".old-")  # of ".old-" the folder itself, which is there
        if home.exists():
            _remove(path)
        else:
            path.rename(home)
    for path in folder.glob(".tmp-*"):
        _remove(path)


def _remove(path: Path) -> None:
    """Remove a folder with its content, a file, or a link without its target."""
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def write_bytes_atomic(path: str | Path, content: bytes) -> None:
    """Replace a file's bytes atomically."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_text_atomic(path: str | Path, text: str) -> None:
    """Replace a file's text atomically; UTF-8, line ends unchanged."""
    write_bytes_atomic(path, text.encode("utf-8"))


def write_json_atomic(path: str | Path, value: Any) -> None:
    """Write strict JSON by `write_text_atomic`; raise DataError for NaN, infinity and values that JSON cannot represent."""
    write_text_atomic(path, to_json(value, str(path), indent=2) + "\n")


def to_json(value: Any, what: str, indent: int | None = None) -> str:
    """Return strict JSON of a plain tree; raise DataError with `what` for other values."""
    try:
        return json.dumps(value, allow_nan=False, indent=indent, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise DataError(f"{what}: {error}; JSON supports only finite numbers, text, lists and mappings") from error


def jsonable(value: Any) -> Any:
    """Return a value as strict JSON: NaN and infinities become the texts "nan", "inf", "-inf"."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):  # numpy and torch scalars
        return jsonable(value.item())
    return value


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable, if the system lets a folder be opened."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows opens no folders and needs no sync of them
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make a file's bytes durable."""
    with open(path, "rb+") as handle:
        os.fsync(handle.fileno())


@contextlib.contextmanager
def writing(what: str, path: Path, needed: int) -> Iterator[None]:
    """Turn errors of the file system into CheckpointErrors while `what` (about `needed` bytes) is written to `path`."""
    try:
        yield
    except Exception as error:
        problem = disk_problem(error, what, path, needed)
        if problem is None:
            raise
        raise problem from error


def disk_problem(error: Exception, what: str, path: Path, needed: int = 0) -> CheckpointError | None:
    """Return a CheckpointError for an error of the file system (safetensors reports them as text), None for any other.

    what: the content that was written; "" if it may have been read as well. needed: its approximate bytes, 0 if not known.
    """
    reported = re.search(r"os error (\d+)", str(error))
    code = error.errno if isinstance(error, OSError) else int(reported.group(1)) if reported else None
    if code is None:
        return None
    kept = "; the checkpoints before it are untouched" if what == "checkpoint" else ""
    if code not in (errno.ENOSPC, errno.EDQUOT):
        does = f"cannot write a {what}" if what else "cannot be read or written"
        return CheckpointError(f"{path}: {does}: {os.strerror(code)}{kept}. Fix this, then run again")
    wants = f": this {what} needs about {needed:,} bytes" if needed else f", so this {what or 'file'} was not written"
    why, way = _full(next(folder for folder in (path, *path.absolute().parents) if folder.is_dir()), code, needed)
    return CheckpointError(f"{path}: {why[0]}{wants}{why[1]}{kept}. {way}, then run the same command again to continue")


def _full(folder: Path, code: int, needed: int) -> tuple[tuple[str, str], str]:
    """Return (what is full, what is left of it), and the next step."""
    if code == errno.EDQUOT:
        return ("the quota of this user is used up", ""), "Free some of it"
    if hasattr(os, "statvfs") and (system := os.statvfs(folder)).f_files and not system.f_favail:
        return ("the disk has no inodes left (too many files)", ""), "Delete some files"
    free = shutil.disk_usage(folder).free
    if free > max(2 * needed, 1 << 26):  # not that; a quota, a reserve, a limit of the system
        return ("the disk is full", f", although {free:,} bytes are free"), "Free some space, or look for a quota or another limit"
    return ("the disk is full", f", {free:,} bytes are free"), "Free some space (or lower checkpoint.keep)"


# ---- metrics.jsonl

LOST = "delete that line to continue without its numbers"

def comparable(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a metrics row that two equal runs share bit for bit: everything but the timings under "time/"."""
    return {key: value for key, value in row.items() if not key.startswith("time/")}


def count_lines(path: Path) -> int:
    """Return the number of complete lines of a file; 0 if it does not exist."""
    if not path.exists():
        return 0
    with opened(path) as stream:
        return sum(piece.count(b"\n") for piece in iter(partial(stream.read, MIB), b""))


def _is_number(value: Any) -> bool:
    """Return True for a metric in strict JSON: a number, or "nan", "inf", "-inf"."""
    return isinstance(value, int | float) or value in ("nan", "inf", "-inf")


def read_metrics(path: str | Path, resumed: int | None = None) -> list[dict[str, Any]]:
    """Return the rows of a metrics.jsonl (or of the run directory that contains it); a last line without its end is left out.

    Non-finite numbers are the texts "nan", "inf", "-inf". Raises DataError with the damaged line.

    resumed: the step that a run continues from; damaged lines after the rows of the steps before it are left out, because those
    rows are computed again.
    """
    path = Path(path)
    path = path / METRICS if path.is_dir() else path
    rows: list[dict[str, Any]] = []
    newest = -1
    for number, line, whole in read_lines(path) if path.exists() else ():
        try:
            row = parse_json(line, f"{path}:{number}: damaged line", advice=LOST) if whole else None
            if row is not None and (type(row.get("step")) is not int or row["step"] < 0):
                raise DataError(f"{path}:{number}: damaged line without a step number; {LOST}")
            if odd := next((name for name in row or () if "/" in name and not _is_number(row[name])), None):
                raise DataError(f"{path}:{number}: damaged line, {odd} is not a number; {LOST}")
        except DataError:
            if resumed is None or newest < resumed - 1:
                raise
            continue
        if row is not None:
            rows.append(row)
            newest = max(newest, row["step"])
    return rows
