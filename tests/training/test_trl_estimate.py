"""Sizes and costs without weights: parameter counts against the published ones, memory and hours worked by hand."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sage_rlvr.config import DataConfig, TrainConfig, load_config
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.models.shapes import EMBEDDED_CONFIG, KNOWN, Shapes, from_config, shapes_of
from sage_rlvr.recipes import recipe
from sage_rlvr.training.trl import dry_run
from sage_rlvr.training.trl.estimate import ASSUMED, DEVICES, GIB, Device, Load, hours, load_of, memory, total
from sage_rlvr.training.trl.arguments import grpo_arguments

SMALL = Shapes(hidden=4, layers=1, heads=1, kv_heads=1, mlp=8, vocab=16, tied=True, qkv_bias=False)
LOAD = Load(
    ranks=1,
    rows=2,
    micro=1,
    longest=10,
    completion=6,
    mean_row=5,
    mean_completion=3,
    rollouts=3,
    updates=3,
    row_passes=6,
    reference="copy",
    checkpointing=False,
)


def paper(name: str, *edits: tuple[str, str]) -> tuple[TrainConfig, Load, Shapes]:
    config = load_config(TrainConfig, recipe(name, "paper"), edits)
    shapes = shapes_of(config.model) or shapes_of(config.base_model or "")
    assert shapes is not None
    return config, load_of(config, grpo_arguments(config, "out"), shapes, 1, None, fused=True), shapes


# ---- sizes


@pytest.mark.parametrize(
    ("name", "exact", "published"),
    [
        ("Qwen/Qwen2.5-Math-7B", 7_615_616_512, 7.62),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", 7_615_616_512, 7.62),
        ("Qwen/Qwen2.5-Math-1.5B-Instruct", 1_543_714_304, 1.54),
        ("qwen/qwen2.5-3b-instruct", 3_085_938_688, 3.09),
    ],
)
def test_parameters_are_the_published_ones(name: str, exact: int, published: float) -> None:
    shapes = shapes_of(name)
    assert shapes is not None
    assert shapes.parameters == exact
    assert round(exact / 1e9, 2) == published


def test_sizes_by_hand() -> None:
    # q, k, v, o: 16 each; gate, up, down: 32 each; two norms of 4; embedding 64; last norm 4
    assert SMALL.parameters == 64 + 96 + 8 + 64 + 4
    assert replace(SMALL, tied=False).parameters == SMALL.parameters + 64
    assert replace(SMALL, qkv_bias=True).parameters == SMALL.parameters + 12
    assert SMALL.multiplied == 64 + 96 + 64
    assert SMALL.lora(2) == 4 * 2 * (4 + 4) + 3 * 2 * (4 + 8)
    assert SMALL.lora(2, ("q_proj", "down_proj")) == 2 * 8 + 2 * 12
    assert SMALL.cache_values() == 2 * 4
    # Qwen2.5-Math-7B, rank 8: 8 (2 * 7168 + 2 * 4096 + 3 * 22528) * 28
    assert KNOWN["Qwen/Qwen2.5-Math-7B"].lora(8) == 8 * 90_112 * 28
    assert KNOWN["Qwen/Qwen2.5-Math-7B"].cache_values() == 2 * 28 * 512


@pytest.mark.parametrize("name", ["Qwen/Qwen2.5-Math-1.5B-Instruct", "Qwen/Qwen2.5-Math-7B"])
def test_transformers_counts_the_same(name: str) -> None:
    from transformers import AutoModelForCausalLM, Qwen2Config

    s = KNOWN[name]
    sizes = {"hidden_size": s.hidden, "num_hidden_layers": 2, "num_attention_heads": s.heads}
    sizes |= {"num_key_value_heads": s.kv_heads, "intermediate_size": s.mlp, "vocab_size": s.vocab}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(Qwen2Config(**sizes, tie_word_embeddings=s.tied))
    assert sum(p.numel() for p in model.parameters()) == replace(s, layers=2).parameters


def test_shapes_come_from_a_folder_an_adapter_or_the_table(tmp_path: Path) -> None:
    embedded = shapes_of("embedded")
    assert embedded is not None and embedded.parameters == 855_808
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text(
        json.dumps({"base_model_name_or_path": "Qwen/Qwen2.5-Math-7B"})
    )
    assert shapes_of(str(tmp_path / "adapter")) == KNOWN["Qwen/Qwen2.5-Math-7B"]
    assert shapes_of("nobody/nothing") is None
    assert shapes_of(str(tmp_path)) is None
    config = json.loads(EMBEDDED_CONFIG.read_text())
    assert from_config(config) == embedded
    assert from_config(config | {"model_type": "gemma"}) is None
    assert from_config(config | {"mlp_bias": True}) is None
    assert from_config({"model_type": "llama"}) is None
    (tmp_path / "config.json").write_text("{")
    assert shapes_of(str(tmp_path)) is None


# ---- memory


def test_memory_of_a_fully_fine_tuned_arm_by_hand() -> None:
    config, load, shapes = paper("full_qwen_3b_grpo.yaml")
    parts = memory(load, shapes, DEVICES["h200"])
    n = 3_085_938_688
    tokens = 8 * (256 + 3072)  # rows of a micro-batch, prompt and limit
    kept = 2 * 2048 * 36 + 2 * (8 * 2048 + 2 * (16 + 2) * 128 + 4 * 11008)  # bytes a token under checkpointing
    wanted = {
        "weights": 4 * n,
        "reference": 4 * n,
        "optimizer": 2 * n,  # two moments of 8 bits
        "runtime": 1.5 * GIB,
        "gradients": 4 * n,
        "bf16 copies": 2 * n,
        "activations": tokens * kept,
        "logits": 4096 * 32768 * 2,
        "KV cache": 16 * (256 + 3072) * 2 * (2 * 36 * 2 * 128),
    }
    assert parts == pytest.approx({name: value / GIB for name, value in wanted.items()})
    assert total(parts) == pytest.approx(54.61, abs=0.01)
    assert config.engine.lora is None


def test_memory_of_an_adapter_arm_by_hand() -> None:
    _, load, shapes = paper("sage_branch.yaml")
    parts = memory(load, shapes, DEVICES["h200"])
    assert "reference" not in parts and "bf16 copies" not in parts  # the adapter off, bf16 weights
    assert parts["weights"] == pytest.approx(2 * 7_615_616_512 / GIB)
    assert parts["adapters (float32)"] == pytest.approx(4 * 20_185_088 / GIB)
    assert parts["gradients"] == pytest.approx(4 * 20_185_088 / GIB)
    assert parts["optimizer"] == pytest.approx(2 * 20_185_088 / GIB)


def test_what_changes_memory() -> None:
    edits = {
        "torch": (("engine.args.optim", "adamw_torch"),),
        "vllm": (("engine.args.use_vllm", "true"),),
        "none": (("method", "{name: no_kl}"),),
        "whole": (("engine.args.gradient_checkpointing", "false"),),
        "base": (("method", "{name: grpo, source: some/other-model}"),),
    }
    found = {}
    for key, edit in edits.items():
        _, load, shapes = paper("full_qwen_3b_grpo.yaml" if key != "base" else "grpo.yaml", *edit)
        found[key] = memory(load, shapes, DEVICES["h100"]), load
    n = 3_085_938_688
    assert found["torch"][0]["optimizer"] == pytest.approx(8 * n / GIB)
    assert found["vllm"][0]["vLLM"] == pytest.approx(0.3 * 79.6) and "KV cache" not in found["vllm"][0]
    assert "reference" not in found["none"][0]
    layer = 2 * (8 * 2048 + 2 * 18 * 128 + 4 * 11008)
    assert found["whole"][0]["activations"] == pytest.approx(8 * 3328 * 36 * layer / GIB)
    assert found["base"][1].reference == "copy"  # another model than the policy's


def test_logits_are_a_tile_or_the_whole() -> None:
    assert memory(LOAD, SMALL, DEVICES["h200"])["logits"] == pytest.approx(ASSUMED["tile"] / GIB)
    whole = memory(replace(LOAD, fused_head=False), SMALL, DEVICES["h200"])["logits"]
    assert whole == pytest.approx(1 * 6 * 16 * 10 / GIB)


@given(micro=st.integers(1, 64), longest=st.integers(1, 4096), more=st.integers(1, 8))
def test_more_rows_or_devices_never_need_less(micro: int, longest: int, more: int) -> None:
    device, shapes = DEVICES["h200"], replace(SMALL, layers=3)
    load = replace(LOAD, micro=micro, longest=longest)
    here = total(memory(load, shapes, device))
    assert total(memory(replace(load, micro=micro + more), shapes, device)) >= here
    assert total(memory(replace(load, ranks=1 + more), shapes, device)) >= here
    assert total(memory(replace(load, checkpointing=True), shapes, device)) <= here


# ---- hours


def test_hours_by_hand() -> None:
    # One FLOP and one byte a second after losses, and no floor under a decoding step.
    device = Device(1, 1e-12 / ASSUMED["utilisation"], 1e-9 / ASSUMED["bandwidth"], "by hand")
    forward = 2 * 224 + 2 * 1 * 4 * 5  # a token: matrices, and attention over 5 tokens on average
    found = hours(LOAD, SMALL, device)
    assert found["update"] == pytest.approx(6 * 5 * 3 * forward / 3600)
    assert found["scoring"] == pytest.approx(3 * 2 * 5 * forward / 3600)
    step = 8 * 236 + 2 * 8 * (2 * 10 / 2)  # float32 weights cast at each step; 2 half-full caches of 10 tokens
    assert found["rollout"] == pytest.approx(3 * 6 * step / 3600)
    lora = hours(replace(LOAD, adapters=136, checkpointing=True, rescored=True, reference="none"), SMALL, device)
    assert lora["update"] == pytest.approx(6 * 5 * 3 * forward / 3600)  # forward, forward again, half a backward
    assert lora["scoring"] == found["scoring"]
    vllm = hours(replace(LOAD, vllm_share=0.3, weight_bytes=2), SMALL, device)
    assert vllm["rollout"] == pytest.approx(3 * 6 * (2 * 236 + 2 * 8 * (2 * 3 / 6) * 5 / 2) / 3600)
    assert hours(replace(LOAD, ranks=3), SMALL, device)["update"] == pytest.approx(3 * found["update"])
    slow = hours(LOAD, SMALL, DEVICES["h200"])["rollout"]
    assert slow == pytest.approx(3 * 6 * 0.025 / 3600)  # launches


# ---- the dry run


def lines(name: str, *edits: tuple[str, str], gpu: str = "h200", ranks: int = 1, mean: int | None = None) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = load_config(TrainConfig, recipe(name, "paper"), edits)
        return "\n".join(dry_run.train_lines(config, ranks, gpu, mean))


def test_the_work_is_counted() -> None:
    text = lines("sage_branch.yaml", mean=1000)
    assert "500 rollouts of 16 completions, 1,000 optimizer steps" in text
    assert "1,000 prompts (0.5 passes over 2,000 rows), 8,000 completions" in text
    assert "24.6 M tokens sampled at most, 8 M at 1,000 a completion" in text  # 8,000 x 3,072
    assert "26.6 M tokens trained on at most (prompts included), 10 M at that length" in text
    assert "dynamic sampling: between 1 and 10 times" in lines("dapo.yaml")


def test_warnings() -> None:
    too_small = lines("full_qwen_3b_grpo.yaml", gpu="rtx4090").split("Warnings")[1]
    assert "does not fit" in too_small and "engine.args.per_device_train_batch_size" in too_small
    long = lines("grpo.yaml", ("rollout.max_new_tokens", "8000")).split("Warnings")[1]
    assert "rows of 8,256 tokens (prompt included), but the model's config.json allows 4,096" in long
    assert "runs/paper-sft/adapter is not here; the sizes are those of base_model" in long
    wide = lines("grpo.yaml", ("engine.dtype", "float32")).split("Warnings")[1]
    assert "engine.dtype: bfloat16" in wide
    narrow = (("engine.args.use_vllm", "true"), ("engine.args.vllm_gpu_memory_utilization", "0.1"))
    assert "do not hold 14.2 GiB of weights" in lines("grpo.yaml", *narrow).split("Warnings")[1]
    assert "Warnings" not in lines("r1_grpo.yaml")


def test_unknown_shapes_leave_the_estimates_out_and_say_so() -> None:
    text = lines("r1_grpo.yaml", ("model", "nobody/nothing"))
    assert "unknown shapes, so memory and hours are left out" in text and "GiB" not in text
    assert "max_steps = 1000" in text


@pytest.mark.parametrize(("version", "fused"), [("1.16.0", True), ("1.15.1", True), ("1.9.0", False), (None, True)])
def test_the_head_is_that_of_the_installed_trl(monkeypatch: Any, version: str | None, fused: bool) -> None:
    monkeypatch.setattr(dry_run, "trl_version", lambda: version)
    text = lines("grpo.yaml")
    assert ("logits in tiles" in text) == fused
    assert ("TRL is not installed here" in text) == (version is None)


def test_columns_of_a_local_file_are_checked(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"problem": "1+1", "answer": "2"}\n' * 3)
    assert dry_run.data_lines(DataConfig(path=str(file))) == [f"{file}: 3 rows, columns problem, answer"]
    with pytest.raises(DataError, match="no column gold"):
        dry_run.data_lines(DataConfig(path=str(file), answer_column="gold"))
    file.write_text('{"text": "1+1"}\n')
    with pytest.raises(DataError, match="no column problem or question"):
        dry_run.data_lines(DataConfig(path=str(file)))
    with pytest.raises(ConfigError, match="no such file"):
        dry_run.data_lines(DataConfig(path=str(tmp_path / "gone.jsonl")))
    assert "on the Hub; no revision" in dry_run.data_lines(DataConfig(path="owner/name"))[0]
    assert dry_run.data_lines(None) == ["generated by the recipe's world"]
