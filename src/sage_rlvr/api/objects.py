"""Evaluations in memory, as files of rows that the readers accept: lists of dicts, data frames, arrays of 0 and 1."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from os import PathLike
from pathlib import Path
from typing import Any

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.readers.file import FIRST, HELD, Container, Numbered, RowFile
from sage_rlvr.verdicts.readers.rows import KNOWN

MEASURED = ("correct", "score", "n", "c")
"""Columns in which a missing cell of a data frame is a missing score, and not a missing column."""
AS_ROWS = ("to_dicts", "to_pylist", "to_list")
"""Methods of tables of polars, pyarrow and datasets that return rows."""
TAKES = (
    "pass a path, rows (a list of dicts or a data frame with the columns of docs/reference/rows.md), or a table of 0 and 1 "
    "(problems x samples: an array, a list of lists, or {id: list})"
)


@dataclass(frozen=True, eq=False)
class RowsInMemory(RowFile):
    """Rows of an object. path: its name in messages. make: returns the rows; sizes: of an array, the samples of each problem."""

    make: Callable[[], Iterable[Mapping[str, Any]]] = field(default=tuple, kw_only=True)
    sizes: Sequence[int] = field(default=(), kw_only=True)

    @cached_property
    def container(self) -> Container:
        """A document: the rows are in memory."""
        return "document"

    @cached_property
    def keys(self) -> frozenset[str]:
        """Keys of the first `FIRST` rows."""
        return frozenset(str(key) for _, (_, row) in zip(range(FIRST), self.rows(), strict=False) for key in row)

    def location(self, number: int) -> str:
        """A row in errors: "rl in memory, row 3"; of an array "rl in memory, problem 0, sample 2"."""
        if not self.sizes:
            return f"{self.path}, row {number}"
        ends = [0, *accumulate(self.sizes)]
        problem = bisect_right(ends, number - 1) - 1
        return f"{self.path}, problem {problem}, sample {number - 1 - ends[problem]}"

    def rows(self, columns: Sequence[str] = ()) -> Numbered:
        """(number, row) of every row."""
        yield from enumerate(self.make(), 1)

    def document(self) -> Any:
        """All rows."""
        return list(self.make())


class Objects:
    """The objects of one call of `compare`: each becomes a word that stands for it, as the path of a file does."""

    def __init__(self) -> None:
        self.files: dict[Path, RowFile] = {}

    def word(self, name: str, arm: Any) -> str:
        """NAME=WORD[,WORD...] of an object; WORD, if its rows name their arms."""
        parts = arm if seeds_in(arm) else [arm]
        made = [self._file(name if len(parts) == 1 else f"{name} {i}", part) for i, part in enumerate(parts)]
        words = ",".join(str(file.path) for file in made)
        return words if all("arm" in file.keys for file in made) else f"{name}={words}"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let the readers find the objects."""
        token = HELD.set({**HELD.get(), **self.files})
        try:
            yield
        finally:
            HELD.reset(token)

    def _file(self, name: str, data: Any) -> RowFile:
        path = Path(re.sub(r"[^\w .+-]+", "-", f"{name} in memory"))
        while path in self.files:
            path = Path(f"{path} again")
        self.files[path] = made = file_of(path, name, data)
        return made


def is_path(arm: Any) -> bool:
    """Whether an arm is a path, or several, and not rows or an array."""
    if isinstance(arm, (str, PathLike)):
        return True
    return isinstance(arm, (list, tuple)) and any(isinstance(one, (str, PathLike)) for one in arm)


def is_by_id(arm: Any) -> bool:
    """Whether an arm is {id: list of 0 and 1}."""
    lists = [_value(samples) for samples in arm.values()] if isinstance(arm, Mapping) else []
    return bool(lists) and all(isinstance(one, (list, tuple)) and all(map(_is_cell, one)) for one in lists)


def seeds_in(arm: Any) -> bool:
    """Whether an arm is a list of evaluations, one for each training seed, and not one table of rows or of 0 and 1."""
    if _is_array(arm):
        return bool(arm.ndim == 3)
    if not isinstance(arm, (list, tuple)) or not arm:
        return False
    first = arm[0]
    if _is_array(first):
        return bool(first.ndim == 2)
    if isinstance(first, Mapping):
        return is_by_id(first)
    return _rows_method(first) is not None or (isinstance(first, (list, tuple)) and bool(first) and not _is_cell(first[0]))


