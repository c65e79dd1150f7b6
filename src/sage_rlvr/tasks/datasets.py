r"""Rows of a data set as problems with a gold answer: one reader for train, audit, eval and verify.

    rows (`sage_rlvr.tasks.rows`) -> columns -> problem, gold, id

The problem: problem or question, then prompt. The gold: one of `ANSWERS`, or else the end of a worked solution, read by
`sage_rlvr.verifiers.golds`. A message names the columns: "gold: answer, after ####".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.tasks.prompts import Message
from sage_rlvr.tasks.rows import DataRow, DataRows, DataSource, read, stamp_of, value_at
from sage_rlvr.verifiers.golds import GSM8K, MARK, gold_of

PROBLEMS = ("problem", "question")  # plain problems
PROMPTS = ("prompt",)  # problems as a trainer's prompts, often wrapped in an instruction
ANSWERS = ("answer", "gold", "ground_truth", "expected_answer", "reward_model.ground_truth")
SOLUTIONS = ("solution", "generated_solution")
COMPLETIONS = ("completion", "response")
IDS = ("id", "unique_id")


# ---- values


def problem_of(value: Any) -> str | list[Message]:
    """A problem as text, or as messages of text. Raises ValueError, in words, for anything else."""
    if isinstance(value, str):
        if not value.strip():
            raise ValueError("the problem is empty")
        return value
    if not isinstance(value, list):
        raise ValueError("the problem is missing" if value is None else f"{value!r:.60} is no text and no messages")
    if not value:
        raise ValueError("the list of messages is empty")
    return [_message(message) for message in value]


def _message(message: Any) -> Message:
    if not (isinstance(message, Mapping) and isinstance(message.get("role"), str)):
        raise ValueError(f"{message!r:.60} is no message with role and content")
    content = message.get("content")
    if isinstance(content, list):
        if not all(isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in content):
            raise ValueError("a message has parts that are no text (images are not read)")
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str) or not content.strip():
        raise ValueError(f"the {message['role']}'s message is empty")
    return {"role": message["role"], "content": content}


def worked_of(value: Any) -> str:
    """A worked solution, without the last line in which GSM8K gives its answer."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("the solution is missing" if not value else f"{value!r:.60} is no text")
    return MARK.sub("", value).strip()


# ---- columns


def column_of(
    data: DataSource, rows: DataRows, role: str, groups: Sequence[Sequence[str]], given: str | None = None
) -> tuple[str, ...]:
    """The columns of a role: the named one, or else those of the first group with any existing column.

    Several of a group are one if they agree in every row with both, and the first one in a row is read; otherwise a ConfigError
    names both.
    """
    columns = rows.columns()
    wanted = [name for group in groups for name in group]
    if given is not None and given not in columns:
        raise _no_column(data, rows, role, wanted, given)
    if given is not None:
        return (given,)
    for group in groups:
        present = tuple(name for name in group if name in columns)
        for other in present[1:]:
            for row, location in zip(rows.rows, rows.locations, strict=True):
                both = value_at(row, present[0]), value_at(row, other)
                if None not in both and str(both[0]) != str(both[1]):
                    raise ConfigError(
                        f"{rows.name}: the columns {present[0]} and {other} could both be the {role}, and differ at {location}; "
                        f"{data.mend(role)} ({', '.join(wanted)} are looked for)"
                    )
        if present:
            return present
    raise _no_column(data, rows, role, wanted)


def _no_column(data: DataSource, rows: DataRows, role: str, wanted: Sequence[str], given: str | None = None) -> ConfigError:
    columns = rows.columns()
    requested = [given] if given else wanted
    near = next((match for name in requested for match in get_close_matches(name, columns, 1)), None)
    what = f"{data.option(role + '_column')} = {given!r}: no such column" if given else f"no column for the {role}"
    hint = "" if near is None else f"; did you mean {near!r}?"
    how = "" if given and near else f"; accepted are {', '.join(wanted)}; or {data.mend(role)}"
    return ConfigError(f"{rows.name}: {what} (its columns: {', '.join(columns)}){hint}{how}")


