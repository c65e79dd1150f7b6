"""`python -m lab summary`: the rows of a sweep that was stored as a whole, and a refusal of one that is not complete."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from lab.__main__ import main
from lab.summary import summary_of
from lab.tests.test_experiments import EXPERIMENTS

WHOLE = EXPERIMENTS / "2026-11-27_smollm2_much_room"
FILES = ("design.yaml", "counts.jsonl", "exact_kl.jsonl")


def by_question(summary: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The rows by what they compare. A summary from counts lacks those at equal raw KL, so the exploratory family is smaller."""
    rows = [row for row in summary["rows"] if row["metric"].get("matched") != "raw KL"]
    names = ("a", "b", "metric", "why", "family")
    return {json.dumps([row[name] for name in names]): row for row in rows}


def test_the_rows_are_those_of_the_stored_summary() -> None:
    stored = by_question(json.loads((WHOLE / "summary.json").read_text(encoding="utf-8")))
    found = by_question(summary_of(WHOLE))
    assert list(found) == list(stored) and len(found) == 35
    for question, row in found.items():
        other = stored[question]
        assert row["outcome"] == other["outcome"] and row["left_out"] == other["left_out"]
        if row["family"] == "primary":
            assert row["adjusted"] == pytest.approx(other["adjusted"], nan_ok=True)
        for name in ("value", "low", "high"):
            assert row["difference"][name] == pytest.approx(other["difference"][name], abs=1e-12, nan_ok=True), question


def test_nothing_is_written_of_an_experiment_that_is_not_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in FILES:
        shutil.copy(WHOLE / name, tmp_path)
    kls = (tmp_path / "exact_kl.jsonl").read_text(encoding="utf-8").splitlines()
    (tmp_path / "exact_kl.jsonl").write_text("\n".join(kls[:-1]), encoding="utf-8")
    last = json.loads(kls[-1])
    assert main(["summary", str(tmp_path)]) == 2
    assert f"no counts or no exact KL of {last['arm']}, training seed {last['seed']}" in capsys.readouterr().err
    (tmp_path / "counts.jsonl").unlink()
    assert main(["summary", str(tmp_path)]) == 2
    assert "no counts.jsonl" in capsys.readouterr().err
    assert not (tmp_path / "summary.json").exists()
