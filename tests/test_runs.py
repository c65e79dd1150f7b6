"""The run directory: lock, record, atomic checkpoints, metrics and signals, with every fault that can be staged."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sage_rlvr import runs
from sage_rlvr.config import build, dump
from sage_rlvr.core.schedules import SCHEDULES
from sage_rlvr.errors import CheckpointError, ConfigError, DataError, RunLocked
from sage_rlvr.runs import RunDir, StopFlag, checkpoints, files, record
from sage_rlvr.runs.files import replacing
from sage_rlvr.runs.record import STRETCHED

CONFIG = {"steps": 100, "seed": 0, "rollout": {"group_size": 8}, "checkpoint": {"every": 10, "keep": 2}}
SOURCE = str(Path(runs.__file__).parents[2])


def tensors(fill: float = 1.0) -> dict[str, dict[str, torch.Tensor]]:
    weight = torch.full((3, 4), fill)
    return {
        "model": {"weight": weight, "scale": torch.tensor(fill, dtype=torch.bfloat16)},
        "optimizer": {"step": torch.tensor(3)},
    }


def opened(path: Path, **changes: Any) -> RunDir:
    return RunDir.open(path / "run", CONFIG | changes)


def names(run: RunDir) -> list[str]:
    return sorted(p.name for p in (run.path / "checkpoints").iterdir())


# ---- checkpoints


def test_a_checkpoint_comes_back_bit_for_bit(tmp_path: Path) -> None:
    torch.manual_seed(0)
    saved = {"model": {"a": torch.randn(5, 3), "b": torch.randn(4).to(torch.bfloat16)}, "optimizer": {}}
    saved["model"]["odd"] = torch.tensor([math.nan, math.inf, -0.0])
    state = {"step": 7, "lr": 0.1 + 0.2, "names": ["é", None]}
    with opened(tmp_path) as run:
        written = run.save_checkpoint(7, saved, state)
        assert written.path.name == "step-000007" and written.state == state
    with opened(tmp_path) as run:
        found = run.latest()
        assert found == written and found is not None
        assert found.load("optimizer") == {}
        for name, tensor in saved["model"].items():
            again = found.load("model")[name]
            assert again.dtype == tensor.dtype
            assert again.view(torch.uint8).tolist() == tensor.view(torch.uint8).tolist()


def test_tied_strided_and_sliced_tensors_are_saved(tmp_path: Path) -> None:
    table = torch.arange(12.0).reshape(3, 4)
    group = {
        "embed": table,
        "head": table,
        "transposed": table.T,
        "slice": table[1:],
        "parameter": torch.nn.Parameter(table),
    }
    with opened(tmp_path) as run:
        loaded = run.save_checkpoint(1, {"model": group}, {}).load("model")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in group.items())


def test_nothing_yet(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        assert run.latest() is None
        assert runs.read_metrics(run.path) == []
        assert run.truncate_metrics(0) == 0


def test_old_checkpoints_go_only_after_the_new_one_verifies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as run:
        for step in (10, 20, 30):
            run.save_checkpoint(step, tensors(step), {"step": step})
        assert names(run) == ["step-000020", "step-000030"]
        run.save_checkpoint(40, tensors(), {}, keep=1)
        assert names(run) == ["step-000040"]

        def fails(path: Path) -> None:
            raise CheckpointError(f"{path}: damaged")

        monkeypatch.setattr(checkpoints, "verify_checkpoint", fails)
        with pytest.raises(CheckpointError, match="damaged"):
            run.save_checkpoint(50, tensors(), {}, keep=1)
        assert names(run) == ["step-000040", "step-000050"]


def test_a_later_damaged_checkpoint_does_not_cost_the_earlier_good_one(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        run.save_checkpoint(10, tensors(), {})
        run.save_checkpoint(20, tensors(), {})
        (run.path / "checkpoints/step-000020/state.json").write_text("[]")
        run.save_checkpoint(15, tensors(), {}, keep=1)
        with pytest.warns(UserWarning, match="step-000020"):
            found = run.latest()
        assert found is not None and found.step == 15


def test_the_same_step_can_be_saved_again(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        run.save_checkpoint(10, tensors(1.0), {"try": 1})
        again = run.save_checkpoint(10, tensors(2.0), {"try": 2})
        assert names(run) == ["step-000010"]
        assert again.state == {"try": 2} and again.load("model")["weight"][0, 0] == 2


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


FILES = ("model.safetensors", "optimizer.safetensors", "state.json")


def edit(path: Path, **changed: Any) -> None:
    """The JSON file with these keys set, of None without them."""
    tree = {name: value for name, value in (json.loads(path.read_text()) | changed).items() if value is not None}
    path.write_text(json.dumps(tree))


def zeros(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


DAMAGES = {
    "truncated": (lambda p: os.truncate(p / "model.safetensors", 40), "model.safetensors: 40 bytes"),
    "flipped": (lambda p: flip(p / "model.safetensors"), "SHA-256"),
    "missing": (lambda p: (p / "optimizer.safetensors").unlink(), "optimizer.safetensors: missing"),
    "no manifest": (lambda p: (p / "MANIFEST.json").unlink(), "never completed"),
    "cut manifest": (lambda p: os.truncate(p / "MANIFEST.json", 20), "cannot be read as JSON"),
    "foreign manifest": (lambda p: (p / "MANIFEST.json").write_text("[]"), "an object {...} is expected"),
    "another format": (lambda p: edit(p / "MANIFEST.json", format=2), "not a manifest of format 1"),
    "no size": (lambda p: edit(p / "MANIFEST.json", files={"state.json": {}}), "not in the manifest"),
    "no facts": (lambda p: edit(p / "MANIFEST.json", files={name: {} for name in FILES}), "without 'bytes'"),
    "odd facts": (lambda p: edit(p / "MANIFEST.json", files={name: [1] for name in FILES}), "not as it was written"),
    "another number": (lambda p: edit(p / "MANIFEST.json", step=6), "its manifest is that of step 6"),
    "endless": (lambda p: zeros(p / "MANIFEST.json"), "no regular file"),
    "nested": (lambda p: (p / "MANIFEST.json").write_text("[" * 100_000), "nested too deeply"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_used(tmp_path: Path, damage: str) -> None:
    harm, said = DAMAGES[damage]
    with opened(tmp_path) as run:
        for step in (10, 20):
            run.save_checkpoint(step, tensors(step), {"step": step})
        harm(run.path / "checkpoints/step-000020")
        with pytest.warns(UserWarning, match=re.escape(said)):
            found = run.latest()
        assert found is not None and found.step == 10 and found.load("model")["weight"][0, 0] == 10
        harm(run.path / "checkpoints/step-000010")
        with pytest.warns(UserWarning), pytest.raises(CheckpointError, match="none of the 2 checkpoints is complete"):
            run.latest()


@pytest.mark.parametrize("group", ["rng_state.pth", "pytorch_model.bin", "model.pt", "model.pkl"])
def test_pickle_is_refused(tmp_path: Path, group: str) -> None:
    with opened(tmp_path) as run:
        saved = run.save_checkpoint(1, tensors(), {})
        (saved.path / group).write_bytes(b"\x80\x04.")
        with pytest.raises(CheckpointError, match="can run code"):
            saved.load(group)
        with pytest.raises(CheckpointError, match="no group 'rng'; groups here: model, optimizer"):
            saved.load("rng")


def test_state_must_be_strict_json(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        for state in ({"loss": math.nan}, {"tensor": torch.zeros(2)}):
            with pytest.raises(DataError, match="checkpoint state at step 1"):
                run.save_checkpoint(1, tensors(), state)
        assert run.latest() is None


def full_disk_as_oserror(path: Path, group: object) -> None:
    path.write_bytes(b"some bytes")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def full_disk_as_safetensors_says_it(path: Path, group: object) -> None:
    path.write_bytes(b"some bytes")
    raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize(
    ("inodes", "free", "why", "way"),
    [
        (5, 7, "the disk is full: .*, 7 are free; ", "Free some space"),
        (5, 1 << 40, "the disk is full: .*, though 1,099,511,627,776 are free on it; ", "look for a quota"),
        (0, 1 << 40, "the disk has no inodes left, it holds too many files: ", "Delete some files"),
    ],
)
@pytest.mark.parametrize("writer", [full_disk_as_oserror, full_disk_as_safetensors_says_it])
def test_a_full_disk_leaves_the_former_checkpoint_and_no_residue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: Any, inodes: int, free: int, why: str, way: str
) -> None:
    usage, system = namedtuple("usage", "total used free"), namedtuple("system", "f_files f_favail")
    with opened(tmp_path) as run:
        run.save_checkpoint(10, tensors(), {})
        monkeypatch.setattr(checkpoints, "_write_tensors", writer)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100, 93, free))
        monkeypatch.setattr(os, "statvfs", lambda path: system(100, inodes))
        with pytest.raises(CheckpointError) as caught:
            run.save_checkpoint(20, tensors(), {})
        said = str(caught.value)
        assert str(run.path / "checkpoints") in said and re.search(why, said) and way in said
        assert re.search(r"needs about [1-9][\d,]* bytes", said)
        assert names(run) == ["step-000010"]
        found = run.latest()
        assert found is not None and found.step == 10


def test_other_disk_errors_and_other_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(error: Exception) -> Any:
        def write(path: Path, group: object) -> None:
            raise error

        return write

    with opened(tmp_path) as run:
        monkeypatch.setattr(checkpoints, "_write_tensors", raising(OSError(errno.EROFS, "read-only")))
        with pytest.raises(CheckpointError, match=f"cannot write a checkpoint: {os.strerror(errno.EROFS)}"):
            run.save_checkpoint(1, tensors(), {})
        monkeypatch.setattr(checkpoints, "_write_tensors", raising(RuntimeError("a bug")))
        with pytest.raises(RuntimeError, match="a bug"):
            run.save_checkpoint(1, tensors(), {})
        assert names(run) == []


def test_what_a_kill_left_behind_is_swept_on_opening(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        run.save_checkpoint(10, tensors(), {})
        run.save_checkpoint(20, tensors(), {})
    folder = tmp_path / "run/checkpoints"
    (folder / ".tmp-step-000030-deadbeef").mkdir()
    (folder / ".tmp-step-000030-deadbeef/model.safetensors").write_bytes(b"half")
    (tmp_path / "run/.tmp-metrics.jsonl-deadbeef").write_text("half")
    (tmp_path / "run/.tmp-folder/in").mkdir(parents=True)
    (tmp_path / "own").mkdir()
    (tmp_path / "own/file").write_text("mine")
    (tmp_path / "run/.tmp-link").symlink_to(tmp_path / "own")
    (folder / "step-000020").rename(folder / ".old-step-000020")  # killed between the two renames of a replacement
    shutil.copytree(folder / "step-000010", folder / ".old-step-000010")  # killed before the last deletion
    for name in ("", ".", ".."):  # folders of another's making, which no replacement leaves
        (folder / f".old-{name}").mkdir()
    with opened(tmp_path) as run:
        assert names(run) == ["step-000010", "step-000020"]
        assert not list(run.path.glob(".tmp-*")) and (tmp_path / "own/file").exists()


def test_a_writer_removes_what_a_killed_one_left_and_not_what_a_live_one_writes(tmp_path: Path) -> None:
    dead, other = tmp_path / ".tmp-0123abcd-record.npz", tmp_path / ".tmp-0123abcd-other.npz"
    dead.write_bytes(b"half")
    other.write_bytes(b"half")
    with replacing(tmp_path / "record.npz") as first:
        first.write_bytes(b"first")
        with replacing(tmp_path / "record.npz") as second:
            second.write_bytes(b"second")
            assert first.exists() and not dead.exists() and other.exists()
    assert (tmp_path / "record.npz").read_bytes() == b"first" and sorted(p.name for p in tmp_path.iterdir()) == [
        other.name, "record.npz"
    ]  # fmt: skip


def test_a_writer_whose_file_goes_before_it_is_locked_takes_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its making and its lock another writer takes it for a dead one's. A folder of such a name is no file to remove."""
    (tmp_path / ".tmp-0123abcd-record").mkdir()
    locked, left = fcntl.flock, [2]

    def late(held: int, how: int) -> None:
        if how == fcntl.LOCK_EX and left[0]:
            left[0] -= 1
            for one in tmp_path.glob(".tmp-*-record"):
                files._remove_dead(one)
        locked(held, how)

    monkeypatch.setattr(files.fcntl, "flock", late)
    runs.write_text_atomic(tmp_path / "record", "whole")
    assert (tmp_path / "record").read_text() == "whole" and left == [0]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".tmp-0123abcd-record", "record"]


