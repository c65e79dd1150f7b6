"""The files of a store: `store.json`, immutable parts with the hash of their bytes as names, and recorded facts.

A part is written to a temporary file and renamed: if the process is killed, it exists completely or not at all. It is never
changed, so a store that was copied, restored or merged with a copy of itself is a set of parts.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sage_rlvr.errors import DataError, short
from sage_rlvr.runs import replacing
from sage_rlvr.runs.files import create_whole, to_json
from sage_rlvr.runs.record import now
from sage_rlvr.safe_io import parse_json, read_bytes, read_json

FILE, FORMAT = "store.json", 1
SAMPLES, VERDICTS, SCORES, PROBLEMS, NOTES = "samples", "verdicts", "scores", "problems", "notes"
WRITING = "writing"  # folder of locks, claims and unfinished parts
KINDS = (SAMPLES, VERDICTS, SCORES, PROBLEMS, NOTES, WRITING)
_NAME = re.compile(r"(?:(\d{6})-)?([0-9a-f]{16})")


def is_store(path: str | Path) -> bool:
    """Whether a folder is a sample store."""
    return (Path(path) / FILE).is_file()


def create(folder: Path, identity: Mapping[str, Any]) -> None:
    """Write `store.json`, unless another process did first."""
    tree = {"format": FORMAT, "identity": identity, "created": now()}
    text = to_json(tree | {"sha256": _hash(to_json(tree, FILE).encode())}, FILE, indent=1)
    with explained(folder):
        create_whole(folder / FILE, text.encode())


def read_identity(folder: Path) -> dict[str, Any]:
    """`identity` and `created` of a store. Raises DataError without a store, and for one of another version or with changed
    bytes."""
    file = folder / FILE
    if not file.is_file():
        raise DataError(f"{folder}: no sample store ({FILE} is missing); pass the folder of a store")
    tree: dict[str, Any] = read_json(file, advice="restore it from a copy")
    known = tree.pop("sha256", None)
    if tree.get("format", FORMAT) != FORMAT:
        raise DataError(
            f"{file}: a sample store of format {tree['format']!r}, and this version of sage-rlvr reads format {FORMAT}; read it "
            "with the version that wrote it, or sample into another folder"
        )
    if known != _hash(to_json(tree, str(file)).encode()) or not {"identity", "created"} <= set(tree):
        raise damaged(file, "its contents do not have the hash that it holds", "Restore it from a copy")
    return tree


def remove(folder: Path) -> None:
    """Delete a store, `store.json` last; other files in its folder remain."""
    for kind in KINDS:
        if (folder / kind).is_dir():
            shutil.rmtree(folder / kind)
    (folder / FILE).unlink(missing_ok=True)


# ---- parts


def place(folder: Path, kind: str, data: bytes, suffix: str, number: int | None = None) -> Path:
    """Write a part; returns its path. number: its position among the parts of a kind that is ordered."""
    file = folder / kind / f"{'' if number is None else f'{number:06d}-'}{_hash(data)}{suffix}"
    synced = kind != SAMPLES  # of which there are many: `merge` does it for all, and a power cut before costs the last ones
    with explained(folder), replacing(file, folder / WRITING, synced) as half:
        half.write_bytes(data)
    return file


def parts_in(folder: Path, kind: str) -> list[str]:
    """The names of the parts of a kind, in no order."""
    try:
        return [name for name in os.listdir(folder / kind) if name.endswith((".parquet", ".json")) and name[0] not in "._"]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _unusable(folder / kind, error) from error


def number_of(name: str) -> int:
    """The position of a part by its name; 0 without one."""
    found = _NAME.match(name)
    return int(found[1] or 0) if found else 0


def check_bytes(part: Path) -> None:
    """Raise DataError unless the bytes of a part have the hash in its name. Raise FileNotFoundError if it was merged into
    another part."""
    known = _NAME.match(part.name)
    if known is None:
        raise damaged(part, "its name does not hold a hash, as the names of a store's parts do", "Move it out of the folder")
    if not part.is_file():
        raise damaged(part, "it is not a regular file") if os.path.lexists(part) else FileNotFoundError(str(part))
    try:
        with open(part, "rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _unusable(part, error) from error
    if found[:16] != known[2]:
        raise damaged(part, "its bytes do not have the hash in its name", _OF_PART)


_OF_PART = (
    "Restore it from a copy, or delete it: what it held is then missing, and the same eval command draws it again (a verdict: "
    "--rejudge)"
)


# ---- facts


def note(folder: Path, facts: Mapping[str, Any]) -> None:
    """Store facts, which are JSON values, as another part."""
    for name, value in facts.items():
        to_json(value, f"{name} = {short(value)}")
    number = 1 + max(map(number_of, parts_in(folder, NOTES)), default=0)
    place(folder, NOTES, to_json({"at": now(), **facts}, NOTES, indent=1).encode(), ".json", number)


def facts_of(folder: Path) -> dict[str, Any]:
    """identity, created, changes and wanted, and other recorded facts; the latest of each name."""
    facts = {"changes": [], "wanted": {}, **read_identity(folder)}
    for part in [folder / NOTES / name for name in sorted(parts_in(folder, NOTES))]:
        check_bytes(part)
        facts |= parse_json(read_bytes(part), str(part))
    return {name: value for name, value in facts.items() if name not in ("at", "format")}


# ---- errors


@contextlib.contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Convert errors of the file system to errors with the state of the data and the next step."""
    try:
        yield
    except OSError as error:
        raise _unusable(folder, error) from error


def _unusable(path: Path, error: OSError) -> DataError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return DataError(
        f"{error.filename or path}: cannot be read or written: {error.strerror or error}; every committed sample is unchanged. "
        f"{'Free some space' if full else 'Fix this'}, then run the same command again to continue"
    )


def damaged(file: Path, harm: str, way: str = _OF_PART) -> DataError:
    """The error for a file that differs from what was written. harm: the difference; way: the next step."""
    return DataError(f"{file}: damaged: {harm}. Nothing was changed. {way}")


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
