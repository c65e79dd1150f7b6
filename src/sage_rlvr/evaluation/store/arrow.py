"""Stored rows as Arrow tables, and back: what Parquet files hold. In the store, only this module needs pyarrow (extra `train`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sage_rlvr.evaluation.store.sample import TOKEN_LEVEL
from sage_rlvr.evaluation.store.schema import COLUMNS, NESTED, TURNS, stored

_TEXT = pa.large_string()
_KINDS = {
    **dict.fromkeys((*COLUMNS, TURNS, "prompt", "gold"), _TEXT),
    "sample": pa.int32(),
    **dict.fromkeys(("seed", "text_hash"), pa.int64()),
    "token_ids": pa.large_list(pa.int32()),
    **dict.fromkeys(TOKEN_LEVEL, pa.large_list(pa.float32())),
    "latency_s": pa.float64(),
}
NEVER_NULL = ("problem", "sample", "prompt_hash", "text", "text_hash", "verdict", "reason", "verifier", "versions")
SCHEMA = pa.schema([pa.field(name, kind, nullable=name not in NEVER_NULL) for name, kind in _KINDS.items()])


def table_of(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Stored rows of these columns as a table of `SCHEMA`."""
    arrays = [_array(name, [row[at] for row in rows]) for at, name in enumerate(names)]
    return pa.table(arrays, schema=pa.schema([SCHEMA.field(name) for name in names]))


def _array(name: str, values: list[Any]) -> pa.Array:
    """Stored values of a column; a token-level column holds bytes, which become lists."""
    if name not in NESTED:
        return pa.array(values, _KINDS[name])
    buffers = [value or b"" for value in values]
    ends = np.cumsum([0, *(len(buffer) // 4 for buffer in buffers)])
    flat = np.frombuffer(b"".join(buffers), NESTED[name])
    null = pa.array([value is None for value in values], pa.bool_())
    return pa.LargeListArray.from_arrays(pa.array(ends), pa.array(flat), mask=null)


def rows_of(table: pa.Table) -> Iterator[dict[str, Any]]:
    """A table of `SCHEMA` as rows of `COLUMNS` and `TURNS`, as they are stored."""
    names = [*COLUMNS, TURNS] if TURNS in table.column_names else list(COLUMNS)
    for batch in table.select(names).to_batches(max_chunksize=1024):
        for row in batch.to_pylist():
            yield {TURNS: None, **stored(row)}
