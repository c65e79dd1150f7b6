"""The registry of readers, and the options that a reader gets: the choice of the score and of the columns."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Number
from typing import TYPE_CHECKING, Any, Literal

from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.verdicts.readers.file import RowFile

if TYPE_CHECKING:
    from sage_rlvr.verdicts.chance import Chance

AnswerKey = Callable[[str], str | None]
"""A text to the answer in it, in one spelling; None for a text without one."""
FileRows = Iterator[tuple[int, Mapping[str, Any]]]
"""(number of the row in its file, row as rows.py describes it)."""


@dataclass(frozen=True, kw_only=True)
class Floor:
    """The source of the chance floor of files of rows, besides their field "chance".

    shares: task -> probability that one guess is right, "" for all tasks
    task: the name of a task that can guess, "" for none
    of_ids: its floor on the problems with these ids; None if it has no such problems
    of_golds: its floor on problems with these golds; None if it cannot guess such golds
    """

    shares: Mapping[str, float] = field(default_factory=dict)
    task: str = ""
    of_ids: Callable[[Sequence[str]], Chance | None] = lambda ids: None
    of_golds: Callable[[Sequence[str]], Chance | None] = lambda golds: None


NO_FLOOR = Floor()
SHOWN = 8  # names in an error


Unscored = Literal["wrong", "omit"]
"""The treatment of completions without a score: as wrong, or their problems are omitted on all sides."""


@dataclass(frozen=True)
class UnmarkedCompletion:
    """A completion to be judged. gold, prompt: None if the rows have none."""

    problem: str
    text: str
    gold: str | None
    prompt: str | None


Mark = Literal["right", "wrong", "no answer", "undecided"]
"""The mark of a completion: "no answer" is wrong without an answer at its place, "undecided" counts as wrong."""


@dataclass(frozen=True)
class CompletionJudge:
    """A judge that marks the completions of files of rows, instead of the scores in the files (`compare --judge`).

    marks: raises DataError, without the name of the file, for a gold that it cannot use
    key: a text to the answer that is marked, in one spelling; None if it reads no answers
    """

    name: str
    marks: Callable[[Sequence[UnmarkedCompletion]], Sequence[Mark]]
    key: AnswerKey | None = None
    needs_gold: bool = True


@dataclass
class Choice:
    """Options of reading files of rows.

    wanted: names of `--correct`, one of which is the score of each file
    right_from: the least score that counts as correct
    picks: words that select arms, tasks or steps
    answers: where a verifier looks for the answers of texts, and its function from a text to the answer; None reads none
    floor: the chance floor
    unscored: how completions without a score count; None raises an error for them
    fields: own name -> column of every file (`--fields`); {} for files of known formats
    judge: the judge that marks the completions; None if the scores of the files count
    common: whether problems that some sides lack are left out
    used: the name that a reader took
    others: the names that it did not take
    words: a description of `used`, "" if its name is used
    notes: sentences on the file
    """

    wanted: tuple[str, ...] = ()
    right_from: float | None = None
    picks: tuple[str, ...] = ()
    used: str = ""
    others: tuple[str, ...] = ()
    answers: tuple[str, AnswerKey] | None = None
    floor: Floor = NO_FLOOR
    unscored: Unscored | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    judge: CompletionJudge | None = None
    common: bool = False
    words: str = ""
    notes: list[str] = field(default_factory=list)

    def of(
        self, names: Iterable[str], where: object, what: str = "scores", *, columns: Mapping[str, Column] | None = None
    ) -> str:
        """The score of a file, "" with a judge. names: all that occur in any row; columns: their values, those equal in all rows
        are one score. Raises DataError unless `--correct` names one of them, or there is only one."""
        known = list(dict.fromkeys(names))
        if self.judge is not None:  # whose mark is the score
            return ""
        if self.wanted:
            chosen = [name for name in known if name in self.wanted]
        else:
            chosen = known if columns is None else _different(columns)
        if len(chosen) != 1:
            raise DataError(f"{where}: {self._problem(known, chosen, what)}")
        self.used, self.others = chosen[0], tuple(name for name in known if name != chosen[0])
        return self.used

    def _problem(self, known: list[str], chosen: list[str], what: str) -> str:
        there = f"{len(known)} {what} ({first_names(known) or 'none'})"
        if self.wanted and not chosen:
            names = " or ".join(self.wanted)
            return f"no score has the name {names}; the file has {there}; --correct names one that every file has"
        if self.wanted:
            return f"--correct names {len(chosen)} of its scores ({first_names(chosen)}); name one of them"
        if not known:
            return f"{there}; name the column that stands for correct: --correct NAME, or let --judge mark the texts (boxed, ...)"
        return f"{there}; name the one that stands for correct: --correct {known[0]}"

    def taking(self, *picks: str) -> Choice:
        """The same for one file, with no score chosen yet."""
        return replace(self, picks=picks, used="", others=(), words="", notes=[])


Names = tuple[str, ...]
"""The names of a column and of the fields inside it."""
Column = Sequence[Any]
"""The values of a score, one per row."""
SCORE_WORDS = frozenset((
    "acc", "accuracy", "correct", "correctness", "em", "exact", "grade", "graded", "match", "pass", "passed", "reward", "rewards",
    "right", "score", "scores", "solved", "success", "verdict",
))  # fmt: skip
"""Words that mark a column as a score by its name."""
MAYBE_WORDS = frozenset((
    "equiv", "f1", "judge", "judged", "label", "ok", "outcome", "resolved", "result", "valid", "verified", "win", "won",
))  # fmt: skip
"""Words of columns that are a score if their values are truth values or numbers from 0 to 1, and else an answer, a name or a
text."""


def says_score(name: str, words: Container[str] = SCORE_WORDS) -> bool:
    """Whether a column is a score by its name: "accuracy_reward", "isCorrect", "ISCORRECT", "pass@1", "Score"."""
    found = re.findall(r"[a-z]+[0-9]*", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower())
    return any(form in words for word in found for form in (word, word.rstrip("0123456789"), word.removeprefix("is")))


def same_score(one: Any, other: Any) -> bool:
    """Whether two values of one row agree as scores; null and NaN both mean no score."""
    missing = [value is None or value != value for value in (one, other)]
    return all(missing) if any(missing) else bool(one == other)


def _different(columns: Mapping[str, Column]) -> list[str]:
    """Names of the scores without those that are equal to an earlier one in all rows."""
    out: list[str] = []
    for name, column in columns.items():
        if not any(all(map(same_score, columns[earlier], column)) for earlier in out):
            out.append(name)
    return out


def candidates(
    rows: Iterable[Mapping[str, Any]], own: Container[str], where: object, *, every: bool = False
) -> dict[str, Column]:
    """The columns that may be a score, by name: a number or truth value in some row, null in all, or any value if the name marks a
    score. The inner fields of an object are "column/field". own: columns that the format uses otherwise; every: whether all others
    are scores. Raises DataError for two columns under one name."""
    kinds: dict[str, bool | None] = {}
    paths: dict[str, Names] = {}
    kept = list(rows)
    for row in kept:
        for path, value in flat(row, own):
            name = name_once(path, paths, where)
            if value is None:
                kinds.setdefault(name, None)
            elif isinstance(value, Number) or every or says_score(path[-1]):
                kinds[name] = True
            elif not kinds.get(name):
                kinds[name] = False
    return {name: [value_of(row, name) for row in kept] for name, may in kinds.items() if may is not False}


def name_once(path: Names, known: dict[str, Names], where: object) -> str:
    """Return the name of a score, "column/field". known: the names of the file so far, to which it is added. Raise DataError if a
    score at another place has the same name."""
    name = "/".join(path)
    if (first := known.setdefault(name, path)) != path:
        places = " and ".join(" > ".join(map(repr, one)) for one in (first, path))
        raise DataError(f"{where}: two scores have the name {name!r} ({places}); rename one of them in all files")
    return name


def flat(row: Mapping[str, Any], own: Container[str] = ()) -> Iterator[tuple[Names, Any]]:
    """The path and value of every column and inner field that is no object."""
    for name, value in row.items():
        if name in own:
            continue
        if isinstance(value, Mapping):
            yield from (((name, *inner), one) for inner, one in flat(value))
        else:
            yield (name,), value


def value_of(row: Mapping[str, Any], name: str) -> Any:
    """The value of a column that `candidates` named; None in a row without it."""
    if name in row:
        return row[name]
    column, _, field = name.partition("/")
    inner = row.get(column)
    return value_of(inner, field) if field and isinstance(inner, Mapping) else None


@dataclass(frozen=True, eq=False)
class RowReader:
    """A reader: its name, what a file must have, and the function that yields its rows."""

    name: str
    needs: tuple[frozenset[str], ...]
    rows: Callable[[RowFile, Choice], FileRows]
    about: str = ""

    def rows_of(self, file: RowFile, choice: Choice) -> FileRows:
        """The rows of a file. DataError if the reader's function yields something else than (number, row), or takes another score
        than `--correct` names."""
        wanted = f"{file.path}: the reader {self.name} must yield (number of the row, row), the row a mapping; it"
        rows = self.rows(file, choice)
        if not isinstance(rows, Iterable):
            raise DataError(f"{wanted} returned {rows!r}")
        for one in rows:
            if not (isinstance(one, tuple) and len(one) == 2 and isinstance(one[1], Mapping)):
                raise DataError(f"{wanted} gave {one!r:.200}")
            yield one
        if choice.wanted and choice.used not in choice.wanted:
            raise DataError(
                f"{file.path}: --correct {choice.wanted[0]}: rows of the format {self.name} have one score"
                f"{f' ({choice.used})' if choice.used else ''} and no other to choose; omit --correct"
            )

    @property
    def place(self) -> str:
        """The module and name of its function."""
        return f"{self.rows.__module__}.{self.rows.__qualname__}"

    def fit(self, file: RowFile) -> int:
        """The number of the file's keys that the format needs; 0 if one of them is missing."""
        return max((len(one) for one in self.needs if one <= file.keys), default=0)


