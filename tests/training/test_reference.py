"""References: what they are loaded from, when the run itself becomes one, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from loop_recorded import draw_groups
from sage_rlvr.cli.recipes import reference_line
from sage_rlvr.config import TrainConfig, dump, load_config
from sage_rlvr.core import Anchor, Method
from sage_rlvr.errors import ConfigError
from sage_rlvr.methods import METHODS, grpo
from sage_rlvr.models.enumeration import solutions
from sage_rlvr.models.enumeration.solutions import log_right
from sage_rlvr.models.policy import load_policy
from sage_rlvr.models.scoring import score
from sage_rlvr.progress import Silent
from sage_rlvr.runs import RunDir, read_metrics
from sage_rlvr.tasks.abilities import Environment
from sage_rlvr.tasks.countdown import build_tokenizer
from sage_rlvr.training.loop import build, train, train_step
from sage_rlvr.training.reference import follow, reference_right
from sage_rlvr.training.state import model_tensors

Recipe = Callable[..., Path]


def anchored(source: str = "base", refresh_every: int | None = None) -> Method:
    return replace(grpo(), name="anchored", anchor=Anchor(0.05, source=source, refresh_every=refresh_every))


@pytest.fixture
def config(write_recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> Callable[..., TrainConfig]:
    """config(source, refresh_every, "a.b", "value", ...) -> a small run of 5 steps with such an anchor."""
    monkeypatch.setitem(METHODS, "anchored", anchored)

    def make(source: str | Path = "base", refresh_every: int | None = None, *words: str) -> TrainConfig:
        refresh = "null" if refresh_every is None else refresh_every
        recipe = write_recipe(f"{{name: anchored, source: '{source}', refresh_every: {refresh}}}", steps=5)
        return load_config(TrainConfig, recipe, list(zip(words[::2], words[1::2], strict=True)))

    return make


Config = Callable[..., TrainConfig]


def run(config: TrainConfig, folder: Path, fork: bool = False) -> list[dict[str, float]]:
    with RunDir.open(folder, dump(config), fork=fork) as held:
        train(config, held, Silent())
    return read_metrics(folder)


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# ---- from files


@pytest.mark.slow
def test_base_is_the_model_before_fine_tuning_and_sft_where_the_run_starts(config: Config, tiny_policy: Path) -> None:
    before = ("base_model", str(tiny_policy))
    loops = {
        "base": build(config("base", None, *before)),
        "base without one": build(config("base")),
        "sft": build(config("sft", None, *before)),
        "a path": build(config(tiny_policy)),
    }
    found = {name: train_step(loop, 0) for name, loop in loops.items()}
    assert found["sft"]["kl/to_reference"] == found["base without one"]["kl/to_reference"] == 0.0
    assert found["base"]["kl/to_reference"] == found["a path"]["kl/to_reference"] > 0.1
    assert equal(model_tensors(loops["base"].reference), model_tensors(load_policy(str(tiny_policy))[0]))  # type: ignore[arg-type]
    assert not any("kl/reference_step" in metrics for metrics in found.values())


@pytest.mark.slow
def test_the_exact_z_of_a_problem_is_that_of_its_right_completions(
    write_recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum over solutions that fit, one row after the other at the rollout's temperature; read by the step; of the reference
    as it is; refused by name where a task lists none."""
    words = [("rollout.temperature", "0.8"), ("rollout.max_new_tokens", "6")]
    recipes = {z: write_recipe(f"{{name: alpha_dpg, z: {z}, source: snapshot@1}}", name=f"{z}.yaml") for z in ("exact", "group")}
    loops = {z: build(load_config(TrainConfig, path, words)) for z, path in recipes.items()}
    loop = loops["exact"]
    groups = draw_groups(loop, 0).groups[0]
    found = reference_right(loop, groups).reshape(-1, 4)
    for problem, prompt, own in zip(groups.problems, groups.prompts, found.tolist(), strict=True):
        total = 0.0
        for text in loop.task.solutions(problem):
            tokens = torch.tensor([[*loop.tokens.encode(text), *loop.tokens.eos_ids]])
            scored = score(loop.reference, [prompt], tokens, torch.ones_like(tokens).bool(), torch.tensor([0]), temperature=0.8)
            total += float(scored.logps.sum().exp())
        assert own == pytest.approx([own[0]] * 4) and math.exp(own[0]) == pytest.approx(total, rel=1e-4)
        short = min(len(loop.tokens.encode(text)) for text in loop.task.solutions(problem))  # without its end
        assert log_right(loop.reference, loop.tokens, loop.task, problem, 0.8, short) == -math.inf
    first = [train_step(loop, 0)["optimizer/grad_norm"] for loop in loops.values()]
    assert first[0] != pytest.approx(first[1], rel=1e-2)
    follow(loop, 1)
    assert not torch.allclose(reference_right(loop, groups).reshape(-1, 4), found) and {step for step, _ in loop.solved} == {0, 1}
    monkeypatch.setattr(solutions, "Enumerable", Environment)  # as if it listed none
    with pytest.raises(ConfigError, match=r"right completions cannot be listed.*z: group"):
        build(loop.config)


