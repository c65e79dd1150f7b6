"""The Parquet parts of a store: their columns, which samples each has, and tables of them. In the store, only this module needs
pyarrow.

    samples/HASH.parquet           complete chunks as generated, with the evaluation's verdicts
    verdicts/NUMBER-HASH.parquet   later verdicts on samples; the one with the largest number counts
    scores/NUMBER-HASH.parquet     log-probs of samples under a base, computed afterwards
    problems/HASH.parquet          prompt and gold of each problem

The hash is that of a part's bytes, compared when this process first sees it. A footer names the store of a part, and for `samples`
its chunks with the hash of each chunk's samples: a chunk in two parts must have equal hashes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sage_rlvr.errors import DataError
from sage_rlvr.evaluation.store.folder import (
    FILE,
    PROBLEMS,
    SAMPLES,
    SCORES,
    VERDICTS,
    check_bytes,
    damaged,
    number_of,
    parts_in,
    place,
)
from sage_rlvr.evaluation.store.sample import (
    ASKED,
    COLUMNS,
    ESCAPED,
    JUDGED,
    LABELS,
    NESTED,
    TOKEN_LEVEL,
    TURNS,
    Chunk,
    escape,
    in_order,
    natural,
    unescape,
)
from sage_rlvr.runs.files import sync_folder
from sage_rlvr.safe_io import parse_json

ROWS = 4096  # rows per row group: the amount read for one problem
SMALL, LARGE = 8 << 20, 16 << 20  # bytes of the parts that are merged, and of the result
_ADDRESS = ("problem", "sample")
_LATER = {VERDICTS: JUDGED, SCORES: ("base_logps", "versions")}
"""Kinds of parts that replace columns of samples."""
_ABOUT = "sage_rlvr"
_KINDS = {
    **dict.fromkeys((*COLUMNS, TURNS, *ASKED), pa.large_string()),
    "sample": pa.int32(),
    **dict.fromkeys(("seed", "text_hash"), pa.int64()),
    "token_ids": pa.large_list(pa.int32()),
    **dict.fromkeys(TOKEN_LEVEL, pa.large_list(pa.float32())),
    "latency_s": pa.float64(),
}
NEVER_NULL = ("problem", "sample", "prompt_hash", "text", "text_hash", "verdict", "reason", "verifier", "versions")
SCHEMA = pa.schema([pa.field(name, kind, nullable=name not in NEVER_NULL) for name, kind in _KINDS.items()])
_OFTEN = ["problem", "prompt_hash", "finish", "answer", "verdict", "reason", "verifier", "versions"]  # whose values repeat

Reading = TypeVar("Reading", bound=Callable[..., Any])
Held = dict[Chunk, "StoredChunk"]


@dataclass(frozen=True, eq=False)
class StoredPart:
    """A part that matches its hash. about: its footer's entry."""

    path: Path
    rows: int
    size: int
    about: Mapping[str, Any]

    def read(self, names: Sequence[str], groups: Sequence[int] | None = None) -> pa.Table:
        """Columns, of some row groups. Raises FileNotFoundError if it was merged into another part."""
        try:
            with pq.ParquetFile(self.path, page_checksum_verification=True) as file:
                wanted = range(file.num_row_groups) if groups is None else groups
                table = file.read_row_groups(list(wanted), list(names), use_threads=False)
        except FileNotFoundError:
            raise
        except (pa.ArrowException, OSError, OverflowError) as error:
            raise damaged(self.path, str(error).splitlines()[0]) from error
        return table.replace_schema_metadata(None).select(list(names))


@dataclass(frozen=True, eq=False, slots=True)
class StoredChunk:
    """The place of a chunk: its part and row. drawn: the hash of its seeds and tokens."""

    part: StoredPart
    row: int
    drawn: str


def _retried(reading: Reading) -> Reading:
    """A method of `StoredParts` that reads again if another process has merged a part meanwhile."""

    @wraps(reading)
    def retried(self: StoredParts, *args: Any, **options: Any) -> Any:
        for _ in range(100):
            with contextlib.suppress(FileNotFoundError):
                return reading(self, *args, **options)
        raise DataError(f"{self.folder}: its parts keep disappearing; end what deletes them, then run the same command again")

    return cast(Reading, retried)


