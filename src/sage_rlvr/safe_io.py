"""Read a user's files: bytes, text, JSON, JSON Lines, arrays (.npz) and Parquet.

Only regular files up to the caller's limit in bytes are read. What cannot be read raises the class `error` with the file, the line
where there are lines, the cause and the next step (`advice`). Source of JSON: RFC 8259.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from sage_rlvr.errors import DataError, SageError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

MIB = 1 << 20
TEXT = 16 * MIB  # bytes of a text or JSON file; JSON takes up to 25 times as much memory
LINES = 4096 * MIB  # bytes of a file of lines, of which one at a time is held
LINE = 16 * MIB
ARRAYS = 1024 * MIB  # bytes of an .npz
UNPACKED = 256 * MIB  # bytes that a packed file may unpack to, whatever its size
RATIO = 100  # a larger one may unpack to this many times its size
TOO_LONG = "it unpacks to more than {most:,} bytes; if that is right, unpack it first (gunzip)"
AGAIN = "restore it from a copy, or create it again"
KINDS: dict[type, str] = {dict: "an object {...}", list: "a list [...]"}


@contextmanager
def opened(
    path: str | Path, limit: int = LINES, error: type[SageError] = DataError, advice: str = AGAIN
) -> Iterator[BinaryIO]:
    """Open a regular file of at most `limit` bytes; errors of the file system within the block are raised as `error`."""
    try:
        _check(os.stat(path), limit)  # before it is opened: a pipe without a writer would block there
        with open(path, "rb") as stream:
            yield stream
    except OSError as problem:
        raise error(f"{path}: cannot be read: {problem.strerror or problem}; {advice}") from problem
    except _Unreadable as problem:
        raise error(f"{path}: cannot be read: {problem}; {advice}") from problem


class _Unreadable(Exception):
    """The reason why a file is not read, without its name."""


def _check(about: os.stat_result, limit: int) -> None:
    if stat.S_ISDIR(about.st_mode):
        raise _Unreadable("it is a folder")
    if not stat.S_ISREG(about.st_mode):
        raise _Unreadable("not a regular file but a device or a pipe, which may never end")
    if about.st_size > limit:
        raise _Unreadable(f"{about.st_size:,} bytes; the limit is {limit:,}")


def read_bytes(path: str | Path, limit: int = TEXT, error: type[SageError] = DataError, advice: str = AGAIN) -> bytes:
    """Return the bytes of a regular file."""
    with opened(path, limit, error, advice) as stream:
        return stream.read()


def read_text(path: str | Path, limit: int = TEXT, error: type[SageError] = DataError, advice: str = AGAIN) -> str:
    """Return the UTF-8 text of a regular file; line ends unchanged, without a byte order mark."""
    return decode(read_bytes(path, limit, error, advice), str(path), error, advice)


def decode(data: bytes, what: str, error: type[SageError] = DataError, advice: str = AGAIN) -> str:
    """Decode UTF-8 bytes. what: their name in the error, a path or "path:line"."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise error(f"{what}: not UTF-8 text ({problem.reason} at byte {problem.start}); {advice}") from problem


def read_json(
    path: str | Path,
    kind: type | None = dict,
    limit: int = TEXT,
    error: type[SageError] = DataError,
    advice: str = AGAIN,
    strict: bool = True,
) -> Any:
    """Read a JSON file. kind: required type of the top level, dict or list; None: any. strict: see `parse_json`."""
    return parse_json(read_bytes(path, limit, error, advice), str(path), kind, error, advice, strict)


def parse_json(
    text: str | bytes,
    what: str,
    kind: type | None = dict,
    error: type[SageError] = DataError,
    advice: str = AGAIN,
    strict: bool = True,
) -> Any:
    """Parse a JSON text. A repeated key in an object raises an error; Python would use the last.

    what: the name of the text in the error. strict: raise an error for NaN, Infinity and numbers beyond float64; else they become
    floats, as in Python's json module.
    """
    text = decode(text, what, error, advice) if isinstance(text, bytes) else text
    hooks: dict[str, Any] = {"parse_constant": _refuse_constant, "parse_float": _finite} if strict else {}
    hooks["object_pairs_hook"] = object_of
    try:
        tree = json.loads(text, **hooks)
    except RecursionError as problem:
        raise error(f"{what}: cannot be read as JSON: nested too deeply; {advice}") from problem
    except ValueError as problem:
        raise error(f"{what}: cannot be read as JSON: {problem}; {advice}") from problem
    if kind is not None and not isinstance(tree, kind):
        raise error(f"{what}: {KINDS.get(kind, kind.__name__)} is expected, not {_short(tree)}; {advice}")
    return tree


