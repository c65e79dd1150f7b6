"""A folder with one of everything that the program reads or writes, and commands run there in forked children.

A command in a forked child of one warm process takes what it computes, and not the five seconds in which torch is imported.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pkgutil
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import IO, NoReturn, TextIO

from lab.stress.battery.commands import COMMANDS
from sage_rlvr.cli import main
from sage_rlvr.sweeps import processes
from tests.conftest import WORLD, save, tiny_llama
from tests.helpers.byte_tokenizer import byte_tokenizer

TRACEBACK, BUG, ESCAPE = "Traceback (most recent call last)", 70, "\x1b[2J"
SECONDS, MEMORY, MARK = 60.0, 6 << 30, "BATTERY_MARK"
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "120"}
RECIPE = f"""steps: 6
model: model
world: {WORLD}
method: {{name: grpo, beta: 0.05}}
rollout: {{prompts_per_step: 4, group_size: 4, max_new_tokens: 8}}
optimizer: {{lr: 1e-3}}
checkpoint: {{every: 2}}
"""
SFT = f"""steps: 12
batch_size: 8
world: {WORLD}
model: {{hidden: 32, layers: 2, heads: 2, mlp: 64}}
optimizer: {{lr: 1e-3}}
checkpoint: {{every: 4}}
"""
DESIGN = f"""title: small
seeds: [0]
base:
  steps: 3
  model: model
  world: {WORLD}
  rollout: {{prompts_per_step: 4, group_size: 4, max_new_tokens: 8}}
  checkpoint: {{every: 1}}
arms: {{no_kl: no_kl, grpo: grpo}}
control: grpo
controls: none
evaluate: {{problems: 6, temperatures: [1.0]}}
"""
ROWS = [{"id": f"row-{i}", "problem": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(8)]


@dataclass(frozen=True)
class Ending:
    """How a command ended: exit code (negative: by a signal), both streams, seconds."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def said(self) -> str:
        return self.out + self.err

    def fault(self) -> str:
        """Why this ending is not one that a user can act on; empty where it is."""
        if TRACEBACK in self.said or self.code == BUG:
            lines = [line for line in self.said.strip().splitlines() if line.strip()]
            return "traceback: " + " | ".join(lines[-3:])[:300]
        if self.code == -signal.SIGALRM:
            return f"hang: killed after {self.seconds:.0f} s"
        if self.code < 0:
            return f"traceback: ended by signal {-self.code}"
        if ESCAPE in self.said:
            return "wrong: a raw escape reached the terminal"
        return "" if self.code == 0 or self.said.strip() else f"wrong: code {self.code} without a word"


def warm() -> None:
    """Import once, before any fork, what commands import: every module of the package, and the libraries behind it."""
    import torch
    import transformers.models.llama.modeling_llama
    import transformers.models.qwen2.modeling_qwen2  # noqa: F401

    import sage_rlvr

    torch.set_num_threads(1)
    for module in pkgutil.walk_packages(sage_rlvr.__path__, "sage_rlvr."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):  # adapters of packages that are not installed here
                importlib.import_module(module.name)


def _text(number: int) -> TextIO:
    """Lines to a file descriptor, which stays open when this object goes."""
    return os.fdopen(number, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)


def _become(words: list[str], streams: Sequence[int], environment: Mapping[str, str]) -> NoReturn:
    """In a child: the command, with these streams as 0, 1 and 2, and without the pipes by which its parent holds its siblings."""
    code = BUG
    try:
        os.setsid()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        while HELD:
            os.close(HELD.pop())
        sys.stdout, sys.stderr = _text(1), _text(2)
        for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
            signal.signal(number, handler)
        os.environ.clear()
        os.environ.update(environment)
        Path("/proc/self/comm").write_text(
            os.environ[MARK][:15]
        )  # forks of it are known by this, what it executes by the variable
        processes.subprocess = SimpleNamespace(Popen=Forked, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired)  # type: ignore[assignment]
        main(words)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(code)


HELD: set[int] = set()
"""Ends of pipes that this process holds for as long as it lives (see `sage_rlvr.process`)."""


