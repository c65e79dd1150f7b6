"""Stopped or killed at any moment, a run ends bitwise equal to one that was never stopped."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from episodes_common import Digits, Taught, save_digit_policy
from extras_common import Again
from sage_rlvr import runs
from sage_rlvr.config import SftConfig, TrainConfig, dump, load_config
from sage_rlvr.core import EXTRAS, Anchor, Branch, Method, RolloutPlan
from sage_rlvr.errors import CheckpointError
from sage_rlvr.methods import METHODS, grpo
from sage_rlvr.progress import Silent
from sage_rlvr.runs import RunDir, comparable, read_metrics
from sage_rlvr.tasks import TASKS
from sage_rlvr.training import sft as sft_engine
from sage_rlvr.training import trackers
from sage_rlvr.training.loop import train
from sage_rlvr.training.sft import train_sft
from stateful import stateful

Recipe = Callable[..., Path]
BRANCH = "{name: sage, base: {name: grpo, beta: 0.05}, guide: {name: branch, threshold: 0.2}}"
EXACT_Z = "{name: alpha_dpg, z: exact}"
ERANK = "{name: erank, stride: 2}"
RLPR = "{name: rlpr, given: 0.5, ratio: 1.0, max_refills: 1}"  # its filter drops groups from step 10 on
DARS = "{name: dars, beta: 0.05}"
PLACEBO = "{name: compose, beta: 0.0, advantage: {name: placebo_right, advantage: differential_smoothing}}"
EPISODES = f"{DARS} # in episodes"
GUIDED = (
    "{name: compose, beta: 0.0, advantage: leave_one_out, rollout_plan: {name: guided, each: 8, max_completions: 12}}"
    " # in episodes\n"
    "teacher: rules"
)
AGAIN = "{name: compose, beta: 0.05, extras: [again]}"  # an extra with a state that chooses problems
PLAYED = {EPISODES: "{name: digits}", GUIDED: "{name: taught, turns: 2}"}  # the task of each
PLUGIN = """import sys
sys.path.insert(0, {tests!r})
from episodes_common import Digits, Taught
from sage_rlvr.registry import register
register("task", Digits, name="digits")
register("task", Taught, name="taught")
"""
SOURCE = str(Path(runs.__file__).parents[2])


class Interrupting(Silent):
    """Sends this process a signal while step number `at` (counted from 1) is in hand."""

    def __init__(self, at: int, number: signal.Signals = signal.SIGTERM) -> None:
        self.at, self.number = at, number

    def advance(self, done: int, metrics: Mapping[str, float]) -> None:
        if done == self.at:
            os.kill(os.getpid(), self.number)


def go(recipe: Path, folder: Path, progress: Silent | None = None, **overrides: str) -> int:
    config = load_config(TrainConfig, recipe, list(overrides.items()))
    with RunDir.open(folder, dump(config)) as run:
        return train(config, run, progress or Silent())


def assert_same_ending(a: Path, b: Path, step: int) -> None:
    """Weights, optimizer tensors, the saved policy, and metrics rows but for the timings: bit for bit."""
    newest = Path("checkpoints", f"step-{step:06d}")
    assert (a / newest / "parts.safetensors").exists() is (b / newest / "parts.safetensors").exists()
    parts = [newest / "parts"] if (a / newest / "parts.safetensors").exists() else []
    for name in (newest / "model", newest / "optimizer", *parts, "policy/model"):
        left, right = (load_file(folder / f"{name}.safetensors") for folder in (a, b))
        assert left.keys() == right.keys() and left
        for tensor in left:
            assert torch.equal(left[tensor], right[tensor]), (name, tensor)
    rows = [[comparable(row) for row in read_metrics(folder)] for folder in (a, b)]
    assert rows[0] == rows[1] and [row["step"] for row in rows[0]] == list(range(step))


@pytest.fixture
def recipe(write_recipe: Recipe) -> Path:
    schedule = "updates: {epochs: 1, minibatches: 2}\ncheckpoint: {every: 4}\n"
    path = write_recipe(BRANCH, steps=12, more=schedule)
    path.write_text(path.read_text().replace("{lr: 1e-3}", "{lr: 1e-3, schedule: cosine, warmup_steps: 3}"))
    return path


def with_method(recipe: Path, method: str, plugins: bool = False) -> None:
    """The recipe with another method; of `PLAYED` with a task that has turns, and a policy for it."""
    text = recipe.read_text().replace(BRANCH, method)
    if method in PLAYED:
        policy, task = save_digit_policy(recipe.parent / "digits"), f"task: {PLAYED[method]}"
        text = re.sub("model: .*", f"model: {policy}", re.sub("world: .*", task, text))
    if method == GUIDED:  # in small groups none is right now and then
        text = text.replace("group_size: 4", "group_size: 2")
    if plugins:
        file = recipe.parent / "plugin.py"
        file.write_text(PLUGIN.format(tests=str(Path(__file__).parents[2] / "helpers")))
        text += f"plugins: [{file}]\n"
    recipe.write_text(text)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "dtype"), [(signal.SIGTERM, "float32"), (signal.SIGINT, "bfloat16")])
def test_a_stop_saves_and_the_next_call_continues(
    recipe: Path, tmp_path: Path, number: signal.Signals, dtype: str, capfd: pytest.CaptureFixture[str]
) -> None:
    recipe.write_text(recipe.read_text() + f"engine: {{dtype: {dtype}}}\n")
    assert go(recipe, tmp_path / "whole") == 12
    assert go(recipe, tmp_path / "parts", Interrupting(6, number)) == 6
    assert number.name in capfd.readouterr().err
    assert (tmp_path / "parts" / "checkpoints" / "step-000006").is_dir() and not (
        tmp_path / "parts" / "policy"
    ).exists()
    assert go(recipe, tmp_path / "parts") == 12
    assert_same_ending(tmp_path / "whole", tmp_path / "parts", 12)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        BRANCH, "{name: stateful}", "{name: adaptive_entropy, target: 0.9}", "{name: outcome_counts}", ERANK,
        EXACT_Z, DARS, RLPR, PLACEBO, EPISODES, pytest.param(GUIDED, id="guided"), AGAIN,
    ],
)  # fmt: skip
def test_rows_after_the_last_checkpoint_are_made_again(
    recipe: Path, tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a kill leaves: the checkpoint of step 4, and rows up to step 6 of which the last is torn."""
    monkeypatch.setitem(METHODS, "stateful", stateful)
    monkeypatch.setitem(TASKS, "digits", Digits)
    monkeypatch.setitem(TASKS, "taught", Taught)
    monkeypatch.setitem(EXTRAS, "again", Again)
    with_method(recipe, method)
    go(recipe, tmp_path / "whole")
    go(recipe, tmp_path / "parts", Interrupting(6))
    shutil.rmtree(tmp_path / "parts" / "checkpoints" / "step-000006")
    with open(tmp_path / "parts" / "metrics.jsonl", "a") as file:
        file.write('{"step": 6, "lo')
    assert go(recipe, tmp_path / "parts") == 12
    assert_same_ending(tmp_path / "whole", tmp_path / "parts", 12)
    kept = tmp_path / "whole" / "checkpoints" / "step-000012" / "parts.safetensors"
    assert kept.exists() is (method not in (BRANCH, EXACT_Z, DARS, PLACEBO, EPISODES, GUIDED))
    if method == GUIDED:
        assert max(row.get("hints/frac", 0.0) for row in read_metrics(tmp_path / "whole")) > 0
    if method in PLAYED:
        rows = read_metrics(tmp_path / "whole")
        assert max(row["episodes/turns_mean"] for row in rows) > 1.2 and any(row["rollout/second_stage"] for row in rows)
    if method == DARS:
        assert max(row["rollout/extra_max"] for row in read_metrics(tmp_path / "whole")) > 1
    if "adaptive" in method:
        rows = [row["extra/adaptive_entropy/coefficient"] for row in read_metrics(tmp_path / "whole")]
        assert len(set(rows)) > 1
    if method == ERANK:
        assert min(row["extra/erank/rank"] for row in read_metrics(tmp_path / "whole")) > 0.1
    if method == RLPR:
        assert load_file(kept)["rollout.StdFilter.steps"] == 12
        dropped = [row["rollout/missing_groups_frac"] > 0 or row["rollout/refills"] > 0 for row in read_metrics(tmp_path / "whole")]
        assert not any(dropped[:10]) and any(dropped[10:])
    if "outcome" in method:
        assert load_file(kept)["extra/outcome_counts.OutcomeCounts.counts"].max() > 1
    if "stateful" in method:
        assert load_file(kept)["advantage.Remembered.steps"] == 12
        rows = [row["advantage/mean"] for row in read_metrics(tmp_path / "whole")]
        assert len(set(rows)) > 6