class StoredParts:
    """The parts of a store's folder. key: the `Identity.key` that all samples share; size: samples of a chunk."""

    def __init__(self, folder: Path, key: str, size: int):
        self.folder, self.key, self.size = folder, key, size
        self._known: dict[Path, StoredPart] = {}
        self._indexed: set[str] = set()
        self.indexed: Held = {}
        """Chunks at the last scan of the folder."""

    # ---- what is there

    @_retried
    def of(self, kind: str) -> list[StoredPart]:
        """The parts of a kind, in order. Raises DataError for one that was changed, or is of another store."""
        return [self._part(kind, name) for name in sorted(parts_in(self.folder, kind))]

    def _part(self, kind: str, name: str) -> StoredPart:
        path = self.folder / kind / name
        if path in self._known:
            return self._known[path]
        check_bytes(path)
        try:
            footer = pq.read_metadata(path)
        except pa.ArrowException as error:
            raise damaged(path, str(error).splitlines()[0]) from error
        about = parse_json((footer.metadata or {}).get(_ABOUT.encode(), b"{}"), str(path))
        if about.get("kind") != kind:
            raise damaged(path, f"is no part of {kind}", f"Move it to {self.folder / str(about.get('kind'))}")
        if about.get("key") != self.key:
            raise DataError(
                f"{path}: is a part of another store: its samples were drawn under other settings than {self.folder} says; move "
                "it to the folder of its own store"
            )
        self._known[path] = StoredPart(path, footer.num_rows, path.stat().st_size, about)
        return self._known[path]

    @_retried
    def chunks(self) -> Held:
        """The existing chunks. Raises DataError if two parts have different samples of one."""
        names = set(parts_in(self.folder, SAMPLES))
        if self._indexed - names:
            self._indexed, self.indexed = set(), {}
        for name in sorted(names - self._indexed):
            for chunk, here in self._places(self._part(SAMPLES, name)).items():
                known = self.indexed.setdefault(chunk, here)
                if known.drawn != here.drawn:
                    raise DataError(
                        f"{known.part.path} and {here.part.path}: both have samples {chunk.first} to {chunk.samples[-1]} of "
                        f"problem {chunk.problem!r}, and they differ: the sampler is not a function of the seed, or parts of two "
                        "evaluations were merged. Move one of the two files out of the folder; the same eval command draws again "
                        "what it alone has"
                    )
            self._indexed.add(name)
        return self.indexed

    def _places(self, part: StoredPart) -> Held:
        places = {}
        for number, (problem, first, drawn) in enumerate(part.about["chunks"]):
            places[Chunk(problem, first, self.size)] = StoredChunk(part, number * self.size, drawn)
        return places

    # ---- writing

    def write(self, kind: str, columns: Mapping[str, Sequence[Any]] | pa.Table, number: int | None = None, **about: Any) -> Path:
        """Write a part; returns its path. about: entries of its footer besides the store's key."""
        table = table_of(columns)
        about = {"kind": kind, "key": self.key, **about}
        sink = pa.BufferOutputStream()
        pq.write_table(
            table.replace_schema_metadata({_ABOUT: json.dumps(about)}), sink, compression="zstd", row_group_size=ROWS,
            write_page_checksum=True, use_dictionary=[name for name in _OFTEN if name in table.column_names],
        )  # fmt: skip
        data = sink.getvalue()
        path = place(self.folder, kind, data, ".parquet", number)
        self._known[path] = StoredPart(path, len(table), len(data), about)
        return path

    def write_later(self, kind: str, columns: Mapping[str, Sequence[Any]], **about: Any) -> None:
        """Write later columns of samples, which take precedence over earlier ones."""
        self.write(kind, columns, 1 + max(map(number_of, parts_in(self.folder, kind)), default=0), **about)

    def add(self, columns: Mapping[str, Sequence[Any]] | pa.Table) -> list[Chunk]:
        """Write the chunks that did not exist at the last scan; returns them. columns: of complete chunks, sorted by problem and
        sample. Raises DataError, with nothing written, if other samples of an existing chunk are given."""
        table = table_of(columns)
        chunks = drawn_chunks(table, self.size)
        for chunk, drawn in chunks.items():
            if chunk in self.indexed and self.indexed[chunk].drawn != drawn:
                raise DataError(
                    f"{self.folder}: the chunk from problem {chunk.problem!r}, sample {chunk.first} already exists with other "
                    "tokens or other seeds: this sampler is not a function of the seed, or two evaluations share this folder. The "
                    "existing samples are kept; claim chunks before sampling them, or use another folder"
                )
        is_new = [chunk not in self.indexed for chunk in chunks]
        new = {chunk: drawn for chunk, drawn in chunks.items() if chunk not in self.indexed}
        if new:
            self._write_samples(table.filter(pa.array(np.repeat(is_new, self.size))), new)
        return list(new)

    def _write_samples(self, table: pa.Table, chunks: Mapping[Chunk, str]) -> Path:
        return self.write(SAMPLES, table, chunks=[(chunk.problem, chunk.first, drawn) for chunk, drawn in chunks.items()])

    def merge(self, names: Sequence[str]) -> tuple[int, int]:
        """Merge small parts of samples; returns the number of parts before and after. names: of their columns."""
        home = self.folder / SAMPLES
        with open(self.folder / FILE, "rb+") as lock:  # NFS gives an exclusive lock to a file that is open for writing only
            fcntl.flock(lock, fcntl.LOCK_EX)  # two processes at a time would each write all of the samples
            before = len(parts_in(self.folder, SAMPLES))
            sync_folder(home)
            self.chunks()  # which raises an error for different samples of one chunk
            small = [part for part in self.of(SAMPLES) if part.size < SMALL]
            small.sort(key=lambda part: natural(part.about["chunks"][0][0]))
            groups = np.cumsum([part.size for part in small]) // LARGE
            for group in np.unique(groups):
                self._merge([part for part, own in zip(small, groups, strict=True) if own == group], names)
        return before, len(parts_in(self.folder, SAMPLES))

    def _merge(self, parts: Sequence[StoredPart], names: Sequence[str]) -> None:
        """Merge parts into one, and then delete them. It contains every chunk of theirs, even one in yet another part."""
        if len(parts) < 2:
            return
        places = {chunk: place for part in parts for chunk, place in self._places(part).items()}
        order = in_order(places)
        table = self._taken(names, [places[chunk] for chunk in order])
        merged = self._write_samples(table, {chunk: places[chunk].drawn for chunk in order})
        sync_folder(merged.parent)  # before anything is deleted
        for part in parts:
            if part.path != merged:
                part.path.unlink(missing_ok=True)

    # ---- reading

    @_retried
    def read(
        self,
        names: Sequence[str],
        chosen: Callable[[Collection[Chunk]], Sequence[Chunk]] = in_order,
        n: int | None = None,
        verifier: str | None = None,
        drawn: bool = False,
    ) -> pa.Table:
        """Columns of the chunks that `chosen` selects among the existing ones, in its order; by default all, with or without gaps
        between them. With the newest verdict of each sample, or that of `verifier`, null without one. n: the first n samples of
        each problem; drawn: without later columns."""
        held = self.chunks()
        places = [held[chunk] for chunk in chosen(held)]
        table = self._taken(list(dict.fromkeys([*names, *_ADDRESS, "verifier"])), places)
        if n is not None:
            table = table.filter(pc.less(table["sample"], n))
        for kind, replaced in ({} if drawn else _LATER).items():
            if columns := [name for name in replaced if name in names]:
                table = self._with_later(table, kind, columns, verifier if kind == VERDICTS else None)
        return table.select(list(names))

    def _taken(self, names: Sequence[str], places: Sequence[StoredChunk]) -> pa.Table:
        """Columns of chunks, as generated."""
        indices: dict[StoredPart, list[int]] = {}
        for index, chunk in enumerate(places):
            indices.setdefault(chunk.part, []).append(index)
        tables, total = [pa.schema([SCHEMA.field(name) for name in names]).empty_table()], 0
        positions = np.empty((len(places), self.size), np.int64)
        for part, own in indices.items():
            rows = np.array([places[index].row for index in own])[:, None] + np.arange(self.size)
            groups, ranks = np.unique(rows // ROWS, return_inverse=True)  # all row groups except the last have this many rows
            positions[own] = total + ranks.reshape(rows.shape) * ROWS + rows % ROWS
            tables.append(part.read(names, groups.tolist()))
            total += len(tables[-1])
        table = pa.concat_tables(tables).combine_chunks()
        return table if np.array_equal(positions.ravel(), np.arange(total)) else table.take(pa.array(positions.ravel()))

    def _with_later(self, table: pa.Table, kind: str, names: Sequence[str], verifier: str | None) -> pa.Table:
        """The table with the newest of later columns. verifier: only its verdicts, null for samples without one."""
        columns = list(dict.fromkeys([*_ADDRESS, *names, *([] if verifier is None else ["verifier"])]))
        rows = [part.read(columns) for part in self.of(kind)]
        if verifier is not None:
            rows = [more.filter(pc.equal(more["verifier"], verifier)) for more in rows]
        source = pa.concat_tables([table.select(columns), *rows])
        problems = source["problem"].combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)
        address = problems << 32 | source["sample"].to_numpy()
        order = np.argsort(address, kind="stable")
        last = pa.array(order[np.searchsorted(address[order], address[: len(table)], side="right") - 1])
        if verifier is not None:
            judge = source["verifier"].take(last)
            last = pc.if_else(pc.equal(judge, verifier), last, None)
        for name in names:
            table = table.set_column(table.column_names.index(name), SCHEMA.field(name), source[name].take(last))
        return table

    def with_questions(self, table: pa.Table) -> pa.Table:
        """The table with each problem's prompt and gold, null if missing."""
        asked = self.asked()
        place = pc.index_in(table["problem"], value_set=asked["problem"].combine_chunks())
        for name in ASKED:
            table = table.append_column(SCHEMA.field(name), asked[name].take(place))
        return table

    def asked(self) -> pa.Table:
        """Prompts and golds of the described problems; the first counts."""
        names = ("problem", *ASKED)
        empty = pa.schema([SCHEMA.field(name) for name in names]).empty_table()
        return pa.concat_tables([empty, *(part.read(names) for part in self.of(PROBLEMS))])

    # ---- tables as numbers, lists and bytes

    @staticmethod
    def lists(table: pa.Table) -> dict[str, list[Any]]:
        """Inverse of `table_of`: columns as lists."""
        return {name: _list_of(name, table[name]) for name in table.column_names}

    @staticmethod
    def counts(table: pa.Table) -> dict[str, list[Any]]:
        """problem: the problems; n, right, wrong, undecided, truncated, finish_unknown: how many samples of each."""
        finish = table["finish"]
        marks = {
            "n": table["problem"].is_valid(),
            **{label: pc.equal(table["verdict"], label) for label in LABELS},
            "truncated": pc.equal(finish, "length"),
            "finish_unknown": finish.is_null(),
        }
        grouped = pa.table({"problem": table["problem"], **marks}).group_by("problem", use_threads=False)
        sums = grouped.aggregate([(name, "sum") for name in marks])
        counts = {name: sums[f"{name}_sum"].fill_null(0).to_pylist() for name in marks}
        return {"problem": _list_of("problem", sums["problem"]), **counts}

    @staticmethod
    def digest(table: pa.Table) -> str:
        """SHA-256 of a table's values."""
        digest = hashlib.sha256()
        for name in table.column_names:
            digest.update(f"{name}:{len(table)}:".encode())
            for data in _bytes_of(table[name].combine_chunks()):
                digest.update(data)
        return digest.hexdigest()


