"""Metrics of a run: strict JSON lines, partial and damaged ones, what a resume keeps."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runs.runs_common import edit, opened, tensors
from sage_rlvr import runs
from sage_rlvr.errors import CheckpointError, DataError
from sage_rlvr.runs import RunDir


def test_metrics_are_strict_json_lines(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        run.log({"step": 0, "loss": 0.1 + 0.2, "time/step_s": 1.0})
        run.log({"step": 1, "loss": math.nan, "a": math.inf, "b": [-math.inf], "t": torch.tensor(2.5), "é": None})
        lines = run.metrics_path.read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line, parse_constant=pytest.fail) for line in lines]
        assert rows == runs.read_metrics(run.path) == runs.read_metrics(run.metrics_path)
    assert rows[0] == {"step": 0, "loss": 0.1 + 0.2, "time/step_s": 1.0}
    assert rows[1] == {"step": 1, "loss": "nan", "a": "inf", "b": ["-inf"], "t": 2.5, "é": None}
    assert runs.comparable(rows[0]) == {"step": 0, "loss": 0.1 + 0.2}


def dead_rows(run: RunDir, share: float, mean: float, count: int, first: int = 100, **more: float) -> list[str]:
    """The warnings of so many rows from step `first` on."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(first, first + count):
            run.log({"step": step, "reward/zero_variance_frac": share, "reward/mean": mean, **more})
    return [str(w.message) for w in caught]


