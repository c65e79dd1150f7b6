"""What is not finite moves nothing: the batch and the last good weights are set aside."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from sage_rlvr.core.state import tensors_of
from sage_rlvr.errors import CheckpointError, TrainingDiverged
from sage_rlvr.methods import METHODS
from sage_rlvr.runs import read_metrics
from sage_rlvr.training import loop as engine
from sage_rlvr.training.loop import train_step
from sage_rlvr.training.rollouts import draw_rollout
from sage_rlvr.training.state import model_tensors
from stateful import stateful
from training.loop.loop_common import make, own_problems, run_of

Recipe = Callable[..., Path]


def broken(at: int, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Tensor], Tensor]) -> None:
    """`objective` with its loss spoilt from its call number `at` on."""
    inner, calls = engine.objective, [0]

    def objective(*args: Any, **kwargs: Any) -> Any:
        loss, metrics = inner(*args, **kwargs)
        calls[0] += 1
        return (spoil(loss) if calls[0] > at else loss), metrics

    monkeypatch.setattr(engine, "objective", objective)


def infinite_gradient(loss: Tensor) -> Tensor:
    return loss + torch.sqrt((loss - loss).abs())  # the value is finite, the gradient is not


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "words"), [(lambda x: x * float("nan"), "loss is nan"), (infinite_gradient, "gradient norm is nan")]
)
@pytest.mark.parametrize(
    ("updates", "first_bad"),
    [("{}", 2), ("{micro_batch: 2}", 2 * 2 + 1), ("{epochs: 2, minibatches: 2}", 2 * 4 + 2)],
)
def test_a_loss_or_gradient_that_is_not_finite(
    write_recipe: Recipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[Tensor], Tensor],
    words: str,
    updates: str,
    first_bad: int,
) -> None:
    """Also in the third update of a step: what is kept are weights and state before the step, not between its updates."""
    monkeypatch.setitem(METHODS, "stateful", stateful)
    recipe = write_recipe("{name: stateful}", steps=4, more=f"updates: {updates}\n")
    good = tmp_path / "good"
    run_of(recipe, good, steps="4")
    twin = make(recipe)
    for step in range(2):
        train_step(twin, step)
    folder = tmp_path / "run"
    broken(first_bad, monkeypatch, spoil)
    with pytest.raises(TrainingDiverged, match=words) as caught:
        run_of(recipe, folder)
    assert str(folder / "diverged" / "step-000002") in str(caught.value) and "checkpoints" in str(caught.value)
    saved = load_file(folder / "checkpoints" / "step-000002" / "model.safetensors")
    for name, value in model_tensors(twin.policy).items():
        assert torch.equal(saved[name], value), name
    moments = load_file(folder / "checkpoints" / "step-000002" / "optimizer.safetensors")
    for name, value in twin.optimizer.tensors().items():
        assert torch.equal(moments[name], value), name
    state = load_file(folder / "checkpoints" / "step-000002" / "parts.safetensors")
    assert state["advantage.Remembered.steps"] == 2 and len(state) == 4
    for name, value in tensors_of(twin.method.parts, twin.parts).items():
        assert torch.equal(state[name], value), name
    aside = json.loads((folder / "diverged" / "step-000002" / "batch.json").read_text())
    assert aside["step"] == 2 and aside["prompts"] == [twin.task.prompt(p) for p in own_problems(twin, 2)]
    rollout = draw_rollout(twin, [twin.tokens.encode(p) for p in aside["prompts"]], 2)
    kept = load_file(folder / "diverged" / "step-000002" / "rollout.safetensors")
    assert torch.equal(kept["tokens"], rollout.tokens)
    assert [row["step"] for row in read_metrics(folder)] == [0, 1] and not (folder / "policy").exists()
    monkeypatch.undo()
    monkeypatch.setitem(METHODS, "stateful", stateful)  # mended, the same command goes on and ends as if nothing had been
    assert run_of(recipe, folder) == 4
    a, b = (load_file(f / "policy" / "model.safetensors") for f in (good, folder))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_full_disk_while_a_batch_is_set_aside(
    write_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    broken(0, monkeypatch, lambda loss: loss * float("inf"))
    monkeypatch.setattr(engine, "save_file", full)
    said = r"diverged.step-000000: the disk is full: this batch set aside \(loss is .* at step 0\) needs about [\d,]+ bytes"
    with pytest.raises(CheckpointError, match=said):
        run_of(write_recipe(), tmp_path / "run")
    assert (tmp_path / "run" / "checkpoints" / "step-000000" / "model.safetensors").exists()


def test_a_divergence_at_the_first_step(write_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(0, monkeypatch, lambda loss: loss * float("inf"))
    with pytest.raises(TrainingDiverged, match="at step 0"):
        run_of(write_recipe(), tmp_path / "run")
    assert (tmp_path / "run" / "checkpoints" / "step-000000" / "model.safetensors").exists()