def test_a_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    """Nor a device, which root would lose: /dev/null is one."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        with pytest.raises(ConfigError, match=f"{name}: a device or a pipe, which a file would replace; name a file"):
            runs.write_text_atomic(tmp_path / name, "x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe"] and (tmp_path / "pipe").is_fifo()


@pytest.mark.slow
def test_sigkill_while_saving_leaves_a_complete_checkpoint(tmp_path: Path) -> None:
    code = """
import sys, torch
from sage_rlvr.runs import RunDir
with RunDir.open(sys.argv[1], {"steps": 10**9, "checkpoint": {"keep": 2}}) as run:
    for step in range(1, 10**6):
        run.log({"step": step - 1, "loss": 1 / step})
        run.save_checkpoint(step, {"model": {"w": torch.full((300, 300), float(step))}}, {"step": step})
        print(step, flush=True)
"""
    config = {"steps": 10**9, "checkpoint": {"keep": 2}}
    for wait in (0.0, 0.013, 0.029):
        command = [sys.executable, "-c", code, str(tmp_path / "run")]
        with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": SOURCE}, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            for _ in range(5):
                done = int(child.stdout.readline())
            time.sleep(wait)
            child.kill()
        with RunDir.open(tmp_path / "run", config) as run:
            found = run.latest()
            assert found is not None and found.step >= done and found.state == {"step": found.step}
            assert torch.equal(found.load("model")["w"], torch.full((300, 300), float(found.step)))
            run.truncate_metrics(found.step)
            assert [row["step"] for row in runs.read_metrics(run.path)] == list(range(found.step))
            shutil.rmtree(run.path / "checkpoints")
            run.metrics_path.unlink()


# ---- the record of the run


def test_the_record_says_what_was_run(tmp_path: Path) -> None:
    config = CONFIG | {"world": {"counts": {4: 1.0}}}
    with RunDir.open(tmp_path / "a/b/run", config, kind="sft", data={"model": "abc"}) as run:
        record = json.loads((run.path / "run.json").read_text())
    assert record["config"]["world"] == {"counts": {"4": 1.0}}
    assert record["kind"] == "sft" and record["data"] == {"model": "abc"} and record["changes"] == []
    assert {"python", "torch", "transformers", "numpy", "sage_rlvr"} <= set(record["versions"])
    assert record["versions"]["torch"] == torch.__version__
    assert {"git", "platform", "cpu_count", "threads", "created"} <= set(record)
    RunDir.open(tmp_path / "a/b/run", config, kind="sft", data={"model": "abc"}).close()


def test_another_recipe_is_refused_with_every_difference(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with pytest.raises(ConfigError) as caught:
        opened(tmp_path, seed=1, rollout={"group_size": 4}, engine="loop")
    said = str(caught.value)
    assert "seed: 0 -> 1" in said and "rollout.group_size: 8 -> 4" in said and 'engine: "(absent)" -> "loop"' in said
    assert "another directory" in said and "--fork" in said
    with pytest.raises(ConfigError, match='kind: "train" -> "sft"'):
        RunDir.open(tmp_path / "run", CONFIG, kind="sft")
    with pytest.raises(ConfigError, match=r'data\.problems: "\(absent\)" -> "abc"'):
        RunDir.open(tmp_path / "run", CONFIG, data={"problems": "abc"})
    opened(tmp_path).close()  # the refusals gave the lock back and changed nothing


def test_another_torch_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(tmp_path).close()
    monkeypatch.setattr(record, "versions", lambda: {"torch": "9.9", "transformers": "9.9", "numpy": "9.9"})
    with pytest.raises(ConfigError, match=r'versions\.torch: ".*" -> "9\.9"'):
        opened(tmp_path)


def test_more_steps_alone_are_allowed_and_recorded(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with opened(tmp_path, steps=200) as run:
        assert run.facts["config"]["steps"] == 200
        assert run.facts["changes"][0]["changed"] == {"steps": [100, 200]}
        assert run.facts["changes"][0]["fork"] is False
    with pytest.raises(ConfigError, match=r"steps: 200 -> 100\n.*more steps, not fewer"):
        opened(tmp_path)
    with pytest.raises(ConfigError, match="seed: 0 -> 1"):
        opened(tmp_path, steps=300, seed=1)


METHODS = {
    "optimizer.schedule = linear": {"optimizer": {"schedule": "linear"}},
    "method.beta = cosine": {"method": {"name": "grpo", "beta": {"name": "cosine", "start": 0.1, "end": 0.0}}},
    "method.guide.alpha = cosine_cycles": {"method": {"name": "sage", "guide": {"name": "token"}}},
    "method.guide.guides.1.eps = cosine_cycles": {
        "method": {"name": "sage", "guide": {"name": "compose", "guides": [{"name": "branch"}, {"name": "random"}]}}
    },
}


def resolved(tree: dict[str, Any]) -> dict[str, Any]:
    """As the command line records it: defaults of the method filled in."""
    filled = {"method": dump(build("method", tree["method"]))} if "method" in tree else {}
    return tree | filled


@pytest.mark.filterwarnings("ignore:Random in the loss is noise only")
@pytest.mark.parametrize("said", METHODS)
def test_more_steps_are_refused_where_a_schedule_is_stretched_over_all(tmp_path: Path, said: str) -> None:
    """8 steps asked for at once and 4 + 4 would see other learning rates or other q: not the same run."""
    tree = resolved(METHODS[said])
    opened(tmp_path, **tree).close()
    with pytest.raises(ConfigError, match=re.escape(said)) as caught:
        opened(tmp_path, **tree, steps=200)
    assert "--fork" in str(caught.value) and "another directory" in str(caught.value)
    with pytest.raises(ConfigError, match="more steps, not fewer"):
        opened(tmp_path, **tree, steps=50)
    with RunDir.open(tmp_path / "run", CONFIG | tree | {"steps": 200}, fork=True) as run:
        assert run.facts["changes"][0]["fork"] is True and run.facts["config"]["steps"] == 200


def test_more_steps_are_allowed_where_nothing_reads_them(tmp_path: Path) -> None:
    rate = {"schedule": "constant", "warmup_steps": 5}
    beta = {"name": "constant", "value": 0.1}
    tree = resolved(
        {"optimizer": rate, "method": {"name": "sage", "base": {"name": "grpo", "beta": beta}, "guide": "branch"}}
    )
    opened(tmp_path, **tree).close()
    opened(tmp_path, **tree, steps=200).close()


def test_every_schedule_is_known_to_the_run_directory() -> None:
    assert set(SCHEDULES) == {"constant", *STRETCHED}


def test_another_version_or_commit_of_this_package_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def under(version: str, commit: str | None) -> None:
        monkeypatch.setattr(record, "versions", lambda: {"torch": "2", "transformers": "5", "sage_rlvr": version})
        monkeypatch.setattr(record, "git_state", lambda: commit and {"commit": commit, "changed": False})

    def changes() -> list[Any]:
        return [c["changed"] for c in json.loads((tmp_path / "run/run.json").read_text())["changes"]]

    under("0.1", "abc")
    opened(tmp_path).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened(tmp_path).close()
        under("0.1", None)  # an installed copy has no commit to compare
        opened(tmp_path).close()
    assert changes() == []
    under("0.2", "def")
    with pytest.warns(UserWarning, match=r"versions\.sage_rlvr 0\.1 -> 0\.2, git\.commit abc -> def"):
        opened(tmp_path).close()
    assert changes() == [{"versions.sage_rlvr": ["0.1", "0.2"], "git.commit": ["abc", "def"]}]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened(tmp_path).close()  # said once, then recorded
    under("0.2", "123")
    with pytest.warns(UserWarning, match="git.commit def -> 123"), opened(tmp_path, steps=200) as run:
        assert run.facts["changes"][1]["fork"] is False
    assert changes()[1] == {"steps": [100, 200], "git.commit": ["def", "123"]}


def test_a_fork_continues_under_new_settings_and_records_it(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        run.save_checkpoint(10, tensors(), {})
    with RunDir.open(tmp_path / "run", CONFIG | {"seed": 5}, fork=True) as run:
        assert run.latest() is not None
        assert run.facts["changes"][0]["changed"] == {"seed": [0, 5]} and run.facts["changes"][0]["fork"] is True
        for step in range(12):
            run.log({"step": step})
    opened(tmp_path, seed=5).close()
    record = (tmp_path / "run/run.json").read_text()
    for steps in (4, 10, 11):  # what is there cannot go, by checkpoint or by row
        with pytest.raises(ConfigError, match=f"steps: 100 -> {steps}: 12 steps are there already.*another directory"):
            RunDir.open(tmp_path / "run", CONFIG | {"seed": 5, "steps": steps}, fork=True)
        assert (tmp_path / "run/run.json").read_text() == record
    RunDir.open(tmp_path / "run", CONFIG | {"seed": 5, "steps": 12}, fork=True).close()


@pytest.mark.slow
def test_a_lost_or_foreign_record_is_not_written_over(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        run.log({"step": 0})
    record = tmp_path / "run/run.json"
    whole = record.read_text()
    for text, said in (
        ("{", "cannot be read as JSON"),
        ("[]", "an object"),
        ("[" * 100_000, "nested too deeply"),
        ({"format": 2}, "not a run record of format 1"),
        *(({name: None}, f"without {name}") for name in ("config", "versions", "kind", "data", "changes")),
        *(({name: 3}, f"{name} is not what") for name in ("config", "versions", "kind", "data", "changes", "git", "warnings")),
        ({"warnings": [{"kind": "x"}]}, "warnings.0 is not what"),
        ({"config": CONFIG | {"steps": "many"}}, "config.steps is not a whole number"),
    ):
        record.write_text(whole if isinstance(text, dict) else text)
        if isinstance(text, dict):
            edit(record, **text)
        held = record.read_text()
        with pytest.raises(CheckpointError, match=re.escape(said)):
            opened(tmp_path)
        assert record.read_text() == held
    record.unlink()
    with pytest.raises(CheckpointError, match="missing, though the directory holds results"):
        opened(tmp_path)


def test_a_path_that_cannot_hold_a_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot hold a run"):
        RunDir.open(tmp_path / "file", CONFIG)
    with pytest.raises(ConfigError, match="cannot hold a run"):
        RunDir.open(tmp_path / "file/run", CONFIG)


# ---- the lock


def test_one_process_holds_a_directory(tmp_path: Path) -> None:
    run = opened(tmp_path)
    with pytest.raises(RunLocked, match=rf"process {os.getpid()} on .* is writing to this run directory"):
        opened(tmp_path)
    run.close()
    run.close()
    opened(tmp_path).close()


HOLD = """
import json, sys
from sage_rlvr.runs import RunDir
run = RunDir.open(sys.argv[1], json.loads(sys.argv[2]))
print("held", flush=True)
sys.stdin.read()
"""


def test_two_processes_on_one_directory(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run"), json.dumps(CONFIG)]
    environment = os.environ | {"PYTHONPATH": SOURCE}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"held\n"
        with pytest.raises(RunLocked, match=f"process {child.pid} on"):
            opened(tmp_path)
        child.kill()
        child.wait()
    assert (tmp_path / "run/lock.owner.json").exists()  # the dead owner's signature stays, its lock does not
    with opened(tmp_path) as run:
        assert json.loads((run.path / "lock.owner.json").read_text())["pid"] == os.getpid()
    assert not (tmp_path / "run/lock.owner.json").exists()


# ---- metrics


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


def test_steps_without_a_living_group_are_said_once_with_a_cause(tmp_path: Path) -> None:
    def rows(run: RunDir, share: float, mean: float, count: int) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for step in range(count):
                run.log({"step": step, "reward/zero_variance_share": share, "reward/mean": mean})
        return [str(w.message) for w in caught]

    with opened(tmp_path) as run:
        assert rows(run, 1.0, 0.0, runs.DEAD_STEPS - 1) == []
        assert rows(run, 0.9, 0.1, 1) == []  # one living group: the count begins again
        (said,) = rows(run, 1.0, 0.0, 2 * runs.DEAD_STEPS)
        assert "every reward was 0" in said
        assert "audit" in said
        rows(run, 0.5, 0.5, 1)
        assert "every reward was 1" in rows(run, 1.0, 1.0, runs.DEAD_STEPS)[0]


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
        odd = ('{"step": 1, "anchor/kl": {}}', '{"step": 1, "anchor/kl": "x"}', '{"step": 1, "loss": NaN}')
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
        with pytest.warns(UserWarning, match="5 rows were there at step 4, 0 are left"):
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


# ---- files


def test_sha256_of_known_bytes(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")
    expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, appendix B.1
    assert runs.file_sha256(tmp_path / "abc") == expected


def test_atomic_writing_keeps_the_old_file_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    runs.write_json_atomic(path, {"a": 1})
    with pytest.raises(DataError):
        runs.write_json_atomic(path, {"a": math.nan})

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="full"):
        runs.write_json_atomic(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_differences() -> None:
    old = {"a": 1, "b": {"c": [1], "d": 2}, "e": 1}
    new = {"a": 1, "b": {"c": [2], "d": 2}, "e": 1.0, "f": None}
    assert runs.differences(old, new) == {"b.c": ([1], [2]), "e": (1, 1.0), "f": ("(absent)", None)}
    assert runs.differences(old, json.loads(json.dumps(old))) == {}


# ---- signals


def test_the_first_signal_asks_and_the_second_insists() -> None:
    before = signal.getsignal(signal.SIGINT)
    with StopFlag() as stop:
        assert not stop and stop.received is None
        os.kill(os.getpid(), signal.SIGINT)
        assert stop and stop.received is signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
        assert signal.getsignal(signal.SIGINT) is before
    assert signal.getsignal(signal.SIGINT) is before


def test_sigterm_twice_exits_with_its_code(capfd: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopFlag() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.received is signal.SIGTERM
        with pytest.raises(SystemExit) as caught:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)
    assert caught.value.code == 143
    assert signal.getsignal(signal.SIGTERM) == before
    assert "SIGTERM: finishing the step and saving" in capfd.readouterr().err


def test_off_the_main_thread_it_does_nothing() -> None:
    found: list[Any] = []

    def work() -> None:
        with StopFlag() as stop:
            found.append((bool(stop), signal.getsignal(signal.SIGINT)))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [(False, before)]


@pytest.mark.slow
def test_a_stopped_process_saves_and_ends_with_the_code_of_its_signal(tmp_path: Path) -> None:
    code = """
