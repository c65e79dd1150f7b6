"""Settings of TRL and verl as a recipe. The round trip on TRL with its own defaults is in trl/test_trl_import.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from command import call
from imported_common import METHODS, assert_same, recipe
from sage_rlvr.config import TrainConfig, decode, dump, load_config
from sage_rlvr.contrib.io.import_config import VERL_DEFAULTS, import_config
from sage_rlvr.errors import ConfigError
from sage_rlvr.training.trl.arguments import grpo_arguments
from sage_rlvr.training.verl.arguments import verl_words, written
from sage_rlvr.training.verl.fields import method_fields

pytestmark = pytest.mark.filterwarnings("ignore:.*verl clamps")
TRL = {  # GRPOConfig's defaults of TRL 1.16, of the fields that these tests leave out
    **{"max_steps": -1, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "num_generations": 8, "seed": 42},
    **{"generation_batch_size": None, "steps_per_generation": None, "num_iterations": 1, "learning_rate": 1e-6, "save_steps": 500},
    **{"warmup_steps": 0, "lr_scheduler_type": "linear", "weight_decay": 0.0, "adam_beta1": 0.9, "adam_beta2": 0.999},
    **{"adam_epsilon": 1e-8, "max_grad_norm": 1.0, "save_total_limit": None, "model_init_kwargs": None, "report_to": "none"},
    **{"temperature": 1.0, "max_completion_length": 512, "beta": 0.0, "use_bias_correction_kl": True, "epsilon": 0.2},
    **{"epsilon_high": None, "delta": None, "importance_sampling_level": "token", "loss_type": "dapo", "scale_rewards": "group"},
    **{"sync_ref_model": False, "ref_model_sync_steps": 512, "ref_model_mixup_alpha": 0.6, "top_p": 1.0, "bf16": None},
    "top_entropy_quantile": 1.0,
    **{"multi_objective_aggregation": "sum_then_normalize", "num_train_epochs": 3.0, "hub_token": None},
    **{"save_strategy": "steps", "chat_template_kwargs": None, "warmup_ratio": None},
}


def trl(folder: Path, text: str, *edits: tuple[str, str]) -> tuple[TrainConfig, dict[str, Any]]:
    """The recipe of a YAML for TRL, and its findings by key."""
    (folder / "trl.yaml").write_text(text)
    found = import_config(folder / "trl.yaml", edits, TRL)
    return decode(TrainConfig, found.recipe), {one.key: one for one in found.findings}


def verl(folder: Path, words: list[str], *edits: tuple[str, str]) -> tuple[TrainConfig, dict[str, Any]]:
    (folder / "verl.txt").write_text("\n".join(words))
    found = import_config(folder / "verl.txt", edits)
    return decode(TrainConfig, found.recipe), {one.key: one for one in found.findings}


# ---- round trips


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method['name']} {method.get('beta')}")
def test_from_a_recipe_to_trl_and_back(tmp_path: Path, method: dict[str, Any]) -> None:
    went = recipe(method=method, engine={"name": "trl", "threads": None, "args": {"per_device_train_batch_size": 4}})
    fields = grpo_arguments(went, "out") | {"model_name_or_path": went.model}
    (tmp_path / "args.json").write_text(json.dumps(fields))
    found = import_config(tmp_path / "args.json", (), TRL)
    assert_same(decode(TrainConfig, found.recipe | {"checkpoint": found.recipe["checkpoint"] | {"keep": 3}}), went)
    owned = [one for one in found.findings if one.key in TRL]
    assert {one.kind for one in owned} <= {"taken over", "passed on", "default"}, [str(one) for one in owned]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method['name']} {method.get('beta')}")
@pytest.mark.parametrize("by_fields", [True, False])
def test_from_a_recipe_to_verl_and_back(tmp_path: Path, method: dict[str, Any], by_fields: bool) -> None:
    """With +sage.method, and by verl's own fields alone."""
    engine = {"name": "verl", "threads": None, "args": {"trainer.n_gpus_per_node": 2}}
    went = recipe(method=method, engine=engine)
    words = verl_words(went, Path("/run/verl"), template=None, longest=12)
    if by_fields:
        own = method_fields(went.method, went.rollout.max_new_tokens) | {"algorithm.adv_estimator": "grpo"}
        words = [word for word in words if not word.startswith("+sage.")]
        words += [f"{key}={written(value)}" for key, value in own.items()]
        words += ["algorithm.norm_adv_by_std_in_grpo=False"] if method["name"] == "dr_grpo" else []
    came, findings = verl(tmp_path, words)
    assert_same(came, went)
    assert came.engine.args["trainer.n_gpus_per_node"] == 2
    lost = {key for key, one in findings.items() if one.kind in ("no counterpart", "unknown")}
    assert lost == {"trainer.default_local_dir"}


