"""Rows to counts per problem: the only code that validates rows, and the only code that groups them.

counts   {"id", "n", "c"}: one row per problem
samples  {"id", "correct"} or {"id", "score"}: one row per completion

Optional in both: "arm", "seed", "step", "task", "temperature", "gold", "prompt", "cluster" (problems that belong together have the
same), "chance" (the probability that one guess is right); in counts "keys" {canonical answer: number of correct samples}; in
samples "answer", "text", "cut" (by the length limit), "request" (completions of one request have the same).

A score counts as correct if it is at least `right_from`; without `right_from` a score has to be 0 or 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sage_rlvr.errors import DataError
from sage_rlvr.results.readers.file import RowFile
from sage_rlvr.results.readers.registry import Choice, reader_of
from sage_rlvr.stats.passk import Ints

MOST_COUNTED = 10**9  # samples of one problem
SHOWN = 8
TEXTS = ("answer", "text", "prompt", "gold")
GROUPED = ("arm", "task", "seed", "step", "temperature")
COLUMNS = ("text", "answer", "request", "cut")
LISTS = ("texts", "answers", "requests", "cut")  # the same as columns of a `CountTable`
BESIDE = ("gold", "prompt", "keys", "cluster", "chance")
NO_COLUMNS = (None,) * len(COLUMNS)


@dataclass(frozen=True)
class Group:
    """What the rows of one set of samples have in common. seed, temperature, step: None where the rows have none."""

    arm: str = ""
    task: str = ""
    seed: int | None = None
    step: int | None = None
    temperature: float | None = None

    def named(self, word: str) -> bool:
        """Whether `@WORD` behind a path selects this group; "grpo" selects "grpo, before" too."""
        step = () if self.step is None else (str(self.step),)
        return word in (self.arm, self.arm.partition(",")[0], self.task, *step)


UNGROUPED = Group()


@dataclass(frozen=True, kw_only=True, eq=False)
class CountTable:
    """Counts per problem of one set of samples, in order of appearance. n, c: (N,). The other columns are of samples, one list per
    problem in order of appearance, None where no row has them: texts, answers, requests, cut (by the length limit); or per problem:
    golds, prompts, keys, clusters, chances. right: which samples are correct. read_in: where the verifier read the answers of the
    texts, "" for answers of the rows."""

    group: Group
    problems: tuple[str, ...]
    n: Ints
    c: Ints
    right: tuple[NDArray[np.bool_], ...] | None = None
    texts: tuple[list[str | None], ...] | None = None
    answers: tuple[list[str | None], ...] | None = None
    requests: tuple[list[Any], ...] | None = None
    cut: tuple[list[bool | None], ...] | None = None
    golds: Mapping[str, str] = field(default_factory=dict)
    prompts: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    read_in: str = ""
    clusters: Mapping[str, str] = field(default_factory=dict)
    chances: Mapping[str, float] = field(default_factory=dict)

    def first(self, n: int, where: object) -> CountTable:
        """Only the first n samples of each problem. Raises DataError where a problem has fewer, and for counts of more samples,
        which have no order."""
        if np.all(self.n == n):
            return self
        if self.right is None:
            raise DataError(
                f"{where}: --samples {n}: counts of {span(self.n)} samples have no first {n}; pass the samples, one row per "
                "completion"
            )
        if (few := int(self.n.min())) < n:
            raise DataError(
                f"{where}: --samples {n}: problem {self.problems[int(self.n.argmin())]!r} has only {few} samples"
            )
        kept = np.arange(int(self.n.max())) < n
        return self.only(np.broadcast_to(kept, (len(self.n), len(kept))))

    def only(self, kept: NDArray[np.bool_]) -> CountTable:
        """Only some samples of each problem: kept (N, at least as many as the largest n)."""
        assert self.right is not None
        masks = [row[:n] for row, n in zip(kept, self.n.tolist(), strict=True)]
        right = tuple(one[mask] for one, mask in zip(self.right, masks, strict=True))
        lists: dict[str, Any] = {}
        for name, column in self._lists().items():
            lists[name] = tuple(list(compress(one, mask)) for one, mask in zip(column, masks, strict=True))
        n, c = (np.array([f(one) for one in right], dtype=np.int64) for f in (len, np.sum))
        return replace(self, n=n, c=c, right=right, **lists)

    def ordered(self, problems: Sequence[str]) -> CountTable:
        """The same problems in this order."""
        index = {problem: i for i, problem in enumerate(self.problems)}
        chosen = [index[problem] for problem in problems]
        lists: dict[str, Any] = {name: tuple(column[i] for i in chosen) for name, column in self._lists().items()}
        right = None if self.right is None else tuple(self.right[i] for i in chosen)
        return replace(self, problems=tuple(problems), n=self.n[chosen], c=self.c[chosen], right=right, **lists)

    def _lists(self) -> dict[str, tuple[list[Any], ...]]:
        """The columns of samples that the rows have, besides `right`."""
        columns = {name: getattr(self, name) for name in LISTS}
        return {name: column for name, column in columns.items() if column is not None}


@dataclass(frozen=True, kw_only=True, eq=False)
class EvaluationFile:
    """What a file holds. format: the reader; score: the name that a reader took for correct, "" where a format has only one;
    correct: what stood for correct, in words; rows: number of rows that were read; options: those of `compare` for this file."""

    path: Path
    format: str
    score: str
    correct: str
    rows: int
    tables: tuple[CountTable, ...]
    options: tuple[str, ...] = ()


def read_evaluation(
    path: Path, picks: Iterable[str] = (), correct: tuple[str, ...] = (), right_from: float | None = None
) -> EvaluationFile:
    """Read a file of rows. picks: words that select arms, tasks or steps. Raises DataError with file, line and field for a row that
    cannot be used."""
    file, choice = RowFile(path), Choice(correct, right_from, tuple(picks))
    reader, made, count = reader_of(file), _Groups(file, choice), 0
    for number, row in reader.rows_of(file, choice):
        made.add(number, row)
        count += 1
    if not count:
        picked = "".join(f"@{pick}" for pick in picks)
        raise DataError(
            f"{path}{picked}: no rows; write one row per problem or per completion" + ", or select others" * bool(picks)
        )
    tables = _picked(path, made.tables(), list(picks))
    return EvaluationFile(
        path=path, format=reader.name, score=choice.used, correct=_words(choice, made), rows=count, tables=tables,
        options=_options(choice),
    )  # fmt: skip


def _options(choice: Choice) -> tuple[str, ...]:
    """`--correct` and `--right-from` as they were passed."""
    correct = ("--correct", *choice.wanted) if choice.wanted else ()
    return correct if choice.right_from is None else (*correct, "--right-from", f"{choice.right_from:g}")


def _words(choice: Choice, made: _Groups) -> str:
    """What stood for correct, in words."""
    name = choice.used or made.kind
    return name if choice.right_from is None or made.kind != "score" else f"{name} >= {choice.right_from:g}"


def _picked(path: Path, tables: list[CountTable], picks: list[str]) -> tuple[CountTable, ...]:
    """The tables that all `@WORD` select; of several steps one has to be selected."""
    for word in picks:
        kept = [table for table in tables if table.group.named(word)]
        if not kept:
            groups = [table.group for table in tables]
            known = {
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


# ------------------------------------------------------------------------------------------------------------------
# validation


@dataclass(frozen=True)
class _Shape:
    """Whether rows have a column of `GROUPED` or of `COLUMNS`, and which of `BESIDE`."""

    grouped: bool
    columns: bool
    per_problem: tuple[str, ...]


class _Groups:
    """Rows by group and problem while a file is read. A group maps a problem to a list: of counts (n, c, row number), of samples
    the columns of each sample."""

    def __init__(self, file: RowFile, choice: Choice) -> None:
        self.file, self.choice, self.right_from = file, choice, choice.right_from
        self.kind = ""
        self.groups: dict[Group, dict[str, Any]] = {}
        self.more: dict[Group, dict[str, dict[str, Any]]] = {}
        self._shapes: dict[tuple[str, ...], _Shape] = {}
        self._last: tuple[Any, Group] = (None, UNGROUPED)

    def add(self, number: int, row: Mapping[str, Any]) -> None:
        """Add a row, or raise DataError with its place and field."""
        keys = tuple(row)
        shape = self._shapes.get(keys) or self._shape(number, row, keys)
        problem = row.get("id")
        if type(problem) is not str or not problem:
            problem = self._id(number, problem)
        group = self._group(number, row) if shape.grouped else UNGROUPED
        problems = self.groups.setdefault(group, {})
        if self.kind == "counts":
            if problem in problems:
                raise self._error(
                    number, "id", problem, f"the problem is also in row {problems[problem][2]}; list it once, or tell the rows "
                    'apart by "seed", "arm", "task", "step" or "temperature"',
                )  # fmt: skip
            problems[problem] = self._counted(number, row)
        else:
            right = row["correct"] if self.kind == "correct" else self._scored(number, row["score"])
            if right is not True and right is not False:
                right = self._truth(number, right)
            problems.setdefault(problem, []).append(
                (right, *map(row.get, COLUMNS)) if shape.columns else (right, *NO_COLUMNS)
            )
        for name in shape.per_problem:
            if (value := row[name]) is not None:
                self._add_field(number, group, problem, name, value)

    def _shape(self, number: int, row: Mapping[str, Any], keys: tuple[str, ...]) -> _Shape:
        """What rows with these keys have; nearly all rows of a file have the same keys."""
        kind = "counts" if "n" in row else "correct" if "correct" in row else "score" if "score" in row else ""
        if kind != self.kind or not kind:
            self._check_kind(number, row, kind)
        per_problem = tuple(name for name in BESIDE if name in row)
        made = _Shape(any(name in row for name in GROUPED), any(name in row for name in COLUMNS), per_problem)
        return self._shapes.setdefault(keys, made)

    def tables(self) -> list[CountTable]:
        """The counts of every group."""
        return [self._table(group, problems) for group, problems in self.groups.items()]

    def _table(self, group: Group, problems: dict[str, Any]) -> CountTable:
        more = self.more.get(group, {})
        names = {"gold": "golds", "prompt": "prompts", "keys": "keys", "cluster": "clusters", "chance": "chances"}
        per_problem: dict[str, Any] = {plural: more.get(name, {}) for name, plural in names.items()}
        if self.kind == "counts":
            n, c, _ = np.array(list(problems.values()), dtype=np.int64).T
            return CountTable(group=group, problems=tuple(problems), n=n, c=c, **per_problem)
        right = tuple(np.fromiter((one[0] for one in rows), dtype=bool, count=len(rows)) for rows in problems.values())
        n, c = (np.array([f(one) for one in right], dtype=np.int64) for f in (len, np.sum))
        lists = {}
        for index, name in enumerate(LISTS, 1):
            known = any(one[index] is not None for rows in problems.values() for one in rows)
            lists[name] = tuple([one[index] for one in rows] for rows in problems.values()) if known else None
        return CountTable(group=group, problems=tuple(problems), n=n, c=c, right=right, **lists, **per_problem)

    # ---- the fields

    def _error(self, number: int, name: str, value: Any, problem: str) -> DataError:
        shown = repr(value)
        return DataError(
            f"{self.file.location(number)}: {name} = {shown if len(shown) < 60 else shown[:57] + '...'}: {problem}"
        )

    def _check_kind(self, number: int, row: Mapping[str, Any], kind: str) -> None:
        if not kind:
            texts = [name for name in TEXTS if name in row]
            hint = (
                f"the row has {' and '.join(texts)} and no score; add \"correct\": true or false"
                if texts else 'a row has "n" and "c", or "correct", or "score"'
            )  # fmt: skip
            raise DataError(f"{self.file.location(number)}: nothing says whether the row is correct: {hint}")
        if self.kind:
            raise DataError(
                f"{self.file.location(number)}: a row with {_field(kind)} among rows with {_field(self.kind)}; write all rows alike"
            )
        self.kind = kind

    def _id(self, number: int, value: Any) -> str:
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        problem = "is missing" if value is None or value == "" else "is neither text nor a whole number"
        raise self._error(number, "id", value, f"the id of the problem {problem}; both files need the same ids")

    def _group(self, number: int, row: Mapping[str, Any]) -> Group:
        raw = tuple(map(row.get, GROUPED))
        if raw == self._last[0]:
            return self._last[1]
        arm, task = (self._label(number, name, row.get(name)) for name in ("arm", "task"))
        seed, step = (self._whole(number, name, row.get(name)) for name in ("seed", "step"))
        temperature = row.get("temperature")
        if temperature is not None and not (_is_number(temperature) and 0 <= temperature < math.inf):
            raise self._error(number, "temperature", temperature, "a sampling temperature is a number from 0 on")
        made = Group(arm, task, seed, step, None if temperature is None else float(temperature))
        self._last = raw, made
        return made

    def _label(self, number: int, name: str, value: Any) -> str:
        if value is None or isinstance(value, str):
            return value or ""
        raise self._error(number, name, value, "text is expected")

    def _whole(self, number: int, name: str, value: Any) -> int | None:
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        if isinstance(value, float) and value.is_integer():
            return int(value)
        raise self._error(number, name, value, "a whole number is expected")

    def _counted(self, number: int, row: Mapping[str, Any]) -> tuple[int, int, int]:
        counts = []
        for name in ("n", "c"):
            value = row.get(name)
            if isinstance(value, float) and value.is_integer():  # tables with a missing value elsewhere have floats
                value = int(value)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST_COUNTED:
                problem = "is missing" if value is None else "is not a whole number from 0 on"
                raise self._error(
                    number, name, value, f"{problem}; n is the number of samples, c how many of them are correct"
                )
            counts.append(value)
        n, c = counts
        if not n:
            raise self._error(number, "n", n, "a problem without samples; remove the row on both sides")
        if c > n:
            raise self._error(number, "c", c, f"more correct samples than samples (n = {n})")
        return n, c, number

    def _scored(self, number: int, score: Any) -> bool:
        if isinstance(score, bool):
            return score
        if not _is_number(score):
            problem = "the row has no score; score every completion" if score is None else "not a number"
            raise self._error(number, "score", score, problem)
        if math.isnan(score):
            raise self._error(number, "score", score, "the completion has no score (NaN); score it, or count it as 0")
        if self.right_from is not None:
            return bool(score >= self.right_from)
        if score not in (0, 1):
            other = f", or another score with --correct {self.choice.others[0]}" if self.choice.others else ""
            raise self._error(
                number, self.choice.used or "score", score,
                f"neither 0 nor 1; pass --right-from X, the least score that counts as correct{other}",
            )  # fmt: skip
        return score == 1

    def _truth(self, number: int, value: Any) -> bool:
        if _is_number(value) and value in (0, 1):
            return bool(value)
        if value is None:
            raise self._error(number, "correct", None, "nothing says whether the completion is correct; judge it first")
        raise self._error(
            number, "correct", value, 'true or false is expected (or 1 or 0); a graded score is called "score"'
        )

    def _add_field(self, number: int, group: Group, problem: str, name: str, value: Any) -> None:
        known = self.more.setdefault(group, {}).setdefault(name, {})
        if name == "keys":
            if not isinstance(value, dict) or not all(isinstance(n, int) and n > 0 for n in value.values()):
                raise self._error(
                    number, name, value, "an object {answer: number of correct samples with that answer} is expected"
                )
            if sum(value.values()) > self.groups[group][problem][1]:
                raise self._error(number, name, value, "more answers than correct samples (c)")
            known[problem] = value
        elif name in ("cluster", "chance"):
            made = self._cluster(number, value) if name == "cluster" else self._chance(number, value)
            if (first := known.setdefault(problem, made)) != made:
                raise self._error(
                    number, name, value, f"an earlier row of problem {problem[:40]!r} has {first!r}; give all its rows the same"
                )
        else:
            known.setdefault(problem, str(value))

    def _cluster(self, number: int, value: Any) -> str:
        if isinstance(value, str) and value:
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        raise self._error(number, "cluster", value, "the name of the problem's cluster is text or a whole number")

    def _chance(self, number: int, value: Any) -> float:
        if _is_number(value) and 0 <= value <= 1:
            return float(value)
        raise self._error(
            number, "chance", value, "the probability that one guess is right lies between 0 and 1; of four choices it is 0.25"
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _field(kind: str) -> str:
    return '"n" and "c"' if kind == "counts" else f'"{kind}"'


def _some(values: Iterable[object]) -> str:
    shown = list(map(str, values))
    return ", ".join(shown[:SHOWN]) + ", ..." * (len(shown) > SHOWN)


def span(n: Ints) -> str:
    """ "128", "64 to 128"."""
    low, high = int(n.min()), int(n.max())
    return f"{low}" if low == high else f"{low} to {high}"