def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of an `object_pairs_hook` for json.

    Raise ValueError for a repeated key, of which Python would use the last.
    """
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r:.60} occurs {names.count(twice)} times in one object; keep one of them")
    return mapping


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON number")


def _finite(digits: str) -> float:
    if math.isinf(value := float(digits)):
        raise ValueError(f"{digits[:40]} is outside the range of float64")
    return value


def _short(tree: Any) -> str:
    text = repr(tree) if isinstance(tree, (str, int, float, bool, type(None))) else KINDS[type(tree)]
    return text if len(text) <= 60 else text[:57] + "..."


def read_lines(
    path: str | Path,
    limit: int = LINES,
    line: int = LINE,
    error: type[SageError] = DataError,
    advice: str = AGAIN,
) -> Iterator[tuple[int, bytes, bool]]:
    r"""Yield (number from 1, bytes without the line's end, whether it had one) of every line, one in memory at a time.

    line: bytes that one may have. "\n" is the only line end. A gzip file is unpacked, up to `largest_unpacked` bytes.
    """
    with opened(path, limit, error, advice) as packed, _unpacked(packed) as stream:
        number, total, most = 0, 0, limit if stream is packed else largest_unpacked(os.stat(path).st_size)
        while data := stream.readline(line + 1):
            number += 1
            total += len(data)
            if len(data) > line:
                raise _Unreadable(f"line {number} has more than {line:,} bytes")
            if total > most:
                raise _Unreadable(TOO_LONG.format(most=most))
            yield number, data.removesuffix(b"\n"), data.endswith(b"\n")


def read_unpacked(path: str | Path, limit: int = LINES, error: type[SageError] = DataError, advice: str = AGAIN) -> Iterator[bytes]:
    """Yield the bytes of a file in pieces of one MiB, unpacked as in `read_lines`."""
    with opened(path, limit, error, advice) as packed, _unpacked(packed) as stream:
        total, most = 0, limit if stream is packed else largest_unpacked(os.stat(path).st_size)
        while data := stream.read(MIB):
            total += len(data)
            if total > most:
                raise _Unreadable(TOO_LONG.format(most=most))
            yield data


def largest_unpacked(size: int) -> int:
    """Return the bytes that a packed file of `size` bytes may unpack to: a small file cannot fill the memory."""
    return max(UNPACKED, RATIO * size)


@contextmanager
def _unpacked(stream: BinaryIO) -> Iterator[BinaryIO]:
    """Yield the stream, unpacked if it begins like gzip."""
    head = stream.read(2)
    stream.seek(0)
    if head != b"\x1f\x8b":
        yield stream
        return
    try:
        with gzip.GzipFile(fileobj=stream) as unpacked:
            yield cast("BinaryIO", unpacked)
    except (EOFError, zlib.error) as problem:  # BadGzipFile is an OSError
        raise _Unreadable(f"a damaged or incomplete gzip file ({problem})") from problem


def read_json_lines(
    path: str | Path,
    kind: type | None = dict,
    limit: int = LINES,
    error: type[SageError] = DataError,
    advice: str = AGAIN,
    strict: bool = True,
) -> Iterator[tuple[int, Any]]:
    """Yield (line number from 1, tree) of every line of a JSON Lines file that is not blank; errors name the line."""
    for number, data, _ in read_lines(path, limit, min(limit, LINE), error, advice):
        if data.strip():
            yield number, parse_json(data, f"{path}:{number}", kind, error, advice, strict)


# ---- arrays


def read_npz(
    path: str | Path, limit: int = ARRAYS, error: type[SageError] = DataError, advice: str = AGAIN
) -> dict[str, np.ndarray]:
    """Return name -> array of an .npz as `numpy.savez` and `savez_compressed` write it; nothing pickled."""
    import numpy as np  # of nobody who reads text

    with opened(path, limit, error, advice) as stream:
        try:
            with np.load(stream, allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files}
        except Exception as problem:  # headers go through Python's own parser, which raises anything
            raise _Unreadable(f"not a readable .npz ({problem})") from problem


# ---- what a tree holds


@contextmanager
def understood(what: str | Path, error: type[SageError] = DataError, advice: str = AGAIN) -> Iterator[None]:
    """Context manager for code that reads a tree or arrays: a missing key or a wrong type raises `error` with the file `what`."""
    try:
        yield
    except SageError:
        raise
    except KeyError as problem:
        raise error(f"{what}: {problem} is missing; {advice}") from problem
    except (TypeError, ValueError, AttributeError, IndexError, OverflowError) as problem:
        raise error(f"{what}: invalid content ({problem}); {advice}") from problem


# ---- tables


def read_parquet(
    path: str | Path, limit: int = LINES, error: type[SageError] = DataError, advice: str = AGAIN, *,
    unpacked: int | None = None, rows: int | None = None,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """Yield the rows of a Parquet file in batches; the first is empty and has the schema.

    limit: bytes of the file. unpacked: bytes of its columns, unpacked; rows: number of its rows; both None for any number.
    """
    import pyarrow as pa  # slow to import, as is its reader
    from pyarrow.parquet import ParquetFile

    with opened(path, limit, error, advice) as stream:
        try:
            with ParquetFile(stream, page_checksum_verification=True) as file:
                if rows is not None and file.metadata.num_rows > rows:
                    raise _Unreadable(f"{file.metadata.num_rows:,} rows; the limit is {rows:,}")
                yield pa.RecordBatch.from_pylist([], schema=file.schema_arrow)
                size = 0
                for batch in file.iter_batches(batch_size=1024, use_threads=False):
                    size += batch.nbytes
                    if unpacked is not None and size > unpacked:
                        raise _Unreadable(f"it unpacks to more than {unpacked:,} bytes; write it without repeating long values")
                    yield batch
        except (pa.ArrowException, OSError, OverflowError) as problem:
            raise _Unreadable(f"not a Parquet file ({str(problem).splitlines()[0]})") from problem
