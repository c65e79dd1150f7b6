"""What SageTrainer prints at train(): in a script alone, in a recipe's run, and in fine-tuning. Needs TRL."""

# ruff: noqa: E402  (what needs TRL is imported after importorskip)

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

trl = pytest.importorskip("trl")

from datasets import Dataset

from chat_policy import EMPTY, OFF, chat_policy, guided_config, rendered, rows_file
from sage_rlvr.config import FinetuneConfig, TrainConfig, decode, dump
from sage_rlvr.core.guides import Branch
from sage_rlvr.errors import ConfigError
from sage_rlvr.methods import grpo, sage
from sage_rlvr.models.policy import load_tokens
from sage_rlvr.progress import Silent
from sage_rlvr.runs import RunDir, read_record
from sage_rlvr.training import opening
from sage_rlvr.training.trl import SageTrainer, grpo_config, sft
from sage_rlvr.training.trl import run as trl_run
from trl_common import QUIET

ASKED = [{"role": "user", "content": "2+2?"}]
FIELDS: dict[str, Any] = {"max_steps": 2, "per_device_train_batch_size": 4, "num_generations": 4, "max_completion_length": 4}
DOSE = r"after step 1: Branch: q != 1 at [\d.]+% of the tokens, clamped at [\d.]+%, mean q [\d.]+"


class Notes(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)


class Spied(SageTrainer):
    """Keeps the prompts that are trained on, without padding."""

    trained: list[list[int]]

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        found = super()._generate_and_score_completions(inputs)
        rows = zip(found["prompt_ids"], found["prompt_mask"].bool(), strict=True)
        self.trained = [ids[mask].tolist() for ids, mask in rows]
        return found


def reward(completions: list[Any], **_: object) -> list[float]:
    return [float(len(str(said)) % 2) for said in completions]


def script(folder: Path, prompt: Any = ASKED, cls: type = Spied, **more: Any) -> Any:
    """A trainer as a script makes it, on one row."""
    method = more.pop("method", None)
    fields = {"beta": 0.1, "use_bias_correction_kl": False} if method is None else grpo_config(method)
    args = trl.GRPOConfig(str(folder / "out"), **QUIET | FIELDS | fields | more.pop("fields", {}))
    return cls(
        chat_policy(folder / "policy"),
        reward,
        args,
        train_dataset=Dataset.from_list([{"prompt": prompt}]),
        **({"guide": Branch("p80")} if method is None else {"method": method}),
    )


