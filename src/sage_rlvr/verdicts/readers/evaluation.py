"""A file to the counts of its problems: the reader that knows the file, its rows, and the groups that are selected."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sage_rlvr.errors import DataError, SageError
from sage_rlvr.verdicts.readers.file import FEWER, HELD, ROWS, RowFile
from sage_rlvr.verdicts.readers.registry import READERS, Choice, RowReader, all_readers, first_names
from sage_rlvr.verdicts.readers.rows import CountTable, RowGroups

SHOWN = 8  # values in an error


@dataclass(frozen=True, kw_only=True, eq=False)
class EvaluationFile:
    """The contents of a file.

    format: the reader
    score: the name of the score that counts
    correct: what counted as correct, in words
    rows: number of rows that were read
    options: options of `compare` for this file
    notes: sentences on the file
    """

    path: Path
    format: str
    score: str
    correct: str
    rows: int
    tables: tuple[CountTable, ...]
    options: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_evaluation(path: Path, picks: Iterable[str] = (), choice: Choice | None = None) -> EvaluationFile:
    """Read a file of rows. picks: words that select arms, tasks or steps; choice: which score counts. Raises DataError with file,
    line and field for a row that cannot be used."""
    file, choice = HELD.get().get(path) or file_at(path), (choice or Choice()).taking(*picks)
    reader, made, count = _reader(file, choice), RowGroups(file, choice), 0
    file.check_size()
    for number, row in reader.rows_of(file, choice):
        made.add(number, row)
        count += 1
        if count > ROWS:
            raise DataError(f"{path}: more than {ROWS:,} rows; {FEWER}")
    if not count:
        picked = "".join(f"@{pick}" for pick in picks)
        raise DataError(
            f"{path}{picked}: no rows; write one row per problem or per completion" + ", or select others" * bool(picks)
        )
    tables = _picked(path, made.tables(), list(picks))
    if choice.judge is not None:
        from sage_rlvr.verdicts.readers.judged import judged

        tables = judged(tables, path, choice)
    return EvaluationFile(
        path=path, format=reader.name, score=choice.used or ("score" if made.kind == "score" else "correct"),
        correct=_words(choice, made), rows=count, tables=tables, options=_options(choice), notes=tuple(choice.notes),
    )  # fmt: skip


def file_at(path: Path) -> RowFile:
    """The rows of a file, or of the files in a folder."""
    if not path.is_dir():
        return RowFile(path)
    from sage_rlvr.verdicts.readers.folder import RowFolder

    return RowFolder(path)


def _reader(file: RowFile, choice: Choice) -> RowReader:
    """The reader of a file: by `--fields`, or by its content."""
    if not choice.fields:
        return reader_of(file)
    from sage_rlvr.verdicts.readers.named import given_rows

    return RowReader("fields", (), given_rows)


def _options(choice: Choice) -> tuple[str, ...]:
    """`--correct`, `--fields`, `--judge`, `--common`, `--right-from` and `--unscored` as they were passed."""
    options = ("--correct", *choice.wanted) if choice.wanted else ()
    if choice.fields:
        options = (*options, "--fields", ",".join(f"{name}={column}" for name, column in choice.fields.items()))
    if choice.judge is not None:
        options = (*options, "--judge", choice.judge.name)
    options = (*options, "--common") if choice.common else options
    if choice.right_from is not None:
        options = (*options, "--right-from", f"{choice.right_from:g}")
    return (*options, "--unscored", choice.unscored) if choice.unscored else options


def _words(choice: Choice, made: RowGroups) -> str:
    """Describe what counted as correct."""
    name = choice.words or choice.used or made.kind
    return name if choice.right_from is None or made.kind != "score" else f"{name} >= {choice.right_from:g}"


def _picked(path: Path, tables: list[CountTable], picks: list[str]) -> tuple[CountTable, ...]:
    """The tables that all `@WORD` select; of several steps one has to be selected."""
    for word in picks:
        kept = [table for table in tables if table.group.named(word)]
        if not kept:
            groups = [table.group for table in tables]
            known: dict[str, Sequence[object]] = {
                "arms": sorted({g.arm for g in groups} - {""}), "tasks": sorted({g.task for g in groups} - {""}),
                "steps": sorted({g.step for g in groups if g.step is not None}),
            }  # fmt: skip
            there = "; ".join(f"{name} {_some(values)}" for name, values in known.items() if values)
            raise DataError(
                f"{path}@{word}: no rows of {word!r}; the file has {there or 'neither arms nor tasks nor steps'}"
            )
        tables = kept
    steps = sorted({table.group.step for table in tables if table.group.step is not None})
    if len(steps) > 1:
        raise DataError(
            f"{path}: rows of {len(steps)} steps ({_some(steps)}); select one with @STEP, for example: "
            f"{path}@{steps[0]} {path}@{steps[-1]}"
        )
    return tuple(tables)


def _some(values: Iterable[object]) -> str:
    shown = list(map(str, values))
    return ", ".join(shown[:SHOWN]) + ", ..." * (len(shown) > SHOWN)


# --------------------------------------------------------------------------------------------------
# the reader of a file


def reader_of(file: RowFile) -> RowReader:
    """The reader whose format has the most keys in common with the file. Raises DataError if no reader fits, or two fit
    equally."""
    readers = all_readers()
    fits = sorted(((one.fit(file), one.name) for one in readers.values()), reverse=True)
    best = [name for fit, name in fits if fit and fit == fits[0][0]]
    if not best:
        if file.container == "empty":
            raise DataError(f"{file.path}: the file is empty; write one row per problem or per completion")
        from sage_rlvr.verdicts.readers.proposal import proposed  # for errors only

        keys = f"the keys {first_names(sorted(file.keys))}" if file.keys else "no keys"
        found = f"{file.path}: no reader knows a file with {keys}. {proposed(file)}"
        raise DataError(f"{found}{TAKES_ROWS}{_from_outside()}")
    if len(best) > 1:
        raise DataError(
            f"{file.path}: the readers {' and '.join(best)} both fit; remove the columns of one of the formats"
        )
    return readers[best[0]]


def reads(path: Path) -> bool:
    """Whether a file contains rows that a reader recognizes."""
    try:
        return path.is_file() and bool(reader_of(RowFile(path)))
    except SageError:
        return False


TAKES_ROWS = (
    'Rows are counts {"id", "n", "c"}, samples {"id", "correct"} or {"id", "score"}, or logs of another program: '
    "docs/reference/rows.md lists them; a reader of your own is loaded by --plugin FILE"
)


def _from_outside() -> str:
    """A sentence about the readers of loaded plugins and installed packages, with the keys that they need; "" without any."""
    readers = []
    for reader in READERS.values():
        if reader.rows.__module__.partition(".")[0] != __name__.partition(".")[0]:
            needs = " or ".join(", ".join(sorted(keys)) for keys in reader.needs)
            readers.append(f"{reader.name} (needs {needs})" if needs else reader.name)
    return f". Readers from plugins and packages, which do not fit either: {'; '.join(readers)}" if readers else ""