def test_the_defaults_of_verl_are_those_of_keys_that_recipes_know() -> None:
    from sage_rlvr.methods import grpo
    from sage_rlvr.training.verl.arguments import OWNED
    from sage_rlvr.training.verl.terms import OWN

    known = {*OWN, *OWNED, *method_fields(grpo(), 1), "algorithm.norm_adv_by_std_in_grpo"}
    assert set(VERL_DEFAULTS) <= known


# ---- one by one


def test_a_script_of_trl(tmp_path: Path) -> None:
    config, findings = trl(
        tmp_path,
        """
model_name_or_path: owner/policy
dataset_name: openai/gsm8k
learning_rate: 1.0e-5
beta: 0.04
use_bias_correction_kl: true
loss_type: dr_grpo
scale_rewards: none
per_device_train_batch_size: 8
gradient_accumulation_steps: 4
steps_per_generation: 8
num_generations: 4
max_steps: 100
warmup_ratio: 0.1
top_p: 0.9
lora_r: 4
learning_rat: 1
hub_token: secret
reward_funcs: [mine]
dtype: bfloat16
""",
    )
    assert (config.method.name, config.method.anchor.beta, config.method.anchor.estimator) == ("dr_grpo", 0.04, "k3_is")
    assert (config.rollout.prompts_per_step, config.rollout.group_size, config.updates.minibatches) == (16, 4, 2)
    assert (config.steps, config.optimizer.warmup_steps, config.optimizer.schedule) == (50, 10, "linear")
    assert (config.engine.lora.rank, config.engine.args["top_p"], config.engine.dtype) == (4, 0.9, "bfloat16")
    assert config.data is not None and (config.data.path, config.data.prompt) == ("openai/gsm8k", "as_is")
    assert {key: findings[key].kind for key in ("beta", "top_p", "learning_rat", "hub_token", "reward_funcs")} == {
        "beta": "taken over", "top_p": "passed on", "learning_rat": "unknown", "hub_token": "no counterpart",
        "reward_funcs": "no counterpart",
    }  # fmt: skip
    assert "did you mean learning_rate?" in findings["learning_rat"].detail
    assert "secret" not in json.dumps(config.engine.args)


@pytest.mark.parametrize(
    ("line", "key", "why"),
    [
        ("loss_type: bnpo", "loss_type", "this recipe trains with"),
        ("scale_rewards: batch", "scale_rewards", "this recipe trains with"),
        ("lr_scheduler_type: polynomial", "lr_scheduler_type", "constant, linear and cosine"),
        ("dtype: bfloat16", "dtype", "float32 weights"),
        ("ref_model_mixup_alpha: 0.5\nsync_ref_model: true\nbeta: 0.1", "ref_model_mixup_alpha", "this recipe trains with 1.0"),
    ],
)
def test_what_has_no_counterpart_is_named(tmp_path: Path, line: str, key: str, why: str) -> None:
    _, findings = trl(tmp_path, f"max_steps: 4\nmodel_name_or_path: owner/policy\n{line}\n")
    assert findings[key].kind == "no counterpart" and why in findings[key].detail


def test_steps_and_model_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the settings have no steps; pass --steps N"):
        trl(tmp_path, "model_name_or_path: owner/policy\nnum_train_epochs: 2\n")
    config, findings = trl(tmp_path, "num_train_epochs: 2\n", ("steps", "9"), ("model", "owner/policy"))
    assert (config.steps, config.model) == (9, "owner/policy")
    assert "recipes count steps" in findings["num_train_epochs"].detail


def test_a_script_of_verl_with_its_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROWS", "/data")
    script = r"""
set -x
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=rloo \
    data.train_files=$ROWS/train.parquet \
    actor_rollout_ref.model.path=owner/policy \
    actor_rollout_ref.rollout.n=5 \
    actor_rollout_ref.actor.use_kl_loss=True \
    actor_rollout_ref.actor.kl_loss_type=k2 \
    trainer.logger='["console","wandb"]' \
    custom_reward_function.path=mine.py \
    trainr.test_freq=5 \
    trainer.total_training_steps=30 $@
"""
    config, findings = verl(tmp_path, [script])
    assert type(config.method.advantage).__name__ == "LeaveOneOut"
    assert (config.method.anchor.beta, config.method.anchor.estimator, config.method.surrogate.dual) == (0.001, "k2", 3.0)
    assert (config.rollout.prompts_per_step, config.updates.minibatches, config.rollout.group_size) == (1024, 4, 5)
    assert dump(config)["task"]["file"] == "/data/train.parquet" and config.report_to == ("wandb",)
    assert findings["trainr.test_freq"].kind == "unknown"
    assert "other arguments" in findings["custom_reward_function.path"].detail


