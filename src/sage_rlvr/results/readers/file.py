"""A file of rows, whatever its container: JSON lines, a JSON document, CSV or Parquet, packed by gzip or not, or a zip archive.

The container is found by the first bytes and never by the file name.
"""

from __future__ import annotations

import csv
import io
import json
import struct
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from sage_rlvr.errors import DataError
from sage_rlvr.safe_io import MIB, opened, parse_json, read_lines, read_parquet

Container = Literal["lines", "document", "csv", "parquet", "archive", "empty"]
Numbered = Iterator[tuple[int, Any]]
BLOCK = 256  # lines that are parsed at a time
LINE = 256 * MIB  # bytes of one row: a problem with all of its completions
ZSTANDARD = 93  # the method of a zip member, APPNOTE 4.4.5
MEMBER = 256 * MIB  # bytes of one member of an archive, unpacked
WORDS = ("id", "arm", "task", "source", "answer", "text", "prompt", "gold", "cluster")
"""Columns of a CSV that stay text: the id 007 is not the number 7."""
AGAIN = "write the file again, or remove the line"
HALF = "the last line of the file has no end, so it may still be written, or was cut; wait, or remove the line"


@dataclass(frozen=True, eq=False)
class RowFile:
    """A file with rows. `location` names a row in errors."""

    path: Path

    @cached_property
    def container(self) -> Container:
        """How the rows are stored."""
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
        """Keys of the first row or document, columns of the table, or members of the archive."""
        if self.container == "empty":
            return frozenset()
        if self.container == "archive":
            return frozenset(self.members)
        if self.container == "parquet":
            return frozenset(next(self._batches()).schema.names)
        if self.container == "csv":
            return frozenset(self._header)
        if self.container == "document":
            first = self._document[0] if isinstance(self._document, list) and self._document else self._document
        else:
            first = _parsed(self._first, self.location(1), True)
        return frozenset(map(str, first)) if isinstance(first, dict) else frozenset()

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
            names = archive.namelist()
        return list(dict.fromkeys([*names, *(f"{name.partition('/')[0]}/" for name in names if "/" in name)]))

    def trees(self, folder: str) -> Numbered:
        """(number, tree) of every JSON member of a folder of an archive, or of one member."""
        with opened(self.path) as stream, _archive(self.path, stream) as archive:
            for number, name in enumerate(self.members):
                inside = name.startswith(folder) and name.endswith(".json")
                if inside:
                    yield (
                        number,
                        parse_json(_member(self.path, archive, name), f"{self.path}, {name}", None, strict=False),
                    )

    # ---- the other containers

    @cached_property
    def _first(self) -> bytes:
        """The first line that is not blank."""
        return next((data.strip() for _, data, _ in self._lines() if data.strip()), b"").removeprefix(b"\xef\xbb\xbf")

    @cached_property
    def _is_one_line(self) -> bool:
        """Whether only one line is not blank, and it is whole."""
        some = list(islice((ended for _, data, ended in self._lines() if data.strip()), 2))
        return len(some) == 1 and self._first.endswith(b"}")

    @cached_property
    def _document(self) -> Any:
        text = b"\n".join(data for _, data, _ in self._lines())
        return parse_json(text, str(self.path), None, strict=False)

    @cached_property
    def _header(self) -> list[str]:
        return next(csv.reader([self._first.decode("utf-8", "replace")]), [])

    def _lines(self) -> Iterator[tuple[int, bytes, bool]]:
        return read_lines(self.path, line=LINE, advice="pass a file of rows")

    def _of_lines(self) -> Numbered:
        filled = ((number, data, ended) for number, data, ended in self._lines() if data.strip())
        while block := list(islice(filled, BLOCK)):
            try:  # one list instead of many lines takes a third of the time
                trees = json.loads(b"[" + b",".join(data for _, data, _ in block) + b"]")
                whole = len(trees) == len(block) and all(type(tree) is dict for tree in trees)
            except (ValueError, RecursionError):
                whole = False
            if whole:
                yield from zip((number for number, _, _ in block), trees, strict=True)
            else:
                yield from ((number, _parsed(data, self.location(number), ended)) for number, data, ended in block)

    def _of_document(self) -> Numbered:
        tree = self._document
        yield from enumerate(tree if isinstance(tree, list) else [tree], 1)

    def _of_csv(self) -> Numbered:
        # line ends inside of quotes belong to a cell, so the lines are not split before
        data = b"\n".join(data for _, data, _ in self._lines())
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = data[: error.start].count(b"\n") + 1
            raise DataError(f"{self.location(line)}: not UTF-8 (byte {data[error.start]:#04x}); save the file as UTF-8") from error
        csv.field_size_limit(LINE)  # 128 KiB by default, less than a long completion
        table = csv.reader(io.StringIO(text, newline=""))
        header = next(table)
        for cells in table:
            if not cells:
                continue
            if len(cells) != len(header):
                raise DataError(
                    f"{self.location(table.line_num)}: {len(cells)} cells under {len(header)} columns; {AGAIN}"
                )
            yield (
                table.line_num,
                {name: _cell(name, text) for name, text in zip(header, cells, strict=True) if text != ""},
            )

    def _batches(self) -> Iterator[Any]:
        try:
            import pyarrow  # noqa: F401  an extra
        except ModuleNotFoundError as error:
            raise DataError(
                f"{self.path}: a Parquet file needs pyarrow: pip install pyarrow (or write the rows as JSON lines)"
            ) from error
        return read_parquet(self.path)

    def _of_parquet(self, columns: Sequence[str]) -> Numbered:
        number = 0
        for batch in self._batches():
            chosen = batch.select([name for name in batch.schema.names if name in columns]) if columns else batch
            for tree in chosen.to_pylist():
                number += 1
                yield number, tree