import sys, time, torch
from sage_rlvr.runs import RunDir, StopFlag
with RunDir.open(sys.argv[1], {"steps": 1000}) as run, StopFlag() as stop:
    for step in range(1000):
        print(step, flush=True)
        time.sleep(0.05)
        if stop:
            run.save_checkpoint(step + 1, {"model": {"w": torch.ones(2)}}, {})
            break
sys.exit(128 + stop.received)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    environment = os.environ | {"PYTHONPATH": SOURCE}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdout is not None
        child.stdout.readline()
        child.terminate()
        assert child.wait(30) == 143
    with RunDir.open(tmp_path / "run", {"steps": 1000}) as run:
        assert run.latest() is not None


def test_a_refused_start_claims_no_directory(tmp_path: Path):
    """The corrected command may use the folder; a run that has written anything keeps its record."""
    with pytest.raises(ConfigError), RunDir.open(tmp_path / "run", {"model": "tinyy"}):
        raise ConfigError("no such model")
    with RunDir.open(tmp_path / "run", {"model": "tiny"}) as run:
        run.log({"step": 0})
    with pytest.raises(ConfigError, match="another thing"), RunDir.open(tmp_path / "run", {"model": "tiny"}):
        raise ConfigError("another thing")
    with pytest.raises(ConfigError, match="holds another run"):
        RunDir.open(tmp_path / "run", {"model": "other"})


