"""`python -m lab counts`: what it prints of a sweep, and what it says of a folder without it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from lab import counts
from lab.__main__ import main
from sage_rlvr.api.compare import compare
from sage_rlvr.verdicts.sources import TrainingRun


def test_the_seconds_of_a_run_are_those_of_its_steps(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    steps = [{"step": 0, "time/step_s": 1.4}, {"step": 1, "time/step_s": 2.4}]
    trained, not_begun = TrainingRun(arm="a", seed=0, metrics=steps), TrainingRun(arm="a", seed=1)
    runs = {("a", 0): trained, ("a", 1): not_begun}
    found = SimpleNamespace(runs=runs, design=SimpleNamespace(called=lambda arm: "GRPO"))
    monkeypatch.setattr(counts, "read_results", lambda folder: found)
    assert main(["counts", "anywhere", "--cost"]) == 0
    assert json.loads(capsys.readouterr().out) == {"arm": "GRPO", "seed": 0, "steps": 2, "seconds": 4}
    runs.clear()
    assert main(["counts", "anywhere", "--cost"]) == 2
    assert "anywhere: no training time; give the folder of a sweep with its runs" in capsys.readouterr().err


def test_the_counts_of_the_repository_are_compared_as_they_stand() -> None:
    """The base is first, because the first policy of a file is the control. Only complete experiments are compared: a failing test
    would print what nobody may read yet."""
    files = sorted((Path(__file__).parents[1] / "experiments").glob("*/counts.jsonl"))
    assert len(files) >= 2
    for file in files:
        with file.open(encoding="utf-8") as lines:
            assert json.loads(next(lines))["arm"] == "base", file
    complete = [file for file in files if (file.parent / "summary.json").is_file()]
    assert "training seeds" in str(compare(complete[-1], task="countdown_chat"))


def test_one_kind_of_rows_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["counts", str(tmp_path), "--kl", "--cost"]) == 2
    assert "--kl, --forms and --cost print different rows" in capsys.readouterr().err
