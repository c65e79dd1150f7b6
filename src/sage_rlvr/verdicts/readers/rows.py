"""Rows to counts per problem: the only code that validates rows, and groups them.

counts   {"id", "n", "c"}: one row per problem
samples  {"id", "correct"} or {"id", "score"}: one row per completion

Optional in both: "arm", "seed", "step", "task", "temperature", "gold", "prompt", "cluster" (problems that belong together have the
same), "chance" (the probability that one guess is right), "document" (an object with a program's data on the problem); in
counts "keys" {canonical answer: number of correct samples}; in samples "answer", "text", "cut" (by the length limit), "request"
(completions of one request have the same).

A score counts as correct if it is at least `right_from`; without `right_from` a score has to be 0 or 1. A completion whose score
is null, NaN or missing is an error with their number, unless `unscored` is set.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.readers.fields import SAMPLE, gold_key, gold_text, messages_text, sample_field
from sage_rlvr.verdicts.readers.file import RowFile
from sage_rlvr.verdicts.readers.registry import Choice
from sage_rlvr.verdicts.stats.arrays import Ints

MOST_COUNTED = 1_000_000  # samples of one problem
TEXTS = ("answer", "text", "prompt", "gold")
GROUPED = ("arm", "task", "seed", "step", "temperature")  # the fields of a `Group`
COLUMNS = tuple(SAMPLE)  # optional fields of a sample
LISTS = ("texts", "answers", "requests", "cut")  # the same as columns of a `CountTable`
BESIDE = ("gold", "prompt", "document", "keys", "cluster", "chance")  # optional fields of a problem
OF_ONE_ARM = ("model", "model_name", "model_path", "checkpoint")
"""Columns that distinguish policies: one value in a set of samples."""
OF_ONE_PROBLEM = (
    "question", "problem", "dataset", "dataset_name", "data_source", "benchmark", "subset", "subtask", "subject", "task_name",
)  # fmt: skip
"""Columns that distinguish problems: one value of an id in a set of samples."""
NO_COLUMNS = (None,) * len(COLUMNS)
BARE = {right: (right, *NO_COLUMNS) for right in (False, True)}  # samples without columns, shared: a file may have millions
KNOWN = ("id", "n", "c", "correct", "score", *GROUPED, *COLUMNS, *BESIDE)


@dataclass(frozen=True)
class Group:
    """The fields that the rows of one set of samples share. seed, temperature, step: None if the rows have none."""

    arm: str = ""
    task: str = ""
    seed: int | None = None
    step: int | None = None
    temperature: float | None = None

    def named(self, word: str) -> bool:
        """Whether `@WORD` after a path selects this group; "grpo" selects "grpo, before" too."""
        step = () if self.step is None else (str(self.step),)
        return word in (self.arm, self.arm.partition(",")[0], self.task, *step)


UNGROUPED = Group()


@dataclass(frozen=True, kw_only=True, eq=False)
class CountTable:
    """Counts per problem of one set of samples, in order of appearance.

    n, c (N,): samples and correct samples of each problem
    texts, answers, requests, cut (by the length limit): a list of samples per problem, in order; None if no row has them
    golds, prompts, documents, keys, clusters, chances: per problem
    right: which samples are correct
    read_in: where the verifier found the answers of the texts, "" for answers of the rows
    unscored: problem -> its completions without a score, which count as wrong
    omitted: the same for problems omitted because of them"""

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
    documents: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    keys: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    read_in: str = ""
    clusters: Mapping[str, str] = field(default_factory=dict)
    chances: Mapping[str, float] = field(default_factory=dict)
    unscored: Mapping[str, int] = field(default_factory=dict)
    omitted: Mapping[str, int] = field(default_factory=dict)

    def first(self, n: int, where: object) -> CountTable:
        """Only the first n samples of each problem. Raises DataError if a problem has fewer, and for counts of more samples,
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
        """Select some samples of each problem: kept (N, at least as many as the largest n)."""
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

    def without(self, omitted: Container[str]) -> CountTable:
        """Without these problems."""
        kept = [problem for problem in self.problems if problem not in omitted]
        names = ("golds", "prompts", "documents", "keys", "clusters", "chances", "unscored")
        fields: dict[str, Any] = {
            name: {p: value for p, value in getattr(self, name).items() if p not in omitted} for name in names
        }
        return self if len(kept) == len(self.problems) else replace(self.ordered(kept), **fields)

    def _lists(self) -> dict[str, tuple[list[Any], ...]]:
        """The columns of samples that the rows have, besides `right`."""
        columns = {name: getattr(self, name) for name in LISTS}
        return {name: column for name, column in columns.items() if column is not None}


# ------------------------------------------------------------------------------------------------------------------
# validation


