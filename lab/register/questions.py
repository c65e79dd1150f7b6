"""The register of questions: what was raised by looking at results, which seeds were then run to answer it, and all together.

    question: RLOO+Rarity against RLOO            in words
    a: RLOO+Rarity
    b: RLOO
    metric: {name: distinct, k: 256, at: near}    pass@1, pass@256, or the fields of `results.metric.Metric`
    asked: 2026-11-21                             the date at which it was set
    raised_by: {results: rarity, selected: "..."}  a folder with summary.json beside the register, and what was picked there
    asked_of: {results: rarity_again}             the folder of the seeds that were run for it
    retracted: "2026-11-22: ..."                  of what was taken back: when, what and why

    python -m lab register      prints lab/experiments/register.yaml with its answers

One rule for all: **the answer is that of the seeds that were run for the question**, by its interval. One question, set before
its seeds were run, needs no correction, whatever else their summary compares. Where several were set together, `one of` says how
many, with Holm's p. The seeds that raised a question were picked because of what they show, so they answer nothing. Both sets
together are an estimate, printed where they can be put together and judged for none. What is taken back keeps its row.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path

from sage_rlvr.config import decode
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.recipes import read
from sage_rlvr.results.read import read_results
from sage_rlvr.results.tables import NOT_RUN, Table, table
from sage_rlvr.verdicts.comparisons import answering, compare
from sage_rlvr.verdicts.design import Design
from sage_rlvr.verdicts.design import Question as Asked
from sage_rlvr.verdicts.metric import Metric
from sage_rlvr.verdicts.row import End, Row
from sage_rlvr.verdicts.stats.intervals import Interval
from sage_rlvr.verdicts.stats.laws import t_ppf
from sage_rlvr.verdicts.stats.paired import signed
from sage_rlvr.verdicts.text.words import p_text

RULE = (
    "The answer is that of the seeds that were run for the question, by its own interval, uncorrected. One of: how many tests were "
    "set together for those seeds, this one among them, and Holm's p over those of them that could be read; exploratory: beside "
    "them. The set that raised a question was selected by what it shows: both sets together are an estimate, printed where they "
    "can be put together and judged for none. Retracted: what was said on the question and taken back."
)


@dataclass(frozen=True, kw_only=True)
class Source:
    """results: a folder with summary.json beside the register, "" where no results raised a question. selected: what was picked
    there, out of how many and how; or what else raised it."""

    results: str = ""
    selected: str = ""


@dataclass(frozen=True, kw_only=True)
class Question:
    """One difference, a minus b, as the summaries name it, on their main task. asked: the date at which it was set. apart: why the
    two sets are not put together; "" where they are. retracted: what was said on it and taken back, and why, after the date."""

    question: str
    a: str
    b: str
    metric: Metric
    asked: str
    raised_by: Source
    asked_of: Source
    apart: str = ""
    retracted: str = ""

    def __post_init__(self) -> None:
        if not _is_day(self.asked):
            raise ConfigError(f"asked {self.asked!r}: give the date at which the question was set as YYYY-MM-DD")
        if self.retracted and not _is_day(self.retracted.split(":")[0]):
            raise ConfigError(
                f"retracted {self.retracted!r}: begin with the date, as in 2026-11-24: what was taken back, and why"
            )
        if not self.asked_of.results:
            raise ConfigError(f"asked_of of {self.question!r}: name the folder of the seeds that are run for it")


def _is_day(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


@dataclass(frozen=True, kw_only=True)
class Register:
    """The file. announced: how many tests were set together for seeds that have not been run, by their folder; of those that have
    been run the summary says it."""

    questions: tuple[Question, ...]
    announced: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.announced) - {one.asked_of.results for one in self.questions}):
            raise ConfigError(f"announced {', '.join(unknown)}: no question is asked of it")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A question with its three intervals over training seeds; `together` is None where the sets are kept apart or one of them
    has no such comparison, `asked` None where the seeds have not been run. outcome: in a word. one_of: how many tests were set
    together for those seeds. exploratory: it is not among them. adjusted: Holm's p over them, NaN where it was not tested among
    them."""

    question: Question
    raised: Interval | None
    asked: Interval | None
    together: Interval | None
    outcome: str
    one_of: int = 1
    exploratory: bool = False
    adjusted: float = math.nan


def answers(path: Path) -> tuple[Answer, ...]:
    """Every question of the register with what the summaries beside it say. DataError names what is missing."""
    register = decode(Register, read(path))
    raised = {one.raised_by.results for one in register.questions if one.raised_by.results and not one.apart}
    asked = {one.asked_of.results for one in register.questions}
    run = {name for name in asked if (path.parent / name / "summary.json").is_file()}
    found = {name: _Set.read(path.parent / name) for name in sorted(raised | run)}
    return tuple(_answer(question, register, found) for question in register.questions)


