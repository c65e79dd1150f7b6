"""`python -m lab summary`: the rows of a sweep that was stored as a whole, and a refusal of one that is not complete."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.__main__ import main
from lab.tests.test_experiments import EXPERIMENTS
from sage_rlvr.results import Results, compare
from sage_rlvr.results.summary_io import row_tree

WHOLE = EXPERIMENTS / "2026-11-27_smollm2_much_room"
FILES = ("design.yaml", "counts.jsonl", "exact_kl.jsonl")


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """What is left of an experiment without its stores."""
    for name in FILES:
        shutil.copy(WHOLE / name, tmp_path)
    return tmp_path


def by_question(summary: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The rows by what they compare, without those at equal raw KL."""
    rows = [row for row in summary["rows"] if row["metric"].get("matched") != "raw KL"]
    names = ("a", "b", "metric", "why", "family")
    return {json.dumps([row[name] for name in names]): row for row in rows}


def close(tree: Any) -> Any:
    """Numbers within 1e-12, all else equal."""
    if isinstance(tree, dict):
        return {name: close(value) for name, value in tree.items()}
    if isinstance(tree, list):
        return [close(value) for value in tree]
    return pytest.approx(tree, abs=1e-12) if isinstance(tree, float) else tree


def test_the_rows_are_those_of_the_stored_summary(experiment: Path) -> None:
    """The exploratory family has 33 comparisons, for three at equal raw KL are missing."""
    whole = json.loads((WHOLE / "summary.json").read_text(encoding="utf-8"))
    assert main(["summary", str(experiment)]) == 0
    made = json.loads((experiment / "summary.json").read_text(encoding="utf-8"))
    stored, found = by_question(whole), by_question(made)
    assert list(found) == list(stored) and len(found) == 35 == len(whole["rows"]) - 3
    for question, row in found.items():
        of_family = {"adjusted", "family_size"} if row["family"] == "exploratory" else set()
        assert {name: row[name] for name in row.keys() - of_family} == close(
            {name: stored[question][name] for name in stored[question].keys() - of_family}
        ), question
    assert {row["family_size"] for row in found.values() if row["adjusted"] is not None} == {2, 33}
    for arm, values in made["arms"].items():
        assert values == close({name: whole["arms"][arm][name] for name in values})
        assert "kl_exact" in values and "grad_norm" in whole["arms"][arm]
    (task,) = whole["chance"]
    assert sorted(made["chance"][task]["each"]) == close(sorted(whole["chance"][task]["each"]))
    for one, other in zip(made["sampled"], whole["sampled"], strict=True):
        unknown = {"no_answer_frac", "cut_frac", "undecided_frac"}
        assert all(one[name] is None for name in unknown)
        assert {name: one[name] for name in one.keys() - unknown} == close({name: other[name] for name in one.keys() - unknown})
    assert [row_tree(row) for row in compare(Results.read(experiment))] == made["rows"]
    assert any("are not known" in note for note in made["left_out"])


def test_a_summary_that_is_there_stays(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (experiment / "summary.json").write_text("{}")
    assert main(["summary", str(experiment)]) == 2
    assert "is there already" in capsys.readouterr().err and (experiment / "summary.json").read_text() == "{}"


def colder(row: dict[str, Any]) -> dict[str, Any]:
    """One run at another temperature."""
    return row | {"temperature": 0.7} if (row["arm"], row.get("seed")) == ("GRPO, k3", 1000) else row


Rows = list[dict[str, Any]]
INCOMPLETE: dict[str, tuple[str, Callable[[Rows], Rows]]] = {
    "no exact KL of GRPO, k3_is, beta 0.05, training seed 1004;": ("exact_kl.jsonl", lambda rows: rows[:-1]),
    "no counts of base, T = 0.4;": ("counts.jsonl", lambda rows: [row for row in rows if row["temperature"] != 0.4]),
    "no counts of GRPO, k3, training seed 1000;": ("counts.jsonl", lambda rows: list(map(colder, rows))),
    "base has 32 samples of 200 problems, not 64 of 200;": (
        "counts.jsonl", lambda rows: [row | {"n": 32, "c": row["c"] // 2} for row in rows],
    ),
    "another, training seed 1000 is not in design.yaml;": (
        "counts.jsonl", lambda rows: rows + [row | {"arm": "another", "seed": 1000} for row in rows[:200]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("said", INCOMPLETE)
def test_nothing_is_written_of_an_experiment_that_is_not_complete(
    said: str, experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, change = INCOMPLETE[said]
    rows = [json.loads(line) for line in (WHOLE / name).read_text(encoding="utf-8").splitlines()]
    (experiment / name).write_text("".join(json.dumps(row) + "\n" for row in change(rows)), encoding="utf-8")
    assert main(["summary", str(experiment)]) == 2
    assert said in capsys.readouterr().err and not (experiment / "summary.json").exists()
    (experiment / name).unlink()
    assert main(["summary", str(experiment)]) == 2
    assert f"no {name}; give" in capsys.readouterr().err
