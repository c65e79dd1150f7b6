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
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sage_rlvr.errors import DataError
from sage_rlvr.evaluation.store.folder import (
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
    JUDGED,
    NESTED,
    TOKEN_LEVEL,
    TURNS,
    PromptAndGold,
    escape,
    natural,
    unescape,
)
from sage_rlvr.runs.files import sync_folder
from sage_rlvr.safe_io import parse_json

ROWS = 4096  # rows per row group: the amount read for one problem
SMALL, LARGE = 16 << 20, 64 << 20  # bytes of the parts that are merged, and of the result
_LATER = {VERDICTS: JUDGED, SCORES: ("base_logps", "versions")}
"""Kinds of parts that replace columns of samples."""
_ABOUT = "sage_rlvr"
_TEXT = pa.large_string()
_KINDS = {
    **dict.fromkeys((*COLUMNS, TURNS, *ASKED), _TEXT),
    "sample": pa.int32(),
    **dict.fromkeys(("seed", "text_hash"), pa.int64()),
    "token_ids": pa.large_list(pa.int32()),
    **dict.fromkeys(TOKEN_LEVEL, pa.large_list(pa.float32())),
    "latency_s": pa.float64(),
}
NEVER_NULL = ("problem", "sample", "prompt_hash", "text", "text_hash", "verdict", "reason", "verifier", "versions")
SCHEMA = pa.schema([pa.field(name, kind, nullable=name not in NEVER_NULL) for name, kind in _KINDS.items()])
_OFTEN = ["problem", "prompt_hash", "finish", "answer", "verdict", "reason", "verifier", "versions"]  # whose values repeat

Ints = NDArray[np.int64]
Read = TypeVar("Read")
Firsts = dict[str, dict[int, "StoredChunk"]]
"""Problem -> the first sample of each of its chunks -> the chunk's place."""


def table_of(columns: Mapping[str, Sequence[Any]]) -> pa.Table:
    """Columns of `SCHEMA` as a table; a token-level column holds arrays, which become lists."""
    arrays = [_array(name, values) for name, values in columns.items()]
    return pa.table(arrays, schema=pa.schema([SCHEMA.field(name) for name in columns]))


def _array(name: str, values: Sequence[Any]) -> pa.Array:
    if name not in NESTED:
        return pa.array(values, _KINDS[name], from_pandas=False)
    if all(value is None for value in values):
        return pa.nulls(len(values), _KINDS[name])
    rows = [np.zeros(0, NESTED[name]) if value is None else np.asarray(value, NESTED[name]) for value in values]
    ends = np.cumsum([0, *map(len, rows)])
    null = pa.array([value is None for value in values], pa.bool_())
    return pa.LargeListArray.from_arrays(pa.array(ends), pa.array(np.concatenate([np.zeros(0, NESTED[name]), *rows])), mask=null)


def list_of(name: str, column: pa.ChunkedArray) -> list[Any]:
    """A column as a list; for a token-level column arrays (T,), None if missing."""
    if name not in NESTED:
        return list(column.to_pylist())
    values: list[Any] = []
    for chunk in column.chunks:
        flat, ends = chunk.values.to_numpy(), chunk.offsets.to_numpy()
        known = chunk.is_valid().to_numpy(zero_copy_only=False)
        values += [flat[a:b] if there else None for a, b, there in zip(ends[:-1], ends[1:], known, strict=True)]
    return values


def bytes_of(column: pa.ChunkedArray) -> Iterator[Any]:
    """A column as bytes that are the same for equal columns: the null mask, the lengths, and the values."""
    array = column.combine_chunks()
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


def with_questions(table: pa.Table, questions: Mapping[str, PromptAndGold]) -> pa.Table:
    """The table with each problem's prompt and gold, null if missing."""
    problems = table["problem"].combine_chunks().dictionary_encode()
    kept = [questions.get(unescape(name)) for name in problems.dictionary.to_pylist()]
    for name in ASKED:
        texts = [None if one is None else getattr(one, name) for one in kept]
        values = pa.array([None if text is None else escape(text) for text in texts], _TEXT)
        table = table.append_column(SCHEMA.field(name), values.take(problems.indices))
    return table


