"""The register of questions: what was raised by looking at results, which seeds were then run to answer it, and all together.

    question: RLOO+Rarity against RLOO            in words
    a: RLOO+Rarity
    b: RLOO
    metric: distinct in 256 at equal pass@1 near T = 1
    raised_by: {results: rarity, selected: "..."}  a folder with summary.json beside the register, and what was picked there
    asked_of: {results: rarity_again}             the folder of the seeds that were run for it

    python -m sage_rlvr.experiments.register docs/results/register.yaml    prints it (docs/results/register.md)

One rule for all: **the answer is that of the seeds that were run for the question**, by its interval: one question, set
before its seeds were run, needs no correction, whatever else their summary compares and corrects for. The seeds that raised it
were picked because of what they show, so they answer nothing. Both sets together are an estimate, printed for every question
and judged for none.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sage_rlvr.config import decode
from sage_rlvr.errors import DataError
from sage_rlvr.recipes import read
from sage_rlvr.results import Results, compare
from sage_rlvr.results.metric import known_metrics
from sage_rlvr.results.tables import NOT_RUN, Table, table
from sage_rlvr.results.words import told
from sage_rlvr.stats.comparison import Comparison, signed
from sage_rlvr.stats.intervals import Interval
from sage_rlvr.stats.laws import t_ppf

RULE = (
    "The answer is that of the seeds that were run for the question, by its own interval, uncorrected: it is one question. The "
    "set that raised it was selected by what it shows: both sets together are an estimate, printed for every question and "
    "judged for none."
)


COUNTED = {str(metric) for metric in known_metrics() if metric.name == "distinct"}  # answers, not shares


@dataclass(frozen=True, kw_only=True)
class Source:
    """results: a folder with summary.json beside the register. selected: what was picked there, out of how many and how."""

    results: str
    selected: str = ""


@dataclass(frozen=True, kw_only=True)
class Question:
    """One difference, a minus b, as the summaries name it. apart: why the two sets are not put together; "" where they are."""

    question: str
    a: str
    b: str
    metric: str
    raised_by: Source
    asked_of: Source
    apart: str = ""


@dataclass(frozen=True, kw_only=True)
class Register:
    """The file."""

    questions: tuple[Question, ...]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A question with its three intervals over training seeds; `together` is None where the sets are kept apart or one of them
    has no such comparison, `asked` None where the seeds have not been run. outcome: in a word."""

    question: Question
    raised: Interval | None
    asked: Interval | None
    together: Interval | None
    outcome: str


def answers(path: Path) -> tuple[Answer, ...]:
    """Every question of the register with what the summaries beside it say. DataError names what is missing."""
    register = decode(Register, read(path))
    return tuple(_answer(question, path.parent) for question in register.questions)


def _answer(question: Question, folder: Path) -> Answer:
    raised = _comparison(question, folder, question.raised_by.results) if not question.apart else None
    run = (folder / question.asked_of.results / "summary.json").is_file()
    asked = _comparison(question, folder, question.asked_of.results) if run else None
    return Answer(
        question=question, raised=raised and raised.difference, asked=asked and asked.difference,
        together=pooled_seeds([raised.difference, asked.difference]) if raised and asked else None,
        outcome=told(asked.outcome, "training seeds") if asked else NOT_RUN,
    )  # fmt: skip


def _comparison(question: Question, folder: Path, results: str) -> Comparison:
    found = Results.read(folder / results)
    wanted = (found.design.called(question.a), found.design.called(question.b), question.metric)
    rows = compare(found)
    for row in rows:
        if (row.a, row.b, str(row.metric)) == wanted:
            return row.comparison
    known = sorted({f"{row.a} | {row.b}" for row in rows if str(row.metric) == question.metric})
    raise DataError(
        f"{folder / results}: has no comparison of {' | '.join(wanted)}; in that metric it has: {', '.join(known) or 'none'}"
    )


def pooled_seeds(parts: Sequence[Interval]) -> Interval:
    """The interval over all training seeds of several Student intervals over disjoint ones, exactly: each gives its seeds' mean
    and, from its half-width, their standard deviation. DataError for other levels, or one seed alone."""
    if len({part.level for part in parts}) != 1 or any(part.n < 2 or not math.isfinite(part.width) for part in parts):
        raise DataError(f"{', '.join(map(str, parts))}: give intervals of one level over two seeds or more each")
    level, n = parts[0].level, sum(part.n for part in parts)
    mean = sum(part.n * part.value for part in parts) / n
    squares = 0.0
    for part in parts:
        spread = part.width / 2 * math.sqrt(part.n) / float(t_ppf((1 + level) / 2, part.n - 1))
        squares += (part.n - 1) * spread**2 + part.n * (part.value - mean) ** 2
    reach = float(t_ppf((1 + level) / 2, n - 1)) * math.sqrt(squares / (n - 1) / n)
    return Interval(value=mean, low=mean - reach, high=mean + reach, level=level, over=parts[0].over, n=n)


def answers_of(folder: Path) -> dict[str, Any] | None:
    """{"rule", "table"} of the questions that this folder raised or answers, from the register in it or beside it; None where
    there are none."""
    for place in (folder, folder.parent):
        if (file := place / "register.yaml").is_file():
            sets = {one: {one.question.raised_by.results, one.question.asked_of.results} for one in answers(file)}
            found = [one for one, named in sets.items() if place == folder or folder.resolve().name in named]
            return {"rule": RULE, "table": register_table(found)} if found else None
    return None


def register_lines(found: Sequence[Answer]) -> list[str]:
    """The register as a Markdown table, and its rule."""
    return [register_table(found).markdown(), "", RULE]


def register_table(found: Sequence[Answer]) -> Table:
    """One row per question."""
    columns = {
        "question": lambda one: f"{one.question.question}: {one.question.metric}",
        "set that raised it (selected)": lambda one: (
            f"{_cell(one.raised, one.question.metric)} {one.question.raised_by.results}: {one.question.raised_by.selected}".strip()
        ),
        "seeds run for it": lambda one: (
            f"{_cell(one.asked, one.question.metric)} {one.question.asked_of.results}".strip()
        ),
        "answer": lambda one: one.outcome,
        "all seeds together": lambda one: one.question.apart or _cell(one.together, one.question.metric),
    }
    return table(columns, found)


def _cell(found: Interval | None, metric: str) -> str:
    """value (low to high), n seeds; distinct answers with one digit, shares with four."""
    if found is None:
        return ""
    if not math.isfinite(found.value):
        return "cannot be read"
    digits = 2 if metric in COUNTED else 4
    value, low, high = (signed(x, digits) for x in (found.value, found.low, found.high))
    return f"{value} ({low} to {high}, {found.n} seeds)"


__all__ = ["RULE", "Answer", "Question", "Register", "Source", "answers", "pooled_seeds", "register_lines"]


if __name__ == "__main__":
    print("\n".join(register_lines(answers(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/results/register.yaml")))))
