"""Fine-tuning on TRL: what is learned, from which rows, on which prompts; and a run that is killed goes on."""

# ruff: noqa: E402  (what needs TRL is imported after importorskip)

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

trl = pytest.importorskip("trl")

import datasets
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from byte_tokenizer import CHATML, byte_tokenizer
from conftest import tiny_llama
from sage_rlvr.config import (
    CheckpointConfig,
    DataConfig,
    EngineConfig,
    FinetuneConfig,
    LoraConfig,
    OptimizerConfig,
    decode,
    dump,
)
from sage_rlvr.errors import ConfigError, DataError, TrainingDiverged
from sage_rlvr.models.policy import load_policy
from sage_rlvr.runs import RunDir, read_metrics, verify_checkpoint
from sage_rlvr.tasks.chat import render
from sage_rlvr.tasks.prompts import FORMATS
from sage_rlvr.training.trl.run import load
from sage_rlvr.training.trl.sft import OWNED, build, finetune, run_facts, select, sft_arguments

SILENT = SimpleNamespace(start=lambda **_: None, advance=lambda *_: None, note=lambda line: None)


def quiet(line: str) -> None:
    """Nothing is said."""


def save_base(folder: Path, template: str | None = None) -> Path:
    """A random Llama over bytes, as a base model without (or with) a chat template and without a pad token."""
    tokenizer = byte_tokenizer(template, pad_token=None)
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": None, "bos_token_id": tokenizer.bos_token_id}
    model = tiny_llama(vocab_size=len(tokenizer), max_position_embeddings=512, initializer_range=0.05, **ids)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_base(tmp_path_factory.mktemp("models") / "base")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten sums with worked solutions, as fine-tuning sets have them."""
    file = tmp_path_factory.mktemp("rows") / "sums.jsonl"
    made = [
        {"problem": f"{a}+{a}?", "expected_answer": str(2 * a), "generated_solution": f"<think>{a} twice.</think>"}
        for a in range(1, 11)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in made), encoding="utf-8")
    return file


def recipe(base: Path, rows: Path, **changes: Any) -> FinetuneConfig:
    settings: dict[str, Any] = {
        "model": str(base),
        "data": DataConfig(path=str(rows)),
        "epochs": 1,
        "batch_size": 2,
        "max_length": 512,
        "optimizer": OptimizerConfig(lr=1e-2, schedule="linear", warmup_steps=1),
        "checkpoint": CheckpointConfig(every=2),
        "engine": EngineConfig(name="trl", args={"optim": "adamw_torch"}),
    }
    return FinetuneConfig(**settings | changes)


def run(config: FinetuneConfig, folder: Path, **more: Any) -> Any:
    with RunDir.open(folder, dump(config), kind="sft", data=run_facts(config)) as opened:
        return finetune(config, opened, folder, progress=more.pop("progress", SILENT), say=more.pop("say", quiet))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


def same(one: Path, other: Path) -> bool:
    first, second = weights(one), weights(other)
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


@pytest.fixture(scope="module")
def trained(base: Path, rows: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[FinetuneConfig, Path, list[str]]:
    """A run of four epochs of five steps: (recipe, folder, what was said)."""
    config, folder, said = recipe(base, rows, epochs=4), tmp_path_factory.mktemp("runs") / "sft", []
    found = run(config, folder, say=said.append, progress=SimpleNamespace(**vars(SILENT) | {"note": said.append}))
    assert (found.step, found.total, found.policy, found.adapter) == (20, 20, folder / "policy", None)
    return config, folder, said


def first_row(trainer: Any) -> tuple[list[int], list[int]]:
    """(tokens, labels) of the first row as the model gets it: older releases of TRL make the labels while collating."""
    batch = trainer.data_collator([trainer.train_dataset[0]])
    return batch["input_ids"][0].tolist(), batch["labels"][0].tolist()


def test_the_loss_falls_and_every_step_has_its_row(trained: tuple[FinetuneConfig, Path, list[str]]):
    metrics = read_metrics(trained[1])
    assert [row["step"] for row in metrics] == list(range(20))
    losses = [row["loss"] for row in metrics]
    assert sum(losses[-3:]) < 0.8 * sum(losses[:3])
    assert {"optimizer/grad_norm", "optimizer/lr", "policy/entropy", "time/step_s"} <= metrics[0].keys()
    assert metrics[0]["optimizer/lr"] == 0 and metrics[1]["optimizer/lr"] == pytest.approx(1e-2)  # one step of warm-up


def test_the_saved_tokenizer_renders_the_prompt_that_rl_will_use(
    trained: tuple[FinetuneConfig, Path, list[str]], rows: Path
):
    config, folder, _ = trained
    policy, tokens = load_policy(str(folder / "policy"))
    saved, form = tokens.tokenizer, FORMATS["sage"]
    assert saved.chat_template == form.chat_template and saved.pad_token == "</s>" and saved.padding_side == "left"
    assert policy.generation_config.eos_token_id == saved.eos_token_id
    for_rl = load(config.data, say=quiet)
    ids, labels = first_row(build(config, folder / "again", quiet))
    prompt = saved.apply_chat_template(for_rl[0]["prompt"], add_generation_prompt=True, return_dict=True)["input_ids"]
    counted = [token for token in labels if token != -100]
    assert ids == prompt + counted  # the prompt is read, all behind it is learned
    assert saved.decode(prompt) == f"<s>{form.system}</s>1+1?\n\n<start_working_out>\n"
    assert saved.decode(counted) == "1 twice.\n<end_working_out>\n<SOLUTION>2</SOLUTION></s>"


def test_the_loss_of_the_whole_text_is_one_word_away(base: Path, rows: Path, tmp_path: Path):
    engine = EngineConfig(name="trl", args={"optim": "adamw_torch", "completion_only_loss": False})
    ids, labels = first_row(build(recipe(base, rows, engine=engine), tmp_path, quiet))
    assert labels == ids


def test_what_is_said_before_the_training(trained: tuple[FinetuneConfig, Path, list[str]]):
    said = "\n".join(trained[2])
    assert "no chat template" in said and "no pad token" in said
    assert "training rows: 10 of 10; dropped: none" in said
    assert "first row, " in said and " of them learned:" in said and "<start_working_out>" in said


def test_only_the_newest_checkpoints_stay_and_all_are_sealed(trained: tuple[FinetuneConfig, Path, list[str]]):
    found = sorted((trained[1] / "trl").glob("checkpoint-*"))
    assert [path.name for path in found] == ["checkpoint-18", "checkpoint-20"]
    for path in found:
        verify_checkpoint(path)


def test_a_finished_run_repeated_trains_nothing(trained: tuple[FinetuneConfig, Path, list[str]]):
    config, folder, _ = trained
    before = (folder / "policy" / "model.safetensors").stat().st_mtime_ns
    assert run(config, folder).step == 20
    assert (folder / "policy" / "model.safetensors").stat().st_mtime_ns == before
    assert not list((folder / "policy").glob("*.bin"))  # no pickle is left in what is shared


def test_a_policy_that_a_kill_kept_from_being_saved_is_saved(
    trained: tuple[FinetuneConfig, Path, list[str]], tmp_path: Path
):
    config, folder, _ = trained
    shutil.copytree(folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "policy")
    (tmp_path / "run" / "finished.json").unlink()
    assert run(config, tmp_path / "run").step == 20 and same(tmp_path / "run" / "policy", folder / "policy")


class Killed(BaseException):
    """What ends a run at once."""


def test_a_run_that_died_goes_on_and_ends_as_if_it_had_not(base: Path, rows: Path, tmp_path: Path):
    lora = EngineConfig(name="trl", args={"optim": "adamw_torch"}, lora=LoraConfig(rank=2, dropout=0.1))
    for name, engine in (("full", EngineConfig(name="trl", args={"optim": "adamw_torch"})), ("lora", lora)):
        config = recipe(base, rows, engine=engine)
        run(config, tmp_path / f"{name}-whole")

        def die(step: int, metrics: Any) -> None:
            if step == 4:
                raise Killed

        cut = tmp_path / f"{name}-cut"
        with pytest.raises(Killed):  # after step 4 is logged and before it is saved: step 2 is the last checkpoint
            run(config, cut, progress=SimpleNamespace(start=lambda **_: None, advance=die, note=quiet))
        assert [row["step"] for row in read_metrics(cut)] == [0, 1, 2, 3] and not (cut / "policy").exists()
        torn = cut / "trl" / "checkpoint-4"  # and a kill in the middle of saving step 4
        torn.mkdir(exist_ok=True)
        (torn / "model-00001-of-00002.safetensors").write_bytes(b"half")
        started: dict[str, int] = {}
        progress = SimpleNamespace(start=started.update, advance=lambda *_: None, note=quiet)
        assert run(config, cut, progress=progress).step == 5
        assert started == {"total": 5, "done": 2}
        assert not (torn / "model-00001-of-00002.safetensors").exists()  # what was torn is not sealed with the rest
        assert same(cut / "policy", tmp_path / f"{name}-whole" / "policy")
        first, second = (
            [{k: v for k, v in row.items() if not k.startswith("time/")} for row in read_metrics(folder)]
            for folder in (cut, tmp_path / f"{name}-whole")
        )
        assert first == second


@pytest.mark.slow
def test_a_process_that_is_asked_to_stop_saves_and_continues(base: Path, rows: Path, tmp_path: Path):
    config = recipe(base, rows, epochs=12, checkpoint=CheckpointConfig(every=1000))
    file = tmp_path / "sft.yaml"
    file.write_text(json.dumps(dump(config)), encoding="utf-8")
    command = [sys.executable, "-m", "sage_rlvr", "sft", str(file), "--run", str(tmp_path / "run"), "--quiet"]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "run" / "metrics.jsonl"
    for _ in range(1200):
        if metrics.exists() and metrics.read_text().count("\n") >= 3:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 143 and "the same command continues" in said
    again = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200)
    assert again.returncode == 0, again.stderr
    assert [row["step"] for row in read_metrics(tmp_path / "run")] == list(range(60))
    run(config, tmp_path / "whole")
    assert same(tmp_path / "run" / "policy", tmp_path / "whole" / "policy")


# ---- LoRA


def test_lora_leaves_an_adapter_and_the_same_policy_merged(base: Path, rows: Path, tmp_path: Path):
    from peft import PeftModel

    engine = EngineConfig(name="trl", args={"optim": "adamw_torch"}, lora=LoraConfig(rank=2))
    said: list[str] = []
    found = run(recipe(base, rows, engine=engine), tmp_path, say=said.append)
    assert found.adapter == tmp_path / "adapter"
    assert not same(base, found.policy)
    tokenizer = AutoTokenizer.from_pretrained(found.adapter)
    assert tokenizer.chat_template == AutoTokenizer.from_pretrained(found.policy).chat_template is not None
    ids = torch.tensor([tokenizer("1+1?")["input_ids"]])
    adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), found.adapter)
    merged = AutoModelForCausalLM.from_pretrained(found.policy)
    torch.testing.assert_close(adapted(ids).logits, merged(ids).logits, atol=1e-5, rtol=1e-4)
    assert any("source: sft" in line and str(found.adapter) in line for line in said)
    assert sorted(f.name for f in found.adapter.iterdir() if f.suffix in (".bin", ".md")) == []


def test_the_first_weights_of_an_adapter_are_those_of_the_seed(base: Path, rows: Path, tmp_path: Path):
    engine = EngineConfig(name="trl", args={"optim": "adamw_torch"}, lora=LoraConfig(rank=2))

    def first(seed: int) -> torch.Tensor:
        trainer = build(recipe(base, rows, engine=engine, seed=seed), tmp_path, quiet)
        return next(w.detach().clone() for n, w in trainer.model.named_parameters() if "lora_A" in n)

    torch.manual_seed(1)
    one = first(0)
    torch.manual_seed(2)
    assert torch.equal(one, first(0)) and not torch.equal(one, first(1))


# ---- the filter


def test_the_filter_leaves_out_and_counts(base: Path):
    from datasets import Dataset

    tokenizer, form = byte_tokenizer(FORMATS["boxed"].chat_template), FORMATS["boxed"]
    room = len(tokenizer(render(tokenizer, form.messages("p" * 10), opened=True))["input_ids"])
    cases = [("p" * 10, "s", "-3.5e2"), ("p" * 10, "s", r"\sqrt2"), ("p" * 11, "s", "1"), ("p" * 10, "s" * 400, "1")]
    rows = Dataset.from_list([{"prompt": form.messages(p), "solution": s, "answer": a} for p, s, a in cases])
    config = recipe(base, Path("x.jsonl"), max_length=2 * room)
    found = select(rows, tokenizer, form, config)
    assert [row["prompt"][-1]["content"] for row in found.rows] == ["p" * 10]  # a prompt of half the length still fits
    assert list(found.dropped.values()) == [1, 1, 1]
    assert str(found).startswith(
        "training rows: 1 of 4; dropped: 1 whose answer is not a number (numeric_answers); 1 w"
    )
    assert [why.split("(")[1].rstrip(")") for why in found.dropped] == [
        "numeric_answers",
        "max_length / 2",
        "max_length), whose answer would be truncated",
    ]
    assert len(select(rows, tokenizer, form, replace(config, numeric_answers=False)).rows) == 2
    with pytest.raises(DataError, match="no training row is left"):
        select(rows.select([1]), tokenizer, form, config)


# ---- end tokens


def test_an_instruct_models_template_stays_and_its_end_of_turn_is_learned(rows: Path, tmp_path: Path):
    base = save_base(tmp_path / "base", CHATML)
    end, former = byte_tokenizer().convert_tokens_to_ids(["<|im_end|>", "</s>"])
    GenerationConfig(eos_token_id=[former, end]).save_pretrained(base)  # it was trained to end its turns
    trainer = build(recipe(base, rows), tmp_path / "run", quiet)
    tokenizer, model = trainer.processing_class, trainer.model
    assert tokenizer.chat_template == CHATML and tokenizer.eos_token == "<|im_end|>"
    assert model.generation_config.eos_token_id == [end, former]  # whoever generates stops at either
    counted = [token for token in first_row(trainer)[1] if token != -100]
    assert tokenizer.decode(counted).startswith("<start_working_out>\n1 twice.") and end in counted


@pytest.mark.parametrize("template", [CHATML, CHATML.replace("<|im_end|>", "")])
def test_a_template_that_a_base_model_was_not_trained_with_is_replaced(template: str, rows: Path, tmp_path: Path):
    said: list[str] = []
    trainer = build(recipe(save_base(tmp_path / "base", template), rows), tmp_path / "run", said.append)
    tokenizer = trainer.processing_class
    assert tokenizer.chat_template == FORMATS["sage"].chat_template and tokenizer.eos_token == "</s>"
    assert any("takes its place" in line for line in said)
    assert first_row(trainer)[1][-1] == tokenizer.eos_token_id


def test_a_template_under_which_a_generation_starts_otherwise_is_refused(rows: Path, tmp_path: Path):
    base = save_base(tmp_path / "base", CHATML.replace("assistant\\n'", "assistant\\n<think>\\n'"))
    GenerationConfig(eos_token_id=[1, 3]).save_pretrained(base)
    with pytest.raises(ConfigError, match="starts differently than a generation"):
        build(recipe(base, rows), tmp_path / "run", quiet)


# ---- refusals


@pytest.mark.parametrize("key", OWNED)
def test_what_the_recipe_owns_is_refused_in_the_arguments(key: str):
    config = recipe(Path("m"), Path("x.jsonl"), engine=EngineConfig(name="trl", args={key: 1}))
    with pytest.raises(ConfigError, match=rf"engine\.args\.{key} = 1.*set ") as refusal:
        sft_arguments(config, "out")
    assert OWNED[key].split()[0] in str(refusal.value)


def test_every_owned_key_is_a_field_of_trl():
    fields = set(trl.SFTConfig.__dataclass_fields__)
    gone = {"warmup_ratio"}  # with transformers 5
    if trl.__version__ == "1.0.0":
        gone.add("trust_remote_code")  # which came later
    assert {key for key in OWNED if key not in fields} <= gone


def test_the_defaults_are_table_7():
    config = decode(FinetuneConfig, {"model": "m", "data": {"path": "x.jsonl"}, "engine": {"name": "trl"}})
    made = sft_arguments(config, "out")
    wanted = {"max_length": 2048, "num_train_epochs": 2, "per_device_train_batch_size": 1, "weight_decay": 0.01}
    wanted |= {"gradient_accumulation_steps": 1, "optim": "adamw_8bit", "lr_scheduler_type": "linear"}
    wanted |= {"warmup_steps": 5, "seed": 3407, "completion_only_loss": True}
    assert {key: made[key] for key in wanted} == wanted


def test_a_batch_is_split_for_memory_alone():
    engine = EngineConfig(name="trl", args={"per_device_train_batch_size": 2})
    made = sft_arguments(recipe(Path("m"), Path("x"), batch_size=8, engine=engine), "out", ranks=2)
    assert (made["per_device_train_batch_size"], made["gradient_accumulation_steps"]) == (2, 2)
    with pytest.raises(ConfigError, match="batch_size = 3"):
        sft_arguments(recipe(Path("m"), Path("x"), batch_size=3, engine=engine), "out")


def test_eight_bit_moments_need_cuda_and_say_so(base: Path, rows: Path, tmp_path: Path):
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.warns(UserWarning, match="the default optimizer adamw_8bit .*adamw_torch is used instead"):
        trainer = build(recipe(base, rows, engine=EngineConfig(name="trl")), tmp_path, quiet)
    assert trainer.args.optim == "adamw_torch"


def test_a_loss_that_is_not_finite_stops_before_the_step(base: Path, rows: Path, tmp_path: Path):
    broken = AutoModelForCausalLM.from_pretrained(base)
    broken.model.norm.weight.data.fill_(float("nan"))
    broken.save_pretrained(tmp_path / "broken")
    byte_tokenizer().save_pretrained(tmp_path / "broken")
    with pytest.raises(TrainingDiverged, match="nan at step 0; no weight was changed"):
        run(recipe(tmp_path / "broken", rows), tmp_path / "run")


def test_rows_that_changed_are_another_run(base: Path, rows: Path, tmp_path: Path):
    own = tmp_path / "rows.jsonl"
    own.write_text(rows.read_text())
    config = recipe(base, own)
    run(config, tmp_path / "run")
    own.write_text(rows.read_text().replace("5+5", "5 + 5"))
    with pytest.raises(ConfigError, match="contains another run"):
        run(config, tmp_path / "run")


def test_the_command_line_takes_a_recipe_with_rows(base: Path, rows: Path, tmp_path: Path, capsys: Any):
    from sage_rlvr.cli.app import main

    file = tmp_path / "sft.yaml"
    file.write_text(
        f"model: {base}\ndata: {{path: {rows}, prompt: boxed}}\nepochs: 1\nbatch_size: 5\nmax_length: 400\n"
        "engine: {name: trl, args: {optim: adamw_torch}}\noptimizer: {lr: 1e-3}\n",
        encoding="utf-8",
    )
    with pytest.raises(SystemExit) as ended:
        main(["sft", str(file), "--run", str(tmp_path / "run")])
    assert ended.value.code == 0
    said = capsys.readouterr().err
    assert "done: 2 steps" in said and "Solution:" in said
    assert "examples/s" not in said and "FutureWarning" not in said  # no bars of datasets
    assert not datasets.are_progress_bars_disabled()  # and they are back
    assert (tmp_path / "run" / "policy" / "chat_template.jinja").read_text() == FORMATS["boxed"].chat_template
