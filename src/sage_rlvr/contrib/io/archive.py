"""A sample store as one Parquet file, and back."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sage_rlvr.errors import ConfigError, DataError, short, suggest
from sage_rlvr.evaluation.store import SampleStore
from sage_rlvr.evaluation.store.arrow import SCHEMA, rows_of
from sage_rlvr.evaluation.store.database import create
from sage_rlvr.evaluation.store.identity import Identity, requested
from sage_rlvr.evaluation.store.reader import ASKED, IMPORTED
from sage_rlvr.evaluation.store.sample import PromptAndGold, unescape
from sage_rlvr.evaluation.store.schema import COLUMNS, FILE, NESTED, TURNS, insert, insert_questions, note, question_of
from sage_rlvr.runs import replacing
from sage_rlvr.safe_io import MIB, parse_json, read_parquet
from sage_rlvr.tasks.chance import KEY, chance_of_tree

LARGEST = 16384 * MIB  # bytes of a file


def to_parquet(store: SampleStore, file: Path) -> int:
    """All samples with their newest verdicts, their problem's prompt and gold, and in the schema's metadata the identity and the
    chance floor, each page with its CRC; returns how many."""
    table = store.table()
    try:
        with replacing(file) as half:
            pq.write_table(table, half, compression="zstd", write_page_checksum=True)
    except OSError as error:
        raise DataError(f"{file}: cannot be written: {error.strerror or error}") from error
    return len(table)


def from_parquet(file: Path, folder: Path) -> int:
    """Make a store of what `to_parquet` wrote, all of it or nothing; returns how many samples."""
    if (folder / FILE).exists():
        raise _occupied(folder)
    table = pa.Table.from_batches(read_parquet(file, LARGEST))
    about = (table.schema.metadata or {}).get(b"sage_rlvr")
    kinds = dict(zip(table.schema.names, table.schema.types, strict=True))
    later = (*ASKED, TURNS)  # columns that exports of earlier versions lack, or stores of completions
    wanted = [*COLUMNS, *(name for name in later if name in kinds)]
    if about is None or any(kinds.get(name) != SCHEMA.field(name).type for name in wanted):
        raise DataError(
            f"{file}: was not written by `{suggest('samples', 'STORE', '--to-parquet')}`: it lacks the identity or a column, or "
            "has one of another type"
        )
    facts = parse_json(about, f"{file}, its identity", dict)
    identity = Identity.of(facts.get("identity"), f"{file}, its identity").tree()
    kept = {key: facts[key] for key in ("wanted", KEY) if key in facts} | {IMPORTED: file.name}
    requested(facts.get("wanted", {}), f"{file}, its metadata")
    _check_lists(file, table)
    try:
        chance_of_tree(facts.get(KEY))
    except (LookupError, TypeError, ValueError) as error:
        raise DataError(f"{file}, its chance floor: {error}; restore it from a copy") from error

    def fill(db: sqlite3.Connection) -> None:
        """Metadata, samples and prompts, within the transaction of `create`: an error leaves no store."""
        try:
            note(db, kept)
            for row in rows_of(table):
                insert(db, row)
            insert_questions(db, _questions(table))
        except sqlite3.IntegrityError as error:
            raise DataError(f"{file}: its rows are not those of a sample store ({error}); restore it from a copy") from error

    if not create(folder, identity, fill):
        raise _occupied(folder)
    return len(table)


def _check_lists(file: Path, table: pa.Table) -> None:
    """DataError for a null among the values of a token-level column, which no export has."""
    for batch in table.select(["problem", "sample", *NESTED]).to_batches():
        for name in NESTED:
            if batch.column(name).flatten().null_count:
                row = next(row for row in batch.to_pylist() if None in (row[name] or ()))
                raise DataError(
                    f"{file}: problem {row['problem']!r}, sample {row['sample']}: {name} = {short(row[name])} has a null among its "
                    "values; restore it from a copy"
                )


def _occupied(folder: Path) -> ConfigError:
    return ConfigError(f"{folder}: already has a sample store ({FILE}); use another folder")


def _questions(table: pa.Table) -> dict[str, PromptAndGold]:
    """Problem -> its prompt and gold, of the rows that have them; {} for a file of a version that did not keep them."""
    if not set(ASKED) <= set(table.column_names):
        return {}
    rows = table.select(["problem", *ASKED]).group_by(["problem", *ASKED]).aggregate([]).to_pylist()
    return {unescape(row["problem"]): question_of(row["prompt"], row["gold"]) for row in rows if row["prompt"] is not None}
