"""recipes/paper: every recipe decodes, says its objective and dry-runs; their numbers are the paper's; TRL takes them."""

from __future__ import annotations

import importlib.util
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from sage_rlvr.cli.app import main
from sage_rlvr.cli.recipes import recipe_lines
from sage_rlvr.config import FinetuneConfig, TrainConfig, decode, dump, load, load_config, schema_of
from sage_rlvr.errors import ConfigError
from sage_rlvr.recipes import recipe
from sage_rlvr.training.counts.dry_run import dry_run_lines
from sage_rlvr.training.trl.arguments import grpo_arguments
from sage_rlvr.training.verl.terms import ACTOR

FOLDER = recipe("base.yaml", "paper").parent
BASES = {"base.yaml", "r1_base.yaml", "full_base.yaml"}
ARMS = sorted(path.name for path in FOLDER.glob("*.yaml") if path.name not in BASES | {"sft.yaml"})
QWEN, R1 = "Qwen/Qwen2.5-Math-7B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"
TRL = importlib.util.find_spec("trl") is not None


@cache
def arm(name: str, *edits: tuple[str, str]) -> TrainConfig:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Random is noise only; that is said elsewhere
        return load_config(TrainConfig, FOLDER / name, edits)


@cache
def arguments(name: str, ranks: int = 1) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exact forward KL becomes k3
        return grpo_arguments(arm(name), "out", ranks)


def test_the_arms_of_the_tables_are_there() -> None:
    tables = "grpo no_kl forward_kl sage_random sage_token sage_branch bnpo bnpo_branch dapo dapo_branch r1_grpo r1_sage_branch"
    figure = [f"full_{model}_{method}" for model in ("math_1.5b", "qwen_3b") for method in ("grpo", "sage_branch")]
    assert {f"{name}.yaml" for name in [*tables.split(), *figure]} <= set(ARMS)
    for name in ARMS:  # the control of each guided arm beside it
        guided = name.replace("sage_branch", "grpo").replace("sage_token", "grpo").replace("sage_random", "grpo")
        assert guided.replace("_branch", "_kl") in ARMS


@pytest.mark.parametrize("name", ARMS)
def test_an_arm_is_a_value_with_an_equation(name: str) -> None:
    config = arm(name)
    assert schema_of(load(FOLDER / name)) is TrainConfig
    assert decode(TrainConfig, dump(config)) == config
    text = "\n".join(recipe_lines(config))
    assert "minimize" in text and "reference: " in text
    assert len((FOLDER / name).read_text().splitlines()) <= 12


@pytest.mark.parametrize("name", ARMS)
def test_an_arm_has_the_numbers_of_table_8(name: str) -> None:
    config, fields = arm(name), arguments(name)
    assert config.seed == 3407
    assert config.data is not None
    assert (config.data.path, config.data.subset, config.data.take) == ("open-r1/DAPO-Math-17k-Processed", "en", 2000)
    wanted = {
        "max_steps": 1000,
        "per_device_train_batch_size": 8,
        "num_generations": 8,
        "temperature": 1.0,
        "min_p": 0.01,
    }
    wanted |= {"learning_rate": 5e-6, "weight_decay": 0.01, "lr_scheduler_type": "linear", "warmup_steps": 100}
    wanted |= {"optim": "adamw_8bit", "epsilon": 0.2, "epsilon_high": 0.28 if "dapo" in name else 0.2}
    wanted |= {"steps_per_generation": 2, "gradient_accumulation_steps": 1}
    assert {key: fields[key] for key in wanted} == wanted
    without = name in ("no_kl.yaml", "bnpo.yaml", "dapo.yaml")
    assert fields["beta"] == (0.0 if without else 0.05)


@pytest.mark.parametrize("name", ARMS)
def test_an_arm_starts_and_anchors_where_the_paper_says(name: str) -> None:
    config = arm(name)
    start = QWEN
    if name.startswith("r1_"):
        start = R1
        assert config.rollout.max_new_tokens + 2048 == 8192
    elif name.startswith("full_"):
        start = "Qwen/Qwen2.5-Math-1.5B-Instruct" if "1.5b" in name else "Qwen/Qwen2.5-3B-Instruct"
        assert (config.engine.lora, config.engine.dtype) == (None, "float32")
    else:
        assert (config.model, config.base_model) == ("runs/paper-sft/adapter", QWEN)
        assert config.reference in (None, config.model)  # the SFT model, not the one before it
    assert start in (config.model, config.base_model)
    if config.engine.lora is not None:
        assert (config.engine.lora.rank, config.engine.dtype) == (8, "bfloat16")


def test_a_guided_arm_differs_from_its_control_by_the_guide_alone() -> None:
    for guided, control in (("sage_branch", "grpo"), ("bnpo_branch", "bnpo_kl"), ("dapo_branch", "dapo_kl")):
        one, other = arm(f"{guided}.yaml"), arm(f"{control}.yaml")
        assert dump(one.method)["base"] == dump(other.method)
        assert {**dump(one), "method": None} == {**dump(other), "method": None}