def test_steps_without_a_living_group_are_said_once_with_a_cause(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        assert dead_rows(run, 1.0, 0.0, runs.DEAD_STEPS - 1) == []
        assert dead_rows(run, 0.9, 0.1, 1) == []  # one living group: the count begins again
        (said,) = dead_rows(run, 1.0, 0.0, 2 * runs.DEAD_STEPS)
        assert "every reward was 0" in said
        assert "audit" in said
        dead_rows(run, 0.5, 0.5, 1)
        assert "every reward was 1" in dead_rows(run, 1.0, 1.0, runs.DEAD_STEPS)[0]


def test_a_run_that_begins_without_a_living_group_says_so_at_once_and_what_moved_it(tmp_path: Path) -> None:
    with opened(tmp_path / "kl") as run:
        (said,) = dead_rows(run, 1.0, 0.0, 30, first=0, **{"kl/to_reference": 0.01})
        assert said.startswith(f"step {runs.FIRST_DEAD_STEPS - 1}: ")
        assert "only the KL term acted, whose gradient AdamW scales up" in said
        assert run.facts["warnings"][0]["kind"] == "zero-variance groups"
    with opened(tmp_path / "alone") as run:
        assert "KL" not in dead_rows(run, 1.0, 0.0, 5, first=0)[0]
    more = {"kl/to_reference": 0.01, "advantage/no_signal_frac": 1.0}
    for skip, first, left_out in (("always", 0, True), ("at_start", 0, True), ("at_start", 100, False), ("never", 0, False)):
        with RunDir.open(tmp_path / f"{skip}{first}", {"updates": {"skip_without_signal": skip}}) as run:
            (said,) = dead_rows(run, 1.0, 0.0, runs.DEAD_STEPS, first=first, **more)
        assert ("no update was made" in said) is left_out and ("AdamW" in said) is not left_out
    more["advantage/no_signal_frac"] = 0.0  # a loss term moved the policy
    with RunDir.open(tmp_path / "term", {"updates": {"skip_without_signal": "always"}}) as run:
        (said,) = dead_rows(run, 1.0, 0.0, runs.DEAD_STEPS, first=0, **more)
    assert "no update" not in said and "only the KL" not in said


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_survive_metrics_exactly(value: float) -> None:
    assert json.loads(json.dumps(runs.jsonable(value))) == value


@pytest.mark.parametrize("row", [{}, {"step": 1.0}, {"step": True}, {"step": 1, "x": object()}])
def test_rows_that_are_refused(tmp_path: Path, row: dict[str, Any]) -> None:
    with opened(tmp_path) as run:
        with pytest.raises(DataError, match="metrics row"):
            run.log(row)
        assert runs.read_metrics(run.path) == []


def test_a_partial_last_line_is_not_a_row_and_goes_on_resume(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        for step in range(3):
            run.log({"step": step})
        with open(run.metrics_path, "a") as handle:
            handle.write('{"step": 3, "lo')
        assert [row["step"] for row in runs.read_metrics(run.path)] == [0, 1, 2]
        assert run.truncate_metrics(3) == 0
        assert run.metrics_path.read_text() == '{"step": 0}\n{"step": 1}\n{"step": 2}\n'


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        odd = ('{"step": 1, "kl/to_anchor": {}}', '{"step": 1, "kl/to_anchor": "x"}', '{"step": 1, "loss": NaN}')
        for damaged in ("garbage", "[1]", '{"loss": 1}', '{"step": true}', '{"step": -1}', "[" * 100_000, *odd):
            run.metrics_path.write_text(f'{{"step": 0}}\n{damaged}\n{{"step": 2}}\n')
            with pytest.raises(DataError, match=r"metrics\.jsonl:2: .*delete that line"):
                runs.read_metrics(run.path)


def test_a_resume_keeps_exactly_the_rows_before_the_checkpoint(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        for done in range(1, 6):
            run.log({"step": done - 1})
            if done % 2 == 0:
                run.save_checkpoint(done, tensors(), {})
                run.log({"step": done - 1, "evaluation/pass@1": 0.5})
        assert run.truncate_metrics(4) == 2
        kept = [{"step": 0}, {"step": 1}, {"step": 1, "evaluation/pass@1": 0.5}, {"step": 2}, {"step": 3}]
        assert runs.read_metrics(run.path) == kept
        assert run.truncate_metrics(2) == 3
        assert [row["step"] for row in runs.read_metrics(run.path)] == [0, 1]
        assert run.truncate_metrics(0) == 2  # there is no checkpoint at 0, so by number: all of them
        with pytest.warns(UserWarning, match="5 rows existed at step 4, 0 are left"):
            run.truncate_metrics(4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "lost"),  # of the rows of steps 0 to 7, after a checkpoint at 6
    [
        ("01234567", ""),
        ("012345x7", ""),  # a line that would be made again
        ("0123456x", ""),
        ("0123457", ""),
        ("0134567", "2"),  # "delete that line to go on"
        ("34567", "0, 1, 2"),
        ("", "0, 1, 2, 3, 4, ..."),
        (None, "0, 1, 2, 3, 4, ..."),
        ("01x34567", None),
    ],
)
@pytest.mark.parametrize("counted", [True, False])
def test_rows_are_neither_lost_in_silence_nor_made_twice(
    tmp_path: Path, lines: str | None, lost: str | None, counted: bool
) -> None:
    with opened(tmp_path) as run:
        for step in range(8):
            run.log({"step": step, "loss": step / 3})
            if step == 5:
                run.save_checkpoint(6, tensors(), {})
        if not counted:
            edit(run.path / "checkpoints/step-000006/MANIFEST.json", metrics_rows=None)
        whole = run.metrics_path.read_text().splitlines()
        run.metrics_path.unlink()
        if lines is not None:
            run.metrics_path.write_text("".join("garbage\n" if n == "x" else whole[int(n)] + "\n" for n in lines))
        if lost is None:
            with pytest.raises(DataError, match=r"metrics\.jsonl:3: damaged line.*delete that line"):
                run.truncate_metrics(6)
            return
        told = bool(lost) and (counted or not lines)  # without a count, rows that are there are taken for all
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run.truncate_metrics(6)
        assert [f"the numbers of step {lost} are lost" in str(w.message) for w in caught] == [True] * told
        rows = runs.read_metrics(run.path)
        steps = [row["step"] for row in rows]
        assert steps == (list(range(6)) if told or not lost else [int(n) for n in lines or "" if n < "6"])
        assert all(row in ({"step": row["step"]}, {"step": row["step"], "loss": row["step"] / 3}) for row in rows)


def test_a_full_disk_while_logging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as run:
        monkeypatch.setattr(RunDir, "metrics_path", property(lambda self: self.path / "nowhere/metrics.jsonl"))
        with pytest.raises(CheckpointError, match="cannot append a row"):
            run.log({"step": 0})