def test_a_checkpoint_without_the_parts_state_is_refused(
    write_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, "stateful", stateful)
    go(write_recipe("{name: grpo, beta: 0.05}"), tmp_path / "run")
    config = load_config(TrainConfig, write_recipe("{name: stateful}", steps=4))
    said = r"state of no part, but this method needs that of advantage Remembered"
    with RunDir.open(tmp_path / "run", dump(config), fork=True) as run, pytest.raises(CheckpointError, match=said):
        train(config, run, Silent())


def test_a_damaged_checkpoint_costs_only_its_steps(recipe: Path, tmp_path: Path) -> None:
    go(recipe, tmp_path / "whole")
    go(recipe, tmp_path / "parts", Interrupting(8))
    (tmp_path / "parts" / "checkpoints" / "step-000008" / "model.safetensors").write_bytes(b"not tensors")
    with pytest.warns(UserWarning, match="checkpoint skipped.*step-000008"):
        assert go(recipe, tmp_path / "parts") == 12
    assert_same_ending(tmp_path / "whole", tmp_path / "parts", 12)


@pytest.mark.slow
def test_only_damaged_checkpoints_are_an_error(recipe: Path, tmp_path: Path) -> None:
    go(recipe, tmp_path / "run", Interrupting(8))
    for folder in (tmp_path / "run" / "checkpoints").iterdir():
        (folder / "optimizer.safetensors").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(CheckpointError, match="none of the 2 checkpoints is complete"):
            go(recipe, tmp_path / "run")