def test_a_warning_is_kept_once_in_the_record_and_goes_with_its_step(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        assert "warnings" not in json.loads((run.path / "run.json").read_text())
        for step in (9, 19):
            with pytest.warns(UserWarning, match="does nothing"):
                run.warn("idle", step, "the guide does nothing")
        kept = [{"kind": "idle", "step": 9, "message": "the guide does nothing"}]
        assert json.loads((run.path / "run.json").read_text())["warnings"] == kept
        path = run.path
    with opened(tmp_path) as run:
        run.truncate_metrics(10)
        assert run.facts["warnings"] == kept
        run.truncate_metrics(9)  # the step is made again
        assert json.loads((path / "run.json").read_text())["warnings"] == []


def test_a_refused_start_leaves_nothing(tmp_path: Path) -> None:
    for there in (False, True):
        place = tmp_path / str(there)
        if there:
            place.mkdir()
        with pytest.raises(ConfigError, match="no such model"), RunDir.open(place, CONFIG):
            raise ConfigError("no such model")
        assert place.exists() == there and not (there and list(place.iterdir()))
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "metrics.jsonl").write_text("")
    with pytest.raises(CheckpointError, match="missing, though"):
        RunDir.open(tmp_path / "results", CONFIG)
    assert [p.name for p in (tmp_path / "results").iterdir()] == ["metrics.jsonl"]
    with RunDir.open(tmp_path / "kept", CONFIG):
        pass
    with pytest.raises(ConfigError), RunDir.open(tmp_path / "kept", CONFIG):
        raise ConfigError("a run that is there stays")
    assert (tmp_path / "kept" / "run.json").exists()