@pytest.mark.parametrize("options", [None, OFF])
def test_a_script_prints_its_objective_setting_prompt_and_dose_once(
    options: dict[str, Any] | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    trainer = script(tmp_path, fields={"chat_template_kwargs": options})
    assert "TRL's loss" not in capsys.readouterr().err  # at train(), and not at construction
    trainer.train()
    said = capsys.readouterr().err
    ids = rendered(load_tokens(str(tmp_path / "policy")).tokenizer, ASKED, **options or {})
    assert trainer.trained == [ids] * 4
    assert opening.decoded(trainer.processing_class, ids) in said and ("</think>" in said) == bool(options)
    assert said.count("TRL's loss: loss_type dapo") == said.count("expected gradient of the KL term") == 1
    assert re.search(r"k parameters, float32 on cpu with 1 .*lr 1e-6 linear", said)
    assert len(re.findall(DOSE, said)) == 1
    trainer.args.max_steps = 3
    trainer.train()
    assert "first prompt" not in capsys.readouterr().err


def test_a_script_with_a_method_prints_its_description_and_plain_text_as_it_is_tokenized(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    method = sage(grpo(beta=0.1), Branch("p80"))
    trainer = script(tmp_path, "2+2=", method=method)
    trainer.train()
    said = capsys.readouterr().err
    assert method.describe() in said
    assert opening.decoded(trainer.processing_class, trainer.trained[0]) in said and "2+2=" in said


def test_other_ranks_print_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    trainer = script(tmp_path)
    monkeypatch.setattr(trainer, "is_world_process_zero", lambda: False)
    trainer.train()
    assert not re.search("TRL's loss|first prompt|after step 1", capsys.readouterr().err)


def test_a_script_is_warned_of_a_high_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(opening, "LARGE", 10_000)
    with pytest.warns(UserWarning, match=r"learning_rate = 1e-3 with full fine-tuning of .* Set learning_rate to 1e-6"):
        script(tmp_path, fields={"learning_rate": 1e-3}).train()


@pytest.mark.parametrize("method", [None, grpo(beta=0.1)], ids=["guide", "method"])
def test_a_script_is_warned_once_of_samples_that_are_not_the_policys(method: Any, tmp_path: Path):
    with pytest.warns(UserWarning, match="sampled with top_p=0.9, but their log-probs are those of the whole policy") as said:
        script(tmp_path, method=method, fields={"top_p": 0.9, "max_steps": 1}).train()
    assert sum("top_p" in str(one.message) for one in said) == 1


# ---- recipes


def on_trl(folder: Path, **changes: Any) -> TrainConfig:
    return guided_config(folder, **{"steps": 1, "engine": {"name": "trl"}} | changes)


@pytest.mark.parametrize("options", [{}, OFF])
def test_the_prompt_that_a_recipe_prints_is_the_one_that_is_trained_on(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made = []

    def spied(*args: Any, **more: Any) -> Any:
        made.append(Spied(*args, **more))
        return made[0]

    monkeypatch.setattr(trl_run, "SageTrainer", spied)
    config, notes, said = on_trl(tmp_path, chat_template_kwargs=options), Notes(), []
    with RunDir.open(tmp_path / "run", dump(config)) as run:
        assert trl_run.train(config, run, tmp_path / "run", notes, said.append) == 1
    tokenizer = load_tokens(config.model).tokenizer
    messages = config.task.messages(config.task.problems("train")[0])  # type: ignore[union-attr]
    ids = rendered(tokenizer, messages, **options)
    assert made[0].trained == [ids] * 4
    assert any(f"prompts: 1, {len(ids)} to {len(ids)} tokens" in line for line in said)
    objective, setting, prompt, dose = notes.lines
    assert objective == config.method.describe() and prompt == opening.decoded(tokenizer, ids)
    assert "(engine.threads), lr 1e-4 constant" in setting or "with 1 threads, lr 1e-4 constant" in setting
    assert re.fullmatch(DOSE, dose) and prompt.endswith("</think>\\n\\n") == bool(options)


def test_a_run_on_trl_keeps_its_warning_and_continues_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(opening, "LARGE", 10_000)
    for steps, lines in ((1, 4), (2, 1)):
        config, notes = on_trl(tmp_path, steps=steps), Notes()
        with RunDir.open(tmp_path / "run", dump(config)) as run, pytest.warns(UserWarning, match=r"optimizer\.lr = 1e-4"):
            trl_run.train(config, run, tmp_path / "run", notes)
        assert len(notes.lines) == lines
    kept = {one["kind"]: one["step"] for one in read_record(tmp_path / "run")["warnings"]}
    assert kept["learning rate"] == 0


def test_adapters_are_counted_and_not_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: Any):
    monkeypatch.setattr(opening, "LARGE", 10_000)
    config, notes = on_trl(tmp_path, engine={"name": "trl", "lora": {"rank": 2}}), Notes()
    with RunDir.open(tmp_path / "run", dump(config)) as run:
        trl_run.train(config, run, tmp_path / "run", notes)
    assert re.search(r"k parameters, [\d.]+ k of them trained", notes.lines[1])
    assert "learning rate" not in {one["kind"] for one in read_record(tmp_path / "run").get("warnings", ())}


def test_the_recipe_alone_sets_the_options(tmp_path: Path):
    engine = {"name": "trl", "args": {"chat_template_kwargs": {"enable_thinking": True}}}
    with pytest.raises(ConfigError, match=r"engine\.args\.chat_template_kwargs = .*set chat_template_kwargs instead"):
        trl_run.build(on_trl(tmp_path, engine=engine, chat_template_kwargs=OFF), tmp_path / "trl")
    with pytest.raises(ConfigError, match=r"chat_template_kwargs\.enable_thinkin: "):
        trl_run.build(on_trl(tmp_path, chat_template_kwargs={"enable_thinkin": False}), tmp_path / "trl")
    with pytest.raises(ConfigError, match="plain text here"):
        plain = {"task": None, "world": {"train_problems": 8}, "model": "embedded"}
        trl_run.build(on_trl(tmp_path, **plain, chat_template_kwargs=OFF), tmp_path / "trl")


def test_fine_tuning_learns_the_prompt_of_the_options(tmp_path: Path):
    """A template that opens the assistant's turn alike in a demonstration and for a generation."""
    always = EMPTY.replace("\n", "\\n")
    template = (
        "{%- set empty = '" + always + "' if enable_thinking is defined and not enable_thinking else '' -%}"
        "{%- for m in messages -%}{{ '<|im_start|>' + m['role'] + '\\n' + (empty if m['role'] == 'assistant' else '') "
        "+ m['content'] + '<|im_end|>\\n' }}{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' + empty }}{%- endif -%}"
    )  # fmt: skip
    tree = {
        "model": chat_policy(tmp_path / "policy", template),
        "data": {"path": rows_file(tmp_path, 2), "prompt": "boxed"},
        "epochs": 1,
        "max_length": 500,
        "optimizer": {"lr": 1e-4},
        "chat_template_kwargs": OFF,
    }
    config, notes = decode(FinetuneConfig, tree), Notes()
    with RunDir.open(tmp_path / "sft", dump(config), kind="sft") as run:
        sft.finetune(config, run, tmp_path / "sft", progress=notes, say=lambda line: None)
    setting, row = notes.lines
    assert "lr 1e-4 constant" in setting and re.match(r"first row, \d+ tokens, \d+ of them learned:", row)
    assert "<think>\n\n  </think>" in row