def test_the_node_of_this_package_is_the_method(tmp_path: Path) -> None:
    words = ["actor_rollout_ref.model.path=owner/policy", "trainer.total_training_steps=3", "actor_rollout_ref.rollout.n=2"]
    words += ["+sage.method=rloo", "+sage.method.beta=0.1", "+sage.guide=branch", "+sage.guide.ratio=0.3"]
    method = dump(verl(tmp_path, words)[0])["method"]
    assert (method["base"]["name"], method["base"]["beta"], method["guide"]["ratio"]) == ("rloo", 0.1, 0.3)
    _, findings = verl(tmp_path, [word for word in words if "method" not in word])
    assert findings["sage.guide"].kind == "no counterpart"


def test_ppo_of_verl_is_not_silently_grpo(tmp_path: Path) -> None:
    words = ["actor_rollout_ref.model.path=owner/policy", "trainer.total_training_steps=3", "actor_rollout_ref.rollout.n=2"]
    _, findings = verl(tmp_path, [*words, "algorithm.adv_estimator=gae", "algorithm.use_kl_in_reward=True"])
    assert "trains with GroupNormalized" in findings["algorithm.adv_estimator"].detail
    assert findings["algorithm.use_kl_in_reward"].kind == "no counterpart"


VERL = ["actor_rollout_ref.model.path=owner/policy", "actor_rollout_ref.rollout.n=4"]


@pytest.mark.parametrize(
    "word",
    [
        "actor_rollout_ref.actor.policy_loss.loss_mode=gspo",
        "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum",
        "actor_rollout_ref.rollout.ignore_eos=True",
        "algorithm.gamma=0.9",
        "actor_rollout_ref.actor.clip_ratio=0.1",
        "trainer.critic_warmup=5",
        "actor_rollout_ref.rollout.response_length=7",
    ],
)
def test_a_field_of_verl_that_the_recipe_does_not_have_is_not_taken_over(tmp_path: Path, word: str) -> None:
    found = verl(tmp_path, [*VERL, word], ("steps", "3"))[1][word.partition("=")[0]]
    assert found.kind == "no counterpart" and "this recipe trains with" in found.detail


def test_a_field_of_verl_that_the_recipe_has_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("policy").mkdir()
    words = ["algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=acc"]
    words += ["actor_rollout_ref.rollout.ignore_eos=False"]
    _, findings = verl(tmp_path, ["actor_rollout_ref.model.path=./policy", VERL[1], *words], ("steps", "3"))
    taken = ("actor_rollout_ref.rollout.ignore_eos", "actor_rollout_ref.model.path")
    assert [findings[name].kind for name in taken] == ["taken over"] * 2
    assert findings["algorithm.filter_groups.metric"].kind == "no counterpart"


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("use_bias_correction_kl: true", "default"),  # TRL's default, which does nothing where beta is 0
        ("use_bias_correction_kl: false", "no counterpart"),
        ("sync_ref_model: true", "no counterpart"),
        ("save_strategy: 'no'", "no counterpart"),
        ("save_strategy: steps", "taken over"),
        ("save_total_limit: null", "no counterpart"),
        ("data_seed: 3", "no counterpart"),
        ("lora_r: 3\nuse_peft: false", "no counterpart"),
    ],
)
def test_a_field_of_trl_that_the_recipe_does_not_have_is_not_taken_over(tmp_path: Path, line: str, kind: str) -> None:
    _, findings = trl(tmp_path, f"max_steps: 4\nbeta: 0.0\nmodel_name_or_path: owner/policy\n{line}\n")
    assert findings[line.partition(":")[0]].kind == kind


def test_an_edit_stands_over_the_file(tmp_path: Path) -> None:
    text = "max_steps: 4\nmodel_name_or_path: owner/policy\n"
    assert trl(tmp_path, text)[1]["model_name_or_path"].kind == "taken over"
    _, findings = trl(tmp_path, text, ("model", "owner/other"))
    assert "this recipe trains with 'owner/other'" in findings["model_name_or_path"].detail


def test_the_variables_of_the_chat_template_are_the_recipes(tmp_path: Path) -> None:
    text = "max_steps: 4\nmodel_name_or_path: owner/policy\nchat_template_kwargs: {enable_thinking: false}\n"
    config, findings = trl(tmp_path, text)
    assert config.chat_template_kwargs == {"enable_thinking": False}
    assert findings["chat_template_kwargs"].kind == "taken over"
    key = "data.apply_chat_template_kwargs"
    config, findings = verl(tmp_path, [*VERL, f"+{key}.enable_thinking=False", f"+{key}.style.tone=dry"], ("steps", "3"))
    assert config.chat_template_kwargs == {"enable_thinking": False, "style": {"tone": "dry"}}
    assert findings[f"{key}.enable_thinking"].kind == findings[f"{key}.style.tone"].kind == "taken over"


