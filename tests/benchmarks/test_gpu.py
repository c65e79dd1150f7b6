"""benchmarks/gpu.py where there is no GPU: the whole script, and that its comparison notices a device that computes otherwise."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
def test_the_script_runs_whole_on_a_cpu(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), "--device", "cpu", "--tiny", "--wheels", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=290)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["right"] and found["textbook_w1"] > 0
    assert (found["trl_w1"] is None) == (importlib.util.find_spec("trl") is None) == (found["sage_w1"] is None)
    assert "steps    1 to    5  reward" in done.stdout and "reward_last" in found
    assert "FAILED" not in done.stdout and "left out" not in done.stdout


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The script as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("gpu")


def test_a_device_that_computes_otherwise_is_noticed(gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = importlib.import_module("real_work")
    work.write_model(tmp_path, work.TINY)
    prompts, plain = work.small(work.WORKLOADS["w1"]).ids(work.TINY.words), gpu.make_loop
    assert gpu.correctness(tmp_path, prompts, "cpu") == {
        "logp_gap": 0.0,
        "entropy_gap": 0.0,
        "gradient_cosine": pytest.approx(1.0, abs=1e-12),
        "weight_gap": 0.0,
        "same_draws_frac": 1.0,
    }
    loops: list[Any] = []

    def second_is_off(*args: Any) -> Any:
        loops.append(plain(*args))
        if len(loops) == 2:
            with torch.no_grad():
                loops[1].policy.model.layers[0].mlp.up_proj.weight[3] *= 1.5
        return loops[-1]

    monkeypatch.setattr(gpu, "make_loop", second_is_off)
    found = gpu.correctness(tmp_path, prompts, "cpu")
    assert found["logp_gap"] > gpu.MOST_GAP and found["gradient_cosine"] < gpu.LEAST_COSINE
