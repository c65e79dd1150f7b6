"""benchmarks/gpu.py where there is no GPU: the whole script, its time limits, and a device that computes otherwise."""

from __future__ import annotations

import argparse
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
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("device", ["cpu", "paper"])
def test_the_script_runs_whole_without_a_gpu(tmp_path: Path, device: str) -> None:
    """On paper every part meets tensors that refuse to mix with the CPU, and the waits of an update are counted."""
    out = tmp_path / "gpu.json"
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), "--device", device, "--tiny", "--minutes", "29"]
    command += ["--wheels", str(tmp_path), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1790)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == json.loads(out.read_text())
    assert found["right"] and found["textbook_w1"] > 0 and "reward_last" in found
    trl = importlib.util.find_spec("trl") is not None and device == "cpu"
    assert (found["trl_w1"] is not None) == trl == (found["sage_w1"] is not None)
    assert "steps    1 to    5  reward" in done.stdout
    assert "FAILED" not in done.stdout
    if device == "paper":
        assert found["same_draws_frac"] == 1 and found["update_float64"] == 0 and found["update_waits"] <= 70


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


def test_a_part_that_hangs_is_ended_and_what_was_found_stays(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = argparse.Namespace(device="cpu", tiny=True)
    assert gpu.part("correctness", options, tmp_path, 0.2) == {}  # its imports alone take longer
    assert "correctness: FAILED, ended after 0 s" in capsys.readouterr().out
    out, plain = tmp_path / "out" / "gpu.json", {"logp_gap": 0.0, "gradient_cosine": 1.0}

    def interrupted(name: str, *_: Any) -> dict[str, float]:
        if name == "w1":
            assert json.loads(out.read_text()) == {"right": True, **plain}
            raise KeyboardInterrupt
        return plain if name == "correctness" else {}

    monkeypatch.setattr(gpu, "part", interrupted)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--device", "cpu", "--tiny", "--wheels", str(tmp_path), "--out", str(out)])
    monkeypatch.setenv("PYTHONPATH", "")
    with pytest.raises(KeyboardInterrupt):
        gpu.main()
    assert json.loads(out.read_text()) == {"right": True, **plain}


def test_an_arm_that_does_not_answer_is_ended(gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module("real")
    (tmp_path / "real_arms.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setattr(real, "HERE", tmp_path)
    worker = real.Worker("ours", sys.executable, tmp_path / "spec.json", tmp_path / "log", 0.2)
    with pytest.raises(real.Absent, match=r"no answer within 0 s"):
        worker.ready()
    worker.close()
    assert worker.process.returncode == -9
