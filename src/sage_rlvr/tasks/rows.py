"""Rows of a file, a folder or the Hub, each with its place: the first `take` of them, read before anything is mapped.

    owner/name@revision, .jsonl, .json, .csv, .parquet, a folder of such, a saved Dataset -> mappings of column to value

Files are read only by the parsers of Python and Arrow: no archive is unpacked and no code of a data set is run. Only the
Hub and saved Datasets need the library `datasets`, whose scripts stay off.
"""

from __future__ import annotations

import csv
import hashlib
import importlib
import io
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.escaping import visible
from sage_rlvr.extras import install
from sage_rlvr.paths import ROW_SUFFIXES, looks_local, not_in
from sage_rlvr.safe_io import MIB, opened, read_json, read_json_lines, read_parquet

if TYPE_CHECKING:
    from datasets import Dataset

SUFFIXES = ROW_SUFFIXES
WHOLE = 256 * MIB  # bytes of a .json file, which is read into memory completely
DataRow = dict[str, Any]
Say = Callable[[str], None]


def tell(line: str) -> None:
    """Print a line on stderr, only from the first rank."""
    if os.environ.get("RANK", "0") == "0":
        print(visible(line), file=sys.stderr, flush=True)


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """The data to read. The fields are those of `sage_rlvr.config.DataConfig`.

    key: the place of the options in messages, "data" in a recipe; "" without such a place.
    """

    path: str
    subset: str | None = None
    split: str = "train"
    revision: str | None = None
    take: int | None = None
    problem_column: str | None = None
    answer_column: str | None = None
    key: str = ""

    @classmethod
    def of(cls, data: Any) -> DataSource:
        """The source that the key `data` of a recipe describes."""
        names = ("path", "subset", "split", "revision", "take", "problem_column", "answer_column")
        return cls(key="data", **{name: getattr(data, name) for name in names})

    def option(self, name: str) -> str:
        """An option as messages name it: data.path."""
        name = "file" if (self.key, name) == ("task", "path") else name
        return f"{self.key}.{name}" if self.key else name

    def mend(self, role: str) -> str:
        """The next step for a missing column of a role."""
        return f"name it: {self.option(role + '_column')}" if self.key else "rename it"


@dataclass(frozen=True)
class DataRows:
    """Rows as `read` returns them, for `sage_rlvr.tasks.datasets`. name: the name of the data in messages. locations: the place
    of each row ("train.jsonl:7")."""

    name: str
    rows: list[DataRow]
    locations: list[str]

    def columns(self) -> list[str]:
        """All names, with one nested level as outer.inner, in the order of their first occurrence."""
        names: dict[str, None] = {}
        for row in self.rows:
            for name, value in row.items():
                names[name] = None
                if isinstance(value, Mapping):
                    names |= dict.fromkeys(f"{name}.{inner}" for inner in value)
        return list(names)


def value_at(row: DataRow, column: str) -> Any:
    """The value of a column, with "outer.inner" for a nested mapping; None for a missing one, and for NaN."""
    value: Any = row
    for part in (column,) if column in row else column.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return None if isinstance(value, float) and math.isnan(value) else value


# ---- files, folders, the Hub


def read(data: DataSource) -> DataRows:
    """The first `data.take` rows of a file, a folder or a data set of the Hub. Raises ConfigError if it does not exist."""
    local = Path(data.path).expanduser()
    if not (looks_local(data.path) or local.exists()):
        return _hub(data)
    if not local.exists():
        raise ConfigError(
            f"{data.option('path')} = {data.path!r}: no such file or folder in {not_in(local)}; pass a local "
            f"{', '.join(SUFFIXES)} file, a folder of such, or a Hub id (owner/name)"
        )
    if local.is_dir() and ((local / "state.json").is_file() or (local / "dataset_dict.json").is_file()):
        return _saved(local, data)
    placed = ((location, row) for file in local_files(data) for location, row in _rows_of(file))
    taken = list(islice(placed, data.take))
    if not taken:
        raise DataError(f"{data.path}: has no rows")
    return DataRows(str(data.path), [row for _, row in taken], [location for location, _ in taken])


def local_files(data: DataSource) -> list[Path]:
    """The files of a local `data.path`, in the order in which they are read; empty if it does not exist."""
    local, path = Path(data.path).expanduser(), data.option("path")
    if local.exists() and not local.is_dir():
        if local.suffix not in SUFFIXES:
            raise ConfigError(
                f"{path} = {data.path!r}: files of the kind {local.suffix or '(none)'} are not supported (archives are not "
                f"unpacked); use one of {', '.join(SUFFIXES)}"
            )
        return [local]
    folder = local / data.subset if data.subset else local
    if not folder.is_dir():
        return []
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix in SUFFIXES and not p.name.startswith("."))
    of_split = [p for p in files if data.split in re.split(r"[-_./]", str(p.relative_to(folder)))]
    chosen = of_split or (files if len(files) == 1 else [])
    if not chosen or len({p.suffix for p in chosen}) > 1:
        listed = ", ".join(str(p.relative_to(folder)) for p in (chosen or files)[:8]) or "none"
        raise ConfigError(
            f"{path} = {data.path!r}: no single kind of file there is the split {data.split!r} (files: {listed}); pass a file, "
            f"or set {data.option('split')} ({data.option('subset')} for a folder inside); read are {', '.join(SUFFIXES)}"
        )
    return chosen


