"""Saving a policy: whole or not at all, never over anything else, and a full disk is explained."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM, PreTrainedModel

from sage_rlvr.cli.app import main
from sage_rlvr.config import ModelConfig, SftConfig, TrainConfig, decode, dump, load_config
from sage_rlvr.contrib.tasks.repair import Repair
from sage_rlvr.errors import CheckpointError, ConfigError
from sage_rlvr.models.policy import load_policy, load_tokens
from sage_rlvr.progress import Silent
from sage_rlvr.runs import RunDir
from sage_rlvr.tasks.countdown import build_tokenizer
from sage_rlvr.training import loop, sft
from sage_rlvr.training.sft import build_model, train_sft
from sage_rlvr.training.state import check_replaceable, save_policy


def full_disk_as_oserror(*args: Any, **kwargs: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_disk_as_safetensors_says_it(*args: Any, **kwargs: Any) -> None:
    raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize("writer", [full_disk_as_oserror, full_disk_as_safetensors_says_it])
def test_a_full_disk_leaves_the_former_policy_and_no_residue(
    tmp_path: Path, tiny_policy: Path, monkeypatch: pytest.MonkeyPatch, writer: Any
) -> None:
    model, tokens = load_policy(str(tiny_policy))
    out = tmp_path / "run" / "policy"
    save_policy(model, tokens.tokenizer, out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    monkeypatch.setattr(PreTrainedModel, "save_pretrained", writer)
    for place in (out, tmp_path / "new" / "policy"):  # also where the folder above is not there yet
        with pytest.raises(CheckpointError, match=re.escape(f"{place}: the disk is full: this policy needs about")):
            save_policy(model, tokens.tokenizer, place)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert [path.name for path in out.parent.iterdir()] == ["policy"]


def test_other_errors_stay_what_they_are(tmp_path: Path, tiny_policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens = load_policy(str(tiny_policy))

    def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("not the disk's fault")

    monkeypatch.setattr(PreTrainedModel, "save_pretrained", broken)
    with pytest.raises(RuntimeError, match="not the disk's fault"):
        save_policy(model, tokens.tokenizer, tmp_path / "policy")


def test_the_other_architecture_is_built_without_dropout_and_as_large_as_asked() -> None:
    tokenizer = build_tokenizer()
    config = ModelConfig(architecture="gpt2", hidden=16, layers=2, heads=2, mlp=24, positions=32)
    model = build_model(config, tokenizer, seed=0).train()
    block = 4 * 16 * 16 + 4 * 16 + 2 * 16 * 24 + 16 + 24 + 4 * 16  # attention, MLP, two norms, all with biases
    assert sum(p.numel() for p in model.parameters()) == (len(tokenizer) + 32) * 16 + 2 * block + 2 * 16
    ids = torch.tensor([tokenizer.encode("1 2=3:")])
    assert torch.equal(model(ids).logits, model(ids).logits)  # in training mode, as the loop's update sees it
    assert type(build_model(ModelConfig(hidden=16, layers=1, heads=2, mlp=24), tokenizer, seed=0)) is LlamaForCausalLM


# ---- what may be replaced


def thesis(folder: Path) -> Path:
    """A former policy among a user's own files."""
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "thesis.tex"):
        (folder / name).write_text("mine")
    return folder


def untouched(folder: Path) -> bool:
    return {p.name: p.read_text() for p in folder.iterdir()} == dict.fromkeys(
        ("config.json", "model.safetensors", "thesis.tex"), "mine"
    )


def never(*args: Any, **kwargs: Any) -> None:
    raise AssertionError("trained before it looked at the place")


def test_a_folder_with_other_files_is_refused_before_the_warm_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = thesis(tmp_path / "papers")
    config = decode(SftConfig, {"steps": 1})
    monkeypatch.setattr(sft, "sft_step", never)
    monkeypatch.setattr(sft, "build_model", never)
    with RunDir.open(tmp_path / "run", dump(config), kind="sft") as run:
        with pytest.raises(ConfigError, match=r"papers: .*contains thesis\.tex; nothing was changed.*papers/policy"):
            train_sft(config, run, out, Silent())
        with pytest.raises(ConfigError, match=r"contains checkpoints|contains lock"):
            train_sft(config, run, run.path, Silent())  # the run directory itself
    assert untouched(out)


