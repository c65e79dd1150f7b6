"""Every stored summary holds what its rows give when they are read and corrected again."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from sage_rlvr.results import Results, compare
from sage_rlvr.results.summary_io import row_tree

SUMMARIES = sorted((Path(__file__).parents[1] / "experiments").glob("*/summary.json"))


@pytest.mark.parametrize("path", SUMMARIES, ids=lambda path: path.parent.name)
def test_rows_are_read_and_corrected_as_they_were_stored(path: Path) -> None:
    stored = json.loads(path.read_text(encoding="utf-8"))
    assert [row_tree(row) for row in compare(Results.read(path.parent))] == stored["rows"]


def test_no_stored_row_has_changed() -> None:
    """The hashes were taken when the summaries were rewritten to one format: a change of a stored number is a change here."""
    wanted = json.loads((Path(__file__).with_name("summary_hashes.json")).read_text(encoding="utf-8"))
    found = {path.parent.name: hash_of_rows(path) for path in SUMMARIES}
    assert found == wanted and len(found) >= 51


def hash_of_rows(path: Path) -> str:
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:16]
