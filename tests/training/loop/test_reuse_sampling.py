"""`engine.reuse_sampling`: the update reads the sampler's activations where that is the forward it would have made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sage_rlvr.training import scores
from sage_rlvr.training.loop import train_step
from training.loop.loop_common import make, run_of, weights

Recipe = Callable[..., Path]
BRANCH = "{name: sage, base: {name: grpo, beta: 0.05}, guide: {name: branch, threshold: 0.2}}"
ON, SOFT = ("engine.reuse_sampling", "true"), ("optimizer.eps", "0.01")  # AdamW divides by the size of a gradient


@pytest.mark.parametrize("method", ["{name: grpo, beta: 0.05}", BRANCH])
def test_the_weights_are_those_of_a_forward_of_its_own(write_recipe: Recipe, method: str) -> None:
    recipe = write_recipe(method, steps=2)
    without, reusing = make(recipe, SOFT), make(recipe, SOFT, ON)
    start = weights(without)
    for step in range(2):
        a, b = train_step(without, step), train_step(reusing, step)
        assert b["surrogate/ratio_mean"] == 1.0 and a["loss"] == pytest.approx(b["loss"], abs=1e-5)
        assert a["policy/entropy"] == pytest.approx(b["policy/entropy"], abs=1e-4)
        assert a["kl/to_reference"] == pytest.approx(b["kl/to_reference"], abs=1e-5)
    assert (weights(without) - start).abs().max() > 1e-4
    assert torch.allclose(weights(without), weights(reusing), rtol=0, atol=1e-6)


def test_the_policy_has_no_forward_but_to_measure_the_gap(write_recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, scored = make(write_recipe("{name: grpo, beta: 0.05}", steps=3), ON), []
    inner = scores.score
    monkeypatch.setattr(scores, "score", lambda model, *a, **k: scored.append(model is loop.policy) or inner(model, *a, **k))
    first = train_step(loop, 0)
    assert scored == [False, True] and 0 < first["sampler/logp_gap_mean"] <= first["sampler/logp_gap_max"] < 1e-4
    second = train_step(loop, 1)
    assert scored == [False, True, False] and "sampler/logp_gap_max" not in second


@pytest.mark.parametrize(
    ("method", "more", "words"),
    [
        ("{name: grpo, beta: 0.05}", "updates: {epochs: 2}\n", "not used: a step has several updates or micro-batches"),
        ("{name: grpo, beta: 0.05}", "updates: {micro_batch: 1}\n", "not used: a step has several updates"),
        ("{name: dapo, beta: 0.05}", "", "not used: DynamicSampling draws a step's completions in several parts"),
        ("{name: forward_kl, beta: 0.05}", "", "not used: the method reads distributions"),
        ("{name: grpo, beta: 0.05}", "", "reads the sampler's activations, without a forward of the policy"),
    ],
)
def test_the_start_names_the_choice_and_its_reason(write_recipe: Recipe, method: str, more: str, words: str) -> None:
    reusing, without = make(write_recipe(method, more=more), ON), make(write_recipe(method, more=more))
    assert words in scores.engine_line(reusing) and scores.engine_line(without) == ""
    if "not used" in words:
        train_step(reusing, 0)
        train_step(without, 0)
        assert torch.equal(weights(reusing), weights(without))


def test_a_bfloat16_policy_trains_and_names_its_gap(write_recipe: Recipe) -> None:
    loop = make(write_recipe("{name: grpo, beta: 0.05}", steps=2), ON, ("engine.dtype", "bfloat16"))
    before = weights(loop).clone()
    metrics = train_step(loop, 0)
    assert 1e-4 < metrics["sampler/logp_gap_mean"] < 0.125 and metrics["surrogate/ratio_mean"] == 1.0
    assert metrics["kl/to_reference"] < 0.01  # policy and reference are one model: what is left is rounding
    assert not torch.equal(weights(loop), before)


def test_a_continued_run_ends_bitwise_as_an_uninterrupted_one(write_recipe: Recipe, tmp_path: Path) -> None:
    recipe = write_recipe(BRANCH, steps=4)
    for folder, parts in (("whole", ["4"]), ("halves", ["2", "4"])):
        for steps in parts:
            run_of(recipe, tmp_path / folder, steps=steps, engine__reuse_sampling="true")
    whole, halves = (load_file(tmp_path / folder / "policy" / "model.safetensors") for folder in ("whole", "halves"))
    assert all(torch.equal(whole[name], halves[name]) for name in whole)
