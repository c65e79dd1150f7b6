"""The files of a sample store: Parquet parts, the journal that says which of them count, and store.json.

    journal = the whole lines of journal.jsonl; a file = a line whose SHA-256 and size are the file's

A file is written beside its place and synced, then moved there and named in one synced line of the journal, both under
the store's lock. So a kill leaves a file without a line, or a line without its end, and neither counts.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import hashlib
import io
import json
import os
import re
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.evaluation.sample_rows import GUIDED, SCORED, Identity
from sage_rlvr.runs import differences, write_json_atomic

FORMAT = 1
STORE, JOURNAL, PARTS, OVERLAYS = "store.json", "journal.jsonl", "parts", "verdicts"
WANTED = "wanted.json"
_REPETITIVE = ("problem", "prompt_hash", "finish", "verdict", "reason", "verifier", "versions")
_NAME = re.compile(rf"(?:{PARTS}/part|{OVERLAYS}/verdicts)-[0-9a-f]{{24}}\.parquet")


def now() -> str:
    """The time in UTC, to the second, as ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # Windows opens no folders and needs no sync of them
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def parquet_bytes(table: pa.Table) -> bytes:
    """The bytes of a Parquet file, the same for the same table and the same pyarrow."""
    sink = io.BytesIO()
    repetitive = [name for name in _REPETITIVE if name in table.column_names]
    pq.write_table(table, sink, compression="zstd", version="2.6", use_dictionary=repetitive)
    return sink.getvalue()


