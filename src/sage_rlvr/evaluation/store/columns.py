"""The columns of a sample store: from a sample to what is stored, and from there to Arrow, Parquet and back.

Text is `escape`d where it is no UTF-8; token-level columns are little-endian float32, token ids int32.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sage_rlvr.errors import DataError
from sage_rlvr.evaluation.store.sample import TOKEN_LEVEL, Identity, Sample, escape, text_hash, unescape

_FLOATS = pa.large_list(pa.float32())
_TEXT = pa.large_string()
_KINDS = {
    "problem": _TEXT,
    "sample": pa.int32(),
    "seed": pa.int64(),
    "prompt_hash": _TEXT,
    "text": _TEXT,
    "text_hash": pa.int64(),
    "token_ids": pa.large_list(pa.int32()),
    **dict.fromkeys(TOKEN_LEVEL, _FLOATS),
    **dict.fromkeys(("finish", "answer", "verdict", "reason", "verifier"), _TEXT),
    "latency_s": pa.float64(),
    "versions": _TEXT,
}
COLUMNS = tuple(_KINDS)
NEVER_NULL = ("problem", "sample", "prompt_hash", "text", "text_hash", "verdict", "reason", "verifier", "versions")
SCHEMA = pa.schema([pa.field(name, kind, nullable=name not in NEVER_NULL) for name, kind in _KINDS.items()])
JUDGED = ("verifier", "verdict", "reason", "answer")  # of the newest verdict
UNSTEADY = ("latency_s",)  # columns that two equal evaluations need not share
ESCAPED = ("problem", "text", "answer", "reason")
NESTED = {"token_ids": np.dtype("<i4"), **dict.fromkeys(TOKEN_LEVEL, np.dtype("<f4"))}


def packed(samples: Sequence[Sample], identity: Identity) -> Iterator[dict[str, Any]]:
    """Samples as rows of `COLUMNS`, judged and made under `identity`."""
    versions = json.dumps(dict(identity.versions), sort_keys=True)
    for sample in samples:
        row: dict[str, Any] = {name: getattr(sample, name) for name in Sample.__dataclass_fields__}
        row |= {"text_hash": text_hash(sample.text), "verifier": identity.verifier_hash, "versions": versions}
        row |= {name: None if row[name] is None else escape(row[name]) for name in ESCAPED}
        row |= {k: None if row[k] is None else np.asarray(row[k]).astype(kind).tobytes() for k, kind in NESTED.items()}
        row["sample"], row["seed"] = int(row["sample"]), None if row["seed"] is None else int(row["seed"])
        latency = float(row["latency_s"])
        row["latency_s"] = None if math.isnan(latency) else latency
        yield row


def sample_of(names: Sequence[str], row: Sequence[Any]) -> Sample:
    """A stored row of these columns as a `Sample`: token-level columns as arrays, text as it was."""
    found: dict[str, Any] = {}
    for name, value in zip(names, row, strict=True):
        if value is None:
            found[name] = math.nan if name == "latency_s" else None
        elif name in NESTED:
            found[name] = np.frombuffer(value, NESTED[name])
        else:
            found[name] = unescape(value) if name in ESCAPED else value
    return Sample(**found)


def arrow(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Stored rows of these columns as a table of `SCHEMA`."""
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    made = [_array(name, list(values)) for name, values in zip(names, columns, strict=True)]
    return pa.table(dict(zip(names, made, strict=True)), pa.schema([SCHEMA.field(name) for name in names]))


def _array(name: str, values: list[Any]) -> pa.Array:
    if name not in NESTED:
        return pa.array(values, _KINDS[name])
    ends = np.cumsum([0, *(len(value or b"") // 4 for value in values)])
    flat = pa.array(np.frombuffer(b"".join(value or b"" for value in values), NESTED[name]))
    return pa.LargeListArray.from_arrays(pa.array(ends), flat, mask=pa.array([value is None for value in values], pa.bool_()))


def rows_of(table: pa.Table) -> Iterator[dict[str, Any]]:
    """A table of `SCHEMA` as rows of `COLUMNS`, as they are stored."""
    for batch in table.select(COLUMNS).to_batches(max_chunksize=1024):
        columns = {name: batch.column(name).to_pylist() for name in COLUMNS if name not in NESTED}
        for name, kind in NESTED.items():
            nested = [
                value.values.to_numpy(zero_copy_only=False) if value.is_valid else None for value in batch.column(name)
            ]
            columns[name] = [None if value is None else value.astype(kind).tobytes() for value in nested]
        for values in zip(*(columns[name] for name in COLUMNS), strict=True):
            row = dict(zip(COLUMNS, values, strict=True))
            row["latency_s"] = None if row["latency_s"] is None or math.isnan(row["latency_s"]) else row["latency_s"]
            yield row


def read_parquet(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """A Parquet file, or some of its columns; `DataError` names the file where it cannot be read."""
    try:
        with pq.ParquetFile(path) as file:
            return file.read(columns=None if columns is None else list(columns), use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: cannot be read as Parquet: {error}") from error
