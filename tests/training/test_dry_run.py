"""The dry run says counts and nothing else: steps, tokens, forward passes, bytes by kind of tensor."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from sage_rlvr.cli.recipes import recipe_lines
from sage_rlvr.config import DataConfig, TrainConfig, load_config
from sage_rlvr.errors import ConfigError
from sage_rlvr.models.folders import embedded_policy, vocabulary_of
from sage_rlvr.training.counts import dry_run
from sage_rlvr.training.counts.dry_run import GIB, dry_run_lines, parameters, tensor_bytes


def read(name: str, *edits: tuple[str, str], where: str = "paper") -> TrainConfig:
    return load_config(TrainConfig, f"{where}/{name.removesuffix('.yaml')}", edits)


def lines(config: TrainConfig) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return "\n".join(dry_run_lines(config))


def saved(folder: Path, **sizes: Any) -> Path:
    config = LlamaConfig(
        hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2, vocab_size=16, **sizes
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def test_the_work_is_counted() -> None:
    text = lines(read("sage_branch.yaml"))
    assert "500 rollouts of 16 completions, 1,000 optimizer steps" in text
    assert "1,000 prompts (0.5 passes over 2,000 rows), 8,000 completions" in text
    assert "24,576,000 generated tokens at most (3,072 per completion)" in text
    assert "forward passes over completions: 8,000 with gradient, 8,000 without, by the policy, 8,000 without" in text
    assert "dynamic sampling: between 1 and 10 times" in lines(read("dapo.yaml"))
    assert "max_steps = 1000" in text
    staged = lines(read("dars.yaml", where="countdown"))
    assert "250 rollouts of 128 completions" in staged and "a second stage: between 1 and 4 times those completions" in staged


def test_the_loop_scores_the_old_policy_only_where_it_moves() -> None:
    once = lines(read("grpo.yaml", where="countdown"))
    assert "64,000 with gradient, 64,000 without, by the reference\n" in once
    more = lines(read("grpo.yaml", ("updates.epochs", "2"), where="countdown"))
    assert "128,000 with gradient, 64,000 without, by the policy, 64,000 without, by the reference" in more
    assert "reference" not in lines(read("no_kl.yaml", where="countdown"))


def test_no_hour_and_no_device_is_named() -> None:
    for text in (lines(read("sage_branch.yaml")), lines(read("grpo.yaml", where="countdown"))):
        assert "hours" not in text and "h200" not in text and "Assumed" not in text


def test_parameters_are_those_of_the_model(tmp_path: Path) -> None:
    for tied in (True, False):
        folder = saved(tmp_path / str(tied), tie_word_embeddings=tied)
        model = LlamaForCausalLM.from_pretrained(folder)
        assert parameters(folder, None) == (sum(p.numel() for p in model.parameters()), 0)
    lora = read("r1_grpo.yaml").engine.lora
    assert lora is not None
    maps = [m for m in model.modules() if isinstance(m, torch.nn.Linear) and m is not model.lm_head]
    assert parameters(folder, lora)[1] == sum(lora.rank * (m.in_features + m.out_features) for m in maps)


def test_bytes_by_kind_of_tensor() -> None:
    n = parameters(embedded_policy(), None)[0]
    found = tensor_bytes(read("grpo.yaml", where="countdown"), embedded_policy(), eight_bit=False)
    assert found == {"parameters": 4 * n, "reference": 4 * n, "gradients": 4 * n, "optimizer state": 8 * n}
    plain = tensor_bytes(read("no_kl.yaml", where="countdown"), embedded_policy(), eight_bit=True)
    assert plain == {"parameters": 4 * n, "gradients": 4 * n, "optimizer state": 2 * n}
    config = read("r1_grpo.yaml", ("model", str(embedded_policy())))
    adapted = tensor_bytes(config, embedded_policy(), eight_bit=False)
    adapters = parameters(embedded_policy(), config.engine.lora)[1]
    assert adapted["adapters"] == adapted["gradients"] == 4 * adapters and "reference" not in adapted
    assert f"{4 * n / GIB:.3f} GiB  parameters" in lines(read("grpo.yaml", where="countdown"))


def test_a_model_that_is_not_here_is_not_counted() -> None:
    text = lines(read("r1_grpo.yaml", ("model", "nobody/nothing")))
    assert (
        "model nobody/nothing: config.json is neither a local file nor in the Hub cache" in text
        and "GiB" not in text
    )
    assert vocabulary_of("nobody/nothing") is None and vocabulary_of("embedded") == 21


def test_notes() -> None:
    assert "engine.dtype: bfloat16" in lines(read("grpo.yaml", ("engine.dtype", "float32")))
    long = read("grpo.yaml", ("rollout.max_new_tokens", "4000"), where="countdown")
    assert "leaves no room for a prompt" in lines(long)


def test_a_guide_that_can_never_fire_is_refused_before_a_run() -> None:
    config = read("sage_branch.yaml", ("method.guide.threshold", "10"), where="countdown")
    with pytest.raises(ConfigError, match="threshold"):
        recipe_lines(config)


def test_columns_of_a_local_file_are_checked(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"problem": "1+1", "answer": "2"}\n' * 3)
    assert dry_run.data_lines(DataConfig(path=str(file))) == [
        f"{file}: 3 rows; problem: problem; gold: answer; columns problem, answer"
    ]
    with pytest.raises(ConfigError, match="answer_column = 'gold': no such column"):
        dry_run.data_lines(DataConfig(path=str(file), answer_column="gold"))
    file.write_text('{"text": "1+1"}\n')
    with pytest.raises(ConfigError, match="no column for the problem"):
        dry_run.data_lines(DataConfig(path=str(file)))
    with pytest.raises(ConfigError, match="no such file"):
        dry_run.data_lines(DataConfig(path=str(tmp_path / "gone.jsonl")))
    assert "on the Hub; no revision" in dry_run.data_lines(DataConfig(path="owner/name"))[0]
    assert dry_run.data_lines(None) == ["generated by the recipe's task"]


def test_what_a_buffer_samples_and_trains_on_is_counted() -> None:
    """4,000 problems of 16; without a policy gradient and without rollouts that is all the work there is."""
    alone = lines(read("rft.yaml", where="countdown"))
    assert "before step 0: 16 completions of 4,000 training problems by the base, at most 24 tokens each" in alone
    assert "250 optimizer steps on at most 256 stored answers of 16 prompts each" in alone and "rollouts" not in alone
    beside = lines(read("replay.yaml", where="countdown"))
    assert "on at most 128 stored answers" in beside and "250 rollouts of 256 completions" in beside and "by the base" not in beside


def test_a_reward_without_a_verifier_has_its_passes_and_first_weights_counted() -> None:
    few = ("world.train_problems", "100")
    text, n = lines(read("rlpr.yaml", few, where="countdown")), parameters(embedded_policy(), None)[0]
    assert "the reward, without gradient: 64,000 completions by the policy with the reference answer inserted" in text
    assert "and 4,000 references directly after their prompts by the initial weights of the run" in text
    bare, anchored = ((few,), (few, ("method.beta", "0.05")))
    held = [tensor_bytes(read("rlpr.yaml", *edits, where="countdown"), embedded_policy(), False) for edits in (bare, anchored)]
    assert held[0]["initial weights"] == 4 * n and "reference" not in held[0]
    assert held[1]["reference"] == 4 * n and "initial weights" not in held[1], "the reference is those weights"
    current = read("rlpr.yaml", few, ("method.debias", "current"), where="countdown")
    assert "prompts by the policy" in lines(current) and "initial weights" not in tensor_bytes(current, embedded_policy(), False)
    assert "after their prompts" not in lines(read("verifree.yaml", where="countdown"))
    assert "without gradient:" not in lines(read("no_kl.yaml", where="countdown"))
