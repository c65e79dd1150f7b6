"""One process per run directory, signals that ask and insist, and files that are written whole."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from runs.runs_common import CONFIG, SOURCE, opened
from sage_rlvr import runs
from sage_rlvr.errors import DataError, RunLocked
from sage_rlvr.runs import RunDir, StopFlag

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
