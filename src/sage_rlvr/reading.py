"""Read external files with size limits: the only place where bytes, JSON and arrays enter the package.

Only regular files are read (devices, pipes and folders raise an error before the first byte), up to the caller's limit in bytes. A
file that cannot be read raises the class `error` with the file, the cause and the next step (`advice`). Sources: RFC 8259 for JSON;
PKWARE's APPNOTE 4.3 and numpy's NEP 1 for .npz.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import stat
import sys
import threading
import zipfile
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
ARRAYS = 1024 * MIB  # bytes of all arrays of an .npz, or of all rows of a Parquet file, unpacked
ROW = 200
AGAIN = "restore it from a copy, or create it again"
KINDS: dict[type, str] = {dict: "an object {...}", list: "a list [...]"}


@contextmanager
def opened(
    path: str | Path, limit: int = LINES, error: type[SageError] = DataError, advice: str = AGAIN
) -> Iterator[BinaryIO]:
    """Open a regular file of at most `limit` bytes; errors of the file system within the block are raised as `error`."""
    try:
        # NONBLOCK: a pipe without a writer is opened, seen to be one, and refused; it means nothing for a file
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with open(descriptor, "rb") as stream:
            _check(os.fstat(descriptor), limit)
            yield stream
    except IsADirectoryError as problem:
        raise error(f"{path}: cannot be read: it is a folder; {advice}") from problem
    except (OSError, _Unreadable) as problem:
        raise error(f"{path}: cannot be read: {getattr(problem, 'strerror', None) or problem}; {advice}") from problem


class _Unreadable(Exception):
    """The reason why a file is not read, without its name."""


def _check(about: os.stat_result, limit: int) -> None:
    if stat.S_ISDIR(about.st_mode):
        raise _Unreadable("it is a folder")
    if not stat.S_ISREG(about.st_mode):
        raise _Unreadable("not a regular file but a device or a pipe, which may never end")
    if about.st_size > limit:
        raise _Unreadable(f"{about.st_size:,} bytes; the limit is {limit:,}")


_ONE_AT_A_TIME = threading.Lock()


@contextmanager
def bounded_memory(more: int) -> Iterator[None]:
    """MemoryError (of Arrow: ArrowMemoryError) where the block takes more than `more` bytes beyond what this process has.

    For what nobody can tell beforehand, such as how far one row of a Parquet file unpacks. By the limit of the address space, which
    Linux keeps; elsewhere nothing is bounded. It holds for all threads meanwhile, so `more` should be ample.
    """
    if not sys.platform.startswith("linux"):
        yield
        return
    import resource

    with _ONE_AT_A_TIME:
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        wanted = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize() + more
        known = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_AS, (min([wanted, *known]), hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def read_bytes(path: str | Path, limit: int = TEXT, error: type[SageError] = DataError, advice: str = AGAIN) -> bytes:
    """The bytes of a regular file."""
    with opened(path, limit, error, advice) as stream:
        found = bytearray()
        while piece := stream.read(MIB):  # a file may grow while it is read, and one of /proc says that it has no bytes
            found += piece
            if len(found) > limit:
                raise _Unreadable(f"more than {limit:,} bytes")
    return bytes(found)


def read_text(path: str | Path, limit: int = TEXT, error: type[SageError] = DataError, advice: str = AGAIN) -> str:
    """The UTF-8 text of a regular file; line ends as they are, a byte order mark left out."""
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
    """Parse a JSON text. strict: raise an error for NaN, Infinity and numbers beyond float64; else they become floats, as in
    Python's json module. A repeated key in an object raises an error; Python would use the last. what: the name of the text in the
    error."""
    text = decode(text, what, error, advice) if isinstance(text, bytes) else text
    hooks: dict[str, Any] = {"parse_constant": _refuse_constant, "parse_float": _finite} if strict else {}
    hooks["object_pairs_hook"] = _object
    try:
        tree = json.loads(text, **hooks)
    except RecursionError as problem:
        raise error(f"{what}: cannot be read as JSON: nested too deeply; {advice}") from problem
    except ValueError as problem:
        raise error(f"{what}: cannot be read as JSON: {problem}; {advice}") from problem
    if kind is not None and not isinstance(tree, kind):
        raise error(f"{what}: {KINDS.get(kind, kind.__name__)} is expected, not {_short(tree)}; {advice}")
    return tree


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r:.60} occurs {names.count(twice)} times in one object; keep one of them")
    return found


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
    """(number from 1, bytes without the line's end, whether it had one) of every line, one held at a time.

    line: bytes that one may have. "\\n" alone ends a line. A file that gzip packed is unpacked; the limits are of the unpacked
    lines.
    """
    with opened(path, limit, error, advice) as packed, _unpacked(packed) as stream:
        number, left = 0, limit
        while data := stream.readline(line + 1):
            number, left = number + 1, left - len(data)
            if len(data) > line:
                raise _Unreadable(f"line {number} has more than {line:,} bytes")
            if left < 0:
                raise _Unreadable(f"more than {limit:,} bytes")
            yield number, data.removesuffix(b"\n"), data.endswith(b"\n")


@contextmanager
def _unpacked(stream: BinaryIO) -> Iterator[BinaryIO]:
    """The stream, unpacked where it begins as gzip does."""
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
    """(line number from 1, tree) of every line of a JSON Lines file that is not blank; the refusal names the line."""
    for number, data, _ in read_lines(path, limit, min(limit, LINE), error, advice):
        if data.strip():
            yield number, parse_json(data, f"{path}:{number}", kind, error, advice, strict)


# ---- arrays


def read_npz(
    path: str | Path, limit: int = ARRAYS, error: type[SageError] = DataError, advice: str = AGAIN
) -> dict[str, np.ndarray]:
    """Name -> array of an .npz as `numpy.savez` and `savez_compressed` write it; nothing pickled.

    limit: bytes of the file, and of all arrays unpacked, by what the archive and each array's header declare, which is compared
    before anything is allocated.
    """
    with opened(path, limit, error, advice) as stream:
        try:
            with zipfile.ZipFile(stream) as archive:
                members = archive.infolist()
                if (declared := sum(member.file_size for member in members)) > limit:
                    raise _Unreadable(f"{declared:,} bytes when unpacked; the limit is {limit:,}")
                return {member.filename.removesuffix(".npy"): _array(archive, member) for member in members}
        except (_Unreadable, OSError):
            raise
        except Exception as problem:  # headers go through Python's own parser, which raises anything
            raise _Unreadable(f"not a readable .npz ({problem})") from problem


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """One array, once its header says as many bytes as its place in the archive has."""
    import numpy as np

    if member.compress_type not in (
        zipfile.ZIP_STORED,
        zipfile.ZIP_DEFLATED,
    ):  # of others, a chunk unpacks without a bound
        raise ValueError(f"{member.filename}: compressed by a different method than numpy's")
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"{member.filename}: an array of version {version}")
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = header(stream)
        size, there = math.prod(shape) * dtype.itemsize, member.file_size - stream.tell()
        if dtype.hasobject:
            raise ValueError(f"{member.filename}: contains Python objects, which are never unpickled")
        if size != there or min(shape, default=0) < 0:
            raise ValueError(f"{member.filename}: {there:,} bytes for an array of shape {shape} and type {dtype}")
        return np.ndarray(shape, dtype, bytearray(stream.read()), order="F" if fortran else "C")


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
    path: str | Path, limit: int = ARRAYS, error: type[SageError] = DataError, advice: str = AGAIN
) -> Iterator[pa.RecordBatch]:
    """The rows of a Parquet file in batches; the first is empty and has the schema.

    limit: bytes of all rows unpacked. One text that every row repeats is a few bytes in the file, so a batch has as many rows as
    half of that allows if each were the largest column of its row group; as Python has them rows take `ROW` bytes at least. A list
    in one row may repeat a text, too, which no footer tells: unpacking a batch has twice the limit and 1 GiB of memory.
    """
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    with opened(path, max(limit, LINES), error, advice) as stream:
        try:
            with ParquetFile(stream) as file:
                yield pa.RecordBatch.from_pylist([], schema=file.schema_arrow)
                taken = 0
                for number in range(file.num_row_groups):
                    group = file.metadata.row_group(number)
                    columns = [group.column(i) for i in range(group.num_columns)]
                    largest = max((column.total_uncompressed_size for column in columns), default=0)
                    values = max((column.num_values for column in columns), default=0)  # lists in a row count one by one
                    if (declared := max(largest, 8 * values)) > limit:
                        raise _Unreadable(f"{declared:,} bytes when unpacked; the limit is {limit:,}")
                    rows = min(1024, max(1, limit // 2 // max(1, largest)))
                    batches = file.iter_batches(batch_size=rows, row_groups=[number], use_threads=False)
                    while (batch := _next(batches, 2 * min(limit, ARRAYS) + 1024 * MIB)) is not None:
                        taken += max(batch.nbytes, ROW * len(batch))
                        if taken > limit:
                            raise _Unreadable(f"more than {limit:,} bytes when unpacked")
                        yield batch
        except (MemoryError, pa.ArrowMemoryError) as problem:
            raise _Unreadable(f"one of its rows is too large when unpacked; the limit is {limit:,} bytes") from problem
        except (pa.ArrowException, OSError, OverflowError) as problem:
            raise _Unreadable(f"not a Parquet file ({str(problem).splitlines()[0]})") from problem


def _next(batches: Iterator[pa.RecordBatch], more: int) -> pa.RecordBatch | None:
    with bounded_memory(more):
        return next(batches, None)
