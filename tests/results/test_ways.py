"""The numbers that `benchmarks/ways.py` follows are found from the record to the last line, by the calls that make them."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from benchmarks.ways import MADE_IN, ROOT, climbs, count


@pytest.mark.slow
def test_the_ways_lead_from_the_record_to_what_is_shown_and_the_page_says_how_long_they_are(tmp_path: Path) -> None:
    found, page = count(tmp_path), (ROOT / "docs/architecture.md").read_text("utf-8")
    assert list(found) == ["a summary: pass@k", "a summary: a difference", "the page: pass@k", "the page: a band of differences"]
    for name, stays in found.items():
        files, calls = [file for file, _ in stays], {function for _, function in stays}
        assert files[0] == ("report/build.py" if name.startswith("a summary") else "cli/page.py")
        assert files[-1] == "report/build.py"
        assert files.index("evaluation/record.py") < stays.index(MADE_IN["p"]) < stays.index(MADE_IN["pass@"])
        assert "reachable" not in calls  # of one sample it comes to p, and no way reads it
        assert all(one != two for one, two in pairwise(files))
        assert re.search(rf"^\| {name} \| {len(stays)} \(\d+\) \| {climbs(stays)} \(\d+\) \|$", page, re.MULTILINE)