def test_what_the_comments_offer_is_a_recipe() -> None:
    released = (("method", "{name: grpo_token_mean, beta: 0.0, clip_high: 0.28}"),)
    assert grpo_arguments(arm("dapo.yaml", *released), "out")["loss_type"] == "dapo"
    guided = "{name: sage, base: {name: grpo_token_mean, beta: 0.05, source: sft}, guide: branch}"
    assert arm("bnpo_branch.yaml", ("method", guided)).method.name == "grpo_token_mean+branch"
    eight = (("steps", "1000"), ("rollout.prompts_per_step", "8"), ("updates.minibatches", "1"))
    fields = grpo_arguments(arm("grpo.yaml", *eight), "out")
    assert (fields["max_steps"], fields["per_device_train_batch_size"], fields["steps_per_generation"]) == (1000, 64, 1)
    vllm = arm("grpo.yaml", ("engine.args.use_vllm", "true"))
    assert vllm.engine.args["use_vllm"] is True


@pytest.mark.parametrize("name", ARMS)
def test_an_arm_has_a_dry_run(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lines = dry_run_lines(arm(name))
    assert "  max_steps = 1000" in lines
    assert "columns not checked: on the Hub" in "\n".join(lines)


@pytest.mark.parametrize("name", ARMS)
def test_an_arm_is_a_command_of_verl(name: str) -> None:
    """By the three edits of docs/howto/verl.md: an engine of its own, its schedule, the merged SFT policy for the adapter. All but
    the arm whose KL is an estimate that verl does not have."""
    adapters = arm(name).engine.lora is not None
    engine = f"{{name: verl, lora: {'{rank: 8}' if adapters else 'null'}, args: {{trainer.n_gpus_per_node: 8}}}}"
    merged = (("model", "runs/paper-sft/policy"),) if arm(name).model == "runs/paper-sft/adapter" else ()
    config = arm(name, ("engine", engine), ("optimizer.schedule", "constant"), *merged)
    if name == "reverse_kl.yaml":
        with pytest.raises(ConfigError, match=r"estimator = k3_is: .*use the loop engine"):
            dry_run_lines(config)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text = "\n".join(dry_run_lines(config))
    wanted = ["trainer.total_training_steps=500", f"{ACTOR}.ppo_mini_batch_size=1", f"{ACTOR}.optim.lr_warmup_steps=50"]
    wanted += ["actor_rollout_ref.rollout.n=8", "data.max_response_length=", f"actor_rollout_ref.model.path={config.model}"]
    wanted += ["actor_rollout_ref.model.lora_rank=8", "actor_rollout_ref.model.lora_alpha=16"] if adapters else []
    assert [word for word in wanted if word not in text] == []


def test_the_sft_recipe_has_the_numbers_of_table_7() -> None:
    path = FOLDER / "sft.yaml"
    assert schema_of(load(path)) is FinetuneConfig
    config = load_config(FinetuneConfig, path)
    assert decode(FinetuneConfig, dump(config)) == config
    assert (config.model, config.seed, config.epochs, config.batch_size, config.max_length) == (QWEN, 3407, 2, 1, 2048)
    optimizer = config.optimizer
    assert (optimizer.lr, optimizer.weight_decay, optimizer.schedule, optimizer.warmup_steps) == (
        2e-4,
        0.01,
        "linear",
        5,
    )
    assert config.engine.lora is not None and config.engine.lora.rank == 8
    assert (config.data.path, config.data.split, config.numeric_answers) == (
        "unsloth/OpenMathReasoning-mini",
        "cot",
        True,
    )
    assert "2 epochs over rows that are not on this machine" in "\n".join(dry_run_lines(config))
    assert config.data.prompt == arm("grpo.yaml").data.prompt  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["show", str(FOLDER / "sage_branch.yaml")], "pi_ref"),
        (["show", str(FOLDER / "sft.yaml")], "max_length: 2048"),
        (["train", str(FOLDER / "r1_grpo.yaml"), "--dry-run"], "generated tokens at most"),
        (["sft", str(FOLDER / "sft.yaml"), "--dry-run"], "optimizer step"),
        (["train", "grpo", "--dry-run"], "250 rollouts of 256 completions"),
        (["sft", str(recipe("sft.yaml")), "--dry-run"], "2,000 optimizer steps"),
    ],
    ids=lambda value: " ".join(Path(w).name for w in value[:2]) if isinstance(value, list) else "",
)
def test_the_verbs(words: list[str], wanted: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0
    assert wanted in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["train", str(FOLDER / "grpo.yaml"), "--dry-run", "--engine.args.beta", "1"], "method.anchor.beta"),
        (["sft", str(FOLDER / "grpo.yaml"), "--dry-run"], "this is an RL recipe; run it with: sage-rlvr train"),
        (["train", str(FOLDER / "grpo.yaml"), "--dry-run", "--data.path", "none.jsonl"], "none.jsonl"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_a_dry_run_refuses_what_a_run_would(words: list[str], wanted: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert wanted in " ".join(capsys.readouterr().err.split())


@pytest.mark.skipif(not TRL, reason="needs the trl extra")
@pytest.mark.parametrize("name", ARMS)
def test_trl_takes_the_arguments_and_they_are_the_method(name: str) -> None:
    from trl import GRPOConfig

    from sage_rlvr.training.trl.given import check_agreement

    fields = arguments(name) | {"use_cpu": True, "bf16": False, "optim": "adamw_torch"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        args = GRPOConfig(**fields)
        check_agreement(arm(name).method, args)
    assert (args.generation_batch_size, args.steps_per_generation, args.max_steps) == (16, 2, 1000)
