"""Readers of evaluations that other programs wrote. Each is one function from a file to rows; `read_evaluation` turns rows into
counts.

    from sage_rlvr.results.readers import reader

    @reader("my_format", ("question_id", "passed"), about="logs of my program")
    def my_format(file, choice):
        for number, tree in file.rows():
            yield number, {"id": tree["question_id"], "correct": tree["passed"]}

A reader is chosen by the content of a file: `needs` are keys of its first row, columns of its table or members of its archive.
Readers of your own are registered by `--plugin FILE.py` or by an entry point of the group `sage_rlvr.readers`.

Read rows.py first (what a row holds, and counts from rows), then file.py (the containers), then any reader.
"""

from __future__ import annotations

from sage_rlvr.registry import gather
from sage_rlvr.results.readers.file import RowFile
from sage_rlvr.results.readers.packaged import packaged
from sage_rlvr.results.readers.registry import READERS, Choice, Floor, RowReader, reader, reader_of, reads
from sage_rlvr.results.readers.rows import CountTable, EvaluationFile, read_evaluation

gather(__name__, READERS)

__all__ = [
    "READERS", "Choice", "CountTable", "EvaluationFile", "Floor", "RowFile", "RowReader", "packaged", "read_evaluation", "reader",
    "reader_of", "reads",
]  # fmt: skip
