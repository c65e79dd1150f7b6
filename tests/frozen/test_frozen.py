"""The frozen numbers hold, and the synthetic folders can be written from their arrays and read back."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from frozen import folders, freeze


def test_pipelines_agreed_on_every_raw_number_of_one_comparison() -> None:
    rows = [row for row in freeze.read_rows(freeze.HERE / "synthetic.json") if row["row"] == "comparison"]
    first: dict[tuple[object, ...], freeze.Row] = {}
    several = 0
    for row in rows:
        old = first.setdefault(freeze.address(row), row)
        several += old is not row
        known = [name for name in freeze.FIXED if row[name] is not None]
        assert freeze.unlike(old, row, known) == [], freeze.address(row)
    assert several > 70  # of the same comparison by another pipeline


def test_the_synthetic_records_are_those_of_the_arrays(tmp_path: Path) -> None:
    from sage_rlvr.evaluation.record import load_record

    folders.write_sweep(tmp_path)
    with np.load(folders.FIXTURES / "sweep.npz") as data:
        record = load_record(tmp_path / "evaluations" / "sage_branch-s1.npz")
        assert np.array_equal(
            np.concatenate(record.logps[1.0]),
            data["sage_branch-s1/logps"]
            - np.repeat(data["sage_branch-s1/logz"][folders.facts()["temperatures"].index(1.0)], data["sizes"]),
        )
        assert sorted(record.logps) == folders.facts()["temperatures"]