@dataclass(frozen=True, eq=False)
class StoredPart:
    """A part that matches its hash. names: names of its columns; about: its footer's entry."""

    path: Path
    names: tuple[str, ...]
    rows: int
    size: int
    about: Mapping[str, Any]

    def read(self, names: Sequence[str], groups: Sequence[int] | None = None) -> pa.Table:
        """Columns, of some row groups. Raises FileNotFoundError if it was merged into another part."""
        try:
            with pq.ParquetFile(self.path, page_checksum_verification=True) as file:
                wanted = range(file.num_row_groups) if groups is None else groups
                return file.read_row_groups(list(wanted), list(names), use_threads=False).replace_schema_metadata(None)
        except FileNotFoundError:
            raise
        except (pa.ArrowException, OSError, OverflowError) as error:
            raise damaged(self.path, str(error).splitlines()[0]) from error


@dataclass(frozen=True, eq=False, slots=True)
class StoredChunk:
    """The place of a chunk: its part and row, and its first sample. drawn: the hash of its seeds and tokens."""

    part: StoredPart
    row: int
    first: int
    drawn: str


class StoredParts:
    """The parts of a store's folder. key: the `Identity.key` that all samples share; size: samples of a chunk."""

    def __init__(self, folder: Path, key: str, size: int):
        self.folder, self.key, self.size = folder, key, size
        self._known: dict[Path, StoredPart] = {}
        self._indexed: set[str] = set()
        self.indexed: Firsts = {}
        """Chunks at the last scan of the folder."""

    # ---- what is there

    def of(self, kind: str) -> list[StoredPart]:
        """The parts of a kind, in order. Raises DataError for one that was changed, or is of another store."""
        return self._whole(lambda: [self._part(kind, name) for name in sorted(parts_in(self.folder, kind))])

    def _part(self, kind: str, name: str) -> StoredPart:
        path = self.folder / kind / name
        return self._known.get(path) or self._opened(path, kind)

    def _opened(self, path: Path, kind: str) -> StoredPart:
        check_bytes(path)
        try:
            with pq.ParquetFile(path) as file:
                told, rows = (file.metadata.metadata or {}).get(_ABOUT.encode()), file.metadata.num_rows
                names = tuple(file.schema_arrow.names)
        except pa.ArrowException as error:
            raise damaged(path, str(error).splitlines()[0]) from error
        about = parse_json(told or b"{}", str(path))
        if about.get("kind") != kind:
            raise damaged(path, f"is no part of {kind}", f"Move it to {self.folder / str(about.get('kind'))}")
        if about.get("key") != self.key:
            raise DataError(
                f"{path}: is a part of another store: its samples were drawn under other settings than {self.folder} says; move "
                "it to the folder of its own store"
            )
        self._known[path] = StoredPart(path, names, rows, path.stat().st_size, about)
        return self._known[path]

    def chunks(self) -> Firsts:
        """The existing chunks. Raises DataError if two parts have different samples of one."""
        names = set(parts_in(self.folder, SAMPLES))
        if self._indexed - names:
            self._indexed, self.indexed = set(), {}
        for name in sorted(names - self._indexed):
            self._index(self._part(SAMPLES, name))
        return self.indexed

    def _index(self, part: StoredPart) -> None:
        for problem, here in self._places(part):
            known = self.indexed.setdefault(problem, {}).setdefault(here.first, here)
            if known.drawn != here.drawn:
                raise DataError(
                    f"{known.part.path} and {part.path}: both have samples {here.first} to {here.first + self.size - 1} of problem "
                    f"{problem!r}, and they differ: the sampler is not a function of the seed, or parts of two evaluations were "
                    "merged. Move one of the two files out of the folder; the same eval command draws again what it alone has"
                )
        self._indexed.add(part.path.name)

    def _places(self, part: StoredPart) -> list[tuple[str, StoredChunk]]:
        chunks = enumerate(part.about["chunks"])
        return [(problem, StoredChunk(part, number * self.size, first, drawn)) for number, (problem, first, drawn) in chunks]

    # ---- writing

    def write(self, kind: str, table: pa.Table, number: int | None = None, **about: Any) -> StoredPart:
        """Write a part. about: entries of its footer besides the store's key."""
        about = {"kind": kind, "key": self.key, **about}
        sink = pa.BufferOutputStream()
        pq.write_table(
            table.replace_schema_metadata({_ABOUT: json.dumps(about)}), sink, compression="zstd", row_group_size=ROWS,
            write_page_checksum=True, use_dictionary=[name for name in _OFTEN if name in table.column_names],
        )  # fmt: skip
        data = sink.getvalue()
        path = place(self.folder, kind, data, ".parquet", number)
        self._known[path] = StoredPart(path, tuple(table.column_names), table.num_rows, len(data), about)
        return self._known[path]

    def write_samples(self, table: pa.Table) -> None:
        """Write complete chunks, sorted by problem and sample."""
        self.write(SAMPLES, table, chunks=drawn_chunks(table, self.size))

    def write_later(self, kind: str, table: pa.Table, **about: Any) -> None:
        """Write later columns of samples, which take precedence over earlier ones."""
        self.write(kind, table, 1 + max(map(number_of, parts_in(self.folder, kind)), default=0), **about)

    def merge(self) -> tuple[int, int]:
        """Merge small parts of samples; returns the number of parts before and after. The merged parts are deleted when the new
        part is written. It contains every chunk of theirs, even one in yet another part, which may be merged meanwhile."""
        small = [part for part in self.of(SAMPLES) if part.size < SMALL]
        small.sort(key=lambda part: natural(part.about["chunks"][0][0]))
        before, home = len(parts_in(self.folder, SAMPLES)), self.folder / SAMPLES
        sync_folder(home)
        self.chunks()  # which raises an error for different samples of one chunk
        with contextlib.suppress(FileNotFoundError):  # another process merges them
            for some in _by_size(small):
                chunks = {(problem, chunk.first): chunk for part in some for problem, chunk in self._places(part)}
                order = sorted(chunks, key=lambda address: (natural(address[0]), address[1]))
                table = self._taken(some[0].names, [chunks[address] for address in order])
                merged = self.write(SAMPLES, table, chunks=[[*address, chunks[address].drawn] for address in order])
                sync_folder(home)  # before anything is deleted
                for part in some:
                    if part.path != merged.path:
                        part.path.unlink(missing_ok=True)
        return before, len(parts_in(self.folder, SAMPLES))

    # ---- reading

    def read(
        self,
        names: Sequence[str],
        chosen: Callable[[Firsts], Sequence[StoredChunk]],
        n: int | None = None,
        verifier: str | None = None,
        drawn: bool = False,
    ) -> pa.Table:
        """Columns of the chunks that `chosen` returns, in that order, with the newest verdict of each sample, or that of
        `verifier`, null without one. n: the first n samples of each problem. drawn: without later columns."""
        if drawn:
            return self._whole(lambda: self._taken(names, chosen(self.chunks()), n))
        return self._whole(lambda: self._read(names, chosen(self.chunks()), n, verifier))

    def _whole(self, reading: Callable[[], Read]) -> Read:
        """Return the result of `reading`, once no other process merges a part that it reads."""
        for _ in range(100):
            try:
                return reading()
            except FileNotFoundError:
                continue
        raise DataError(f"{self.folder}: its parts keep disappearing; end what deletes them, then run the same command again")

    def _read(self, names: Sequence[str], places: Sequence[StoredChunk], n: int | None, verifier: str | None) -> pa.Table:
        later = {kind: [name for name in names if name in replaced] for kind, replaced in _LATER.items()}
        more = ["verifier"] if verifier is not None and later[VERDICTS] and "verifier" not in names else []
        own = [*names, *more, *(name for name in ("problem", "sample") if any(later.values()) and name not in names)]
        table = self._taken(own, places, n)
        for kind, replaced in later.items():
            if replaced:
                judged = kind == VERDICTS
                table = self._with_later(table, kind, [*replaced, *more * judged], verifier if judged else None)
        return table.select(list(names))

    def _taken(self, names: Sequence[str], places: Sequence[StoredChunk], n: int | None = None) -> pa.Table:
        """Columns of chunks, as generated; the first n samples of each problem."""
        indices: dict[StoredPart, list[int]] = {}
        for index, chunk in enumerate(places):
            indices.setdefault(chunk.part, []).append(index)
        tables, total = [pa.schema([SCHEMA.field(name) for name in names]).empty_table()], 0
        positions = np.empty((len(places), self.size), np.int64)
        for part, own in indices.items():
            rows = np.array([places[index].row for index in own])[:, None] + np.arange(self.size)
            groups, ranks = np.unique(rows // ROWS, return_inverse=True)  # all row groups except the last have this many rows
            positions[own] = total + ranks.reshape(rows.shape) * ROWS + rows % ROWS
            tables.append(part.read(names, groups.tolist()).select(list(names)))
            total += len(tables[-1])
        if n is not None:
            firsts = np.array([chunk.first for chunk in places], np.int64)
            positions = positions[firsts[:, None] + np.arange(self.size) < n]
        table = pa.concat_tables(tables).combine_chunks()
        return table if np.array_equal(positions.ravel(), np.arange(total)) else table.take(pa.array(positions.ravel()))

    def _with_later(self, table: pa.Table, kind: str, names: Sequence[str], verifier: str | None) -> pa.Table:
        """The table with the newest of later columns."""
        rows = [part.read(("problem", "sample", *names)) for part in self.of(kind)]
        if verifier is None and not rows:
            return table
        if verifier is not None:
            rows = [more.filter(pc.equal(more["verifier"], verifier)) for more in rows]
        columns = ["problem", "sample", *names]
        source = pa.concat_tables([one.select(columns) for one in (table, *rows)])
        problems = source["problem"].combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)
        address = problems << 32 | source["sample"].to_numpy()
        order = np.argsort(address, kind="stable")
        last = order[np.searchsorted(address[order], address[: len(table)], side="right") - 1]
        if verifier is not None:
            unknown = (last < len(table)) & ~pc.equal(table["verifier"], verifier).to_numpy()
            newest = source.take(pa.array(last, mask=unknown))
        else:
            newest = source.take(pa.array(last))
        for name in names:
            table = table.set_column(table.column_names.index(name), SCHEMA.field(name), newest[name])
        return table


def drawn_chunks(table: pa.Table, size: int) -> list[list[Any]]:
    """[problem, first sample, hash of the samples] of each chunk of a table of complete chunks."""
    problems, numbers = table["problem"].to_pylist(), table["sample"].to_pylist()
    seeds, texts, tokens = (list_of(name, table[name]) for name in ("seed", "text_hash", "token_ids"))
    chunks = []
    for first in range(0, len(table), size):
        digest = hashlib.sha256()
        for row in range(first, first + size):
            ids = tokens[row]
            digest.update(f"{seeds[row]}:{texts[row] if ids is None else len(ids)}:".encode())
            digest.update(b"" if ids is None else ids)
        chunks.append([unescape(problems[first]), numbers[first], digest.hexdigest()[:16]])
    return chunks


def _by_size(parts: Sequence[StoredPart]) -> Iterator[list[StoredPart]]:
    """Runs of parts that are merged into one: two or more, until they are large."""
    some: list[StoredPart] = []
    for part in parts:
        some.append(part)
        if sum(one.size for one in some) >= LARGE:
            yield some
            some = []
    if len(some) > 1:
        yield some