READERS: dict[str, RowReader] = {}
"""The readers by name, without those of installed packages: see `all_readers`."""
PACKAGES = "sage_rlvr.readers"
"""The group of entry points under which an installed package names its readers."""


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
        there = READERS.get(name)
        if there is not None and there.place != made.place:
            raise ConfigError(f"reader {name!r} is already registered as {there.place}; use another name")
        READERS[name] = made
        return made

    return add


def all_readers() -> dict[str, RowReader]:
    """`READERS` with those of installed packages; one that does not load is left out with a warning. Raises ConfigError for a name
    that two packages declare."""
    from importlib import metadata  # as slow to load as all readers

    declared: dict[str, str] = {}
    for entry in metadata.entry_points(group=PACKAGES):
        if declared.setdefault(entry.name, entry.value) != entry.value:
            both = f"{declared[entry.name]} and {entry.value}"
            raise ConfigError(f"reader {entry.name!r} is declared by several packages: {both}; uninstall all but one of them")
        if entry.name in READERS:
            continue
        try:
            made = entry.load()
            if not isinstance(made, RowReader):
                raise TypeError(f"{made!r:.80} is no reader; decorate its function with @reader")
            READERS.setdefault(entry.name, made)
        except Exception as error:
            warnings.warn(f"reader {entry.name!r} ({entry.value}) not loaded: {type(error).__name__}: {error}", stacklevel=2)
    return READERS


def first_names(names: Sequence[str]) -> str:
    """The first names, with "..." for the rest."""
    return ", ".join(f"{name:.60}" for name in names[:SHOWN]) + ", ..." * (len(names) > SHOWN)