class Faults:
    """Faults of rows, collected so that one message shows how many there are. Each reader of rows makes one, and calls `report`."""

    def __init__(self, data: DataSource) -> None:
        self.data = data
        self.found: list[str] = []

    def read(
        self, row: DataRow, location: str, columns: Sequence[str], read_value: Callable[[Any], Any], default: Any = ""
    ) -> Any:
        """read_value of the first of the columns that the row has; a ValueError is collected, and the result is `default`."""
        column = next((name for name in columns if value_at(row, name) is not None), columns[0])
        try:
            return read_value(value_at(row, column))
        except ValueError as error:  # a SageError is one
            self.found.append(f"{location}, column {column}: {error}")
            return default

    def report(self, count: int) -> None:
        """Raise DataError with the first eight faults, if there are any; count: rows that were checked."""
        if self.found:
            more = f"\n  and {len(self.found) - 8} more" if len(self.found) > 8 else ""
            columns = ", ".join(self.data.option(f"{role}_column") for role in ("problem", "answer"))
            other = f", or name other columns ({columns})" if self.data.key else ""
            raise DataError(
                f"{len(self.found)} of {count} rows cannot be used:\n  " + "\n  ".join(self.found[:8]) + more
                + f"\nMend or leave out those rows{other}."
            )  # fmt: skip


# ---- examples


@dataclass(frozen=True, slots=True)
class Example:
    """A row for training, audits and evaluation. `examples` makes it. row: the row itself; location: its place."""

    problem_id: str
    problem: str | list[Message]
    answer: str
    row: DataRow
    location: str


@dataclass(frozen=True)
class Examples:
    """All rows of a data set as examples. `examples` makes it; mathematics, `jsonl`, SFT and audits read it.

    problem, gold: the columns that were used, gold () for none. where: how many golds were "after ####", "in the last \\boxed{}"
        or, "", the full value.
    """

    rows: DataRows
    examples: tuple[Example, ...]
    problem: tuple[str, ...]
    gold: tuple[str, ...]
    where: Counter[str]

    @property
    def taken(self) -> str:
        """The columns that were used, and the places of the golds in them."""
        gold = f"; {gold_words(self.gold, self.where)}" if self.gold else ""
        return f"problem: {' or '.join(self.problem)}{gold}"

    def __str__(self) -> str:
        return f"{self.rows.name}: {len(self.examples):,} rows; {self.taken}"


def gold_words(columns: tuple[str, ...], where: Counter[str]) -> str:
    """"gold: answer, after ####": the columns, and the places of golds that were not the full value."""
    total = sum(where.values())
    locations = [f"{location}{'' if n == total else f' in {n:,} rows'}" for location, n in where.items() if location]
    return f"gold: {', '.join([' or '.join(columns), *locations])}"


def examples(
    data: DataSource,
    *,
    prompts_first: bool = False,
    golds: bool | None = True,
    convert: Callable[[str | list[Message]], Any] = lambda problem: problem,
) -> Examples:
    """The rows of `data` as examples. Ids: id or unique_id, else the row's number from 0; they must differ.

    prompts_first: prompt takes precedence over problem. golds: False for none, None if rows need not have one. convert: applied to
        each problem; may raise ValueError. Raises ConfigError for paths and columns, DataError for rows.
    """
    rows = read(data)
    by_need = (PROMPTS, PROBLEMS) if prompts_first else (PROBLEMS, PROMPTS)
    problem = column_of(data, rows, "problem", by_need, data.problem_column)
    there = golds or (golds is None and not set(ANSWERS).isdisjoint(rows.columns()))
    answer = column_of(data, rows, "answer", (ANSWERS, SOLUTIONS), data.answer_column) if there else ()
    faults, made, where = Faults(data), [], Counter[str]()
    for name, row, location in zip(ids_of(rows), rows.rows, rows.locations, strict=True):
        text = faults.read(row, location, problem, lambda value: convert(problem_of(value)))
        gold, stood = "", ""
        if answer and (golds or any(value_at(row, name) is not None for name in answer)):
            gold, stood = faults.read(row, location, answer, gold_of, ("", ""))
        where[stood] += 1
        made.append(Example(name, text, gold, row, location))
    faults.report(len(made))
    return Examples(rows, tuple(made), problem, answer, where)