def drawn_chunks(table: pa.Table, size: int) -> dict[Chunk, str]:
    """Each chunk of a table of complete chunks, and the hash of its samples."""
    names = ("problem", "sample", "seed", "text_hash", "token_ids")
    problems, numbers, seeds, texts, tokens = StoredParts.lists(table.select(names)).values()
    chunks = {}
    for first in range(0, len(table), size):
        digest = hashlib.sha256()
        for row in range(first, first + size):
            ids = tokens[row]
            digest.update(f"{seeds[row]}:{texts[row] if ids is None else len(ids)}:".encode())
            digest.update(b"" if ids is None else ids)
        chunks[Chunk(problems[first], numbers[first], size)] = digest.hexdigest()[:16]
    return chunks


def table_of(columns: Mapping[str, Sequence[Any]] | pa.Table) -> pa.Table:
    """Columns of `SCHEMA` as a table: arrays of a token-level column become lists, text becomes UTF-8. A table is returned as it
    is."""
    if isinstance(columns, pa.Table):
        return columns
    arrays = [_array(name, values) for name, values in columns.items()]
    return pa.table(arrays, schema=pa.schema([SCHEMA.field(name) for name in columns]))


def _array(name: str, values: Sequence[Any]) -> pa.Array:
    if name in ESCAPED:
        values = [None if text is None else escape(text) for text in values]
    if name not in NESTED:
        return pa.array(values, _KINDS[name], from_pandas=False)
    empty = np.zeros(0, NESTED[name])
    rows = [empty if value is None else np.asarray(value, NESTED[name]) for value in values]
    ends = pa.array(np.cumsum([0, *map(len, rows)]))  # sixty times as fast as pa.array(rows)
    null = pa.array([value is None for value in values], pa.bool_())
    return pa.LargeListArray.from_arrays(ends, pa.array(np.concatenate([empty, *rows])), mask=null)


def _list_of(name: str, column: pa.ChunkedArray) -> list[Any]:
    if name in ESCAPED:
        return [None if text is None else unescape(text) for text in column.to_pylist()]
    if name not in NESTED:
        return list(column.to_pylist())
    values: list[Any] = []
    for chunk in column.chunks:
        flat, ends = chunk.values.to_numpy(), chunk.offsets.to_numpy()
        known = chunk.is_valid().to_numpy(zero_copy_only=False)
        values += [flat[a:b] if there else None for a, b, there in zip(ends[:-1], ends[1:], known, strict=True)]
    return values


def _bytes_of(array: pa.Array) -> Iterator[Any]:
    """A column as bytes that are the same for equal columns: the null mask, the lengths, and the values."""
    yield array.is_null().to_numpy(zero_copy_only=False).tobytes()
    if pa.types.is_large_list(array.type):
        yield pc.list_value_length(array).fill_null(0).to_numpy().tobytes()
        array = array.flatten()
    if not pa.types.is_large_string(array.type):
        yield array.fill_null(0).to_numpy().tobytes()
        return
    array = array.fill_null("")
    yield pc.binary_length(array).to_numpy().tobytes()
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    yield b"" if data is None else memoryview(data)[ends[0] : ends[-1]]
