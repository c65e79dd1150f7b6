"""A sample store as one Parquet file, and back."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sage_rlvr.errors import ConfigError, DataError, short, suggest
from sage_rlvr.evaluation.store import Identity, PromptAndGold, SampleStore, is_store
from sage_rlvr.evaluation.store.identity import requested
from sage_rlvr.evaluation.store.parts import NEVER_NULL, SCHEMA, StoredParts
from sage_rlvr.evaluation.store.sample import ASKED, COLUMNS, FINISHES, LABELS, NESTED, TURNS, unescape
from sage_rlvr.evaluation.store.samples import IMPORTED
from sage_rlvr.runs import replacing
from sage_rlvr.safe_io import MIB, parse_json, read_parquet
from sage_rlvr.verdicts.chance import KEY, chance_of_tree

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
    """Make a store from a file of `to_parquet`; returns how many samples. Raises DataError, without a store, for any other file."""
    if is_store(folder):
        raise ConfigError(f"{folder}: already has a sample store; use another folder")
    table = pa.Table.from_batches(read_parquet(file, LARGEST))
    about = (table.schema.metadata or {}).get(b"sage_rlvr")
    kinds = dict(zip(table.schema.names, table.schema.types, strict=True))
    wanted = [*COLUMNS, *(name for name in (*ASKED, TURNS) if name in kinds)]
    if about is None or any(kinds.get(name) != SCHEMA.field(name).type for name in wanted):
        raise DataError(
            f"{file}: was not written by `{suggest('samples', 'STORE', '--to-parquet')}`: it lacks the identity or a column, or "
            "has one of another type"
        )
    facts = parse_json(about, f"{file}, its identity", dict)
    identity = Identity.of(facts.get("identity"), f"{file}, its identity")
    kept = {key: facts[key] for key in ("wanted", KEY) if key in facts} | {IMPORTED: file.name}
    requested(facts.get("wanted", {}), f"{file}, its metadata")
    _check_values(file, table)
    try:
        chance_of_tree(facts.get(KEY))
    except (LookupError, TypeError, ValueError) as error:
        raise DataError(f"{file}, its chance floor: {error}; restore it from a copy") from error
    table = table.sort_by([("problem", "ascending"), ("sample", "ascending")])
    _check_chunks(file, table, identity.chunk_size or 1)
    with SampleStore.open(folder, identity) as store:
        store.note(**kept)
        store.add(table.select([name for name in store.columns if name in kinds]))
        store.describe(_questions(table))
    return len(table)


def _check_values(file: Path, table: pa.Table) -> None:
    """Raise DataError for a value that no export has: a null where a value is required, one within a list, an unknown word."""
    for name in NEVER_NULL:
        if table[name].null_count:
            raise DataError(f"{file}: {name} lacks in {table[name].null_count} of {len(table)} rows; restore it from a copy")
    for name, known in (("verdict", LABELS), ("finish", FINISHES)):
        if unknown := set(table[name].unique().to_pylist()) - set(known):
            raise DataError(f"{file}: {name} {sorted(unknown)[0]!r} is none of {known}; restore it from a copy")
    for batch in table.select(["problem", "sample", *NESTED]).to_batches():
        for name in NESTED:
            if batch.column(name).flatten().null_count:
                row = next(row for row in batch.to_pylist() if None in (row[name] or ()))
                raise DataError(
                    f"{file}: problem {row['problem']!r}, sample {row['sample']}: {name} = {short(row[name])} has a null among its "
                    "values; restore it from a copy"
                )


def _check_chunks(file: Path, table: pa.Table, size: int) -> None:
    """Raise DataError unless the sorted samples are complete chunks, each sample once."""
    problems, numbers = table["problem"].to_pylist(), table["sample"].to_pylist()
    for first in range(0, len(table), size):
        start = numbers[first] - numbers[first] % size
        rows = zip(problems[first : first + size], numbers[first : first + size], strict=True)
        own = [number for name, number in rows if name == problems[first]]
        if own != list(range(start, start + size)):
            raise DataError(
                f"{file}: problem {unescape(problems[first])!r}: of samples {start} to {start + size - 1} it does not have each "
                "once; the file was cut or changed: export the store again, or restore it from a copy"
            )


def _questions(table: pa.Table) -> dict[str, PromptAndGold]:
    """Problem -> its prompt and gold, for rows that have them."""
    if not set(ASKED) <= set(table.column_names):
        return {}
    asked = table.select(["problem", *ASKED]).filter(pc.is_valid(table["prompt"]))
    rows = StoredParts.lists(asked.group_by(["problem", *ASKED]).aggregate([]))
    return {name: PromptAndGold(*question) for name, *question in zip(*rows.values(), strict=True)}