def remembered(data: DataSource, prompts_first: bool = False, golds: bool | None = True) -> Examples:
    """`examples`, cached for the most recent sources; a changed file is read again."""
    return _remembered(data, prompts_first, golds, stamp_of(Path(data.path).expanduser()))


@lru_cache(maxsize=16)
def _remembered(
    data: DataSource, prompts_first: bool, golds: bool | None, stamp: tuple[int, int] | None
) -> Examples:
    # stamp is only a part of the cache's key: without it the old contents of a changed file would be returned
    return examples(data, prompts_first=prompts_first, golds=golds)


def ids_of(rows: DataRows) -> list[str]:
    """The id of each row; raises DataError if one is missing or occurs twice."""
    column = next((name for name in IDS if name in rows.columns()), None)
    if column is None:
        return [str(number) for number in range(len(rows.rows))]
    first: dict[str, str] = {}
    for row, location in zip(rows.rows, rows.locations, strict=True):
        value = value_at(row, column)
        if value is None:
            raise DataError(f"{location}, column {column}: the id is missing; give every row one, or none")
        if str(value) in first:
            raise DataError(
                f"{location}, column {column}: {str(value)!r} is there already at {first[str(value)]}; ids must differ, so drop "
                "the repeated rows (or that column, for numbers in its place)"
            )
        first[str(value)] = location
    return list(first)


def worked_solutions(data: DataSource, loaded: Examples) -> list[str]:
    """The worked solution of each row, for fine-tuning. Raises ConfigError without exactly one such column."""
    rows, columns = loaded.rows, loaded.rows.columns()
    present = tuple(name for name in SOLUTIONS if name in columns)
    if not present and loaded.where[GSM8K]:
        present = loaded.gold
    if len(present) != 1:
        raise ConfigError(
            f"{rows.name}: fine-tuning needs one column of worked solutions ({' or '.join(SOLUTIONS)}), found "
            f"{' and '.join(present) or 'none'} among {', '.join(columns)}; rename or add it"
        )
    faults = Faults(data)
    made = [faults.read(row, at, present, worked_of) for row, at in zip(rows.rows, rows.locations, strict=True)]
    faults.report(len(made))
    return made


def completions(path: Path) -> tuple[list[tuple[str, str, str]], str]:
    """(id, completion, gold) of each row of a file of answers: completion or response, and a gold under its usual names; and the
    columns that were used, in words."""
    data = DataSource(path=str(path))
    rows, faults, made, where = read(data), Faults(data), [], Counter[str]()
    columns = column_of(data, rows, "completion", (COMPLETIONS,))
    gold = column_of(data, rows, "answer", (ANSWERS, SOLUTIONS))
    for row, location in zip(rows.rows, rows.locations, strict=True):
        name = next((str(row[i]) for i in IDS if row.get(i) is not None), re.split(r":|, row ", location)[-1])
        text = faults.read(row, location, columns, _completion)
        gold_text, stood = faults.read(row, location, gold, gold_of, ("", ""))
        where[stood] += 1
        made.append((name, text, gold_text))
    faults.report(len(made))
    return made, f"{rows.name}: {len(made):,} rows; completion: {' or '.join(columns)}; {gold_words(gold, where)}"


def _completion(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{value!r:.60}; one text or number is expected")
    return str(value)