def facts(data: DataSource) -> dict[str, str]:
    """Name -> SHA-256 of the local files of a data set, so that a resume detects changes; for the Hub, id@revision."""
    files = local_files(data) if Path(data.path).expanduser().exists() else []
    return {str(p): sha256_of(p) for p in files} or {data.path: data.revision or "newest"}


def stamp_of(file: Path) -> tuple[int, int] | None:
    """Time and size of a file, so that a changed one is read again; None if it is no file."""
    state = file.stat() if file.is_file() else None
    return None if state is None else (state.st_mtime_ns, state.st_size)


def sha256_of(file: Path) -> str:
    """SHA-256 of a file."""
    with opened(file) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]  (a binary file has readinto)


def _rows_of(file: Path) -> Iterator[tuple[str, DataRow]]:
    readers = {".jsonl": _jsonl, ".json": _json, ".csv": _csv, ".parquet": _parquet}
    try:
        for location, row in readers[file.suffix](file):
            if not isinstance(row, dict):
                raise DataError(f"{location}: {type(row).__name__} instead of a mapping of column to value")
            yield location, row
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read: {error}") from error


def _jsonl(file: Path) -> Iterator[tuple[str, Any]]:
    for number, row in read_json_lines(file, kind=None, advice="fix or delete that line", strict=False):
        yield f"{file}:{number}", row


def _json(file: Path) -> Iterator[tuple[str, Any]]:
    try:
        whole = read_json(file, kind=None, limit=WHOLE, advice="fix it, or write one object per line (.jsonl)", strict=False)
    except DataError as error:
        cause = error.__cause__
        if not isinstance(cause, json.JSONDecodeError) or cause.msg != "Extra data":  # one object per line is often named .json
            raise
        yield from _jsonl(file)
        return
    rows = whole["data"] if isinstance(whole, dict) and isinstance(whole.get("data"), list) else whole
    if not isinstance(rows, list):
        raise DataError(f"{file}: expected a list of rows at the top level, or one object per line (.jsonl)")
    yield from ((f"{file}, row {number}", row) for number, row in enumerate(rows))


def _csv(file: Path) -> Iterator[tuple[str, Any]]:
    csv.field_size_limit(1 << 24)
    with opened(file) as stream, io.TextIOWrapper(stream, "utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines, strict=True)
        try:
            names = list(reader.fieldnames or ())
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise DataError(
                    f"{file}:1: the column {twice[0]!r} occurs {names.count(twice[0])} times in the header; rename or drop all "
                    "but one"
                )
            for row in reader:
                if None in row or None in row.values():
                    raise DataError(
                        f"{file}:{reader.line_num}: the number of fields differs from the header's "
                        f"{len(reader.fieldnames or ())}; check for an unquoted comma"
                    )
                yield f"{file}:{reader.line_num}", row
        except csv.Error as error:
            raise DataError(f"{file}:{reader.line_num}: {error}") from error


def _parquet(file: Path) -> Iterator[tuple[str, Any]]:
    batches = read_parquet(file, advice="check that the download is complete")
    rows = (row for batch in batches for row in batch.to_pylist())
    yield from ((f"{file}, row {number}", row) for number, row in enumerate(rows))


def _library() -> Any:
    try:
        return importlib.import_module("datasets")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"data sets of the Hub need the library datasets ({error}): download the files and pass their folder, or "
            f"{install('trl')}"
        ) from error


def _saved(folder: Path, data: DataSource) -> DataRows:
    """A folder that `Dataset.save_to_disk` wrote."""
    library = _library()
    dataset = library.load_from_disk(str(folder))
    if isinstance(dataset, library.DatasetDict):
        if data.split not in dataset:
            raise ConfigError(f"{data.option('split')} = {data.split!r}: {folder} has the splits {', '.join(dataset)}")
        dataset = dataset[data.split]
    return _taken(dataset, data)


def _hub(data: DataSource) -> DataRows:
    library = _library()
    if data.revision is None:
        revision = data.option("revision")
        tell(f"{data.path}: no {revision}, so the newest version on the Hub is used; set a commit to pin it")
    try:
        dataset = library.load_dataset(data.path, data.subset, split=data.split, revision=data.revision)
    except (OSError, ValueError, KeyError, RuntimeError) as error:  # unknown id, subset or split; a script; no network
        raise ConfigError(
            f"{data.option('path')} = {data.path!r} (subset {data.subset!r}, split {data.split!r}, revision "
            f"{data.revision!r}): cannot be loaded from the Hub: {type(error).__name__}: {str(error).strip()[:400]}. Check the "
            "names, or download the files and pass their folder; data sets that run their own code are not supported"
        ) from error
    return _taken(dataset, data)


def _taken(dataset: Dataset, data: DataSource) -> DataRows:
    if data.take is not None:
        dataset = dataset.select(range(min(data.take, len(dataset))))
    rows = list(dataset)
    if not rows:
        raise DataError(f"{data.path}, split {data.split}: has no rows")
    return DataRows(data.path, rows, [f"{data.path} ({data.split}), row {i}" for i in range(len(rows))])
