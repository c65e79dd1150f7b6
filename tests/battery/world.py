"""A folder with one of everything that the program reads or writes, small enough that a command ends in seconds."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import WORLD, save, tiny_llama

HERE = Path(__file__).parents[2]
TRACEBACK, BUG = "Traceback (most recent call last)", 70
RECIPE = f"""steps: 6
model: model
world: {WORLD}
method: {{name: grpo, beta: 0.05}}
rollout: {{prompts_per_step: 4, group_size: 4, max_new_tokens: 8}}
optimizer: {{lr: 1e-3}}
checkpoint: {{every: 2}}
"""
SFT = f"""steps: 20
batch_size: 8
world: {WORLD}
model: {{hidden: 32, layers: 2, heads: 2, mlp: 64}}
optimizer: {{lr: 1e-3}}
checkpoint: {{every: 4}}
"""
MATRIX = f"""tier: small
seeds: [0, 1]
base:
  steps: 4
  model: model
  world: {WORLD}
  rollout: {{prompts_per_step: 4, group_size: 4, max_new_tokens: 8}}
  checkpoint: {{every: 2}}
arms: {{no_kl: no_kl, grpo: grpo}}
control: grpo
evaluate: {{problems: 6, temperatures: [0.5, 1.0]}}
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
            return "a traceback: " + " | ".join(lines[-3:])[:300]
        if self.code < 0:
            return f"ended by signal {-self.code}"
        return "" if self.code == 0 or self.err.strip() or self.out.strip() else f"code {self.code} without a word"


def environment() -> dict[str, str]:
    paths = [str(HERE / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return {**os.environ, **threads, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "120"}


class Started:
    """A command as a process group of its own, so that a kill reaches its workers, or on purpose does not. What it says goes to
    files and not to pipes: an orphan that writes on must not be stopped by a pipe that nobody reads."""

    def __init__(self, folder: Path, *words: str):
        self.out, self.err = (tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") for _ in range(2))
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sage_rlvr", *words], cwd=folder, env=environment(), stdin=subprocess.DEVNULL,
            stdout=self.out, stderr=self.err, start_new_session=True,
        )  # fmt: skip

    def kill(self, alone: bool) -> bool:
        """SIGKILL to the whole group or to the parent alone; whether it was still running."""
        running = self.process.poll() is None
        with contextlib.suppress(ProcessLookupError):
            if alone:
                os.kill(self.process.pid, signal.SIGKILL)
            else:
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        return running

    def end(self, seconds: float) -> Ending:
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill(alone=False)
            code = -signal.SIGALRM
        for stream in (self.out, self.err):
            stream.seek(0)
        return Ending(code, self.out.read(), self.err.read(), time.monotonic() - self.began)


def run(folder: Path, *words: str, seconds: float = 120) -> Ending:
    return Started(folder, *words).end(seconds)


def must(folder: Path, *words: str) -> Ending:
    """A command that has to end well: the battery itself rests on it."""
    ending = run(folder, *words)
    if ending.code != 0:
        raise RuntimeError(f"sage-rlvr {' '.join(words)} in {folder} ended with {ending.code}:\n{ending.said}")
    return ending


def inputs(folder: Path) -> Path:
    """model/, recipe.yaml, sft.yaml, matrix.yaml, rows.jsonl: what commands start from."""
    folder.mkdir(parents=True, exist_ok=True)
    save(tiny_llama(), folder / "model")
    (folder / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    (folder / "sft.yaml").write_text(SFT, encoding="utf-8")
    (folder / "matrix.yaml").write_text(MATRIX, encoding="utf-8")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return folder


def whole(folder: Path) -> Path:
    """`inputs`, and what commands make of them: a run, its record, a sample store and its harness files."""
    inputs(folder)
    must(folder, "train", "recipe.yaml", "--run", "run", "--quiet")
    must(folder, "eval", "run", "--problems", "6", "--temperatures", "1.0")
    must(folder, "eval", "run", "--samples", "4", "--problems", "4", "--store", "store", "--quiet")
    must(folder, "samples", "store", "--to-lm-eval", "harness")
    next((folder / "harness").rglob("samples_*.jsonl")).rename(folder / "lm_eval.jsonl")
    return folder
