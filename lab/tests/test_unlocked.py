"""Problems that RL unlocked: the page is made by its command, halves with shared seeds by hand, a table of others' counts."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from lab.__main__ import main
from lab.room.cohort import Cohort, Run
from lab.room.command import LAB_PAGES
from lab.unlocked import Pair, cells_table, false_table, released_table, tables
from sage_rlvr.errors import DataError


def table_of(page: str, name: str) -> str:
    text = (LAB_PAGES / "results" / page).read_text(encoding="utf-8")
    return text.partition(f"<!-- {name}:begin -->\n")[2].partition(f"\n<!-- {name}:end -->")[0]


def test_the_page_is_made_by_the_command():
    for name, made in tables().items():
        assert table_of("unlocked.md", name) == made
    shown = table_of("coverage.md", "unlocked").splitlines()[2:]
    assert [line.split(" | ")[:4] for line in shown] == [
        line.split(" | ")[:4] for line in false_table(1).markdown().splitlines()[2:]
    ]


def cohort_of(before: np.ndarray, after: np.ndarray) -> Cohort:
    """One run of each cell: (cells, N, G, K) answers."""
    runs = tuple(Run("level1", "small", f"domain {i}", "grpo", 0) for i in range(len(before)))
    return Cohort(runs=runs, before=before, after=after, printed=np.zeros((len(before), 2)))


def test_released_runs_are_read_from_all_halves_of_their_answers():
    """The base's columns are those of `stratified`; an arm with the base's own answers at the same seeds gains nothing, exactly."""
    rng = np.random.default_rng(0)
    first = (rng.random((3, 40, 1, 8)) < rng.beta(0.5, 1, (3, 40, 1, 1))).astype(int)
    made = released_table(cohort_of(first, first))
    assert [row[8] for row in made.rows[:3]] == [row[5] for row in made.rows[:3]]
    assert {row[9].split(" ")[0] for row in made.rows[:3]} == {"0.000"}
    n = np.full((1, 40), 8)
    found = [Pair("", 8, one[:, 0].sum(-1)[None], n).gained().strata for one in first]
    for s, row in enumerate(made.rows[:3]):
        again, same, share = (np.mean([getattr(one[s], name) for one in found]) for name in ("again", "same", "share"))
        assert (row[8], row[6], row[3]) == (f"{again:.3f}", f"{same:.3f}", f"{share:.2f}")


CELLS = "benchmark,pair,arm,model,task_id,n,c\n"


def write_cells(path: Path, extra: str = "") -> Path:
    rows = [f"bfcl,tiny,{arm},m,t{i},8,{c if i % 2 else 0}\n" for arm, c in (("base", 8), ("rl", 4)) for i in range(40)]
    path.write_bytes(gzip.compress((CELLS + "".join(rows) + extra).encode()))
    return path


def test_counts_of_others_have_one_row_per_benchmark_and_pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (row,) = cells_table(write_cells(tmp_path / "a.csv.gz", "bfcl,alone,rl,m,t1,8,1\n")).rows
    assert row[:6] == ("bfcl, tiny", "0 of 4", "0.50", "2", "0.000", "0.000")
    for extra, message in (
        ("bfcl,tiny,rl,m,t99,8,1\n", "different tasks"), ("bfcl,tiny,rl,m,t1,8,9\n", "line 82: c = 9"),
        ("bfcl,tiny,rl,m,t1,8,x\n", "whole numbers"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=message):
            cells_table(write_cells(tmp_path / "b.csv.gz", extra))
    (tmp_path / "c.csv").write_text("task_id,n,c\n")
    with pytest.raises(DataError, match="no column 'benchmark'"):
        cells_table(tmp_path / "c.csv")
    assert main(["unlocked", "--cells", str(tmp_path / "none.csv")]) == 2
    assert "cannot be read as a table of counts" in capsys.readouterr().err
