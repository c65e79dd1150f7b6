"""Which problems a folder is read on, and what a second evaluation of one run counts."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from frozen.folders import write_sweep
from sage_rlvr.errors import DataError
from sage_rlvr.evaluation.record import load_record, save_record
from sage_rlvr.results.read import read_results
from sage_rlvr.verdicts.comparisons import compare


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_sweep(tmp_path / "sweep")


@pytest.mark.slow
def test_a_sweep_on_validation_problems_is_read_on_them(folder: Path) -> None:
    whole = read_results(str(folder))
    facts = json.loads((folder / "design.json").read_text())
    facts["evaluate"]["split"] = "validation"
    (folder / "design.json").write_text(json.dumps(facts))
    for file in (folder / "evaluations").glob("*.npz"):
        record = load_record(file)
        save_record(replace(record, meta={**record.meta, "split": "validation"}), file)
    found = read_results(str(folder))
    assert found.notes == whole.notes and set(found.records) == set(whole.records)
    assert [row.comparison for row in compare(found)] == [row.comparison for row in compare(whole)]
    assert not read_results(str(folder), split="test").table.where(arm="GRPO").rows  # test problems were asked for


def test_a_k_of_no_samples_is_refused(folder: Path) -> None:
    with pytest.raises(DataError, match="k = 0: pass@k needs k >= 1"):
        read_results(str(folder), k=0)


def test_a_run_of_a_sweep_that_was_evaluated_by_itself_too_is_one_seed(folder: Path) -> None:
    shutil.copy(folder / "evaluations" / "grpo-s0.npz", folder / "runs" / "grpo-s0" / "evaluation-test.npz")
    assert read_results(str(folder)).table.where(arm="GRPO", task="").seeds == (0, 1, 2)


@pytest.mark.slow
def test_the_seeds_of_a_control_that_is_named_are_paired_with_those_of_the_others(folder: Path) -> None:
    """Every seed with its own, as the sweep compares them; the first record of the control once stood for all of its seeds."""

    def named(arm: str, name: str) -> str:
        return f"{name}=" + ",".join(str(folder / "evaluations" / f"{arm}-s{seed}.npz") for seed in (0, 1, 2))

    found = read_results(named("grpo", "GRPO"), named("sage_branch", "SAGE-Branch"), apart=True)
    whole = {(row.a, row.b, row.metric): row.comparison for row in compare(read_results(str(folder))) if not row.task}
    rows = [row for row in compare(found) if (row.a, row.b, row.metric) in whole]
    assert {row.metric.k for row in rows} >= {1, found.k}
    assert all(row.comparison == whole[row.a, row.b, row.metric] for row in rows)
    assert found.design.base is None and found.table.where(arm="GRPO", task="").seeds == (0, 1, 2)
    alone = read_results(str(folder / "evaluations" / "base.npz"), named("grpo", "GRPO"), apart=True)
    assert alone.design.base == "base"  # one record for all seeds of the other
