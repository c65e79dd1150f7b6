"""How often the demo has an answer: the answers of runs made by hand, and draws of problems and samples."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lab.__main__ import main
from lab.demo_power import answers_of, drawn, runs_of
from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.row import End

NARROWED, SAME = "narrowed", "same"


def write(folder: Path, problems: int = 60) -> Path:
    """The base at two temperatures; two seeds of an arm that solves half of the problems always, and of one that is the base."""
    rows = []
    for i in range(problems):
        rows += [{"arm": "base", "temperature": t, "id": f"p{i}", "n": 64, "c": 4 + i % 3} for t in (1.0, 0.5)]
        for seed in (1, 2):
            of_arm = {NARROWED: 64 * (i % 2), SAME: 4 + (i + seed) % 3}
            rows += [
                {"arm": arm, "seed": seed, "temperature": 1.0, "id": f"p{i}", "n": 64, "c": c} for arm, c in of_arm.items()
            ]
    path = folder / "counts.jsonl"
    path.write_text("".join(json.dumps({"task": "t", **row}) + "\n" for row in rows), encoding="utf-8")
    return path


def test_each_seed_is_judged_as_the_demo_judges_its_own(tmp_path: Path) -> None:
    found = {seed: answers_of(rows) for seed, rows in runs_of(write(tmp_path))}
    assert list(found) == [1, 2]
    for answers in found.values():
        assert answers[NARROWED].first == End.HIGHER and answers[NARROWED].last == End.LOWER and answers[NARROWED].is_told
        assert answers[SAME].last not in (End.HIGHER, End.LOWER) and not answers[SAME].is_told


def test_draws_have_the_wanted_problems_and_samples_of_the_stored_ones(tmp_path: Path) -> None:
    (_, rows), *_ = runs_of(write(tmp_path))
    few = drawn(rows, 20, 16, np.random.default_rng(1))
    assert {(row.n, len(set(row.problems))) for row in few} == {(16, 20)} and len({row.problems for row in few}) == 1
    by_arm = {row.arm: row for row in few}
    assert set(by_arm[NARROWED].values.tolist()) == {0, 16}  # all right, or none
    places = [int(name[1:]) % 2 for name in by_arm[NARROWED].problems]
    assert (by_arm[NARROWED].values == 16 * np.array(places)).all()
    for wrong, match in (((61, 16), "--problems 61: 60 different"), ((20, 65), "--samples 65: 64 of each")):
        with pytest.raises(DataError, match=match):
            drawn(rows, *wrong, np.random.default_rng(1))


def test_the_command_counts_answers_by_arm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo-power", str(write(tmp_path)), "--problems", "40", "--draws", "2"]) == 0
    lines = {line.split(" | ")[0].strip("| "): line.split(" | ")[1:] for line in capsys.readouterr().out.splitlines()}
    assert lines[NARROWED][0] == "2 x 2" and lines[NARROWED][-1].startswith("1.00 (0.34 to 1.00)")
    assert lines[SAME][-1].startswith("0.00")
