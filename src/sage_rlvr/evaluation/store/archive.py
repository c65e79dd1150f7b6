"""A sample store as one Parquet file and back, and stores of version 0.1 (Parquet parts and a journal) as stores of today.

version 0.1:  store.json, journal.jsonl (a line per file: name, SHA-256, bytes, chunks), parts/*.parquet, verdicts/*.parquet
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from sage_rlvr.errors import ConfigError, DataError, suggest
from sage_rlvr.evaluation.store import SampleStore
from sage_rlvr.evaluation.store.columns import COLUMNS, JUDGED, read_parquet, rows_of
from sage_rlvr.evaluation.store.database import FILE, OLD
from sage_rlvr.evaluation.store.sample import Identity
from sage_rlvr.runs import file_sha256


def to_parquet(store: SampleStore, file: Path) -> int:
    """All samples with their newest verdicts, the identity in the schema's metadata; returns how many."""
    table, half = store.table(), file.with_name(f".tmp-{file.name}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, half, compression="zstd")
        os.replace(half, file)
    except OSError as error:
        raise DataError(f"{file}: cannot be written: {error.strerror or error}") from error
    finally:
        half.unlink(missing_ok=True)
    return len(table)


def from_parquet(file: Path, folder: Path) -> int:
    """Make a store of what `to_parquet` wrote, all of it or nothing; returns how many samples."""
    table = read_parquet(file)
    about = (table.schema.metadata or {}).get(b"sage_rlvr")
    if about is None or not set(COLUMNS) <= set(table.column_names):
        raise DataError(
            f"{file}: was not written by `{suggest('samples', 'STORE', '--to-parquet')}`: it lacks the identity or a column"
        )
    facts = json.loads(about)
    with tempfile.TemporaryDirectory(dir=_empty(folder), prefix=".tmp-") as name:
        with SampleStore.open(name, Identity.of(facts["identity"])) as store, store.transaction(write=True):
            store.note(wanted=facts.get("wanted", {}))
            for row in rows_of(table):
                store.insert(row)
        os.replace(Path(name) / FILE, folder / FILE)
    return len(table)


def convert(folder: Path) -> int:
    """Make a store of today in the folder of one of version 0.1, whose files stay as they are; returns how many samples.

    DataError where a file is not what the journal says: sampled again by the version that wrote it, or restored from a copy, it
    can be converted. What is made is read back and held against the old rows before it takes its place.
    """
    if not (folder / OLD).is_file():
        raise ConfigError(f"{folder}: no store of version 0.1 ({OLD} is missing), so there is nothing to convert")
    facts, entries = _facts(folder), _journal(folder)
    rows = _newest(folder, entries, facts["identity"]["chunk_size"])
    with tempfile.TemporaryDirectory(dir=_empty(folder), prefix=".tmp-") as name:
        with SampleStore.open(name, Identity.of(facts["identity"])) as store:
            with store.transaction(write=True):
                store.note(wanted=_wanted(folder), changes=facts["changes"], created=facts["created"])
                for row in rows.values():
                    store.insert(row)
                for entry in entries:
                    if "chunks" not in entry:
                        _overlay(store, folder, entry, rows)
            _check_equal(folder, store, rows)
        os.replace(Path(name) / FILE, folder / FILE)
    return len(rows)


def _empty(folder: Path) -> Path:
    if (folder / FILE).exists():
        raise ConfigError(f"{folder}: holds a sample store already ({FILE}); name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _facts(folder: Path) -> dict[str, Any]:
    try:
        facts = json.loads((folder / OLD).read_text(encoding="utf-8"))
        if facts["format"] != 1:
            raise ValueError(f"format {facts['format']!r}")
        return dict(facts)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder / OLD}: cannot be read ({error!r}); restore it from a copy of the store") from error


def _journal(folder: Path) -> list[dict[str, Any]]:
    """The whole lines, oldest first; a last line without its end never counted."""
    file, entries = folder / "journal.jsonl", []
    for number, line in enumerate(file.read_bytes().split(b"\n")[:-1] if file.exists() else [], start=1):
        try:
            entry = json.loads(line)
            path = folder / entry["file"]
            sound = path.parent.parent == folder and path.parent.name in ("parts", "verdicts")
            sound = sound and file_sha256(path) == entry["sha256"]
        except (OSError, ValueError, KeyError, TypeError):
            sound = False
        if not sound:
            raise DataError(
                f"{file}:{number}: this line or the file that it names is damaged; restore it from a copy, or delete the line: "
                "what it committed is then sampled or judged again"
            )
        entries.append(entry)
    return entries


def _newest(folder: Path, entries: list[dict[str, Any]], size: int) -> dict[tuple[str, int], dict[str, Any]]:
    """(problem, sample) -> its row: of the oldest part that has it, or of the newest that supersedes it."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for entry in (entry for entry in entries if "chunks" in entry):
        listed = {tuple(chunk) for chunk in entry["chunks"]}
        for row in rows_of(read_parquet(folder / entry["file"])):
            key = (row["problem"], row["sample"])
            if (key[0], key[1] - key[1] % size) in listed and ("supersedes" in entry or key not in rows):
                rows[key] = row
    return rows


def _wanted(folder: Path) -> dict[str, int]:
    file = folder / "wanted.json"
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}


def _overlay(
    store: SampleStore, folder: Path, entry: dict[str, Any], rows: dict[tuple[str, int], dict[str, Any]]
) -> None:
    """A later pass of verdicts, each of the text that it saw."""
    said = read_parquet(folder / entry["file"]).to_pylist()
    said = [one for one in said if rows.get((one["problem"], one["sample"]), {}).get("text_hash") == one["text_hash"]]
    where = [(one["problem"], one["sample"]) for one in said]
    store.overlay(
        where,
        [(one["verdict"], one["reason"], one["answer"]) for one in said],
        entry["verifier_hash"],
        entry["by"],
        entry["at"],
    )


def _check_equal(folder: Path, store: SampleStore, rows: dict[tuple[str, int], dict[str, Any]]) -> None:
    """DataError unless the new store says what the old files said, column by column, but for later verdicts."""
    names = [name for name in COLUMNS if name not in JUDGED]
    made = {(row["problem"], row["sample"]): row for row in rows_of(store.table())}
    unlike = [
        key for key in {**rows, **made} if any(made.get(key, {}).get(n) != rows.get(key, {}).get(n) for n in names)
    ]
    if unlike:
        raise DataError(
            f"{folder}: {len(unlike)} samples, first {min(unlike)}, came out otherwise; nothing was converted"
        )