@pytest.mark.slow
def test_more_steps_make_a_new_policy(write_recipe: Recipe, tmp_path: Path) -> None:
    recipe = write_recipe(steps=4)
    go(recipe, tmp_path / "whole")
    assert go(recipe, tmp_path / "longer", steps="2") == 2
    short = load_file(tmp_path / "longer" / "policy" / "model.safetensors")
    assert go(recipe, tmp_path / "longer", Interrupting(3)) == 3
    assert not (tmp_path / "longer" / "policy").exists()  # the policy of two steps is not the result of four
    assert go(recipe, tmp_path / "longer") == 4
    assert_same_ending(tmp_path / "whole", tmp_path / "longer", 4)
    again = load_file(tmp_path / "longer" / "policy" / "model.safetensors")
    assert not all(torch.equal(again[name], short[name]) for name in short)


@pytest.mark.slow
def test_a_finished_run_is_left_as_it_is_and_a_lost_policy_comes_back(write_recipe: Recipe, tmp_path: Path) -> None:
    recipe = write_recipe()
    go(recipe, tmp_path / "a")
    go(recipe, tmp_path / "b")
    shutil.rmtree(tmp_path / "b" / "policy")
    rows = (tmp_path / "b" / "metrics.jsonl").read_bytes()
    assert go(recipe, tmp_path / "b") == 2 and (tmp_path / "b" / "metrics.jsonl").read_bytes() == rows
    assert_same_ending(tmp_path / "a", tmp_path / "b", 2)


# ---- what a step draws anew, and references that come from the run itself


@dataclass(frozen=True)
class Mixed(RolloutPlan):
    """Keeps groups with right and wrong answers."""

    max_refills: int = 2
    equation: ClassVar[str] = "keep 0 < right < G"

    def keeps(self, rewards: Tensor) -> Tensor:
        return rewards.amax(1) > rewards.amin(1)


def moving(source: str = "base", refresh_every: int | None = None, refill: bool = False) -> Method:
    anchor = Anchor(0.05, guide=Branch(threshold=0.2), source=source, refresh_every=refresh_every)
    return replace(grpo(), name="moving", anchor=anchor, rollout=Mixed() if refill else None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "kept"),
    [
        ("{name: moving, refill: true}", 0),
        ("{name: moving, refresh_every: 3}", 3),
        ("{name: moving, source: snapshot@5}", 5),
        ("{name: moving, source: snapshot@7}", 0),
        ("{name: moving, refresh_every: 2, refill: true}", 4),
    ],
)
def test_refills_and_references_of_the_run_continue_too(
    write_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, kept: int
) -> None:
    """Stopped after step 5 and at 8, killed in between: `kept` is the step of the reference in the checkpoint of step 5."""
    monkeypatch.setitem(METHODS, "moving", moving)
    recipe = write_recipe(method, steps=10, more="updates: {minibatches: 2}\ncheckpoint: {every: 4, keep: 9}\n")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert go(recipe, whole) == 10
    assert go(recipe, parts, Interrupting(5)) == 5
    file = parts / "checkpoints" / "step-000005" / "reference.safetensors"
    assert file.exists() is bool(kept)
    if kept:
        same = file.parent.with_name(f"step-{kept:06d}") / "model.safetensors"
        if same.exists():  # the reference is the policy after that step
            a, b = load_file(file), load_file(same)
            assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    assert go(recipe, parts, Interrupting(9)) == 9
    shutil.rmtree(parts / "checkpoints" / "step-000009")  # a kill: on from step 8, its last row made again
    assert go(recipe, parts) == 10
    assert_same_ending(whole, parts, 10)
    references = [folder / "checkpoints" / "step-000010" / "reference.safetensors" for folder in (whole, parts)]
    assert references[0].exists() is references[1].exists() is (method != "{name: moving, refill: true}")
    if references[0].exists():
        a, b = (load_file(file) for file in references)
        assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    rows = read_metrics(whole)
    if "refill" in method:
        assert any(row["rollout/refills"] for row in rows)


