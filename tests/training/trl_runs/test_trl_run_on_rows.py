"""`sage-rlvr train` on TRL with a data set in place of the world: the two stages of the paper. Needs TRL."""

# ruff: noqa: E402  (what needs TRL is imported after importorskip)

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

trl = pytest.importorskip("trl")


from byte_tokenizer import byte_tokenizer
from conftest import tiny_llama
from sage_rlvr.cli.app import main
from sage_rlvr.config import TrainConfig, dump
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.progress import Silent
from sage_rlvr.runs import RunDir, read_metrics
from sage_rlvr.training.trl import run as trl_run
from training.trl_runs.run_common import TREE, config, trained


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight sums with worked solutions, and a base model over bytes without a chat template."""
    folder = tmp_path_factory.mktemp("sums")
    rows = [{"problem": f"{a}+1?", "answer": str(a + 1), "generated_solution": f"{a} and one."} for a in range(1, 9)]
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    tokenizer = byte_tokenizer(None, pad_token=None)
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": None, "bos_token_id": tokenizer.bos_token_id}
    model = tiny_llama(vocab_size=len(tokenizer), max_position_embeddings=512, initializer_range=0.05, **ids)
    model.save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    return folder


def on_sums(sums: Path, model: Path | str, **changes: Any) -> TrainConfig:
    rollout = {"prompts_per_step": 2, "group_size": 2, "max_new_tokens": 8}
    given = {"steps": 2, "model": str(model), "data": {"path": str(sums / "sums.jsonl")}, "rollout": rollout}
    return config(**given | {"updates": {}} | changes)


@pytest.mark.parametrize("stage", ["policy", "adapter"])
def test_fine_tuning_then_rl_from_the_policy_or_its_adapter(stage: str, sums: Path, tmp_path: Path, capsys: Any):
    """LoRA in stage one; stage two reads the same prompts and, with source sft, starts at a raw KL of 0."""
    recipe = {
        "model": str(sums / "base"),
        "data": {"path": str(sums / "sums.jsonl")},
        "max_length": 500,
        "epochs": 1,
        "batch_size": 4,
        "optimizer": {"lr": 1e-2},
        "engine": {"name": "trl", "lora": {"rank": 2}},
    }
    (tmp_path / "sft.yaml").write_text(json.dumps(recipe))
    with pytest.raises(SystemExit) as ended:
        main(["sft", str(tmp_path / "sft.yaml"), "--run", str(tmp_path / "sft")])
    assert ended.value.code == 0
    method = TREE["method"] | {"base": {"name": "grpo", "beta": 0.3, "source": "sft"}}
    given = on_sums(sums, tmp_path / "sft" / stage, method=method)
    said: list[str] = []
    with RunDir.open(tmp_path / "rl", dump(given)) as run:
        assert trl_run.train(given, run, tmp_path / "rl", Silent(), said.append) == 2
    assert read_metrics(tmp_path / "rl")[0]["kl/to_reference"] == pytest.approx(0, abs=1e-5)
    if stage == "adapter":
        other = on_sums(sums, tmp_path / "sft" / stage, method=method, engine={"name": "trl", "lora": {"rank": 4}})
        with pytest.raises(ConfigError, match=r"lora\.rank = 4, alpha = 8: the adapter .* has r = 2, alpha = 4"):
            trl_run.build(other, tmp_path / "other")
    text = "\n".join(said)
    assert "prompt format: sage" in text and "prompts: 8, " in text and "reference: sft" in text


def test_the_shipped_policy_is_no_model_for_a_data_set(sums: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match="only writes arithmetic expressions; name a language model"):
        trained(tmp_path / "run", on_sums(sums, "embedded"))


def test_rows_that_changed_are_another_run(sums: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The file has the same name and another row: the directory's run is not continued on it."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text((sums / "sums.jsonl").read_text(encoding="utf-8"), encoding="utf-8")
    given = {**dump(on_sums(sums, sums / "base", steps=1)), "data": {"path": str(rows)}}
    (tmp_path / "recipe.yaml").write_text(json.dumps(given))
    command = ["train", str(tmp_path / "recipe.yaml"), "--run", str(tmp_path / "run"), "--quiet"]
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 0
    rows.write_text('{"problem": "9+9?", "answer": "18"}\n' + rows.read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        main([*command, "--steps", "2"])
    assert ended.value.code != 0 and "rows.jsonl" in capsys.readouterr().err


def test_golds_that_cannot_be_verified_stop_the_run_before_it_loads_anything(sums: Path, tmp_path: Path):
    rows = [{"problem": "?", "answer": "\\frac{"}, {"problem": "2+2?", "answer": "4"}]
    (tmp_path / "bad.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    given = on_sums(sums, sums / "base", data={"path": str(tmp_path / "bad.jsonl")})
    with pytest.raises(DataError, match=r"data\.allow_unverifiable true"):
        trained(tmp_path / "run", given)


def test_vllm_that_is_not_there_and_a_stage_that_was_not_run_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    plain = trl_run.find_spec
    monkeypatch.setattr(trl_run, "find_spec", lambda name: None if name == "vllm" else plain(name))
    with pytest.raises(ConfigError, match="vLLM is not installed"):
        trained(tmp_path / "run", config(engine={"name": "trl", "args": {"use_vllm": True}}))
    with pytest.raises(ConfigError, match="run that first: sage-rlvr sft RECIPE --run runs/paper-sft"):
        trl_run.load_tokenizer("runs/paper-sft/adapter")


def test_a_run_on_rows_is_not_evaluated_in_the_world(sums: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    given = on_sums(sums, sums / "base", steps=1)
    assert trained(tmp_path / "run", given) == 1
    with pytest.raises(SystemExit) as ended:
        main(["eval", str(tmp_path / "run")])
    assert ended.value.code == 2 and "evaluate it by sampling" in " ".join(capsys.readouterr().err.split())
