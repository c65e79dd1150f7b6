"""pass@k of verl's validations, on a stand-in for verl's trainer: what is counted, written, logged and refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sage_rlvr.api.compare import compare
from sage_rlvr.errors import ConfigError
from sage_rlvr.training.verl import validation
from sage_rlvr.training.verl.objective import Objective, SageNode
from sage_rlvr.training.verl.state import LATEST
from sage_rlvr.training.verl.validation import Settings, Validation, count_rows, problem_of
from sage_rlvr.verdicts.of_temperatures import BASE_TEMPERATURES

KWARGS = "actor_rollout_ref.rollout.val_kwargs"
VERL: dict[str, Any] = {
    **{f"{KWARGS}.n": 4, f"{KWARGS}.temperature": 1.0, f"{KWARGS}.top_p": 1.0, f"{KWARGS}.top_k": -1},
    **{"trainer.val_before_train": True, "trainer.test_freq": 5, "data.val_files": "val.parquet"},
    **{"trainer.v1.trainer_mode": "sync", "distillation.enabled": True},
}


class Verl:
    """A trainer whose validation returns given marks: rows of {prompt, marks at a temperature}."""

    def __init__(self, patch: pytest.MonkeyPatch, marks: Callable[[float, int], list[list[float]]]) -> None:
        self.marks, self.heat, self.global_steps, self.dumps = marks, 1.0, 0, list[Any]()
        self.config = SimpleNamespace(trainer={"validation_data_dir": "dump"})
        self.config.trainer = SimpleNamespace(validation_data_dir="dump", get=lambda name: self.config.trainer.validation_data_dir)
        self.agent_loop_manager = SimpleNamespace(generate_sequences=lambda batch: None)
        patch.setattr(validation, "_set_temperature", lambda manager, heat: setattr(self, "heat", heat))

    def validate(self, watch: Validation) -> dict[str, Any]:
        rows = self.marks(self.heat, self.global_steps)
        uids = [f"u{number}" for number in range(len(rows))]
        prompts = [[{"role": "user", "content": f"{number}?"}] for number in range(len(rows))]
        self.agent_loop_manager.generate_sequences({"uid": uids, "raw_prompt": prompts, "data_source": ["sums"] * len(rows)})
        flat = [(uid, mark) for uid, row in zip(uids, rows, strict=True) for mark in row]
        watch.see([uid for uid, _ in flat], {"reward": [mark for _, mark in flat]})
        self.dumps.append(self.config.trainer.validation_data_dir)
        return {"val-core/sums/reward/mean@4": 0.5}


def test_the_files_of_a_run_are_read_by_compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The base at its temperatures before the first step only; metrics are of the files; what was set is set back."""
    verl = Verl(monkeypatch, lambda heat, step: [[1.0] * (n % 4 if heat == 1 and not step else 3) + [0.0] * 4 for n in range(12)])
    lines: list[str] = []
    watch = Validation(Settings.of(str(tmp_path), (1.0, 0.5), VERL.get), lines.append)
    first = watch.run(verl, lambda: verl.validate(watch))
    verl.global_steps = 5
    second = watch.run(verl, lambda: verl.validate(watch))
    files = {path.name: [json.loads(line) for line in path.read_text().splitlines()] for path in tmp_path.glob("step-*")}
    assert files.keys() == {"step-000000-T1.jsonl", "step-000000-T0.5.jsonl", "step-000005-T1.jsonl"}
    assert verl.dumps == ["dump", "dump/T0.5", "dump"] and verl.heat == 1.0 and verl.config.trainer.validation_data_dir == "dump"
    assert [row["c"] for row in files["step-000000-T1.jsonl"]] == [n % 4 for n in range(12)]
    means = {name: sum(row["c"] / row["n"] for row in rows) / 12 for name, rows in files.items()}
    assert first["eval_passk/pass@1"] == pytest.approx(means["step-000000-T1.jsonl"])
    assert first["eval_passk_T0.5/pass@1"] == pytest.approx(means["step-000000-T0.5.jsonl"])
    assert second["eval_passk/pass@1_low"] < second["eval_passk/pass@4"] and not any("T0.5" in name for name in second)
    assert first["val-core/sums/reward/mean@4"] == 0.5 and len(lines) == 3
    base = ",".join(str(tmp_path / f"step-000000-T{heat}.jsonl") for heat in ("1", "0.5"))
    assert "12 problems" in compare({"base": base, "rl": str(last(tmp_path))}).answer


