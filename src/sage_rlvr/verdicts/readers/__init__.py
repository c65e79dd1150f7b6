"""Readers of evaluations that other programs wrote. Each is one function from a file to rows; `read_evaluation` turns rows into
counts.

    from sage_rlvr.verdicts.readers import reader

    @reader("my_format", ("question_id", "passed"), about="logs of my program")
    def my_format(file, choice):
        for number, tree in file.rows():
            yield number, {"id": tree["question_id"], "correct": tree["passed"]}

A reader is chosen by the content of a file: `needs` are keys of its first row, columns of its table or members of its archive.
Other readers are registered by `--plugin FILE.py` or by an entry point of the group `sage_rlvr.readers`.

formats.py lists the formats of other programs. Read rows.py first (the contents of a row, and counts from rows), then evaluation.py
(a file to its counts), file.py (the containers), then any reader.
"""

from __future__ import annotations

from sage_rlvr.verdicts.readers.evaluation import EvaluationFile, read_evaluation, reader_of, reads
from sage_rlvr.verdicts.readers.file import RowFile
from sage_rlvr.verdicts.readers.formats import add_formats
from sage_rlvr.verdicts.readers.registry import (
    READERS,
    AnswerKey,
    Choice,
    CompletionJudge,
    Floor,
    RowReader,
    Unscored,
    reader,
)
from sage_rlvr.verdicts.readers.rows import CountTable

add_formats()

__all__ = [
    "READERS",
    "AnswerKey",
    "Choice",
    "CompletionJudge",
    "CountTable",
    "EvaluationFile",
    "Floor",
    "RowFile",
    "RowReader",
    "Unscored",
    "read_evaluation",
    "reader",
    "reader_of",
    "reads",
]  # fmt: skip