def _parsed(data: bytes, location: str, ended: bool) -> Mapping[str, Any]:
    """A line as an object. NaN is a number here: the field that holds NaN is named later."""
    try:
        tree = json.loads(data)  # a second as fast as `parse_json`, which then names what is wrong
    except (ValueError, RecursionError):
        parse_json(data, location, dict, advice=AGAIN if ended else HALF, strict=False)
        raise
    if not isinstance(tree, dict):
        raise DataError(f"{location}: an object {{...}} is expected, not {str(tree)[:60]}; {AGAIN}")
    return tree


def _is_open(line: bytes) -> bool:
    """Whether a line begins an object that goes on in the next line: a document over several lines."""
    try:
        json.loads(line)
    except ValueError:
        return line.rstrip().endswith((b"{", b"[", b","))
    return False


def _cell(name: str, text: str) -> Any:
    """The value of a cell of a CSV."""
    if name in WORDS:
        return text
    try:
        return json.loads({"True": "true", "False": "false", "nan": "NaN"}.get(text, text))
    except ValueError:
        return text


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
    except (NotImplementedError, RuntimeError, OSError, zipfile.BadZipFile, EOFError) as error:
        raise DataError(f"{path}, {name}: cannot be unpacked ({error}); copy the file again") from error


def _zstandard(path: Path, about: zipfile.ZipInfo) -> bytes:
    """A member packed by Zstandard, as inspect_ai packs its logs. Python's zipfile reads these from 3.14 on."""
    try:
        import pyarrow  # an extra
    except ModuleNotFoundError as error:
        convert = "inspect log convert --to json --output-dir OUT LOG"
        raise DataError(
            f"{path}: packed by Zstandard, which needs pyarrow: pip install pyarrow (or: {convert})"
        ) from error
    with opened(path) as stream:
        stream.seek(about.header_offset + 26)
        # APPNOTE 4.3.7: the data follow the name and the extra field
        name, extra = struct.unpack("<HH", stream.read(4))
        stream.seek(name + extra, 1)
        packed = stream.read(about.compress_size)
    return bytes(pyarrow.Codec("zstd").decompress(packed, about.file_size).to_pybytes())