def file_of(path: Path, name: str, data: Any) -> RowFile:
    """The rows of one object.

    Raises:
        DataError: For an object that has neither rows nor 0 and 1, with the accepted forms.
    """
    method = _rows_method(data)
    if method is not None:
        columns = list(map(str, getattr(data, "column_names", None) or data.columns))
        if several := sorted({column for column in columns if columns.count(column) > 1}):
            raise DataError(f"{name}: several columns have the name {several[0]!r}; rename them")
        rows = method()
        return RowsInMemory(path, make=lambda: map(_plain, rows))
    if isinstance(data, Mapping):
        if "id" in data and not {*map(str, data)}.isdisjoint(MEASURED):
            raise DataError(f"{name}: a dict of columns ({', '.join(map(str, data))}), not of problems; pass a data frame or rows")
        return _of_lists(path, name, list(map(str, data)), list(data.values()))
    if _is_array(data):
        data = data.tolist() if data.ndim == 2 else data
    if not isinstance(data, (list, tuple)):
        shape = f" of {data.ndim} dimensions" if _is_array(data) else ""
        raise DataError(f"{name}: {type(data).__name__}{shape} is no evaluation; {TAKES}")
    if not data:
        raise DataError(f"{name}: an empty list; {TAKES}")
    if not isinstance(data[0], Mapping):
        return _of_lists(path, name, list(range(len(data))), data)
    for number, row in enumerate(data, 1):
        if not isinstance(row, Mapping):
            raise DataError(f"{path}, row {number}: {row!r:.60} is no dict, as row 1 is; pass one dict for each row")
    return RowsInMemory(path, make=lambda: map(_plain, data))


def _of_lists(path: Path, name: str, ids: Sequence[str | int], lists: Sequence[Any]) -> RowFile:
    """A table of 0 and 1: the samples of each problem."""
    plain: list[Sequence[Any]] = []
    for problem, samples in zip(ids, lists, strict=True):
        samples = samples.tolist() if hasattr(samples, "tolist") else samples
        if not isinstance(samples, (list, tuple)) or not all(map(_is_cell, samples)):
            raise DataError(f"{name}: problem {problem!r:.60}: {samples!r:.60} is no list of 0 and 1; {TAKES}")
        if not samples:
            raise DataError(f"{name}: problem {problem!r:.60} has no samples; leave it out on both sides")
        plain.append(samples)

    is_right_or_wrong = all(sample in (0, 1) or sample is None or sample != sample for samples in plain for sample in samples)
    kind = "correct" if is_right_or_wrong else "score"

    def made() -> Iterator[Mapping[str, Any]]:
        for problem, samples in zip(ids, plain, strict=True):
            for sample in samples:
                yield {"id": problem, kind: _value(sample)}

    return RowsInMemory(path, make=made, sizes=list(map(len, plain)))


def _rows_method(data: Any) -> Callable[[], Iterable[Mapping[str, Any]]] | None:
    """The function that returns the rows of a table of pandas, polars, pyarrow or datasets; None for another object."""
    if not hasattr(data, "columns") and not hasattr(data, "column_names"):
        return None
    if hasattr(data, "to_dict") and hasattr(data, "iloc"):
        return lambda: _of_pandas(data)
    return next((getattr(data, name) for name in AS_ROWS if hasattr(data, name)), None)


def _of_pandas(frame: Any) -> list[dict[str, Any]]:
    """The rows of a pandas data frame. A missing cell of a known column is no column; of others, scores among them, it is None."""
    missing = frame.isna()
    columns = zip(map(str, frame.columns), *_columns(frame, missing), strict=True)
    rows: list[dict[str, Any]] = [{} for _ in range(len(frame))]
    for name, values, gone in columns:
        optional = name in KNOWN and name not in MEASURED
        for row, value, lacks in zip(rows, values, gone, strict=True):
            if not lacks:
                row[name] = value
            elif not optional:
                row[name] = None
    return rows


def _columns(frame: Any, missing: Any) -> tuple[list[list[Any]], list[list[bool]]]:
    places = range(len(frame.columns))
    return [frame.iloc[:, i].tolist() for i in places], [missing.iloc[:, i].tolist() for i in places]


def _is_array(data: Any) -> bool:
    return hasattr(data, "ndim") and hasattr(data, "tolist") and _rows_method(data) is None


def _is_cell(value: Any) -> bool:
    """Whether a value can be a score: a number, a truth value, or None for a missing one."""
    return value is None or isinstance(value, (bool, int, float)) or (hasattr(value, "item") and getattr(value, "ndim", 1) == 0)


def _value(value: Any) -> Any:
    """A number of numpy as one of Python, an array as a list."""
    return value.tolist() if hasattr(value, "tolist") else value


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _value(value) for name, value in row.items()}