def test_a_reference_from_files_is_in_no_checkpoint(config: Config, tmp_path: Path) -> None:
    run(config("sft"), tmp_path / "run")
    assert not list((tmp_path / "run" / "checkpoints").glob("*/reference.safetensors"))


def resized(folder: Path, tokens: int) -> LlamaForCausalLM:
    model = LlamaForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(tokens, mean_resizing=False)
    return model


@pytest.mark.slow
def test_another_vocabulary_is_refused_with_both_names_and_sizes(
    config: Config, tiny_policy: Path, warm_policy: Path, tmp_path: Path
) -> None:
    def save(model: PreTrainedModel, tokenizer: object, name: str) -> str:
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)  # type: ignore[attr-defined]
        return str(tmp_path / name)

    tokenizer = build_tokenizer()
    wide = save(resized(tiny_policy, 24), tokenizer, "wide")
    with pytest.raises(ConfigError) as caught:
        build(config("base", None, "base_model", wide))
    said = str(caught.value)
    assert f"policy {str(warm_policy)!r} has 21 tokens and 21 logits" in said
    assert f"its reference {wide!r} has 21 tokens and 24 logits: they do not share a vocabulary" in said
    more = build_tokenizer()
    more.add_tokens(["<think>"])
    with pytest.raises(ConfigError, match="22 tokens and 22 logits: they do not"):
        build(config(save(resized(tiny_policy, 22), more, "more")))
    swapped = save(resized(tiny_policy, 21), tokenizer, "swapped")
    file = Path(swapped) / "tokenizer.json"
    text, (plus, minus) = file.read_text(), (f'"{sign}": {tokenizer.get_vocab()[sign]}' for sign in "+-")
    file.write_text(
        text.replace(plus, plus.replace("+", "@")).replace(minus, minus.replace("-", "+")).replace("@", "-")
    )
    with pytest.raises(ConfigError, match=r"21 logits \(token '[+-]' is \d+ in the policy and \d+ in the reference\)"):
        build(config(swapped))


# ---- from the run itself


@pytest.mark.slow
def test_a_reference_is_replaced_by_the_policy_every_two_steps(config: Config, tmp_path: Path) -> None:
    settings = config("base", 2, "checkpoint.every", "1", "checkpoint.keep", "9")
    rows = run(settings, tmp_path / "run")
    assert [row["kl/reference_step"] for row in rows] == [0, 0, 2, 2, 4]
    assert [row["kl/to_reference"] > 0 for row in rows] == [False, True, False, True, False]
    folders = [tmp_path / "run" / "checkpoints" / f"step-{n:06d}" for n in range(1, 6)]
    assert [(f / "reference.safetensors").exists() for f in folders] == [False, True, True, True, True]
    policies = [load_file(f / "model.safetensors") for f in folders]
    references = [load_file(f / "reference.safetensors") for f in folders[1:]]
    assert equal(references[0], policies[1]) and equal(references[1], policies[1]) and equal(references[3], policies[3])
    assert not equal(policies[1], policies[3])


