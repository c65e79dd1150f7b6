"""The registry of readers, and the choice of a reader by the content of a file."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sage_rlvr.errors import ConfigError, DataError, SageError
from sage_rlvr.registry import Registry
from sage_rlvr.results.readers.file import RowFile
from sage_rlvr.tasks.base import Task

FileRows = Iterator[tuple[int, Mapping[str, Any]]]
"""(number of the row in its file, row as rows.py describes it)."""


@dataclass(frozen=True, kw_only=True)
class Floor:
    """Where the chance floor of files of rows comes from, besides their field "chance". shares: task -> probability that one guess
    is right, "" for all tasks; task: of this package, which can guess, with the word that named it."""

    shares: Mapping[str, float] = field(default_factory=dict)
    task: tuple[str, Task] | None = None


NO_FLOOR = Floor()


@dataclass
class Choice:
    """How files of rows are read. wanted: names of `--correct`; right_from: the least score that counts as correct; used: the name
    that a reader took; others: the names that it did not take. answers_in: where the verifier reads the answers of texts; floor:
    the chance floor."""

    wanted: tuple[str, ...] = ()
    right_from: float | None = None
    picks: tuple[str, ...] = ()
    used: str = ""
    others: tuple[str, ...] = ()
    answers_in: str = ""
    floor: Floor = NO_FLOOR

    def of(self, names: Iterable[str], where: object, what: str = "scores", default: str | None = None) -> str:
        """The name that counts among several. default: taken where `--correct` names none of them."""
        known = list(dict.fromkeys(names))
        chosen = [name for name in known if name in self.wanted] or ([default] if default in known else [])
        chosen = chosen or (known if len(known) == 1 else [])
        if len(chosen) != 1:
            raise DataError(
                f"{where}: {len(known)} {what} ({', '.join(known) or 'none'}); name the one that stands for correct: "
                f"--correct {known[0] if known else 'NAME'}"
            )
        self.used, self.others = chosen[0], tuple(name for name in known if name != chosen[0])
        return self.used


@dataclass(frozen=True, eq=False)
class RowReader:
    """A reader: its name, what a file must have, and the function that yields its rows."""

    name: str
    needs: tuple[frozenset[str], ...]
    rows: Callable[[RowFile, Choice], FileRows]
    about: str = ""

    def rows_of(self, file: RowFile, choice: Choice) -> FileRows:
        """The rows of a file. DataError where the reader's function yields something else than (number, row)."""
        wanted = f"{file.path}: the reader {self.name} must yield (number of the row, row), the row a mapping; it"
        rows = self.rows(file, choice)
        if not isinstance(rows, Iterable):
            raise DataError(f"{wanted} returned {rows!r}")
        for one in rows:
            if not (isinstance(one, tuple) and len(one) == 2 and isinstance(one[1], Mapping)):
                raise DataError(f"{wanted} gave {one!r:.200}")
            yield one

    def fit(self, file: RowFile) -> int:
        """How many keys of the file are those of the format; 0 where one lacks."""
        return max((len(one) for one in self.needs if one <= file.keys), default=0)


READERS: Registry[RowReader] = Registry("reader", remember=False)
"""All readers by name."""


def reader(
    name: str, *needs: Iterable[str], about: str = ""
) -> Callable[[Callable[[RowFile, Choice], FileRows]], RowReader]:
    """Register a reader under a name. needs: keys that a file of the format has; several sets are alternatives."""

    def add(rows: Callable[[RowFile, Choice], FileRows]) -> RowReader:
        try:
            inspect.signature(rows).bind("file", "choice")
        except TypeError as error:
            raise ConfigError(f"reader {name}: {rows.__qualname__} is called with (file, choice): {error}") from error
        made = RowReader(name, tuple(frozenset(one) for one in needs), rows, about)
        return READERS.register(made, name=name, about=about)  # type: ignore[type-var]

    return add


def reader_of(file: RowFile) -> RowReader:
    """The reader whose format has the most keys in common with the file. Raises DataError where no reader fits, or two fit
    equally."""
    fits = sorted(((one.fit(file), one.name) for one in READERS.values()), reverse=True)
    best = [name for fit, name in fits if fit and fit == fits[0][0]]
    if not best:
        if file.container == "empty":
            raise DataError(f"{file.path}: the file is empty; write one row per problem or per completion")
        raise DataError(f"{file.path}: no reader knows a file with {_some(file.keys)}. {TAKES_ROWS}{_from_outside()}")
    if len(best) > 1:
        raise DataError(
            f"{file.path}: the readers {' and '.join(best)} both fit; remove the columns of one of the formats"
        )
    return READERS[best[0]]


def reads(path: Path) -> bool:
    """Whether a file holds rows that a reader knows."""
    try:
        return path.is_file() and bool(reader_of(RowFile(path)))
    except SageError:
        return False


TAKES_ROWS = (
    'Rows are counts {"id", "n", "c"}, samples {"id", "correct"} or {"id", "score"}, or logs of lm-eval, inspect_ai, lighteval, '
    "verl and TRL: docs/reference/rows.md; a reader of your own is loaded by --plugin FILE"
)


def _from_outside() -> str:
    """A sentence about the readers of loaded plugins and installed packages, with the keys that they need; "" without any."""
    readers = []
    for reader in READERS.values():
        if reader.rows.__module__.partition(".")[0] != __name__.partition(".")[0]:
            needs = " or ".join(", ".join(sorted(keys)) for keys in reader.needs)
            readers.append(f"{reader.name} (needs {needs})" if needs else reader.name)
    return f". Readers from plugins and packages, which do not fit either: {'; '.join(readers)}" if readers else ""


def _some(keys: Iterable[str]) -> str:
    shown = sorted(keys)[:8]
    return f"the keys {', '.join(shown)}" if shown else "no keys"
