"""What two arms are compared by: scores of one kind, at training seeds that were evaluated at the temperature."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from frozen.folders import write_sweep
from sage_rlvr.evaluation.record import load_record, save_record
from sage_rlvr.results.comparisons import compare, sides
from sage_rlvr.results.read import Results
from sage_rlvr.results.scores import Scores


def test_a_seed_without_a_temperature_leaves_the_pair_out_there_with_a_note(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "sweep")
    for seed in (1, 2):  # what is left, seed 0, is no row that stands for all
        path = folder / "evaluations" / f"grpo-s{seed}.npz"
        record = load_record(path)
        save_record(record.only([t for t in record.logps if t != 0.3]), path)
    results = Results.read(str(folder))
    said = ["no KL and GRPO are not compared at T = 0.3: GRPO has no evaluation there of training seed 1, 2."]
    assert sides(results, "no KL", "GRPO", temperature=0.3) is None and results.notes[-1:] == said
    assert sides(results, "no KL", "GRPO", temperature=0.3) is None and results.notes.count(said[0]) == 1
    rows = compare(results)
    pairs = {(row.a, row.b) for row in rows if row.metric.at == "temperature" and row.metric.temperature == 0.3}
    assert pairs and not any("GRPO" in pair for pair in pairs) and sides(results, "no KL", "GRPO") is not None
    assert sides(results, "no KL", "base", temperature=0.3) is not None  # one record of the base stands for all seeds


def test_exact_scores_and_samples_are_no_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, inner = Results.read(str(write_sweep(tmp_path / "sweep"))), Results.scores

    def scores(self: Results, arm: str, *rest: object) -> Scores | None:
        found = inner(self, arm, *rest)  # type: ignore[arg-type]
        return replace(found, values=found.values.round(), n=1) if found and arm == "GRPO" else found

    monkeypatch.setattr(Results, "scores", scores)
    before = list(results.notes)
    assert sides(results, "no KL", "GRPO") is None and sides(results, "GRPO", "base") is None
    assert sides(results, "no KL", "base") is not None and results.notes == before
