"""The row formats of this package: counts and samples, which every other format is read into."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.readers.file import RowFile
from sage_rlvr.verdicts.readers.registry import (
    MAYBE_WORDS,
    Choice,
    FileRows,
    Names,
    flat,
    name_once,
    same_score,
    says_score,
)
from sage_rlvr.verdicts.readers.rows import KNOWN

SCORES = ("correct", "score")


def counts(file: RowFile, choice: Choice) -> FileRows:
    """Counts as they are. Their score is called "correct", as that of samples: c completions are correct."""
    choice.of(["correct"], file.path)
    choice.words = "c of n"
    yield from file.rows()


def samples(file: RowFile, choice: Choice) -> FileRows:
    """Read samples without conversion. Scores are "correct", "score" and other columns and fields of objects with the name of a
    score. If a file has several, `--correct` names the one that counts; without it "correct" and "score" of a row must agree,
    "correct" counts, and any other that differs from it in some row is an error. Rows with texts and no score are read, so that
    the error can count them."""
    if choice.judge is not None:
        yield from file.rows()
        return
    scores = _Scores(file, choice)
    for number, row in file.rows():
        yield number, scores.counting(number, row)
    scores.choose()


class _Scores:
    """The scores of a file while it is read.

    seen: all of them
    maybe: those that are scores only if they are truth values or numbers from 0 to 1, and whether all values so far are
    counted: those that counted in some row
    apart: those of `maybe` that differ from the score that counts"""

    def __init__(self, file: RowFile, choice: Choice) -> None:
        self.file, self.choice = file, choice
        self.seen: dict[str, None] = {}
        self.maybe: dict[str, bool] = {}
        self.counted: dict[str, None] = {}
        self.apart: dict[str, None] = {}
        self._paths: dict[str, Names] = {}
        self._keys: Names = ()
        self._own, self._columns = list[str](), list[str]()

    def counting(self, number: int, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """A row with the score that counts under its name of this package, and without the columns of other scores."""
        if (keys := tuple(row)) != self._keys:
            self._keys = keys
            self._own = [name for name in keys if name in SCORES]
            self._columns = [name for name in keys if _is_another(name, row)]
            self.seen.update(dict.fromkeys(self._own))
        others = self._others(row) if self._columns else {}
        if self.choice.wanted:
            names = [name for name in (*self._own, *others) if name in self.choice.wanted]
        else:
            if len(self._own) == 2:
                _check_agreement(self.file, number, row, self.choice.right_from)
            names = self._own or [name for name in others if name not in self.maybe][:1]
            self._compare(row, names, others)
            if self._own and not others:
                return row
        if self.choice.wanted or not self._own:
            self.choice.used = names[0] if names else self.choice.used  # for errors in this row
        values = {name if name in SCORES else "score": others.get(name, row.get(name)) for name in names}
        return {name: value for name, value in row.items() if name not in SCORES and name not in others} | values

    def choose(self) -> None:
        """Choose the score of the file. Raises DataError for several that differ."""
        known = [name for name in self.seen if self.maybe.get(name, True) or name in self.choice.wanted]
        if self.choice.wanted:
            self.choice.of(known, self.file.path)
        elif self.counted:
            first = "correct" if "correct" in self.counted else next(iter(self.counted))
            self.choice.of([first, *(name for name in self.apart if name in known)], self.file.path)
            self.choice.others = tuple(name for name in known if name != first)

    def _others(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The scores of a row besides "correct" and "score", by name."""
        out: dict[str, Any] = {}
        for path, value in flat({name: row[name] for name in self._columns}):
            name = "/".join(path)
            if not says_score(path[-1]) and name not in self.choice.wanted:
                if not says_score(path[-1], MAYBE_WORDS):
                    continue
                self.maybe[name] = self.maybe.get(name, True) and _is_share(value)
            name_once(path, self._paths, self.file.path)
            self.seen.setdefault(name)
            out[name] = value
        return out

    def _compare(self, row: Mapping[str, Any], counting: list[str], others: Mapping[str, Any]) -> None:
        """Raise DataError for another score that differs from the one that counts; one that is only perhaps a score is noted."""
        if not counting:
            return
        self.counted.update(dict.fromkeys(counting))
        if len(self.counted) > 1 and not {*self.counted} <= {*SCORES}:
            self.choice.of(self.counted, self.file.path)
        value = others.get(counting[0], row.get(counting[0]))
        apart = [name for name, other in others.items() if not same_score(value, other)]
        self.apart.update(dict.fromkeys(name for name in apart if name in self.maybe))
        if sure := [name for name in apart if name not in self.maybe]:
            self.choice.of([*counting, *sure], self.file.path)


def _is_share(value: Any) -> bool:
    """Whether a value is a truth value or a number from 0 to 1, or missing."""
    return value is None or (isinstance(value, (int, float)) and (value != value or 0 <= value <= 1))


def _is_another(name: str, row: Mapping[str, Any]) -> bool:
    """Whether a column is unknown to the format; another spelling of a known column is a separate error."""
    plain = name.strip().casefold()
    return name not in KNOWN and (plain == name or plain not in row)


def _check_agreement(file: RowFile, number: int, row: Mapping[str, Any], right_from: float | None) -> None:
    """Raise DataError if "correct" and "score" of a row disagree. A graded score is ignored without a threshold."""
    correct, score = row["correct"], row["score"]
    graded = not isinstance(score, (int, float)) or math.isnan(score) or (right_from is None and score not in (0, 1))
    if correct in (0, 1) and not graded and bool(correct) != (score >= (1 if right_from is None else right_from)):
        raise DataError(
            f"{file.location(number)}: correct = {correct} and score = {score} disagree; name the one that counts: --correct "
            "correct or --correct score"
        )
