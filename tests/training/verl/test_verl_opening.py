"""chat_template_kwargs on verl, and what a run there prints: all that needs no verl."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from chat_policy import OFF, chat_policy, rendered, rows_file
from sage_rlvr.cli.app import main
from sage_rlvr.config import TrainConfig, decode, dump
from sage_rlvr.errors import ConfigError
from sage_rlvr.models.policy import load_tokens
from sage_rlvr.progress import Silent
from sage_rlvr.runs import RunDir
from sage_rlvr.training.opening import decoded
from sage_rlvr.training.verl import opening, run


class Notes(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)


def config_of(folder: Path, args: Mapping[str, Any] = {}, **changes: Any) -> TrainConfig:
    tree = {
        "steps": 2,
        "model": chat_policy(folder / "policy"),
        "task": {"name": "jsonl", "file": rows_file(folder, 3)},
        "method": {"name": "sage", "base": {"name": "grpo", "beta": 0.1}, "guide": {"name": "branch", "threshold": "p80"}},
        "rollout": {"prompts_per_step": 2, "group_size": 4, "max_new_tokens": 4},
        "engine": {"name": "verl", "args": {"trainer.n_gpus_per_node": 1, **args}},
    }
    return decode(TrainConfig, tree | changes)


@pytest.mark.parametrize("options", [{}, OFF])
def test_the_prompt_that_is_printed_is_the_exported_row_under_the_options_of_the_command(options: dict[str, Any], tmp_path: Path):
    config = config_of(tmp_path, chat_template_kwargs=options)
    words, prompt = run.prepare(config, tmp_path / "verl", lambda line: None)
    given = [word for word in words if "chat_template_kwargs" in word]
    assert given == ["+data.apply_chat_template_kwargs.enable_thinking=false"] * bool(options)
    tokenizer = load_tokens(config.model).tokenizer
    row = pq.read_table(tmp_path / "verl" / "problems" / "train.parquet").to_pylist()[0]
    assert prompt == decoded(tokenizer, rendered(tokenizer, row["prompt"], **options))
    assert prompt == opening.first_prompt(tokenizer, row["prompt"], options)


@pytest.mark.parametrize("key", ["data.apply_chat_template_kwargs.enable_thinking", "+data.apply_chat_template_kwargs.other"])
def test_the_recipe_alone_sets_the_options(key: str, tmp_path: Path):
    config = config_of(tmp_path, {key: True}, chat_template_kwargs=OFF)
    with pytest.raises(ConfigError, match=r"engine\.args\.data\.apply_chat.*set chat_template_kwargs instead"):
        run.prepare(config, tmp_path / "verl", lambda line: None)


def test_an_option_that_the_template_does_not_read_is_refused_before_anything_is_written(tmp_path: Path):
    config = config_of(tmp_path, chat_template_kwargs={"enable_thinkin": False})
    with pytest.raises(ConfigError, match=r"chat_template_kwargs\.enable_thinkin: "):
        run.prepare(config, tmp_path / "verl", lambda line: None)
    assert not (tmp_path / "verl").exists()


@pytest.mark.slow
def test_the_exported_command_has_the_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "mine.yaml").write_text(json.dumps(dump(config_of(tmp_path, chat_template_kwargs=OFF))))
    with pytest.raises(SystemExit) as ended:
        main(["export", "verl", str(tmp_path / "mine.yaml"), "--out", str(tmp_path / "out")])
    assert not ended.value.code
    assert "+data.apply_chat_template_kwargs.enable_thinking=false" in capsys.readouterr().out


def test_a_run_prints_its_opening_before_verl_starts_and_the_dose_after_its_first_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config, notes = config_of(tmp_path, chat_template_kwargs=OFF), Notes()
    metrics = {"guide/active_frac": 0.25, "guide/clamped_frac": 0.0, "guide/q_mean": 1.02}

    def followed(words: list[str], folder: Path, begin: int, kept: RunDir, progress: Any, anchor: Any = None) -> int:
        assert len(notes.lines) == 3
        file = folder / "metrics.jsonl"
        file.write_text("".join(json.dumps({"step": step, "data": metrics}) + "\n" for step in (1, 2)))
        run.take(file, 0, kept, progress, anchor)
        return 2

    monkeypatch.setattr(run, "follow", followed)
    monkeypatch.setattr(run, "save", lambda config, checkpoint, out: None)
    with RunDir.open(tmp_path / "run", dump(config)) as kept:
        run.train(config, kept, notes)
    objective, setting, prompt, dose = notes.lines
    assert objective == config.method.describe() and prompt.endswith("</think>\\n\\n")
    assert re.fullmatch(r"[\d.]+ k parameters, float32 weights on 1 worker of verl, lr 1e-4 constant", setting)
    assert dose == "after step 1: Branch: q != 1 at 25.0% of the tokens, clamped at 0.0%, mean q 1.0200"


def test_verls_own_command_prints_setting_and_prompt(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    policy = chat_policy(tmp_path)
    fields: dict[str, Any] = {
        "actor_rollout_ref.model.path": policy,
        "actor_rollout_ref.model.lora_rank": 2,
        "actor_rollout_ref.model.target_modules": ["q_proj"],
        "actor_rollout_ref.actor.optim.lr": 1e-6,
        "data.apply_chat_template_kwargs": OFF,
        "trainer.n_gpus_per_node": 8,
    }
    asked = [{"role": "user", "content": "2+2?"}]
    trainer = SimpleNamespace(tokenizer=load_tokens(policy).tokenizer, train_dataset=[{"raw_prompt": asked}], global_steps=1)
    opening.open_training(trainer, fields.get)
    said = capsys.readouterr().out
    assert re.search(r"sage: [\d.]+ k parameters, [\d.]+ k of them trained, float32 weights on 8 workers of verl, lr 1e-6", said)
    assert "sage: first prompt, " in said and "  <think>\n\n  </think>\\n\\n" in said
    trainer.global_steps = 5
    opening.open_training(trainer, (fields | {"actor_rollout_ref.rollout.top_p": 0.9}).get)
    said = capsys.readouterr().out
    assert "first prompt" not in said and "sage: warning: completions are sampled with actor_rollout_ref.rollout.top_p=0.9" in said


@pytest.mark.parametrize(("top_k", "said"), [(20, True), (-1, False)])
def test_a_recipe_on_verl_says_that_samples_are_not_the_policys(top_k: int, said: bool, tmp_path: Path):
    config = config_of(tmp_path, {"actor_rollout_ref.rollout.top_k": top_k})
    assert ("rollout.top_k=20" in opening.setting_of_recipe(config).sampling) is said
    assert f"actor_rollout_ref.rollout.top_k={top_k}" in run.prepare(config, tmp_path / "verl", lambda line: None)[0]