@dataclass(frozen=True, kw_only=True)
class _Set:
    """The comparisons of one summary."""

    folder: Path
    design: Design
    rows: tuple[Row, ...]

    @classmethod
    def read(cls, folder: Path) -> _Set:
        results = read_results(folder)
        return cls(folder=folder, design=results.design, rows=tuple(compare(results)))

    @property
    def announced(self) -> int:
        """The tests of its primary family, also those that could not be read or were discarded."""
        primary = [row for row in self.rows if row.family == "primary"]
        each = Counter(row.a for row in primary if row.a in self.design.candidates)
        return len(primary) + len(self.design.discarded) * max(each.values(), default=0)

    def row(self, question: Question) -> Row:
        """That of a question."""
        design, asked = self.design, Asked(a=question.a, b=question.b, metric=question.metric)
        ((_, found),) = answering(replace(design, questions=(asked,)), self.rows)
        for row in found:
            if row.a == design.called(question.a):
                return row
        known = sorted({f"{row.a} | {row.b}" for row in self.rows if row.metric == question.metric})
        wanted = " | ".join((design.called(question.a), design.called(question.b), str(question.metric)))
        raise DataError(
            f"{self.folder}: has no comparison of {wanted}; in that metric it has: {', '.join(known) or 'none'}"
        )


def _answer(question: Question, register: Register, found: Mapping[str, _Set]) -> Answer:
    before, after = found.get(question.raised_by.results), found.get(question.asked_of.results)
    raised = before.row(question).comparison.difference if before and not question.apart else None
    beside = [one for one in register.questions if one.asked_of.results == question.asked_of.results]
    if after is None:
        one_of = register.announced.get(question.asked_of.results, len(beside))
        return Answer(question=question, raised=raised, asked=None, together=None, outcome=NOT_RUN, one_of=one_of)
    row = after.row(question)
    primary, asked = row.family == "primary", row.comparison.difference
    named = bool(after.design.questions or after.design.baselines)  # else its questions are in words, and here
    in_words = sum(after.row(one).family != "primary" for one in beside)
    return Answer(
        question=question, raised=raised, asked=asked, together=pooled_seeds([raised, asked]) if raised else None,
        outcome=row.comparison.outcome if row.comparison.known else End.CANNOT,
        one_of=after.announced if primary or named else in_words,
        exploratory=named and not primary, adjusted=row.adjusted if primary else math.nan,
    )  # fmt: skip


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


HEAD = """# Questions that were raised by results

Printed by `python -m lab register` from the summaries in `lab/experiments`; questions: `lab/experiments/register.yaml`."""


def page(found: Sequence[Answer]) -> str:
    """The whole page, Markdown."""
    return "\n".join([HEAD, "", *register_lines(found)]) + "\n"


def register_lines(found: Sequence[Answer]) -> list[str]:
    """The register as a Markdown table, and its rule."""
    return [register_table(found).markdown(), "", RULE]


def register_table(found: Sequence[Answer]) -> Table:
    """One row per question."""
    columns = {
        "question": lambda one: f"{one.question.question}: {one.question.metric}",
        "asked": lambda one: one.question.asked,
        "set that raised it (selected)": lambda one: (
            f"{_cell(one.raised, one.question.metric)} {_source(one.question.raised_by)}".strip()
        ),
        "seeds run for it": lambda one: (
            f"{_cell(one.asked, one.question.metric)} {one.question.asked_of.results}".strip()
        ),
        "one of": _one_of,
        "answer": lambda one: one.outcome + f"\nretracted {one.question.retracted}" * bool(one.question.retracted),
        "all seeds together": lambda one: one.question.apart or _cell(one.together, one.question.metric),
    }
    return table(columns, found)


def _source(source: Source) -> str:
    return ": ".join(filter(None, (source.results, source.selected)))


def _one_of(one: Answer) -> str:
    """How many tests were set together, and what that makes of this one."""
    tested = f"; Holm's {p_text(one.adjusted)}" if one.one_of > 1 and math.isfinite(one.adjusted) else ""
    return f"exploratory, beside {one.one_of}" if one.exploratory else f"{one.one_of}{tested}"


def _cell(found: Interval | None, metric: Metric) -> str:
    """value (low to high), n seeds; distinct answers with one digit, shares with four."""
    if found is None:
        return ""
    if not math.isfinite(found.value):
        return "cannot be read"
    digits = 2 if metric.name == "distinct" else 4
    value, low, high = (signed(x, digits) for x in (found.value, found.low, found.high))
    return f"{value} ({low} to {high}, {found.n} seeds)"


__all__ = ["RULE", "Answer", "Question", "Register", "Source", "answers", "pooled_seeds", "register_lines"]
