"""The rows of this package: counts and samples, which every other format is read into."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sage_rlvr.errors import DataError
from sage_rlvr.results.readers.file import RowFile
from sage_rlvr.results.readers.registry import Choice, FileRows, reader

SCORES = {"correct", "score"}


@reader("counts", ("id", "n", "c"), about="one row per problem: samples and correct samples")
def counts(file: RowFile, choice: Choice) -> FileRows:
    """Counts as they are."""
    choice.used = "c of n"
    yield from file.rows()


@reader("samples", ("id", "correct"), ("id", "score"), ("id", "text"), ("id", "answer"), about="one row per completion")
def samples(file: RowFile, choice: Choice) -> FileRows:
    """Samples as they are. Rows with texts and no score are read, so that the error says what is missing. With both scores in a row
    `--correct` names the one that counts; without it they have to agree."""
    chosen = next((name for name in choice.wanted if name in SCORES), "")
    other = "score" if chosen == "correct" else "correct"
    for number, row in file.rows():
        if not row.keys() >= SCORES:
            yield number, row
        elif chosen:
            choice.used = chosen
            kept = dict(row)
            del kept[other]
            yield number, kept
        else:
            _check_agreement(file, number, row, choice.right_from)
            yield number, row


def _check_agreement(file: RowFile, number: int, row: Mapping[str, Any], right_from: float | None) -> None:
    """DataError where "correct" and "score" of a row say different things. A graded score says nothing without a threshold."""
    correct, score = row["correct"], row["score"]
    graded = not isinstance(score, (int, float)) or math.isnan(score) or (right_from is None and score not in (0, 1))
    if correct in (0, 1) and not graded and bool(correct) != (score >= (1 if right_from is None else right_from)):
        raise DataError(
            f"{file.location(number)}: correct = {correct} and score = {score} disagree; name the one that counts: --correct "
            "correct or --correct score"
        )