def test_the_policy_folder_of_a_run_is_looked_at_before_training(
    write_recipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(TrainConfig, write_recipe())
    monkeypatch.setattr(loop, "build", never)
    with RunDir.open(tmp_path / "run", dump(config)) as run:
        out = thesis(run.path / "policy")
        with pytest.raises(ConfigError, match=r"policy: .*contains thesis\.tex"):
            loop.train(config, run, Silent())
    assert untouched(out)


def test_saving_itself_refuses_too(tmp_path: Path, tiny_policy: Path) -> None:
    model, tokens = load_policy(str(tiny_policy))
    out = thesis(tmp_path / "papers")
    with pytest.raises(ConfigError, match="thesis"):
        save_policy(model, tokens.tokenizer, out)
    assert untouched(out) and [p.name for p in tmp_path.iterdir()] == ["papers"]


def test_what_is_no_former_policy(tmp_path: Path, tiny_policy: Path) -> None:
    (tmp_path / "adapter").mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors", "tokenizer.json"):
        (tmp_path / "adapter" / name).write_text("{}")
    for free in (tmp_path / "new", tmp_path / "none", tmp_path / "adapter", tiny_policy):
        check_replaceable(free)
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tiny_policy)
    for place in ("file", "link"):
        with pytest.raises(ConfigError, match="a file or a link"):
            check_replaceable(tmp_path / place)
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"tokenizer\.json without a config\.json"):
        check_replaceable(tmp_path / "half")
    (tmp_path / "deep" / "model.safetensors").mkdir(parents=True)  # a folder with the name of a file
    (tmp_path / "many").mkdir()
    for n in range(7):
        (tmp_path / "many" / f"{n}.txt").write_text("")
    with pytest.raises(ConfigError, match=r"contains model\.safetensors"):
        check_replaceable(tmp_path / "deep")
    with pytest.raises(ConfigError, match="and 2 more"):
        check_replaceable(tmp_path / "many")


def test_a_former_policy_is_replaced_and_comes_back_when_the_last_move_fails(
    tmp_path: Path, tiny_policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokens = load_policy(str(tiny_policy))
    out = tmp_path / "policy"
    out.mkdir()  # an empty folder is free
    save_policy(model, tokens.tokenizer, out)
    (out / "vocab.txt").write_text("of an older tokenizer")
    inner = Path.rename

    def rename(self: Path, target: Path) -> Path:
        if self.name == ".tmp-policy":
            raise RuntimeError("the last move")
        return inner(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(RuntimeError, match="the last move"):
        save_policy(model, tokens.tokenizer, out)
    assert (out / "vocab.txt").exists() and [p.name for p in tmp_path.iterdir()] == ["policy"]
    monkeypatch.undo()
    save_policy(model, tokens.tokenizer, out)
    assert not (out / "vocab.txt").exists() and (out / "config.json").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["policy"]


@pytest.mark.parametrize(("schema", "tree"), [(SftConfig, {}), (TrainConfig, {"method": {"name": "grpo"}})])
def test_bfloat16_weights_are_refused_for_training(schema: Any, tree: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"bfloat16.*rounds to nothing.*set float32"):
        decode(schema, {"steps": 1, "engine": {"name": "trl", "dtype": "bfloat16"}} | tree)
    decode(schema, {"steps": 1, "engine": {"dtype": "bfloat16"}} | tree)  # the loop keeps float32 copies


@pytest.mark.slow
def test_a_policy_is_trained_from_scratch_on_a_task_with_examples(tmp_path: Path) -> None:
    """The prompts and completions of the task, in its own characters; a task without them is refused by name."""
    recipe = tmp_path / "sft.yaml"
    recipe.write_text(
        "steps: 2\nbatch_size: 2\ntask: {name: repair, count: 4}\noptimizer: {lr: 1.0e-3}\n"
        "model: {hidden: 16, layers: 1, heads: 2, mlp: 16, positions: 512}\nengine: {threads: 1}\n"
    )
    with pytest.raises(SystemExit) as ended:
        main(["sft", str(recipe), "--run", str(tmp_path / "run"), "--out", str(tmp_path / "policy"), "--quiet"])
    assert not ended.value.code
    tokens = load_tokens(str(tmp_path / "policy"))
    task = Repair(count=4)
    problem, text = task.examples("train", 0, 0, 1)[0]
    ids = tokens.encode(task.prompt(problem) + text)
    assert tokens.decode([[*ids, tokens.eos_id]], [True]) == [task.prompt(problem) + text]
    recipe.write_text("steps: 2\ntask: {name: math, set: math500}\n")
    with pytest.raises(ConfigError, match=r"task = 'math500': .*examples\(split, seed, start, n\) and characters"):
        load_config(SftConfig, recipe)


def test_an_existing_model_goes_on_with_its_own_tokenizer(tmp_path: Path, tiny_policy: Path) -> None:
    """A task without characters of its own is spelled by the model's tokenizer; the weights are where training began."""
    (tmp_path / "sft.yaml").write_text(f"steps: 1\nbatch_size: 8\nmodel: {tiny_policy}\noptimizer: {{lr: 1e-9}}\n")
    config = load_config(SftConfig, tmp_path / "sft.yaml")
    with RunDir.open(tmp_path / "run", dump(config), kind="sft") as run:
        assert train_sft(config, run, tmp_path / "policy", Silent()) == 1
    before, after = (load_file(folder / "model.safetensors") for folder in (tiny_policy, tmp_path / "policy"))
    assert before.keys() == after.keys() and all(torch.allclose(before[n], after[n], atol=1e-6) for n in before)
