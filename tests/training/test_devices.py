"""`engine.device` and `engine.dtype` on the loop: refusals, a device of paper, and bfloat16 with float32 log-probs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from conftest import tiny_llama
from sage_rlvr.config import EngineConfig, OptimizerConfig, TrainConfig, dump, load_config, to_yaml
from sage_rlvr.core.keys import Key
from sage_rlvr.errors import ConfigError
from sage_rlvr.models import devices
from sage_rlvr.models.devices import FloatHead, device_of, placed
from sage_rlvr.models.folders import EMBEDDED
from sage_rlvr.models.policy import load_policy, run_facts
from sage_rlvr.models.sampler import Rollout, sample
from sage_rlvr.models.scoring import score
from sage_rlvr.training.loop import build, train_step
from sage_rlvr.training.opening import announce, setting_of
from sage_rlvr.training.optimizer import Optimizer

Recipe = Callable[..., Path]
BRANCH = "{name: sage, base: {name: grpo, beta: 0.05}, guide: {name: branch}}"
HERE = Path(__file__).parent


def on_paper(folder: Path, *recipes: str) -> dict[str, Any]:
    """What `on_paper.py` says of recipes, run on the CPU and on the device of paper in a process of its own."""
    paths = os.pathsep.join([str(HERE.parents[1] / "src"), str(HERE.parent / "helpers")])
    made = subprocess.run(
        [sys.executable, str(HERE / "on_paper.py"), str(folder), *recipes],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr[-3000:]
    return {name: found for line in made.stdout.splitlines() if line[:1] == "{" for name, found in json.loads(line).items()}


# ---- devices


def test_a_device_that_is_not_there_is_refused_and_auto_takes_what_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "is_there", lambda kind: kind == "cpu")
    for kind in ("cuda", "mps"):
        with pytest.raises(ConfigError, match=rf"engine.device = '{kind}': torch .* finds no such.*set engine.device to cpu"):
            device_of(kind)
    assert {device_of(name).type for name in (None, "cpu", "auto")} == {"cpu"}
    monkeypatch.setattr(devices, "is_there", lambda kind: kind in ("cpu", "mps"))
    assert device_of("auto").type == "mps"


@pytest.mark.parametrize(("fast", "found"), [(True, "bfloat16"), (False, "float32")])
def test_dtype_auto_is_bfloat16_where_the_cpu_multiplies_in_it(
    write_recipe: Recipe, monkeypatch: pytest.MonkeyPatch, fast: bool, found: str
) -> None:
    monkeypatch.setattr(devices, "multiplies_bfloat16", lambda: fast)
    config = load_config(TrainConfig, write_recipe(), [("engine.dtype", "auto")])
    assert devices.dtype_of(config.engine) == run_facts(config)["dtype"] == found
    assert next(build(config).policy.parameters()).dtype == getattr(torch, found)
    for stated in ("float32", "bfloat16"):
        named = load_config(TrainConfig, write_recipe(), [("engine.dtype", stated)])
        assert devices.dtype_of(named.engine) == stated and "dtype" not in run_facts(named)  # the recipe has it


def test_dtype_auto_is_bfloat16_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "multiplies_bfloat16", lambda: False)
    monkeypatch.setattr(devices, "is_there", lambda kind: True)
    assert devices.dtype_of(EngineConfig(dtype="auto", device="auto")) == "bfloat16"
    assert devices.dtype_of(EngineConfig(dtype="auto")) == "float32"  # no device named: the CPU


def test_dtype_auto_is_of_the_loop_alone() -> None:
    with pytest.raises(ConfigError, match=r"dtype.*only for the loop; on trl set float32"):
        EngineConfig(name="trl", dtype="auto")


def test_bfloat16_on_a_cpu_without_instructions_for_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_llama()
    monkeypatch.setattr(devices, "multiplies_bfloat16", lambda: False)
    assert devices.slow_bfloat16(model) == ""
    told: list[tuple[str, int, str]] = []
    half = setting_of(model.to(torch.bfloat16), lr=1e-6, schedule="constant")
    announce(lambda line: None, half, tell=lambda *one: told.append(one))
    assert [kind for kind, *_ in told] == ["dtype"] and "set engine.dtype to auto or float32" in told[0][2]
    monkeypatch.setattr(devices, "multiplies_bfloat16", lambda: True)
    assert devices.slow_bfloat16(model) == ""


@pytest.mark.parametrize("engine", ["trl", "verl"])
def test_the_other_engines_take_the_device_that_they_find(engine: Any) -> None:
    with pytest.raises(ConfigError, match=f"device = 'cpu': only for the loop; {engine} selects the device itself"):
        EngineConfig(name=engine, device="cpu")


def test_a_run_is_bound_to_its_device(write_recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resume elsewhere is refused by name like any other change; of `auto` the device that was found counts."""
    config = load_config(TrainConfig, write_recipe())
    assert dump(config)["engine"]["device"] is None and "device" not in run_facts(config)
    found = load_config(TrainConfig, write_recipe(), [("engine.device", "auto")])
    assert dump(found)["engine"]["device"] == "auto"
    monkeypatch.setattr(devices, "is_there", lambda kind: True)
    assert run_facts(found)["device"] == "cuda"


