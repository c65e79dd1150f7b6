"""A file of rows, whatever its container: JSON lines, a JSON document, CSV or Parquet, packed by gzip or not, or a zip archive.

The container is found by the first bytes and never by the file name.
"""

from __future__ import annotations

import csv
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from sage_rlvr.errors import DataError
from sage_rlvr.safe_io import (
    MIB,
    largest_unpacked,
    object_of,
    opened,
    parse_json,
    read_lines,
    read_parquet,
    read_unpacked,
)

Container = Literal["lines", "document", "csv", "parquet", "archive", "empty"]
Numbered = Iterator[tuple[int, Any]]
BLOCK = 256  # lines that are parsed at a time, fewer if they are long
LINE = 256 * MIB  # bytes of one row: a problem with all of its completions
DOCUMENT = 256 * MIB  # bytes of a JSON document, which is read into memory completely
VALUES = 20_000_000  # brackets, commas and colons in one JSON text: a value of two bytes takes 100 in memory
ROWS = 10_000_000
FIRST = 100  # rows whose keys identify the format: the first may lack some of them
SHORT = 8  # characters of a cell whose value is remembered
COLUMNS = 1024 * MIB  # bytes of the columns of a Parquet file, unpacked, whatever its size: it stores an equal prompt once
CELLS = 10_000  # columns of a CSV
BLANK = 1_000_000  # blank lines in a file that has fewer rows
ZSTANDARD = 93  # the method of a zip member, APPNOTE 4.4.5
MEMBER = 256 * MIB  # bytes of one member of an archive, unpacked
WORDS = ("id", "arm", "task", "source", "answer", "text", "prompt", "gold", "cluster")
"""Columns of a CSV that stay text: the id 007 is not the number 7."""
BETWEEN = re.compile(r"[\s,\[]*")  # before a row of an array
AGAIN = "write the file again, or remove the line"
FEWER = "write counts, one row per problem"
HALF = "the last line of the file has no end, so it may still be written, or was cut; wait, or remove the line"