def read_parquet(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """A Parquet file, or some of its columns; `DataError` names the file where it cannot be read."""
    try:
        with pq.ParquetFile(path) as file:
            return file.read(columns=None if columns is None else list(columns), use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: cannot be read as Parquet: {error}") from error


@contextlib.contextmanager
def storing(path: Path) -> Iterator[None]:
    """Errors of the file system become DataErrors that say what is safe and what to do."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = "Free some space" if full else "Mend that"
        raise DataError(
            f"{path}: cannot be written: {error.strerror or error}; every chunk that was committed is untouched. "
            f"{advice}, then give the same command again to continue"
        ) from error


class Journal:
    """journal.jsonl: whole lines count, a last line without its end does not."""

    def __init__(self, path: Path):
        self.path = path
        self._told: set[int] = set()
        self._parsed: dict[bytes, dict[str, Any] | None] = {}

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """The entries, oldest first, and whether a whole line was unreadable (it is reported and left out)."""
        data = self.path.read_bytes() if self.path.exists() else b""
        entries, damaged = [], False
        for number, line in enumerate(data.split(b"\n")[:-1], start=1):
            if line not in self._parsed:
                self._parsed[line] = _entry(line)
            entry = self._parsed[line]
            damaged = damaged or entry is None
            if entry is not None:
                entries.append(entry)
            elif number not in self._told:
                self._told.add(number)
                warnings.warn(f"{self.path}:{number}: damaged line; what it committed counts as missing", stacklevel=4)
        return entries, damaged

    def append(self, entry: Mapping[str, Any]) -> None:
        """Under the store's lock: cut a torn last line off, append one line, sync. All of it or nothing is left."""
        line = json.dumps(entry, allow_nan=False).encode("ascii") + b"\n"
        created = not self.path.exists()
        with storing(self.path), open(self.path, "ab+") as handle:
            handle.seek(0)
            whole = handle.read().rfind(b"\n") + 1
            handle.truncate(whole)
            try:
                handle.write(line)
                handle.flush()
                os.fsync(handle.fileno())
            except OSError:
                handle.truncate(whole)
                raise
        if created:
            _sync_folder(self.path.parent)


def _entry(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
        fine = isinstance(entry["sha256"], str) and isinstance(entry["bytes"], int) and is_ours(entry["file"])
        chunks = entry.get("chunks", [])
        fine = fine and all(isinstance(p, str) and isinstance(first, int) for p, first in chunks)
        fine = fine and ("chunks" in entry or isinstance(entry["verifier_hash"], str))
        fine = fine and isinstance(entry.get("supersedes", ""), str)
        return entry if fine else None
    except (ValueError, KeyError, TypeError):
        return None


def is_ours(name: str) -> bool:
    """A journal names files of its own two folders only."""
    return _NAME.fullmatch(name) is not None


class Beside:
    """A Parquet file that is written beside its place, synced, and then moved there under the name of its SHA-256."""

    def __init__(self, root: Path, folder: str, writer: str):
        self.root, self.folder = root, folder
        self.temporary = root / folder / f".tmp-{writer}-{uuid.uuid4().hex[:8]}.parquet"
        self.facts: dict[str, Any] = {}

    def replace(self, table: pa.Table) -> None:
        """Write the table in place of what it held, synced; `facts` are then those of the new bytes."""
        data = parquet_bytes(table)
        with storing(self.temporary), open(self.temporary, "wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        self.facts = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}

    def settle(self, word: str) -> dict[str, Any]:
        """Move it to its place; returns what the journal says of it."""
        name = f"{self.folder}/{word}-{self.facts['sha256'][:24]}.parquet"
        with storing(self.root / name):
            os.replace(self.temporary, self.root / name)
            _sync_folder(self.root / self.folder)
        return {"file": name, **self.facts}


# ------------------------------------------------------------------------------------------------------------------
# store.json


def read_facts(file: Path) -> dict[str, Any]:
    """What store.json says: format, identity (a tree of JSON values), created, changes. DataError when it cannot be read."""
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: cannot be read as JSON ({error}); restore it from a copy of the store") from error
    found = facts.get("format") if isinstance(facts, dict) else None
    if found != FORMAT:
        raise DataError(
            f"{file}: a sample store of format {found!r}, this version of sage-rlvr reads format {FORMAT}; read it with "
            "the version that wrote it (store.json has its versions), or sample into another folder"
        )
    if not isinstance(facts.get("identity"), dict) or "versions" not in facts["identity"]:
        raise DataError(f"{file}: holds no identity; restore it from a copy of the store")
    return dict(facts)


def create_facts(path: Path, identity: Identity) -> dict[str, Any]:
    """Under the lock: write store.json, unless another process just did."""
    if (path / STORE).exists():
        return read_facts(path / STORE)
    if (path / JOURNAL).exists():
        raise DataError(f"{path / STORE}: missing, though the folder holds samples; restore it or name another folder")
    facts = {"format": FORMAT, "identity": identity.tree(), "created": now(), "changes": []}
    with storing(path / STORE):
        write_json_atomic(path / STORE, facts)
    return facts


def agree(path: Path, facts: Mapping[str, Any], identity: Identity, judges: set[str]) -> dict[str, tuple[Any, Any]]:
    """Differences that are only noted; ConfigError when there are others.

    Versions are noted, and another verifier where it is whose verdicts all samples have by now. judges: the verifiers of the
    samples' newest verdicts; where they are not this identity's alone, samples judged by it would be mixed with theirs.
    """
    old, new = dict(facts["identity"]), identity.tree()
    noted = differences(old.pop("versions"), new.pop("versions"), "versions")
    binding = differences(old, new)
    changed = binding.pop("verifier_hash", None)
    if judges - {identity.verifier_hash}:
        binding["verifier_hash"] = (", ".join(sorted(judges)), identity.verifier_hash)
    elif changed:
        noted["verifier_hash"] = changed
    if binding:
        lines = "".join(f"\n  {place}: {json.dumps(a)} -> {json.dumps(b)}" for place, (a, b) in binding.items())
        also = "".join(f"\n  {place}: {json.dumps(a)} -> {json.dumps(b)}" for place, (a, b) in noted.items())
        also = f"\nThese differ too, and would only be noted:{also}" if also else ""
        judge = (
            "Verdicts of another verifier: run reverify (the same eval command with --reverify), after which the samples can be "
            "topped up. "
        )
        raise ConfigError(
            f"{path}: this folder holds samples that were made otherwise; these differences change what they mean:{lines}"
            f"{also}\n{judge if 'verifier_hash' in binding else ''}Give the settings they were made with, or name "
            "another folder."
        )
    return noted


def note_changes(path: Path, identity: Identity, changed: Mapping[str, tuple[Any, Any]]) -> None:
    """Under the lock: record other versions, and whose verdicts the samples have, in store.json; say so of what may change
    samples."""
    first = {f"versions.{name}" for name in (SCORED, GUIDED) if changed.get(f"versions.{name}", "?")[0] == "(absent)"}
    versions = {place: pair for place, pair in changed.items() if place not in {"verifier_hash", *first}}
    if versions:
        listed = ", ".join(f"{place} {before} -> {now}" for place, (before, now) in versions.items())
        warnings.warn(f"{path}: continued under other versions ({listed}); samples may differ from one version's alone")
    facts = read_facts(path / STORE)
    change = {"at": now(), "changed": {place: list(pair) for place, pair in changed.items()}}
    facts["identity"] |= {"versions": dict(identity.versions), "verifier_hash": identity.verifier_hash}
    with storing(path / STORE):
        write_json_atomic(path / STORE, facts | {"changes": [*facts["changes"], change]})