@pytest.mark.slow
def test_a_run_goes_on_from_one_device_to_another(write_recipe: Recipe, tmp_path: Path) -> None:
    """On a device that refuses to mix with the CPU: the same completions, and the same weights up to rounding, stopped on
    either and continued on the other; in bfloat16 too, up to its own."""
    more = "updates: {minibatches: 2, micro_batch: 1}\n"
    whole = write_recipe(BRANCH, steps=4, more=more)
    half = write_recipe(BRANCH, steps=2, name="half.yaml", more="engine: {dtype: bfloat16}\n")
    found = on_paper(tmp_path / "runs", f"{whole}@2", str(half))
    for way in ("to", "from"):
        assert found[f"{whole}@2"][way]["weights"] < 1e-4 and found[f"{whole}@2"][way]["metrics"] < 1e-3, way
    assert found[str(half)]["on"]["weights"] < 2e-2


KINDS = ("adaptive_entropy", "dars", "distinct", "forward_kl_branch", "pacs", "replay", "ucpo", "erank")
"""Recipes with parts of every kind: a state, ragged groups, answers, a guide, a surrogate, stored rows, rewards, hidden states."""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_parts_of_every_kind_run_on_a_device(tmp_path: Path) -> None:
    """Shipped recipes, made small: what leaves a tensor behind on the CPU is refused by the device."""
    recipes = []
    for name in KINDS:
        config = load_config(TrainConfig, name)
        edits = [("steps", "2"), ("rollout.prompts_per_step", "4"), ("rollout.group_size", "16")]
        edits += [("updates.micro_batch", "2")] if config.updates.micro_batch else []
        edits += [("updates.minibatches", str(min(2, config.updates.minibatches)))]
        small = tmp_path / f"{name}.yaml"
        small.write_text(to_yaml(load_config(TrainConfig, name, edits)))
        recipes.append(str(small))
    found = on_paper(tmp_path / "runs", *recipes)
    assert len(found) == len(recipes) == len(KINDS)
    far = {Path(name).stem: one["on"]["weights"] for name, one in found.items() if one["on"]["weights"] > 1e-3}
    assert not far


# ---- bfloat16


def rollout_of(model: Any, tokens: Any) -> tuple[list[list[int]], Rollout]:
    prompts = [tokens.encode_prompt("2 3 5 7=24:"), tokens.encode_prompt("1 4 6 9=10:")]
    law: Any = {"group_size": 16, "max_new_tokens": 24, "eos_id": tokens.eos_ids, "pad_id": tokens.pad_id}
    return prompts, sample(model, prompts, key=Key(0), **law)