class Forked:
    """What `experiments.jobs` asks of subprocess.Popen, by a fork: a sweep's runs start at once."""

    def __init__(self, command: list[str], *, stdout: IO[bytes], stderr: IO[bytes], stdin: int, env: Mapping[str, str],
                 start_new_session: bool) -> None:  # fmt: skip
        assert stdin == subprocess.PIPE and start_new_session and command[1:3] == ["-m", "sage_rlvr"]
        self.returncode: int | None = None
        reader, self.held = os.pipe()
        HELD.add(self.held)
        self.pid = os.fork()
        if self.pid == 0:
            _become(command[3:], (reader, stdout.fileno(), stderr.fileno()), env)
        os.close(reader)

    def poll(self) -> int | None:
        if self.returncode is None and (found := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.returncode = os.waitstatus_to_exitcode(found[1])
            HELD.discard(self.held)
            os.close(self.held)
        return self.returncode

    def wait(self, timeout: float) -> int:
        until = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("sage-rlvr", timeout)
            time.sleep(0.01)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Started:
    """A command in a forked child. What it says goes to files and not to pipes: an orphan that writes on must not be stopped by a
    pipe that nobody reads."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.mark, self.began = uuid.uuid4().hex, time.monotonic()
        self.streams = [Path(tempfile.gettempdir(), f"battery-{self.mark}.{name}") for name in ("out", "err")]
        self.status: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os.chdir(folder)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            files = [os.open(path, os.O_RDWR | os.O_CREAT) for path in (Path(os.devnull), *self.streams)]
            _become(
                list(words),
                files,
                os.environ | ENVIRONMENT | {MARK: self.mark, "PYTHONPATH": os.pathsep.join(sys.path)},
            )

    def running(self) -> bool:
        """Whether the command itself has not ended; collects it where it has."""
        if self.status is None and (found := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.status = os.waitstatus_to_exitcode(found[1])
        return self.status is None

    def left(self) -> list[int]:
        """Its processes that still live, itself and all that it started, wherever they went."""
        found = []
        for pid in (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()):
            with contextlib.suppress(OSError):
                home = Path(f"/proc/{pid}")
                if (home / "comm").read_text("utf-8").strip() == self.mark[:15]:
                    ended = (home / "stat").read_text("ascii").rpartition(")")[2].split()[0] in "ZX"
                    found += [] if ended else [pid]
                elif f"{MARK}={self.mark}".encode() in (home / "environ").read_bytes():
                    found.append(pid)
        return found

    def signal(self, number: int, alone: bool) -> bool:
        """A signal to the command alone or to all of its processes; whether it was still running."""
        if not self.running():
            return False
        for pid in {self.pid, *([] if alone else self.left())}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return True

    def end(self, seconds: float = SECONDS) -> Ending:
        """Wait; after `seconds` all that is left of it is killed, and its code is -SIGALRM."""
        late = False
        while self.running():
            if late := time.monotonic() - self.began > seconds:
                self.clear()
            time.sleep(0.005)
        said = [path.read_text("utf-8", errors="replace") if path.exists() else "" for path in self.streams]
        for path in self.streams:
            path.unlink(missing_ok=True)
        assert self.status is not None
        return Ending(-signal.SIGALRM if late else self.status, said[0], said[1], time.monotonic() - self.began)

    def gone(self, seconds: float) -> bool:
        """Whether nothing of it is left, or was after at most `seconds`; what stays is killed."""
        until = time.monotonic() + seconds
        while left := self.left():
            if time.monotonic() > until:
                self.clear()
                return False
            time.sleep(0.02 * len(left))
        return True

    def clear(self) -> None:
        """Kill all that is left of it."""
        for pid in {*self.left(), *([self.pid] if self.running() else [])}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def run(folder: Path, *words: str, seconds: float = SECONDS) -> Ending:
    return Started(folder, *words).end(seconds)


def must(folder: Path, *words: str) -> Ending:
    """A command that has to end well: the battery itself rests on it."""
    ending = run(folder, *words)
    if ending.code != 0:
        raise RuntimeError(f"sage-rlvr {' '.join(words)} in {folder} ended with {ending.code}:\n{ending.said}")
    return ending


def inputs(folder: Path) -> Path:
    """model/, bytes/ (a model of bytes), recipe.yaml, sft.yaml, design.yaml, rows.jsonl, rows.parquet: what commands start from."""
    import pyarrow
    import pyarrow.parquet

    folder.mkdir(parents=True, exist_ok=True)
    save(tiny_llama(), folder / "model")
    tiny_llama(vocab_size=260, eos_token_id=1, pad_token_id=1, max_position_embeddings=512).save_pretrained(
        folder / "bytes"
    )
    byte_tokenizer().save_pretrained(folder / "bytes")
    for name, text in (("recipe", RECIPE), ("sft", SFT), ("design", DESIGN)):
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), folder / "rows.parquet")
    return folder


def whole(folder: Path) -> Path:
    """`inputs`, and what commands make of them: a run, its record, a sweep, a sample store, its Parquet and its harness files."""
    inputs(folder)
    for name in ("train", "eval", "eval --samples", "sweep", "samples"):
        must(folder, *COMMANDS[name].words)
    for path in (folder / "harness").iterdir():
        path.rename(path.with_name(f"{path.name.rpartition('_')[0]}_2026-01-01T00-00-00{path.suffix}"))
    shutil.copy(next((folder / "harness").glob("samples_*")), folder / "lm_eval.jsonl")
    (folder / "stored").mkdir()
    shutil.copy(folder / "sweep" / "summary.json", folder / "stored")
    return folder
