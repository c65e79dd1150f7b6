"""The rows of this package: counts and samples, which every other format is read into."""

from __future__ import annotations

from sage_rlvr.results.readers.file import RowFile
from sage_rlvr.results.readers.registry import Choice, FileRows, reader


@reader("counts", ("id", "n", "c"), about="one row per problem: samples and correct samples")
def counts(file: RowFile, choice: Choice) -> FileRows:
    """Counts as they are."""
    choice.used = "c of n"
    yield from file.rows()


@reader("samples", ("id", "correct"), ("id", "score"), ("id", "text"), ("id", "answer"), about="one row per completion")
def samples(file: RowFile, choice: Choice) -> FileRows:
    """Samples as they are. Rows with texts and no score are read, so that the error says what is missing."""
    yield from file.rows()