# ---- the warm start


SFT = """\
steps: 6
batch_size: 8
world: {counts: {2: 1.0}, max_number: 9}
model: {hidden: 32, layers: 2, heads: 2, mlp: 48, positions: 32}
checkpoint: {every: 2}
"""


def sft(path: Path, folder: Path, progress: Silent | None = None) -> int:
    config = load_config(SftConfig, path)
    with RunDir.open(folder, dump(config), kind="sft") as run:
        return train_sft(config, run, folder / "policy", progress or Silent())


@pytest.mark.slow
def test_the_warm_start_continues_too(tmp_path: Path) -> None:
    path = tmp_path / "sft.yaml"
    path.write_text(SFT)
    assert sft(path, tmp_path / "whole") == 6
    assert sft(path, tmp_path / "parts", Interrupting(3)) == 3
    assert not (tmp_path / "parts" / "policy").exists()
    assert sft(path, tmp_path / "parts") == 6
    assert_same_ending(tmp_path / "whole", tmp_path / "parts", 6)
    losses = [row["loss"] for row in read_metrics(tmp_path / "whole")]
    assert losses[-1] < losses[0]


def test_the_warm_start_tells_its_trackers_each_step_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    monkeypatch.setattr(trackers, "check_installed", lambda names: None)
    monkeypatch.setattr(sft_engine, "check_installed", lambda names: None)
    opened = (lambda row, step: told.append(step), lambda: None)
    monkeypatch.setitem(trackers.TRACKERS, "tensorboard", lambda path, config: opened)
    path = tmp_path / "sft.yaml"
    path.write_text(SFT + "report_to: [tensorboard]\n")
    assert sft(path, tmp_path / "run", Interrupting(3)) == 3
    assert sft(path, tmp_path / "run") == 6 and told == list(range(6))


# ---- real processes


def start(recipe: Path, folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "sage_rlvr", "train", str(recipe), "--run", str(folder), "--quiet"]
    env = os.environ | {"PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)


def finish(recipe: Path, folder: Path) -> None:
    process = start(recipe, folder)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err.decode()


def wait_for_rows(process: subprocess.Popen[bytes], folder: Path, rows: int) -> None:
    """Until `rows` rows are there or the process has ended."""
    path, deadline = folder / "metrics.jsonl", time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        if path.exists() and path.read_bytes().count(b"\n") >= rows:
            return
        time.sleep(0.001)


@pytest.mark.slow
@pytest.mark.parametrize("method", [BRANCH, EPISODES, pytest.param(GUIDED, id="guided")])
def test_five_sigkills_at_random_instants(recipe: Path, tmp_path: Path, method: str) -> None:
    with_method(recipe, method, plugins=method in PLAYED)
    finish(recipe, tmp_path / "whole")
    chance = random.Random(20)
    killed = 0
    for rows in sorted(chance.sample(range(1, 12), 5)):
        process = start(recipe, tmp_path / "parts")
        wait_for_rows(process, tmp_path / "parts", rows)
        time.sleep(chance.uniform(0, 0.03))  # somewhere in a step, a checkpoint or the writing of the policy
        process.kill()
        killed += process.wait() == -signal.SIGKILL
        process.communicate()
    assert killed >= 4  # the last one may have come too late
    finish(recipe, tmp_path / "parts")
    assert_same_ending(tmp_path / "whole", tmp_path / "parts", 12)


@pytest.mark.slow
def test_sigterm_ends_with_a_message_and_code_143(recipe: Path, tmp_path: Path) -> None:
    finish(recipe, tmp_path / "whole")
    process = start(recipe, tmp_path / "parts")
    wait_for_rows(process, tmp_path / "parts", 5)
    process.terminate()
    _, err = process.communicate(timeout=60)
    rows = len(read_metrics(tmp_path / "parts"))
    assert process.returncode == 143, err.decode()
    assert f"stopped after step {rows} of 12" in " ".join(err.decode().split()) and 5 <= rows < 12
    assert (tmp_path / "parts" / "checkpoints" / f"step-{rows:06d}").is_dir()
    finish(recipe, tmp_path / "parts")
    assert_same_ending(tmp_path / "whole", tmp_path / "parts", 12)
