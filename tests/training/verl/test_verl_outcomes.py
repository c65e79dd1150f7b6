"""Why completions earned nothing on verl: what is logged of each, metrics, and a warning's way to run.json. Needs no verl."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sage_rlvr.runs import RunDir
from sage_rlvr.tasks.base import NO_ANSWER
from sage_rlvr.training.verl.judge import Judge, Outcomes, logged
from sage_rlvr.training.verl.problems import Named, chosen, export
from sage_rlvr.training.verl.warned import heard, tell
from sage_rlvr.verifiers.reasons import ReasonWatch

TEXTS = ("It is 2.", "It is 9.", r"\boxed{2}", f"It is{NO_ANSWER}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [{"problem": f"{i} and {i}?", "answer": str(2 * i)} for i in (1, 2)]
    (tmp_path / "my.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    named = Named.of(str(tmp_path / "my.jsonl"))
    export(named, tmp_path / "out", chosen(named.task(), say=lambda line: None, splits=("train",)), talks=True)
    return tmp_path / "out"


def rows_of(folder: Path) -> list[dict[str, Any]]:
    judge, place = Judge(folder), {"split": "train", "index": 0}
    return [logged(judge("train", 0, text), place, text) for text in TEXTS]


def test_each_completion_is_logged_and_a_step_has_metrics_and_a_warning(folder: Path) -> None:
    rows = rows_of(folder)
    assert [(row["acc"], row["no_answer"], row["cut"]) for row in rows] == [(0, 1, 0), (0, 1, 0), (1, 0, 0), (0, 1, 1)]
    assert [bool(row["unanswered"]) for row in rows] == [True, True, False, False]
    told: list[tuple[str, int, str]] = []
    outcomes = Outcomes(folder, ReasonWatch(lambda *said: told.append(said)))
    found = outcomes.see(0, rows)
    assert found == {"verifier/no_answer_frac": 0.75, "verifier/undecided_frac": 0.0, "completions/unfinished_frac": 0.25}
    ((kind, step, sentence),) = told
    assert (kind, step) == ("no answer", 0) and r"no answer in \boxed{} in 3 of 4 completions" in sentence
    assert "of 2 such texts 2 have one as the last number, 1 of them right: set answer_in: last_number" in sentence
    outcomes.see(1, rows)
    assert len(told) == 1


def test_another_reward_manager_has_no_such_metrics(folder: Path) -> None:
    assert Outcomes(folder).see(0, [{"acc": 1.0}]) == {} == Outcomes(None).see(0, rows_of(folder)) == Outcomes(folder).see(0, [])


def test_a_warning_of_the_driver_is_kept_in_the_record(tmp_path: Path, capsys: Any) -> None:
    tell("no answer", 3, 'step 3: no answer in \\boxed{} — "here"')
    line = capsys.readouterr().out
    said = tmp_path / "said.txt"
    said.write_text(f"(TaskRunner pid=7) {line}half of a line")
    with RunDir.open(tmp_path / "run", {"steps": 2}) as run, pytest.warns(UserWarning, match="step 3: no answer"):
        read = heard(said, 0, run)
        assert read == len(said.read_bytes()) - len("half of a line") and heard(said, read, run) == read
    (kept,) = json.loads((tmp_path / "run" / "run.json").read_text())["warnings"]
    assert kept == {"kind": "no answer", "step": 3, "message": 'step 3: no answer in \\boxed{} — "here"'}
