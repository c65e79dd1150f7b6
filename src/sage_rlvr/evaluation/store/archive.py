"""A sample store as one Parquet file and back, and stores of version 0.1 (Parquet parts and a journal) as stores of today.

version 0.1:  store.json, journal.jsonl (a line per file: name, SHA-256, bytes, chunks), parts/*.parquet, verdicts/*.parquet
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sage_rlvr.errors import ConfigError, DataError, SageError, suggest
from sage_rlvr.evaluation.store import SampleStore
from sage_rlvr.evaluation.store.arrow import SCHEMA, rows_of
from sage_rlvr.evaluation.store.database import COLUMNS, FILE, JUDGED, OLD, TURNS
from sage_rlvr.evaluation.store.sample import Identity
from sage_rlvr.reading import MIB, parse_json, read_json, read_lines, read_parquet
from sage_rlvr.runs import file_sha256, replacing

LARGEST = 16384 * MIB  # bytes of all rows of a file, unpacked
Stored = dict[tuple[str, int], dict[str, Any]]  # (problem, sample): its row


def to_parquet(store: SampleStore, file: Path) -> int:
    """All samples with their newest verdicts, the identity in the schema's metadata; returns how many."""
    table = store.table()
    try:
        with replacing(file) as half:
            pq.write_table(table, half, compression="zstd")
    except OSError as error:
        raise DataError(f"{file}: cannot be written: {error.strerror or error}") from error
    return len(table)


def from_parquet(file: Path, folder: Path) -> int:
    """Make a store of what `to_parquet` wrote, all of it or nothing; returns how many samples."""
    table = _parquet(file)
    about = (table.schema.metadata or {}).get(b"sage_rlvr")
    kinds = dict(zip(table.schema.names, table.schema.types, strict=True))
    wanted = [*COLUMNS, *((TURNS,) * (TURNS in kinds))]
    if about is None or any(kinds.get(name) != SCHEMA.field(name).type for name in wanted):
        raise DataError(
            f"{file}: was not written by `{suggest('samples', 'STORE', '--to-parquet')}`: it lacks the identity or a column, or "
            "has one of another type"
        )
    facts = parse_json(about, f"{file}, its identity")
    with _believed(file), _made(folder, facts["identity"]) as store:
        store.note(wanted=facts.get("wanted", {}))
        for row in rows_of(table):
            store.insert(row)
    return len(table)


def convert(folder: Path) -> int:
    """Make a store of today in the folder of one of version 0.1, whose files stay as they are; returns how many samples.

    DataError where a file is not what the journal says: sampled again by the version that wrote it, or restored from a copy, it
    can be converted. What is made is read back and held against the old rows before it takes its place.
    """
    if not (folder / OLD).is_file():
        raise ConfigError(f"{folder}: no store of version 0.1 ({OLD} is missing), so there is nothing to convert")
    with _believed(folder):
        return _converted(folder)


def _converted(folder: Path) -> int:
    facts, entries, asked = _facts(folder), _journal(folder), folder / "wanted.json"
    rows = _newest(folder, entries, facts["identity"]["chunk_size"])
    with _made(folder, facts["identity"]) as store:
        wanted = read_json(asked) if asked.exists() else {}
        store.note(wanted=wanted, changes=facts["changes"], created=facts["created"])
        for row in rows.values():
            store.insert(row)
        for entry in entries:
            if "chunks" not in entry:
                _overlay(store, folder, entry, rows)
        _check_equal(folder, store, rows)
    return len(rows)


@contextlib.contextmanager
def _believed(where: Path) -> Iterator[None]:
    """DataError where rows or facts that can be read are of other kinds than a store's."""
    try:
        yield
    except SageError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, pa.ArrowException) as error:
        raise DataError(
            f"{where}: its rows or facts are not those of a sample store ({error!r:.200}); restore it from a copy"
        ) from error


@contextlib.contextmanager
def _made(folder: Path, identity: Mapping[str, Any]) -> Iterator[SampleStore]:
    """A new store to write to, which takes its place in the folder when the block ends well."""
    if (folder / FILE).exists():
        raise ConfigError(f"{folder}: holds a sample store already ({FILE}); name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".tmp-") as name:
        with SampleStore.open(name, Identity.of(identity)) as store, store.transaction(write=True):
            yield store
        os.replace(Path(name) / FILE, folder / FILE)


def _parquet(path: Path) -> pa.Table:
    return pa.Table.from_batches(read_parquet(path, LARGEST))


def _facts(folder: Path) -> dict[str, Any]:
    try:
        facts = read_json(folder / OLD, advice="restore it from a copy of the store")
        if facts["format"] != 1:
            raise ValueError(f"format {facts['format']!r}")
        return dict(facts)
    except SageError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder / OLD}: cannot be read ({error!r}); restore it from a copy of the store") from error


def _journal(folder: Path) -> list[dict[str, Any]]:
    """The whole lines, oldest first; a last line without its end never counted."""
    file, entries = folder / "journal.jsonl", []
    for number, line, whole in read_lines(file) if file.exists() else ():
        if not whole:
            break
        try:
            entry = parse_json(line, f"{file}:{number}")
            path = folder / entry["file"]
            if path.parent not in (folder / "parts", folder / "verdicts") or file_sha256(path) != entry["sha256"]:
                raise ValueError(path)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{file}:{number}: this line or the file that it names is damaged; restore it from a copy, or delete the line: "
                "what it committed is then sampled or judged again"
            ) from error
        entries.append(entry)
    return entries


def _newest(folder: Path, entries: list[dict[str, Any]], size: int) -> Stored:
    """Each row as the oldest part has it, or the newest that supersedes it."""
    rows: Stored = {}
    for entry in (entry for entry in entries if "chunks" in entry):
        listed = {tuple(chunk) for chunk in entry["chunks"]}
        for row in rows_of(_parquet(folder / entry["file"])):
            key = (row["problem"], row["sample"])
            if (key[0], key[1] - key[1] % size) in listed and ("supersedes" in entry or key not in rows):
                rows[key] = row
    return rows


def _overlay(store: SampleStore, folder: Path, entry: dict[str, Any], rows: Stored) -> None:
    """A later pass of verdicts, each of the text that it saw."""
    said = {(one["problem"], one["sample"]): one for one in _parquet(folder / entry["file"]).to_pylist()}
    seen = [key for key, one in said.items() if rows.get(key, {}).get("text_hash") == one["text_hash"]]
    verdicts = [(said[key]["verdict"], said[key]["reason"], said[key]["answer"]) for key in seen]
    store.overlay(seen, verdicts, entry["verifier_hash"], entry["by"], entry["at"])


def _check_equal(folder: Path, store: SampleStore, rows: Stored) -> None:
    """DataError unless the new store says what the old files said, column by column, but for later verdicts."""
    names = [name for name in COLUMNS if name not in JUDGED]
    made = {(row["problem"], row["sample"]): row for row in rows_of(store.table())}
    unlike = [key for key in rows | made if any(made.get(key, {}).get(n) != rows.get(key, {}).get(n) for n in names)]
    if unlike:
        raise DataError(
            f"{folder}: {len(unlike)} samples, first {min(unlike)}, came out otherwise; nothing was converted"
        )