@dataclass(frozen=True)
class _Shape:
    """A summary of rows with the same keys: the kind of their score, "" without one; whether they have a column of `GROUPED` or of
    `COLUMNS`; which of `BESIDE`; which of `OF_ONE_ARM` and of `OF_ONE_PROBLEM`."""

    kind: str
    grouped: bool
    columns: bool
    per_problem: tuple[str, ...]
    constant: tuple[str, ...]


class RowGroups:
    """Rows by group and problem while a file is read. A group maps a problem to a list: of counts (n, c, row number), of samples
    the columns of each sample. unscored: (row number, field, value) of the first completion without a score in each group, and
    problem -> how many."""

    def __init__(self, file: RowFile, choice: Choice) -> None:
        self.file, self.choice, self.right_from = file, choice, choice.right_from
        self.kind = ""
        self.groups: dict[Group, dict[str, Any]] = {}
        self.more: dict[Group, dict[str, dict[str, Any]]] = {}
        self.unscored: dict[Group, dict[str, int]] = {}
        self.first_unscored: tuple[int, str, Any] | None = None
        self.first_bare: tuple[int, Mapping[str, Any]] | None = None
        self._constants: dict[tuple[Group, str, str], tuple[Any, int]] = {}
        self._shapes: dict[tuple[str, ...], _Shape] = {}
        self._last: tuple[Any, Group] = (None, UNGROUPED)
        self._here: Group | None = None
        self._first_rows: dict[Group, int] = {}
        self._problems: dict[str, Any] = {}
        self._more: dict[str, dict[str, Any]] = {}

    def add(self, number: int, row: Mapping[str, Any]) -> None:
        """Add a row, or raise DataError with its place and field."""
        keys = tuple(row)
        shape = self._shapes.get(keys) or self._shape(number, row, keys)
        problem = row.get("id")
        if type(problem) is not str or not problem:
            problem = self._id(number, problem)
        group = self._group(number, row) if shape.grouped else UNGROUPED
        if group is not self._here:  # a group is hashed only when it changes
            self._here, self._problems = group, self.groups.setdefault(group, {})
            self._first_rows.setdefault(group, number)
            self._more = self.more.setdefault(group, {name: {} for name in BESIDE})
        problems = self._problems
        if self.kind == "counts":
            if problem in problems:
                raise self._error(
                    number, "id", problem, f"the problem is also in row {problems[problem][2]}; list it once, or tell the rows "
                    'apart by "seed", "arm", "task", "step" or "temperature"',
                )  # fmt: skip
            n, c = self._counted(number, row)
            if c is None:
                self._unscored(number, group, problem, "c", row["c"], n)
            problems[problem] = n, c or 0, number
        else:
            right = row[shape.kind] if shape.kind else None
            if self.choice.judge is not None:
                right = False  # until it is judged
                if row.get("text") is None:
                    self._unscored(number, group, problem, "text", None, 1)
            elif right is not True and right is not False:
                right = self._truth(number, shape.kind, right)
                if right is None:
                    self._unscored(number, group, problem, shape.kind, row.get(shape.kind), 1)
                    right = False
            problems.setdefault(problem, []).append(
                (right, *self._columns(number, row)) if shape.columns else BARE[right]
            )
        for name in shape.per_problem:
            if (value := row[name]) is not None:
                self._add_field(number, problem, name, value)
        for name in shape.constant:
            if (value := row[name]) is not None:
                self._check_constant(number, group, problem, name, value)

    def _shape(self, number: int, row: Mapping[str, Any], keys: tuple[str, ...]) -> _Shape:
        """Return the shape of rows with these keys; nearly all rows of a file have the same keys."""
        for name in keys:
            plain = str(name).strip().casefold()
            if name != plain and plain in KNOWN and plain in row:
                raise DataError(f"{self.file.location(number)}: columns {plain!r} and {name!r}; remove one of them")
        score = "correct" if "correct" in row else "score" if "score" in row else ""
        kind = "counts" if "n" in row and ("c" in row or not score) else score  # with a score, only n numbers the samples
        if self.choice.judge is not None:
            if kind == "counts" and "text" not in row:
                raise DataError(f"{self.file.location(number)}: counts have no texts to judge; omit --judge")
            kind = ""
        if kind != self.kind or not kind:
            self._check_kind(number, row, kind)
        per_problem = tuple(name for name in BESIDE if name in row)
        constant = tuple(name for name in (*OF_ONE_ARM, *OF_ONE_PROBLEM) if name in row)
        made = _Shape(kind, any(name in row for name in GROUPED), any(name in row for name in COLUMNS), per_problem, constant)
        return self._shapes.setdefault(keys, made)

    def tables(self) -> list[CountTable]:
        """The counts of every group. Raises DataError for completions without a score, unless `choice.unscored` is set."""
        self._check_temperatures()
        if self.first_bare and not self.kind and self.choice.judge is None:
            raise self._without_score(*self.first_bare)
        if self.first_unscored and self.choice.unscored is None:
            raise self._not_scored(*self.first_unscored)
        return [self._table(group, problems) for group, problems in self.groups.items()]

    def _table(self, group: Group, problems: dict[str, Any]) -> CountTable:
        more, unscored = self.more.get(group, {}), self.unscored.get(group, {})
        names = {name: name if name == "keys" else f"{name}s" for name in BESIDE}
        per_problem: dict[str, Any] = {plural: more.get(name, {}) for name, plural in names.items()}
        per_problem["unscored"] = unscored
        if self.kind == "counts":
            n, c, _ = np.array(list(problems.values()), dtype=np.int64).T
            made = CountTable(group=group, problems=tuple(problems), n=n, c=c, **per_problem)
        else:
            right = tuple(np.fromiter((one[0] for one in rows), dtype=bool, count=len(rows)) for rows in problems.values())
            n, c = (np.array([f(one) for one in right], dtype=np.int64) for f in (len, np.sum))
            if n.max() > MOST_COUNTED:
                raise DataError(f"{self.file.path}: id = {[*problems][int(n.argmax())]!r:.60} has more than {MOST_COUNTED:,} rows")
            lists: dict[str, Any] = {}
            for index, name in enumerate(LISTS, 1):
                known = any(one[index] is not None for rows in problems.values() for one in rows)
                lists[name] = tuple([one[index] for one in rows] for rows in problems.values()) if known else None
            made = CountTable(group=group, problems=tuple(problems), n=n, c=c, right=right, **lists, **per_problem)
        return replace(made.without(unscored), omitted=unscored) if self.choice.unscored == "omit" else made

    def _check_temperatures(self) -> None:
        """Raise DataError for rows with and without a temperature in one set of samples."""
        with_heat = {replace(group, temperature=None): group for group in self.groups if group.temperature is not None}
        for group in self.groups:
            if group.temperature is None and (other := with_heat.get(group)) is not None:
                raise DataError(
                    f"{self.file.location(self._first_rows[group])}: no temperature, and T = {other.temperature:g} in "
                    f"{self.file.location(self._first_rows[other])}; write the same into all rows of a set of samples, or into none"
                )

    # ---- completions without a score

    def _unscored(self, number: int, group: Group, problem: str, name: str, value: Any, n: int) -> None:
        self.first_unscored = self.first_unscored or (number, self._called(name), value)
        known = self.unscored.setdefault(group, {})
        known[problem] = known.get(problem, 0) + n

    def _called(self, kind: str) -> str:
        """Return the name of a score in errors: the file's name for it."""
        return (self.choice.used if kind in ("score", "correct") else kind) or kind or self.kind or "score"

    def _not_scored(self, number: int, name: str, value: Any) -> DataError:
        completions = sum(sum(problems.values()) for problems in self.unscored.values())
        problems = len({(group, problem) for group, known in self.unscored.items() for problem in known})
        total = sum(map(len, self.groups.values()))
        other = f", or name another score: --correct {self.choice.others[0]}" if self.choice.others else ""
        return self._error(
            number, name, value, f"no score ({completions:,} completions in {problems:,} of {total:,} problems have none). Pass "
            "--unscored wrong to count them as wrong, --unscored omit to leave these problems out on both sides, or score them"
            f"{other}",
        )  # fmt: skip

    def _without_score(self, number: int, row: Mapping[str, Any]) -> DataError:
        texts = [name for name in TEXTS if name in row]
        hint = (
            f"the row has {' and '.join(texts)} and no score; add \"correct\": true or false"
            if texts else 'a row has "n" and "c", or "correct", or "score"'
        )  # fmt: skip
        return DataError(f"{self.file.location(number)}: nothing says whether the row is correct: {hint}")

    # ---- the fields

    def _error(self, number: int, name: str, value: Any, problem: str) -> DataError:
        shown = repr(value)
        return DataError(
            f"{self.file.location(number)}: {name} = {shown if len(shown) < 60 else shown[:57] + '...'}: {problem}"
        )

    def _check_kind(self, number: int, row: Mapping[str, Any], kind: str) -> None:
        if not kind and self.kind != "counts":
            self.first_bare = self.first_bare or (number, row)
        elif not kind:
            raise self._without_score(number, row)
        elif self.kind or (self.first_bare and kind == "counts"):
            others = f"rows with {_field(self.kind)}" if self.kind else "rows without a score"
            raise DataError(f"{self.file.location(number)}: a row with {_field(kind)} among {others}; write all rows alike")
        else:
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

    def _counted(self, number: int, row: Mapping[str, Any]) -> tuple[int, int | None]:
        """n and c of a row; c is None if it is null."""
        counts: dict[str, int | None] = {}
        for name in ("n", "c"):
            value = row.get(name)
            if isinstance(value, float) and value.is_integer():  # tables with a missing value in another row have floats
                value = int(value)
            if name == "c" and name in row and (value is None or value != value):
                value = None
            elif not isinstance(value, int) or isinstance(value, bool) or value < 0:
                problem = "is missing" if value is None else "is not a whole number from 0 on"
                raise self._error(
                    number, name, value, f"{problem}; n is the number of samples, c how many of them are correct"
                )
            counts[name] = value
        n, c = counts["n"] or 0, counts["c"]
        if not n:
            raise self._error(number, "n", n, "a problem without samples; remove the row on both sides")
        if n > MOST_COUNTED:
            raise self._error(number, "n", n, f"more than {MOST_COUNTED:,} samples of one problem")
        if c is not None and c > n:
            raise self._error(number, "c", c, f"more correct samples than samples (n = {n})")
        return n, c

    def _truth(self, number: int, kind: str, value: Any) -> bool | None:
        """Whether a completion is correct, None without a score; infinity is none."""
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            return None
        if kind == "correct":
            if _is_number(value) and value in (0, 1):
                return bool(value)
            said = 'true or false is expected (or 1 or 0); a graded score is called "score"'
            many = "; of a list for each problem: --fields id=id,correct=correct" * isinstance(value, list)
            raise self._error(number, self._called(kind), value, said + many)
        if not _is_number(value):
            raise self._error(number, self._called(kind), value, "not a number")
        if self.right_from is not None:
            return bool(value >= self.right_from)
        if value not in (0, 1):
            other = f", or another score with --correct {self.choice.others[0]}" if self.choice.others else ""
            raise self._error(
                number, self._called(kind), value,
                f"neither 0 nor 1; pass --right-from X, the least score that counts as correct{other}",
            )  # fmt: skip
        return bool(value == 1)

    def _check_constant(self, number: int, group: Group, problem: str, name: str, value: Any) -> None:
        """Raise DataError for another value than in an earlier row of the set of samples, or of its problem."""
        of_arm = name in OF_ONE_ARM
        first, row = self._constants.setdefault((group, name, "" if of_arm else problem), (value, number))
        if first == value or (first != first and value != value):
            return
        if of_arm:
            raise self._error(
                number, name, value, f"row {row} has {str(first)[:60]!r}: samples of two policies in one set. Compare the files of "
                f'each, or call the column "arm" ("seed" or "step" if it is one)',
            )  # fmt: skip
        raise self._two_problems(number, problem, name, value, first)

    def _two_problems(self, number: int, problem: str, name: str, value: Any, first: Any) -> DataError:
        return self._error(
            number, name, value, f"an earlier row of problem {problem[:40]!r} has {str(first)[:60]!r}: one id for two problems. "
            "Give each its own id; of several tasks, compare the files of each by themselves, or add \"task\" to the rows",
        )  # fmt: skip

    def _columns(self, number: int, row: Mapping[str, Any]) -> Iterator[Any]:
        """The values of `COLUMNS`."""
        for name in COLUMNS:
            value = row.get(name)
            if value is None or (type(value) is str and name != "cut"):
                yield value
                continue
            try:
                yield sample_field(name, value)
            except ValueError as error:
                raise self._error(number, name, value, str(error)) from error

    def _add_field(self, number: int, problem: str, name: str, value: Any) -> None:
        known = self._more[name]
        if name == "keys":
            if not isinstance(value, dict) or not all(_is_whole(n) and n > 0 for n in value.values()):
                raise self._error(
                    number, name, value, "an object {answer: number of correct samples with that answer} is expected"
                )
            if sum(value.values()) > self._problems[problem][1]:
                raise self._error(number, name, value, "more answers than correct samples (c)")
            known[problem] = value
            return
        if name == "document":
            if isinstance(value, Mapping):
                known.setdefault(problem, value)
            return
        if name == "gold" or name == "prompt":
            text = value if type(value) is str else (messages_text(value) if name == "prompt" else None) or gold_text(value)
            if text is None:
                return  # NaN, as a missing value of a table
            made: str | float = text
        else:
            made = self._cluster(number, value) if name == "cluster" else self._chance(number, value)
        if (first := known.setdefault(problem, made)) == made:
            return
        if name == "gold" and gold_key(str(first)) == gold_key(str(made)):
            return
        if name in ("cluster", "chance"):
            raise self._error(
                number, name, value, f"an earlier row of problem {problem[:40]!r} has {first!r}; give all its rows the same"
            )
        raise self._two_problems(number, problem, name, value, first)

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


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _field(kind: str) -> str:
    return '"n" and "c"' if kind == "counts" else f'"{kind}"'


def span(n: Ints) -> str:
    """ "128", "64 to 1,024"."""
    low, high = int(n.min()), int(n.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
