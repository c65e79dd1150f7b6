"""What two arms are compared by: scores of one kind, at training seeds that were evaluated at the temperature."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from frozen.folders import write_sweep
from sage_rlvr.evaluation.record import load_record, save_record
from sage_rlvr.results.read import read_results
from sage_rlvr.verdicts.comparisons import compare
from sage_rlvr.verdicts.measurements import Measurement, Measurements
from sage_rlvr.verdicts.pairs import ArmPair


def pair(table: Measurements[Measurement], a: str, b: str) -> ArmPair:
    here = table.where(task="")
    return ArmPair(a=a, b=b, why="pair", left=here.where(arm=a), right=here.where(arm=b))


@pytest.mark.slow
def test_a_seed_without_a_temperature_leaves_the_pair_out_there_with_a_note(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "sweep")
    for seed in (1, 2):  # what is left, seed 0, is no row that stands for all
        path = folder / "evaluations" / f"grpo-s{seed}.npz"
        record = load_record(path)
        save_record(record.only([t for t in record.logps if t != 0.3]), path)
    results = read_results(str(folder))
    said = ["no KL and GRPO are not compared at T = 0.3: GRPO has no evaluation there of training seed 1, 2."]
    assert pair(results.table, "no KL", "GRPO").sides(0.3) is None and said[0] in results.notes
    assert len(set(results.notes)) == len(results.notes)
    rows = compare(results)
    pairs = {(row.a, row.b) for row in rows if row.metric.at == "temperature" and row.metric.temperature == 0.3}
    assert pairs and not any("GRPO" in pair for pair in pairs) and pair(results.table, "no KL", "GRPO").sides() is not None
    assert pair(results.table, "no KL", "base").sides(0.3) is not None  # one record of the base stands for all seeds


def test_exact_scores_and_samples_are_no_pair(tmp_path: Path) -> None:
    table = read_results(str(write_sweep(tmp_path / "sweep"))).table.exact()
    sampled = []
    for row in table.where(arm="GRPO").rows:
        named = {"arm": row.arm, "seed": row.seed, "task": row.task, "temperature": row.temperature, "problems": row.problems}
        sampled.append(Measurement(**named, values=row.values.round(), n=1))
    mixed: Measurements[Measurement] = Measurements((*(row for row in table.rows if row.arm != "GRPO"), *sampled))
    assert pair(mixed, "no KL", "GRPO").sides() is None and pair(mixed, "GRPO", "base").sides() is None
    assert pair(mixed, "no KL", "base").sides() is not None


def test_at_k_1_a_comparison_is_made_once_and_counts_once(tmp_path: Path) -> None:
    rows = compare(replace(read_results(str(write_sweep(tmp_path / "sweep"))), k=1))
    made = [(row.a, row.b, row.metric, row.task, row.why) for row in rows]
    assert len(set(made)) == len(made) > 40
    for family in ("primary", "exploratory"):
        sizes = {row.family_size for row in rows if row.family == family and row.family_size}
        assert sizes and max(sizes) <= sum(row.family == family for row in rows)
