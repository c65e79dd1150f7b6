"""The bounded reader: what lies at a path is read whole or refused with file, cause and next step, soon and in little memory."""

from __future__ import annotations

import io
import os
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from sage_rlvr import safe_io
from sage_rlvr.errors import CheckpointError, ConfigError, DataError
from sage_rlvr.safe_io import read_parquet

EVERY: dict[str, Callable[..., object]] = {
    "bytes": safe_io.read_bytes,
    "text": safe_io.read_text,
    "json": safe_io.read_json,
    "npz": safe_io.read_npz,
    "lines": lambda *args, **more: list(safe_io.read_lines(*args, **more)),
    "json_lines": lambda *args, **more: list(safe_io.read_json_lines(*args, **more)),
}


def refusal(call: Callable[[], object]) -> str:
    """The message, with at most 3 MiB allocated on the way to it."""
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError) as caught:
            call()
        assert tracemalloc.get_traced_memory()[1] < 3 * safe_io.MIB
    finally:
        tracemalloc.stop()
    return str(caught.value)


@pytest.mark.parametrize("name", EVERY)
def test_only_a_regular_file_of_bounded_size_is_read(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    (tmp_path / "large").write_bytes(b"x" * 2001)
    (tmp_path / "folder").mkdir()
    for place, cause in {
        "pipe": "not a regular file",
        "endless": "not a regular file",
        "folder": "it is a folder",
        "missing": "No such file",
        "large": "2,001 bytes; the limit is 2,000",
    }.items():
        said = refusal(lambda: EVERY[name](tmp_path / place, limit=2000, error=ConfigError, advice="mend it"))  # noqa: B023
        assert said.startswith(f"{tmp_path / place}: ") and cause in said and said.endswith("; mend it"), said


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"[1]", "an object {...} is expected, not a list"),
        (b"null", "not None"),
        (b'"' + b"x" * 1000 + b'"', "not 'xxx"),
        (b"\xff\xfe", "not UTF-8 text (invalid start byte at byte 0)"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b'{"a": -Infinity}', "-Infinity is not a JSON number"),
        (b'{"a": 1e999}', "1e999 is outside"),
        (b'{"a": ' + b"1" * 5000 + b"}", "4300"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' * 100_000, "nested too deeply"),
        (b"{", "cannot be read as JSON: Expecting"),
        (b"{}{}", "cannot be read as JSON"),
        (b"\0" * 9, "cannot be read as JSON"),
    ],
    ids=lambda value: repr(value[:12]),
)
def test_what_is_no_json_of_the_kind_is_refused(tmp_path: Path, data: bytes, cause: str) -> None:
    file = tmp_path / "a.json"
    for lines, read in ((b"", safe_io.read_json), (b"{}\n\n", EVERY["json_lines"])):
        file.write_bytes(lines + data)
        said = refusal(lambda: read(file, error=ConfigError, advice="mend it"))  # noqa: B023
        assert said.startswith(f"{file}:3: " if lines else f"{file}: ") and cause in said and said.endswith("; mend it")


def test_what_is_whole_is_read_as_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_bytes('﻿{"é": [1, 0.5, "x"]}'.encode())
    assert safe_io.read_json(file) == {"é": [1, 0.5, "x"]}
    assert safe_io.parse_json("[NaN, 1e999]", "it", kind=None, strict=False)[1] == float("inf")
    file.write_bytes(b"a\r\nb\xc2\x85c\n\nd")
    assert list(safe_io.read_lines(file)) == [
        (1, b"a\r", True),
        (2, b"b\xc2\x85c", True),
        (3, b"", True),
        (4, b"d", False),
    ]
    with pytest.raises(DataError, match="line 2 has more than 4 bytes"):
        list(safe_io.read_lines(file, line=4))
    kept = {
        "a": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "b": np.array("é"),
        "c": np.zeros((0, 5)),
        "d": np.array(3),
    }
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", **kept)
        found = safe_io.read_npz(tmp_path / "a.npz")
        assert list(found) == list(kept)
        for name, array in kept.items():
            assert found[name].dtype == array.dtype
            np.testing.assert_array_equal(found[name], array)


def header(shape: str, dtype: str = "<f8") -> bytes:
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}}}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def archive(member: bytes, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", method) as made:
        made.writestr("a.npy", member)
    return held.getvalue()


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (archive(header("(3,)") + bytes(8)), "not a readable .npz"),
        (archive(header("(-1,)") + bytes(8)), "not a readable .npz"),
        (archive(header("(1,)", "|O") + bytes(8)), "allow_pickle=False"),
        (archive(header("(2,)") + bytes(16))[:-9], "not a readable .npz"),
        (header("(2,)") + bytes(16), "not a readable .npz"),
        (b"", "not a readable .npz"),
        (b"[1]", "not a readable .npz"),
    ],
    ids=range(7),
)
def test_a_damaged_archive_of_arrays_is_a_sentence(tmp_path: Path, data: bytes, cause: str) -> None:
    file = tmp_path / "a.npz"
    file.write_bytes(data)
    said = refusal(lambda: safe_io.read_npz(file, limit=1_000_000, error=ConfigError, advice="mend it"))
    assert said.startswith(f"{file}: ") and cause in said and said.endswith("; mend it"), said


def test_the_class_of_the_refusal_is_the_readers(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        safe_io.read_json(tmp_path / "none", error=CheckpointError)


# ---- tables


def parquet(path: Path, rows: int, **columns: Any) -> Path:
    """Columns of which every row has the same value, which Parquet keeps once."""
    arrays = {
        name: pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * rows, pyarrow.int32()), pyarrow.array([value]))
        for name, value in columns.items()
    }
    pyarrow.parquet.write_table(pyarrow.table(arrays), path, compression="zstd", store_schema=False)
    return path


def test_a_table_is_read_in_batches_and_an_empty_one_has_its_schema(tmp_path: Path):
    first, *rest = read_parquet(parquet(tmp_path / "a", 3000, text="x", other="y"))
    assert len(first) == 0 and first.schema.names == ["text", "other"] and [len(b) for b in rest] == [1024, 1024, 952]
    (only,) = read_parquet(parquet(tmp_path / "b", 0, text="x"))
    assert only.schema.names == ["text"]


@pytest.mark.parametrize(
    "harm", [lambda data: b"", lambda data: data[:-9], lambda data: data[:40] + data[80:], lambda data: b"PAR1"]
)
def test_a_table_that_is_damaged_is_a_sentence(harm: Any, tmp_path: Path):
    path = parquet(tmp_path / "a.parquet", 10, text="x" * 100)
    path.write_bytes(harm(path.read_bytes()))
    with pytest.raises(DataError, match=r"a.parquet: .*not a Parquet file"):
        list(read_parquet(path))
