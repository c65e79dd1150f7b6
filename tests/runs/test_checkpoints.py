"""Checkpoints of a run directory: bit for bit, damage told, what a kill or a full disk leaves."""

from __future__ import annotations

import errno
import fcntl
import math
import os
import re
import shutil
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch

from runs.runs_common import SOURCE, edit, opened, tensors
from sage_rlvr import runs
from sage_rlvr.errors import CheckpointError, ConfigError, DataError
from sage_rlvr.runs import RunDir, checkpoints, files
from sage_rlvr.runs.files import replacing


def names(run: RunDir) -> list[str]:
    return sorted(p.name for p in (run.path / "checkpoints").iterdir())


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
    "no facts": (lambda p: edit(p / "MANIFEST.json", files={name: {} for name in FILES}), "'bytes' is missing"),
    "odd facts": (lambda p: edit(p / "MANIFEST.json", files={name: [1] for name in FILES}), "invalid content"),
    "another number": (lambda p: edit(p / "MANIFEST.json", step=6), "its manifest is of step 6"),
    "endless": (lambda p: zeros(p / "MANIFEST.json"), "not a regular file"),
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
        (5, 7, "the disk is full: .*, 7 bytes are free; ", "Free some space"),
        (5, 1 << 40, "the disk is full: .*, although 1,099,511,627,776 bytes are free; ", "look for a quota"),
        (0, 1 << 40, "the disk has no inodes left .too many files.: ", "Delete some files"),
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
                files.remove_dead(one)
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
        with pytest.raises(ConfigError, match=f"{name}: a device or a pipe, which a file would replace; pass the path of a file"):
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