@pytest.mark.slow
def test_bfloat16_log_probs_are_those_of_its_sampler_and_near_float32s(capsys: pytest.CaptureFixture[str]) -> None:
    """Of the shipped policy, whose products are bfloat16, the head's too."""
    model, tokens = load_policy(EMBEDDED)
    prompts, drawn = rollout_of(model, tokens)
    owners = torch.arange(2).repeat_interleave(16)

    def logps(one: Any) -> torch.Tensor:
        with torch.no_grad():
            return score(one, prompts, drawn.tokens, drawn.mask, owners).logps

    wide = placed(load_policy(EMBEDDED, "bfloat16")[0], "cpu")
    assert type(wide.get_output_embeddings()) is FloatHead  # for the stock path
    assert wide.get_output_embeddings().weight is wide.get_input_embeddings().weight  # still tied
    whole = logps(model)
    rms = float((logps(wide) - whole)[drawn.mask].square().mean().sqrt())
    with capsys.disabled():
        print(f"\nbfloat16 log-probs against float32's, root mean square: {rms:.1e} nats")
    assert rms < 0.02
    assert logps(wide).dtype == torch.float32
    own, again = rollout_of(wide, tokens)
    with torch.no_grad():
        scored = score(wide, own, again.tokens, again.mask, owners).logps
    assert float((scored - again.logps).abs().max()) < 0.15 and float((scored - again.logps).abs()[again.mask].mean()) < 5e-3


@pytest.mark.slow
def test_a_bfloat16_run_learns_what_a_float32_run_learns(write_recipe: Recipe) -> None:
    """Real steps, micro-batches too: the copies move as float32 weights do, and the policy is their rounding."""
    for more in ("", "updates: {minibatches: 2, micro_batch: 1}\n"):
        recipe = write_recipe(BRANCH, steps=3, more=more)
        half, whole = (build(load_config(TrainConfig, recipe, [("engine.dtype", dtype)])) for dtype in ("bfloat16", "float32"))
        start = {name: p.detach().clone() for name, p in whole.policy.named_parameters()}
        for loop in (half, whole):
            assert train_step(loop, 0)["optimizer/grad_norm"] > 0
        copies = {half.optimizer.names[copy]: copy.detach() for copy in half.optimizer.copies.values()}
        assert copies.keys() == start.keys() and all(value.dtype == torch.float32 for value in copies.values())
        assert all(torch.equal(p, copies[name].bfloat16()) for name, p in half.policy.named_parameters())
        moves = [torch.cat([(after[n] - before[n].float()).flatten() for n in start]) for after, before in (
            (copies, {n: p.bfloat16() for n, p in start.items()}), (dict(whole.policy.named_parameters()), start))]  # fmt: skip
        assert torch.nn.functional.cosine_similarity(*moves, dim=0) > 0.7


def test_updates_below_the_spacing_of_bfloat16_add_up() -> None:
    """100 updates of 1e-4 move a weight of 1 by .01, and none of them moves it in bfloat16 alone (spacing 1/256)."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    model.to(torch.bfloat16)
    optimizer = Optimizer(model, OptimizerConfig(lr=1e-4, weight_decay=0.0, beta1=0.0), 100)
    for step in range(100):
        model(torch.ones(1, 1, dtype=torch.bfloat16)).sum().backward()
        optimizer.step(step)
        if step == 0:
            assert model.weight.item() == 1.0
    (kept,) = optimizer.copies.values()
    assert kept.item() == pytest.approx(0.99, abs=1e-3) and model.weight.item() == kept.bfloat16().item() < 1


def test_gradients_of_micro_batches_add_up_in_float32() -> None:
    """256 and one: in bfloat16 the one is lost."""
    model = nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    optimizer = Optimizer(model, OptimizerConfig(lr=1e-5), 1)
    for size in (256.0, 1.0):
        (model(torch.ones(1, 1, dtype=torch.bfloat16)) * size).sum().backward()
    (kept,) = optimizer.copies.values()
    assert kept.grad is not None and kept.grad.item() == 257 and model.weight.grad is None


def test_a_float32_model_is_left_as_it_is() -> None:
    model = tiny_llama()
    head = model.get_output_embeddings()
    assert placed(model, None).get_output_embeddings() is head and not Optimizer(model, OptimizerConfig(lr=1e-3), 1).copies
