"""Every stored summary holds what its rows give when they are read and corrected again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sage_rlvr.results import Results, compare
from sage_rlvr.results.stored import row_tree

SUMMARIES = sorted((Path(__file__).parents[1] / "experiments").glob("*/summary.json"))


@pytest.mark.parametrize("path", SUMMARIES, ids=lambda path: path.parent.name)
def test_rows_are_read_and_corrected_as_they_were_stored(path: Path) -> None:
    stored = json.loads(path.read_text(encoding="utf-8"))
    assert [row_tree(row) for row in compare(Results.read(path.parent))] == stored["rows"]


def test_there_are_summaries() -> None:
    assert len(SUMMARIES) >= 51