def test_a_part_of_the_run_as_warm_up_counts_the_final_steps(tmp_path: Path) -> None:
    text = "num_train_epochs: 2\nmodel_name_or_path: owner/policy\nwarmup_ratio: 0.1\nsteps_per_generation: 2\n"
    config, findings = trl(tmp_path, text, ("steps", "200"))
    assert (config.updates.per_step, config.optimizer.warmup_steps) == (2, 40)
    assert findings["warmup_ratio"].kind == "taken over"
    config, findings = trl(tmp_path, text, ("steps", "200"), ("optimizer.warmup_steps", "3"))
    assert config.optimizer.warmup_steps == 3 and findings["warmup_ratio"].kind == "no counterpart"
    key = "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio"
    config, findings = verl(tmp_path, [*VERL, f"{key}=0.1"], ("steps", "100"))
    assert (config.updates.per_step, config.optimizer.warmup_steps) == (4, 40)
    assert findings[key].kind == "taken over"


@pytest.mark.parametrize(("key", "text"), [("stpes", "7"), ("optimzer.lr", "1e-3")])
def test_an_edit_of_no_key_is_refused(tmp_path: Path, key: str, text: str) -> None:
    with pytest.raises(ConfigError, match=key.partition(".")[0]):
        trl(tmp_path, "max_steps: 4\nmodel_name_or_path: owner/policy\n", (key, text))


def test_variables_of_a_shell_are_filled_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROWS", "/data")
    monkeypatch.setenv("gsm8k_train_path", "/of/the/environment.parquet")
    monkeypatch.delenv("LOST", raising=False)
    words = ["gsm8k_train_path=$ROWS/train.parquet", "export BATCH=64", 'data.train_files="$gsm8k_train_path"']
    words += ['data.val_files="$LOST/test.parquet"', "data.train_batch_size=${BATCH}", "trainer.nnodes=${NODES:-1}"]
    words += ["actor_rollout_ref.actor.ppo_mini_batch_size=$BATCH"]
    config, findings = verl(tmp_path, [*VERL, *words], ("steps", "3"))
    assert dump(config)["task"]["file"] == "/data/train.parquet" and config.rollout.prompts_per_step == 64
    assert config.engine.args["trainer.nnodes"] == 1
    assert "gsm8k_train_path" not in findings and findings["data.train_files"].kind == "taken over"
    assert findings["data.val_files"].kind == "no counterpart" and "$LOST" in findings["data.val_files"].detail
    config, findings = verl(tmp_path, [*VERL, "data.train_files=$LOST", "data.val_files=there.parquet"], ("steps", "3"))
    assert findings["data.train_files"].kind == findings["data.val_files"].kind == "no counterpart"
    assert "$LOST" not in str(dump(config))


def test_findings_name_the_keys_of_the_recipe(tmp_path: Path) -> None:
    text = "max_steps: 4\nmodel_name_or_path: owner/policy\nbeta: 0.1\nepsilon_high: 0.3\nloss_type: grpo\n"
    _, findings = trl(tmp_path, text)
    said = {key: findings[key].detail for key in ("beta", "epsilon_high", "loss_type")}
    assert said == {"beta": "method.beta", "epsilon_high": "method.clip_high", "loss_type": "method.name"}


def test_the_command_writes_a_recipe_that_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.sh").write_text("python -m verl.trainer.main_ppo data.train_files=rows.parquet actor_rollout_ref.rollout.n=4\n")
    edits = ("--steps", "3", "--model", "owner/policy")
    assert call("import-config", "run.sh", *edits, "--out", "recipes/mine.yaml") == 0
    told = capsys.readouterr().err
    assert "taken over" in told and "actor_rollout_ref.rollout.n = 4: rollout.group_size" in told
    config = load_config(TrainConfig, "recipes/mine.yaml")
    assert config.steps == 3 and dump(config)["task"]["file"] == str(tmp_path / "rows.parquet")
    assert call("import-config", "run.sh", *edits, "--out", "recipes/mine.yaml") == 2
    assert "exists" in capsys.readouterr().err


def test_a_pickle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "training_args.bin").write_bytes(b"")
    with pytest.raises(ConfigError, match="to_json_string"):
        import_config(tmp_path / "training_args.bin")
