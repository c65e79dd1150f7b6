"""Tables whose completions a judge has marked (`compare --judge`)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.readers.registry import Choice, Mark, UnmarkedCompletion
from sage_rlvr.verdicts.readers.rows import CountTable


def judged(tables: tuple[CountTable, ...], path: Path, choice: Choice) -> tuple[CountTable, ...]:
    """Return the tables with the marks of a judge as the scores of their completions, and add a sentence on the marks to
    `choice.notes`. Completions without a text are wrong. Raises DataError for a problem without a gold."""
    judge = choice.judge
    assert judge is not None
    made, counts, known = [], Counter[str](), dict[UnmarkedCompletion, Mark]()
    for table in tables:
        every = table.texts or tuple([None] * n for n in table.n)  # no row of the table has a text
        questions = [
            [None if text is None else _completion(table, problem, text, path, choice) for text in texts]
            for problem, texts in zip(table.problems, every, strict=True)
        ]
        asked = dict.fromkeys(one for row in questions for one in row if one is not None and one not in known)
        try:
            known |= zip(asked, judge.marks(list(asked)), strict=True)
        except DataError as error:
            raise DataError(f"{path}: --judge {judge.name}: {error}") from error
        marks = [["no text" if one is None else known[one] for one in row] for row in questions]
        counts.update(mark for row in marks for mark in row)
        right = tuple(np.array([mark == "right" for mark in row], dtype=bool) for row in marks)
        table = replace(table, right=right, c=np.array([int(one.sum()) for one in right], dtype=np.int64))
        if (key := judge.key) is not None and table.answers is None:
            read = tuple([key(text) if text else None for text in texts] for texts in every)
            table = replace(table, answers=read, read_in=judge.name)
        made.append(table)
    choice.used, choice.words = judge.name, f"marked right by --judge {judge.name}"
    rest = ", ".join(f"{counts[mark]:,} {words}" for mark, words in WORDS.items() if counts[mark])
    choice.notes.append(
        f"{path}: --judge {judge.name} marked {counts['right']:,} of {counts.total():,} completions right{rest and f'; {rest}'}."
        + ALL_WRONG * (counts["right"] == 0)
    )
    return tuple(made)


ALL_WRONG = " All wrong: is the answer at another place (boxed, last_number, anywhere), or the gold in another column?"
WORDS = {"no answer": "have no answer at its place", "undecided": "are undecided and count as wrong", "no text": "have no text"}


def _completion(table: CountTable, problem: str, text: str, path: Path, choice: Choice) -> UnmarkedCompletion:
    gold = table.golds.get(problem)
    if gold is None and choice.judge is not None and choice.judge.needs_gold:
        raise DataError(
            f"{path}: --judge {choice.judge.name}: problem {problem[:60]!r} has no gold; name the column of the golds: --fields "
            "id=COLUMN,text=COLUMN,gold=COLUMN"
        )
    return UnmarkedCompletion(problem, text, gold, table.prompts.get(problem))
