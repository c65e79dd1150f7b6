"""A sample store as one Parquet file, and back."""

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
from sage_rlvr.evaluation.store.database import COLUMNS, FILE, TURNS, whole_without_log
from sage_rlvr.evaluation.store.rows import ASKED
from sage_rlvr.evaluation.store.sample import AskedProblem, Identity, unescape
from sage_rlvr.runs import replacing
from sage_rlvr.safe_io import MIB, parse_json, read_parquet
from sage_rlvr.tasks.chance import KEY, chance_of_tree

LARGEST = 16384 * MIB  # bytes of all rows of a file, unpacked


def to_parquet(store: SampleStore, file: Path) -> int:
    """All samples with their newest verdicts, their problem's prompt and gold, and in the schema's metadata the identity and the
    chance floor; returns how many."""
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
    later = (*ASKED, TURNS)  # columns that exports of before lack, or stores of completions
    wanted = [*COLUMNS, *(name for name in later if name in kinds)]
    if about is None or any(kinds.get(name) != SCHEMA.field(name).type for name in wanted):
        raise DataError(
            f"{file}: was not written by `{suggest('samples', 'STORE', '--to-parquet')}`: it lacks the identity or a column, or "
            "has one of another type"
        )
    facts = parse_json(about, f"{file}, its identity")
    with _believed(file), _made(folder, facts["identity"]) as store:
        store.note(wanted=facts.get("wanted", {}))
        if KEY in facts:
            chance_of_tree(facts[KEY])  # a tree of another shape is refused here, with the file's name
            store.note(**{KEY: facts[KEY]})
        for row in rows_of(table):
            store.insert(row)
        store.describe(_questions(table))
    return len(table)


def _questions(table: pa.Table) -> dict[str, AskedProblem]:
    """Problem -> its prompt and gold, of the rows that have them; {} for a file of a version that did not keep them."""
    if not set(ASKED) <= set(table.column_names):
        return {}
    rows = table.select(["problem", *ASKED]).group_by(["problem", *ASKED]).aggregate([]).to_pylist()
    return {
        unescape(row["problem"]): AskedProblem(unescape(row["prompt"]), None if row["gold"] is None else unescape(row["gold"]))
        for row in rows
        if row["prompt"] is not None
    }


@contextlib.contextmanager
def _believed(where: Path) -> Iterator[None]:
    """DataError where rows or facts that can be read are of other kinds than a store's."""
    try:
        yield
    except SageError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, pa.ArrowException) as error:
        raise DataError(
            f"{where}: its rows or metadata are not those of a sample store ({error!r:.200}); restore it from a copy"
        ) from error


@contextlib.contextmanager
def _made(folder: Path, identity: Mapping[str, Any]) -> Iterator[SampleStore]:
    """A new store to write to, which takes its place in the folder when the block ends well."""
    if (folder / FILE).exists():
        raise ConfigError(f"{folder}: already has a sample store ({FILE}); use another folder")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".tmp-") as name:
        with SampleStore.open(name, Identity.of(identity)) as store:
            with store.transaction(write=True):
                yield store
            store.checkpoint()
        whole_without_log(Path(name) / FILE)
        os.replace(Path(name) / FILE, folder / FILE)


def _parquet(path: Path) -> pa.Table:
    return pa.Table.from_batches(read_parquet(path, LARGEST))