def last(folder: Path) -> Path:
    found = Settings.of(str(folder), (), VERL.get).files.last()
    assert found is not None
    return found


def test_a_run_from_the_start_puts_earlier_files_aside_and_a_resumed_one_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The third run starts from the beginning too, without a validation before its first step."""
    verl = Verl(monkeypatch, lambda heat, step: [[1.0, 0.0, 0.0, 0.0]] * 3)
    checkpoints, folder = tmp_path / "checkpoints", tmp_path / "passk"
    checkpoints.mkdir()
    config = VERL | {"trainer.resume_mode": "auto", "trainer.default_local_dir": str(checkpoints)}
    for step, done, kept in ((0, 0, 1), (5, 3, 2), (5, 0, 1)):
        (checkpoints / LATEST).write_text(str(done))
        watch = Validation(Settings.of(str(folder), (), config.get), lambda line: None)
        verl.global_steps = step
        watch.run(verl, lambda watch=watch: verl.validate(watch))  # type: ignore[misc]
        assert len(list(folder.glob("step-*.jsonl"))) == kept
    assert {path.name for path in folder.glob("earlier-1/*.jsonl")} == {"step-000000-T1.jsonl", "step-000005-T1.jsonl"}


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.floats(-1, 2)), min_size=1, max_size=30))
def test_every_completion_is_counted_once_at_its_problem(drawn: list[tuple[int, bool, float]]):
    """Two prompts may be one problem. acc is what is right, whatever the reward."""
    problems = {f"u{number}": {"id": f"p{number // 2}", "task": "t"} for number in range(4)}
    uids = [f"u{number}" for number, _, _ in drawn]
    infos = {"reward": [reward for *_, reward in drawn], "acc": [float(right) for _, right, _ in drawn]}
    rows = count_rows(uids, infos, problems, {"step": 3})
    assert {row["id"]: (row["n"], row["c"]) for row in rows} == {
        f"p{half}": (len(own), sum(right for _, right, _ in own))
        for half in (0, 1)
        if (own := [one for one in drawn if one[0] // 2 == half])
    }
    without = count_rows(uids, {"reward": infos["reward"]}, problems, {})
    assert sum(row["c"] for row in without) == sum(reward >= 1 for *_, reward in drawn)


def test_the_id_of_a_problem_is_its_name_or_its_prompt():
    """Not the number of the row, which pairs other problems in a file of another order."""
    row = {"raw_prompt": [{"role": "user", "content": "1+1?"}], "extra_info": {"index": 4}, "data_source": "sums"}
    moved, other = row | {"extra_info": {"index": 9}}, row | {"raw_prompt": [{"role": "user", "content": "1+2?"}]}
    assert problem_of(row) == problem_of(moved) != problem_of(other)
    assert problem_of(row | {"extra_info": {"problem": "sum-1"}}) == {"id": "sum-1", "task": "sums"}
    assert problem_of(row | {"raw_prompt": [{"role": "user", "content": [object()]}]})["id"] == "sums/4"


@pytest.mark.parametrize(
    ("more", "temperatures", "words"),
    [
        ({f"{KWARGS}.n": 1}, (), "val_kwargs.n=16"),
        ({f"{KWARGS}.temperature": 0}, (), "val_kwargs.temperature=1.0"),
        ({"trainer.val_before_train": False, "trainer.test_freq": -1}, (), "trainer.test_freq=20"),
        ({"trainer.val_before_train": False}, (0.5,), "+sage.temperatures=[]"),
        ({}, (0.5, 0.0), "numbers above 0"),
    ],
)
def test_refused_with_the_way_out(more: dict[str, Any], temperatures: tuple[float, ...], words: str):
    with pytest.raises(ConfigError, match=re.escape(words)):
        Settings.of("out", temperatures, (VERL | more).get)


def test_a_node_that_only_measures_leaves_verls_objective_alone():
    """Also where a method or a guide would be refused."""
    node = SageNode.of({"passk": "out"})
    assert node.temperatures == BASE_TEMPERATURES and SageNode.of({"passk": "out", "temperatures": [0.6]}).temperatures == (0.6,)
    found = Objective.of({"passk": "out"}, VERL.get)
    assert found.is_verls and found.words == "verl's own objective, unchanged"