def test_a_snapshot_is_the_policy_after_its_step_and_stays(config: Config, tmp_path: Path) -> None:
    rows = run(config("snapshot@2", None, "checkpoint.every", "1", "checkpoint.keep", "9"), tmp_path / "run")
    assert [row["kl/reference_step"] for row in rows] == [0, 0, 2, 2, 2]
    assert [row["kl/to_reference"] > 0 for row in rows] == [False, True, False, True, True]
    at = tmp_path / "run" / "checkpoints"
    assert equal(
        load_file(at / "step-000005" / "reference.safetensors"), load_file(at / "step-000002" / "model.safetensors")
    )


def test_following_makes_a_copy_that_training_does_not_move(config: Config) -> None:
    loop = build(config("sft", 3))
    first = loop.reference
    follow(loop, 2)
    assert loop.reference is first and loop.reference_step == 0
    follow(loop, 3)
    assert loop.reference is not None and loop.reference is not first and loop.reference_step == 3
    assert not loop.reference.training and not any(p.requires_grad for p in loop.reference.parameters())
    kept = {name: t.clone() for name, t in model_tensors(loop.reference).items()}
    train_step(loop, 0)
    assert equal(model_tensors(loop.reference), kept) and not equal(model_tensors(loop.policy), kept)
    assert all(p.requires_grad for p in loop.policy.parameters())


@pytest.mark.slow
def test_a_refresh_replaces_a_reference_of_another_size(config: Config, tmp_path: Path) -> None:
    tokens = build_tokenizer()
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(vocab_size=len(tokens), **sizes)).save_pretrained(tmp_path / "small")
    tokens.save_pretrained(tmp_path / "small")
    settings = config("base", 2, "base_model", str(tmp_path / "small"), "steps", "4", "checkpoint.every", "3")
    rows = run(settings, tmp_path / "whole")
    assert rows[0]["kl/to_reference"] > 0 == rows[2]["kl/to_reference"]
    run(replace(settings, steps=3), tmp_path / "parts")
    assert run(settings, tmp_path / "parts")[3]["kl/to_reference"] == rows[3]["kl/to_reference"] > 0


@pytest.mark.slow
def test_a_snapshot_that_a_directory_has_passed_is_refused(config: Config, tmp_path: Path) -> None:
    """A fork to another anchor: what its reference would be is nowhere any more."""
    folder = tmp_path / "run"
    run(config("snapshot@2", None, "steps", "4"), folder)
    with pytest.raises(ConfigError, match="the policy after step 3, but this run is at step 4 and did not save that policy"):
        run(config("snapshot@3", None, "steps", "6"), folder, fork=True)
    rows = run(config("snapshot@5", None, "steps", "6"), folder, fork=True)
    assert [row["kl/reference_step"] for row in rows] == [0, 0, 2, 2, 0, 5]
    rows = run(config("sft", None, "steps", "7"), folder, fork=True)
    assert "kl/reference_step" not in rows[6] and rows[6]["kl/to_reference"] > 0


# ---- what `show` says of it


def test_show_names_what_the_reference_is_loaded_from(config: Config, warm_policy: Path) -> None:
    given = ("base_model", "org/base")
    assert reference_line(config("base")) == f"reference: {warm_policy} (model, because base_model is not set)"
    assert reference_line(config("base", None, *given)) == "reference: org/base (base_model)"
    said = reference_line(config("sft", None, *given))
    assert said.startswith(
        f"reference: {warm_policy} (model; the source of the KL term is sft); base_model = org/base is not used"
    )
    assert "is not used" not in reference_line(config("snapshot@2")) and "snapshot@2" in reference_line(
        config("snapshot@2")
    )
    assert reference_line(config("org/other")) == "reference: org/other (the source of the KL term)"
    none = reference_line(config("base", None, *given, "method", "no_kl"))
    assert none.startswith("reference: none") and "base_model = org/base is not used" in none
