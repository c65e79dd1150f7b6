"""`report_to`: every step once, under this package's names, on the loop; refusals. (On TRL: test_trl_run.py.)"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sage_rlvr.config import TrainConfig, dump, load_config
from sage_rlvr.errors import ConfigError
from sage_rlvr.runs import RunDir
from sage_rlvr.training import trackers
from sage_rlvr.training.trackers import check_installed, run_name, tracking

SOURCE = str(Path(trackers.__file__).parents[2])


def read(**edits: str) -> TrainConfig:
    return load_config(TrainConfig, "grpo", [(key.replace("__", "."), text) for key, text in edits.items()])


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """A tracker that keeps what it is told, in place of TensorBoard."""
    told: list[Any] = []
    monkeypatch.setattr(trackers, "check_installed", lambda names: None)
    opened = (lambda row, step: told.append((step, row)), lambda: told.append("closed"))
    monkeypatch.setitem(trackers.TRACKERS, "tensorboard", lambda path, config: opened)
    yield told


def test_a_step_is_told_once_however_often_the_run_is_killed(recorder: list[Any], tmp_path: Path) -> None:
    config = read(report_to="[tensorboard]")
    with RunDir.open(tmp_path, dump(config)) as run, tracking(config.report_to, run, config) as report:
        for step in range(3):
            run.log({"step": step, "loss": 1.0})
            report(step, {"loss": 1.0})
    with RunDir.open(tmp_path, dump(config)) as run:  # killed after step 2, whose checkpoint is that of step 0
        run.truncate_metrics(0)
        with tracking(config.report_to, run, config) as report:
            for step in range(4):
                report(step, {"loss": 1.0})
    assert [one[0] for one in recorder if one != "closed"] == [0, 1, 2, 3] and recorder[-1] == "closed"


def test_trackers_are_no_part_of_what_a_run_is(tmp_path: Path) -> None:
    with RunDir.open(tmp_path, dump(read(report_to="[tensorboard]"))):
        pass
    with RunDir.open(tmp_path, dump(read(report_to="[wandb, trackio]"))) as run:
        assert run.facts["changes"] == []
    old = {key: value for key, value in dump(read()).items() if key != "report_to"}
    with RunDir.open(tmp_path, old):  # a run of an earlier version
        pass


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="report_to"):
        read(report_to="[comet]")
    with pytest.raises(ConfigError, match=r"no_such_tracker not installed here; run: pip install no_such_tracker"):
        check_installed(["no_such_tracker"])
    assert run_name(Path("/runs/demo/grpo-s0")) == "demo-grpo-s0"


SCRIPT = """
import sys
from pathlib import Path
from sage_rlvr.runs import RunDir
from sage_rlvr.training.trackers import tracking
folder, name, last = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
with RunDir.open(folder, {}) as run:
    run.truncate_metrics(0)
    from sage_rlvr.config import SftConfig
    with tracking([name], run, SftConfig(steps=9)) as report:
        for step in range(last):
            run.log({"step": step, "reward/mean": step / 2})
            report(step, {"reward/mean": step / 2, "kl/to_reference": 0.0})
"""


def twice(name: str, folder: Path, **environment: str) -> None:
    """Two steps, a kill before any checkpoint, and four steps by another process."""
    for last in (2, 4):
        env = os.environ | {"PYTHONPATH": SOURCE, **environment}
        command = [sys.executable, "-c", SCRIPT, str(folder), name, str(last)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    twice("tensorboard", tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("reward/mean")] == [(s, s / 2) for s in range(4)]
    assert set(events.Tags()["scalars"]) == {"reward/mean", "kl/to_reference"}


def test_wandb_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    twice("wandb", tmp_path / "run", WANDB_MODE="offline", WANDB_SILENT="true")
    # the id is read from the files: wandb ends a folder's name in -1 where two runs start within one second
    files = sorted((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
    assert len({file.parent for file in files}) == 2 == len(files)
    assert len({file.name for file in files}) == 1  # one id: `wandb sync` makes one run of them


def test_trackio(tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    twice("trackio", tmp_path / "run", TRACKIO_DIR=str(tmp_path / "trackio"), HF_HUB_OFFLINE="1")
    (file,) = (tmp_path / "trackio").glob("sage-rlvr*.db")
    with sqlite3.connect(file) as database:
        rows = database.execute("SELECT step, metrics FROM metrics ORDER BY step").fetchall()
    assert [(step, json.loads(text)["reward/mean"]) for step, text in rows] == [(s, s / 2) for s in range(4)]