@dataclass(frozen=True, eq=False)
class RowFile:
    """A file with rows. `location` names a row in errors."""

    path: Path

    @cached_property
    def container(self) -> Container:
        """The form in which rows are stored."""
        with opened(self.path) as stream:
            head = stream.read(4)
        if head == b"PAR1":
            return "parquet"
        if head[:2] == b"PK":
            return "archive"
        first = self._first
        if not first:
            return "empty"
        if first[:1] not in (b"[", b"{"):
            return "csv"
        return "document" if first[:1] == b"[" or self._is_one_line or _is_open(first) else "lines"

    @cached_property
    def keys(self) -> frozenset[str]:
        """Keys of the first `FIRST` rows or of the document, columns of the table, or members of the archive."""
        if self.container == "empty":
            return frozenset()
        if self.container == "archive":
            return frozenset(self.members)
        if self.container == "parquet":
            return frozenset(self._once(next(self._batches()).schema.names, 1))
        if self.container == "csv":
            return frozenset(self._header)
        if self.container == "document":
            trees = self._document[:FIRST] if isinstance(self._document, list) else [self._document]
        else:
            lines = next(self._blocks())[:FIRST]
            trees = [_parsed(data, self.location(number), ended) for number, data, ended in lines]
        return frozenset(str(key) for tree in trees if isinstance(tree, dict) for key in tree)

    def check_size(self) -> None:
        """Raise DataError for more than `ROWS` rows of lines or of a CSV, counted without parsing: a small compressed file may
        contain very many."""
        if self.container not in ("lines", "csv"):
            return
        rows, lines, quoted, last = 0, 0, False, b"\n"
        for data in read_unpacked(self.path):
            if self.container == "csv":  # a cell in quotes may have line ends
                parts = data.split(b'"')
                rows += sum(part.count(b"\n") for part in parts[quoted::2])
                quoted ^= len(parts) % 2 == 0
                lines += data.count(b"\n")
            else:
                ends = np.frombuffer(last + data, dtype=np.uint8) == ord("\n")
                rows += int(np.count_nonzero(ends[1:] & ~ends[:-1]))  # not the blank lines
                last = data[-1:]
            if rows > ROWS + (self.container == "csv") or lines > 2 * ROWS:
                raise DataError(f"{self.path}: more than {ROWS:,} rows; {FEWER}")

    def location(self, number: int) -> str:
        """A row in errors: "base.jsonl:3"; of a table "base.parquet, row 3"; of an archive its member."""
        if self.container == "archive":
            return f"{self.path}, {self.members[number]}"
        return f"{self.path}:{number}" if self.container in ("lines", "csv") else f"{self.path}, row {number}"

    def rows(self, columns: Sequence[str] = ()) -> Numbered:
        """(number, tree) of every row; `location` names the row. columns: of Parquet, the only columns to unpack. An archive has
        members and no rows, see `trees`."""
        if self.container == "lines":
            yield from self._of_lines()
        elif self.container == "document":
            yield from self._of_document()
        elif self.container == "csv":
            yield from self._of_csv()
        elif self.container == "parquet":
            yield from self._of_parquet(columns)

    def document(self) -> Any:
        """The tree of a file that is one JSON document."""
        return self._document

    # ---- an archive

    @cached_property
    def members(self) -> list[str]:
        """Names of the members of an archive, and of their folders."""
        with opened(self.path) as stream, _archive(self.path, stream) as archive:
            names, unpacked = archive.namelist(), sum(one.file_size for one in archive.infolist())
        if twice := _repeated(names):
            raise DataError(f"{self.path}: the archive has {twice!r} more than once; write the log again, or remove one of them")
        most = largest_unpacked(self.path.stat().st_size)
        if unpacked > most:
            raise DataError(f"{self.path}: the archive unpacks to {unpacked:,} bytes; the limit for its size is {most:,}")
        return list(dict.fromkeys([*names, *(f"{name.partition('/')[0]}/" for name in names if "/" in name)]))

    def trees(self, folder: str) -> Numbered:
        """(number, tree) of every JSON member of a folder of an archive, or of one member."""
        members = self.members
        with opened(self.path) as stream, _archive(self.path, stream) as archive:
            for number, name in enumerate(members):
                if name.startswith(folder) and name.endswith(".json"):
                    yield number, _json(_member(self.path, archive, name), f"{self.path}, {name}", AGAIN)

    # ---- the other containers

    @cached_property
    def _first(self) -> bytes:
        """The first line that is not blank."""
        return next((data.strip() for _, data, _ in self._lines() if data.strip()), b"").removeprefix(b"\xef\xbb\xbf")

    @cached_property
    def _is_one_line(self) -> bool:
        """Whether only one line is not blank, and it is complete."""
        some = list(islice((ended for _, data, ended in self._lines() if data.strip()), 2))
        return len(some) == 1 and self._first.endswith(b"}")

    @cached_property
    def _document(self) -> Any:
        lines, size = list[bytes](), 0
        for _, data, _ in self._lines():
            lines.append(data)
            size += len(data) + 1
            if size > DOCUMENT:
                raise DataError(f"{self.path}: a JSON document of more than {DOCUMENT:,} bytes; write one row per line")
        text = b"\n".join(lines)
        try:
            return _json(text, str(self.path), AGAIN)
        except DataError:
            _check_rows(text, str(self.path))  # names the line, if the rows are those of an array
            raise

    @cached_property
    def _header(self) -> list[str]:
        if (columns := self._first.count(b",") + 1) > CELLS:
            raise DataError(f"{self.location(1)}: {columns:,} columns; the limit is {CELLS:,}")
        for name, mark in ((";", b";"), ("a tab", b"\t")):
            if columns == 1 and mark in self._first:
                raise DataError(f"{self.location(1)}: the cells are separated by {name}; save the file as CSV with commas")
        return list(self._once(next(self._cells(iter([(1, self._first + b"\n", True)])), (1, list[str]()))[1], 1))

    def _once(self, names: Sequence[str], number: int) -> Sequence[str]:
        """The names of columns. Raise DataError for one that occurs twice: only one of the two would be read."""
        if twice := _repeated(names):
            raise DataError(
                f"{self.location(number)}: {names.count(twice)} columns have the name {twice!r:.60}; remove all but one of them"
            )
        return names

    def _lines(self) -> Iterator[tuple[int, bytes, bool]]:
        blank = filled = 0
        for number, data, ended in read_lines(self.path, line=LINE, advice="pass a file of rows"):
            if not data or data.isspace():
                blank += 1
                if blank > max(BLANK, filled):
                    raise DataError(f"{self.path}:{number}: more than {BLANK:,} blank lines; remove them")
            else:
                filled += 1
            yield number, data, ended

    def _of_lines(self) -> Numbered:
        flat = True
        for block in self._blocks():
            try:  # one list instead of many lines takes a third of the time
                text = b"[" + b",".join(data for _, data, _ in block) + b"]"
                if _has_many(text):
                    raise ValueError("each line is counted by itself")
                trees = json.loads(text) if flat else []
                if not flat or not _has_each_key_once(text, trees):
                    flat, trees = False, _LOADS(text.decode())
                whole = len(trees) == len(block) and all(type(tree) is dict for tree in trees)
            except (ValueError, RecursionError):
                whole = False
            if whole:
                yield from zip((number for number, _, _ in block), trees, strict=True)
            else:
                yield from ((number, _parsed(data, self.location(number), ended)) for number, data, ended in block)

    def _blocks(self) -> Iterator[list[tuple[int, bytes, bool]]]:
        """The lines that are not blank, in blocks."""
        block, size = list[tuple[int, bytes, bool]](), 0
        for line in self._lines():
            if line[1].strip():
                block.append(line)
                size += len(line[1])
                if len(block) == BLOCK or size > MIB:
                    yield block
                    block, size = [], 0
        if block:
            yield block

    def _of_document(self) -> Numbered:
        tree = self._document
        for number, row in enumerate(tree if isinstance(tree, list) else [tree], 1):
            yield number, _object(row, self.location(number))

    def _of_csv(self) -> Numbered:
        table = self._cells(self._lines())
        header, known = self._once(next(table)[1], 1), dict[str, Any]()
        for number, cells in table:
            if len(cells) != len(header):
                raise DataError(f"{self.location(number)}: {len(cells)} cells under {len(header)} columns; {AGAIN}")
            row = {}
            for name, text in zip(header, cells, strict=True):
                if name in WORDS and text:
                    row[name] = text
                elif text in known:
                    row[name] = known[text]
                elif text:
                    row[name] = self._cell(name, text, number)
                    if len(text) <= SHORT and text[0] not in "[{":
                        known[text] = row[name]
            yield number, row

    def _cells(self, lines: Iterator[tuple[int, bytes, bool]]) -> Iterator[tuple[int, list[str]]]:
        """(number of the last line, cells) of every row of a CSV that is not empty. A cell in quotes may have line ends."""
        csv.field_size_limit(LINE)  # 128 KiB by default, less than a long completion
        table = csv.reader(f"{self._decoded(number, data)}\n" for number, data, _ in lines)
        try:
            yield from ((table.line_num, cells) for cells in table if cells)
        except csv.Error as error:
            raise DataError(
                f"{self.location(max(1, table.line_num))}: not CSV ({error}); save the file as CSV with \\n line ends"
            ) from error

    def _decoded(self, number: int, data: bytes) -> str:
        if len(data) > VALUES and data.count(b",") > VALUES:
            raise DataError(f"{self.location(number)}: more than {VALUES:,} commas in one line; {AGAIN}")
        try:
            return data.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{self.location(number)}: not UTF-8 (byte {data[error.start]:#04x}); save the file as UTF-8"
            ) from error

    def _cell(self, name: str, text: str, number: int) -> Any:
        """The value of a cell of a CSV."""
        try:
            return _LOADS({"True": "true", "False": "false", "TRUE": "true", "FALSE": "false", "nan": "NaN"}.get(text, text))
        except (ValueError, RecursionError) as error:
            if text[:1] == "{" and "occurs" in str(error):
                raise DataError(f"{self.location(number)}: {name}: {error}") from error
            return text

    def _batches(self) -> Iterator[Any]:
        return read_parquet(self.path, unpacked=max(COLUMNS, largest_unpacked(self.path.stat().st_size)), rows=ROWS)

    def _of_parquet(self, columns: Sequence[str]) -> Numbered:
        number = 0
        for batch in self._batches():
            names = self._once(batch.schema.names, 1)
            chosen = batch.select([name for name in names if name in columns]) if columns else batch
            try:
                trees = chosen.to_pylist()
            except ValueError as error:  # two fields of one name in a struct, text that is not UTF-8
                raise DataError(f"{self.location(number + 1)}: cannot be read ({error}); {AGAIN}") from error
            for tree in trees:
                number += 1
                yield number, tree


HELD: ContextVar[Mapping[Path, RowFile]] = ContextVar("HELD", default=MappingProxyType({}))
"""Objects in memory that are read like files, by a path that is not on the disk (`api.objects`)."""
_LOADS = json.JSONDecoder(object_pairs_hook=object_of).decode
"""Parse a JSON text. NaN is accepted: a later check names its field. Raises ValueError for a key that occurs twice."""


def _has_each_key_once(text: bytes, trees: Sequence[Any]) -> bool:
    """Whether counting shows that no key of flat objects occurs twice, much faster than a look at every object; False if unsure."""
    apart = any(mark in text for mark in (b" :", b"\t:", b"\r:", b"\n:"))
    return not apart and text.count(b'":') == sum(len(tree) for tree in trees if type(tree) is dict)


def _has_many(text: bytes) -> bool:
    """Whether a JSON text has more than `VALUES` values."""
    return len(text) > VALUES and sum(map(text.count, (b"[", b"{", b",", b":"))) > VALUES


def _json(text: bytes, what: str, advice: str) -> Any:
    """A JSON text of any kind. Raise DataError for more than `VALUES` values."""
    if _has_many(text):
        raise DataError(f"{what}: more than {VALUES:,} values in one JSON text; write one row per line (JSON lines)")
    return parse_json(text, what, None, advice=advice, strict=False)


def _check_rows(text: bytes, what: str) -> None:
    """Raise DataError with the line of the first row of a JSON array that has a key twice, if there is one."""
    whole, start = text.decode("utf-8-sig", "replace"), 0
    while True:
        start = BETWEEN.match(whole, start).end()  # type: ignore[union-attr]  # it matches anywhere
        try:
            _, end = json.JSONDecoder().raw_decode(whole, start)
        except (ValueError, RecursionError):
            return
        parse_json(whole[start:end], f"{what}:{whole.count(chr(10), 0, start) + 1}", None, advice=AGAIN, strict=False)
        start = end


def _parsed(data: bytes, location: str, ended: bool) -> Mapping[str, Any]:
    """A line as an object."""
    return _object(_json(data, location, AGAIN if ended else HALF), location)


def _object(tree: Any, location: str) -> Mapping[str, Any]:
    if not isinstance(tree, dict):
        raise DataError(f"{location}: an object {{...}} is expected, not {str(tree)[:60]}; {AGAIN}")
    return tree


def _repeated(names: Sequence[str]) -> str | None:
    """A name that occurs twice."""
    seen = set[str]()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _is_open(line: bytes) -> bool:
    """Whether a line begins an object that continues in the next line: a document over several lines."""
    try:
        json.loads(line)
    except RecursionError:
        return False
    except ValueError:
        return line.rstrip().endswith((b"{", b"[", b","))
    return False


def _archive(path: Path, stream: Any) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(stream)
    except zipfile.BadZipFile as error:
        raise DataError(f"{path}: a damaged zip archive ({error}); copy the file again") from error


def _member(path: Path, archive: zipfile.ZipFile, name: str) -> bytes:
    """The bytes of a member, at most `MEMBER`."""
    about = archive.getinfo(name)
    if about.file_size > MEMBER:
        raise DataError(f"{path}, {name}: {about.file_size:,} bytes when unpacked; the limit is {MEMBER:,}")
    try:
        if about.compress_type == ZSTANDARD:
            return _zstandard(path, about)
        with archive.open(name) as stream:
            return stream.read(MEMBER)
    except (NotImplementedError, RuntimeError, OSError, ValueError, zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}, {name}: cannot be unpacked ({error}); copy the file again") from error


def _zstandard(path: Path, about: zipfile.ZipInfo) -> bytes:
    """A member packed by Zstandard, as inspect_ai packs its logs. Python's zipfile reads these from 3.14 on."""
    import pyarrow  # slow to import, and needed for few logs

    with opened(path) as stream:
        stream.seek(about.header_offset + 26)
        # APPNOTE 4.3.7: the data follow the name and the extra field
        name, extra = struct.unpack("<HH", stream.read(4))
        stream.seek(name + extra, 1)
        packed = stream.read(about.compress_size)
    return bytes(pyarrow.Codec("zstd").decompress(packed, about.file_size).to_pybytes())
