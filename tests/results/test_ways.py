"""The numbers that `benchmarks/ways.py` follows are found from the record to the last line."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from benchmarks.ways import dyed, walk, ways

from sage_rlvr.report import write_summary


@pytest.mark.slow
def test_the_ways_of_a_summary_lead_from_the_record_to_the_markdown(tmp_path: Path) -> None:
    found = walk(ways()[0], partial(write_summary, dyed(tmp_path / "sweep")))
    assert len(found) == 2
    for stays in found.values():
        files = [file for file, _ in stays]
        assert files[0] == files[-1] == "report/build.py"
        assert files.index("evaluation/record.py") < files.index("stats/support.py") < files.index("results/tables.py")
        assert all(one != two for one, two in pairwise(files))
