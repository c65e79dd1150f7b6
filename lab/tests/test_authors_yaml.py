"""The authors' YAML to recipes: the numbers, the batch, what is said, what is refused; golden on a file written for this."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from command import call
from lab.__main__ import main
from lab.authors_yaml import Imported, import_config
from lab.authors_yaml.keys import KEYS
from sage_rlvr.config import FinetuneConfig, TrainConfig, decode, dump, load_config, parse_yaml
from sage_rlvr.errors import ConfigError
from sage_rlvr.training.trl.arguments import grpo_arguments

NESTED = """\
project: {name: X, seed: 7, output_root: out}
model:
  name: Qwen/Qwen2.5-Math-7B
  instruction_tuned: true
  max_seq_len: 4096
lora: {rank: 4}
data: {train_dataset: some/data, train_dataset_config: en, train_split: train, max_train_samples: 100}
generation:
  use_vllm: false
  temperature: 0.9
  min_p: 0.02
  top_k: -1
  batch_size: 32
  max_prompt_length: 512
  max_completion_length: 1500
rl:
  trainer_seed: 11
  max_steps: 100
  save_steps: 10
  num_rollouts: 4
  learning_rate: 3.0e-6
  lr_scheduler: linear
  warmup_ratio: 0.1
  loss_type: grpo
  use_kl: true
  beta: 0.04
  epsilon: 0.3
  optimizer: adamw_8bit
  per_device_train_batch_size: 8
sft: {num_epochs: 3, warmup_steps: 5, per_device_train_batch_size: 2, gradient_accumulation_steps: 4, max_samples: 50}
sage:
  guide: branch
  q_max: 1.3
  branch: {ratio: 0.2, threshold: 1.0, use_source: new, detach_entropy: false}
  token: {alpha_ub: 0.3, alpha_lb: 0.1, sig_ub: 0.25, sig_lb: 0.1, N: 8}
tracking: {enabled: false}
"""


@pytest.fixture
def given_file(tmp_path: Path) -> Any:
    def write(**changes: Any) -> Path:
        """NESTED with changed places, written as rl__beta=0.1; None takes the place out."""
        tree = yaml.safe_load(NESTED)
        for name, value in changes.items():
            *outer, last = name.split("__")
            node = tree
            for word in outer:
                node = node.setdefault(word, {})
            if value is None:
                node.pop(last, None)
            else:
                node[last] = value
        path = tmp_path / "theirs.yaml"
        path.write_text(yaml.safe_dump(tree, sort_keys=False))
        return path

    return write


def recipe(imported: Imported) -> TrainConfig:
    return decode(TrainConfig, parse_yaml(imported.train))


def said(imported: Imported, place: str) -> list[str]:
    return [str(finding) for finding in imported.findings if place in finding.place]


# ---- the golden file


def test_the_numbers_of_a_nested_file(tmp_path: Path) -> None:
    (tmp_path / "theirs.yaml").write_text(NESTED)
    config = recipe(import_config(tmp_path / "theirs.yaml"))
    assert dump(config)["method"] == {
        "name": "sage",
        "base": dump(decode(TrainConfig, {"steps": 1, "method": {"name": "grpo", "beta": 0.04, "clip_high": 0.3}}))[
            "method"
        ],
        "guide": {"name": "branch", "ratio": 0.2, "threshold": 1.0, "q_min": 0.6, "q_max": 1.3, "signal": "policy"},
    }
    assert (config.seed, config.steps, config.model, config.base_model) == (11, 25, "Qwen/Qwen2.5-Math-7B", None)
    assert config.data is not None
    assert (config.data.path, config.data.subset, config.data.take) == ("some/data", "en", 100)
    rollout = config.rollout
    assert (rollout.prompts_per_step, rollout.group_size, rollout.max_new_tokens, rollout.temperature) == (
        8,
        4,
        1500,
        0.9,
    )
    assert config.updates.minibatches == 4  # 32 rows per rollout, 8 an update
    optimizer = config.optimizer
    assert (optimizer.lr, optimizer.weight_decay, optimizer.schedule, optimizer.warmup_steps) == (
        3e-6,
        0.01,
        "linear",
        10,
    )
    assert config.checkpoint.every == 2  # 10 updates are 2.5 rollouts
    assert config.engine.args == {"min_p": 0.02, "optim": "adamw_8bit", "gradient_checkpointing": True}
    assert config.engine.lora is not None
    assert (config.engine.dtype, config.engine.lora.rank, config.engine.lora.scale) == ("bfloat16", 4, 8.0)


def test_trl_gets_their_batch(given_file: Any) -> None:
    fields = grpo_arguments(recipe(import_config(given_file())), "out")
    assert fields["per_device_train_batch_size"] == 8
    assert fields["gradient_accumulation_steps"] == 1
    assert fields["steps_per_generation"] == 4
    assert fields["num_generations"] == 4
    assert fields["max_steps"] == 100
    assert (fields["epsilon"], fields["epsilon_high"], fields["beta"], fields["warmup_steps"]) == (0.2, 0.3, 0.04, 10)


def test_the_flat_keys_and_the_nested_ones_say_the_same(given_file: Any, tmp_path: Path) -> None:
    flat = tmp_path / "flat.yaml"
    flat.write_text("""\
seed: 7
random_state: 11
model_name: Qwen/Qwen2.5-Math-7B
instruct: true
lora_rank: 4
train_dataset: some/data
max_train_samples: 100
temperature: 0.9
min_p: 0.02
generation_batch_size: 32
max_completion_length: 1500
max_steps: 100
save_steps: 10
num_rollouts: 4
learning_rate: 3.0e-6
lr_scheduler: linear
beta: 0.04
epsilon: 0.3
optimizer: adamw_8bit
per_device_train_batch_size: 8
use_branch: true
wandb_enabled: false
sage: {q_max: 1.3, branch: {ratio: 0.2, threshold: 1.0}}
""")
    assert recipe(import_config(flat)) == recipe(import_config(given_file()))


def test_their_defaults_hold_where_nothing_is_given(tmp_path: Path) -> None:
    path = tmp_path / "short.yaml"
    path.write_text("model_name: some/model\n")
    imported = import_config(path)
    config = recipe(imported)
    assert (config.seed, config.steps, config.rollout.prompts_per_step, config.rollout.group_size) == (42, 300, 1, 8)
    assert (config.optimizer.lr, config.optimizer.schedule, config.rollout.max_new_tokens) == (2e-6, "constant", 1024)
    assert dump(config.method)["name"] == "grpo"
    assert config.engine.args["min_p"] == 0.01
    assert imported.sft is None
    assert "Weights & Biases" in said(imported, "tracking")[0]  # theirs logs in unless told not to


# ---- SFT before it


def test_a_base_model_gets_an_sft_recipe_whose_adapter_is_anchor_and_start(given_file: Any) -> None:
    imported = import_config(given_file(model__instruction_tuned=False), sft_run="runs/mine")
    config = recipe(imported)
    assert (config.model, config.base_model) == ("runs/mine/adapter", "Qwen/Qwen2.5-Math-7B")
    assert config.reference == "runs/mine/adapter"  # source: sft
    assert imported.sft is not None
    sft = decode(FinetuneConfig, parse_yaml(imported.sft))
    assert (sft.seed, sft.model, sft.epochs, sft.batch_size, sft.max_length) == (7, "Qwen/Qwen2.5-Math-7B", 3, 8, 4096)
    assert (sft.optimizer.lr, sft.optimizer.warmup_steps, sft.data.take, sft.data.prompt) == (
        2e-5,
        5,
        50,
        config.data.prompt,
    )  # type: ignore[union-attr]
    assert sft.engine.args["per_device_train_batch_size"] == 2
    assert sft.engine.args["completion_only_loss"] is False
    assert "KL is taken to the model before SFT" in said(imported, "instruction_tuned")[0]
    assert "2048 tokens, and cuts the others at 1,024" in said(imported, "max_seq_len")[0]
    full = import_config(given_file(model__instruction_tuned=False, model__full_finetune=True), sft_run="runs/mine")
    assert recipe(full).model == "runs/mine/policy"
    assert recipe(full).engine.dtype == "float32"


# ---- what is said

SAID = [
    ({}, "epsilon", "kept", "the lower is always 0.2"),
    ({"rl__lr_scheduler": "constant"}, "warmup_ratio", "kept", "does nothing"),
    ({}, "top_k", "changed", "a crash without it"),
    ({}, "min_p", "kept", "log-probs of the loss are those of the whole policy"),
    ({}, "sage.guide", "changed", "q is computed anew at each loss"),
    ({}, "detach_entropy", "dropped", "does nothing"),
    ({"sage__branch__use_source": "ref"}, "use_source", "changed", "always raises"),
    ({}, "lora.rank", "changed", "a generator that nothing seeds"),
    ({"model__full_finetune": True}, "full_finetune", "changed", "most updates round to nothing"),
    ({"rl__loss_type": "bnpo"}, "loss_type", "kept", "without the Beta density"),
    ({"rl__loss_type": "dapo"}, "loss_type", "changed", "loss of 4 updates a rollout that many times smaller"),
    ({"rl__loss_type": "dr_grpo"}, "loss_type", "changed", "still divided by the group's deviation"),
    ({}, "batch_size", "kept", "8 problems of 4 completions per rollout, 4 updates"),
    ({}, "max_prompt_length", "dropped", "TRL 1.x has no such field"),
    ({}, "trainer_seed", "changed", "project.seed = 7"),
    ({}, "optimizer", "kept", "becomes adamw_torch"),
    ({"generation__use_vllm": True}, "use_vllm", "kept", "cut at 2"),
    ({"data__max_train_samples": None}, "max_train_samples", "kept", "the first 2,000"),
    ({}, "train_dataset", "changed", "<SOLUTION>42</SOLUTION> earns 0"),
    ({"sage__guide": "token", "rl__gradient_accumulation_steps": 2}, "sage.guide", "changed", "2 times per update"),
    ({"sage__guide": "token"}, "max_steps", "changed", "100 updates are no multiple of 8 cycles"),
    ({"rl__max_steps": 102}, "max_steps", "changed", "ends within a rollout"),
    ({"hub__upload": True}, "hub.upload", "dropped", "uploads"),
]


@pytest.mark.parametrize(
    ("changes", "place", "kind", "words"), SAID, ids=[f"{case[1]}-{case[3][:20]}" for case in SAID]
)
def test_a_defect_is_said_at_its_place(
    given_file: Any, changes: dict[str, Any], place: str, kind: str, words: str
) -> None:
    lines = [line for line in said(import_config(given_file(**changes)), place) if words in line]
    assert len(lines) == 1
    assert lines[0].startswith(kind)


def test_what_departs_stands_in_the_recipe_too(given_file: Any) -> None:
    imported = import_config(given_file())
    for finding in imported.findings:
        assert (f"# {finding}" in imported.train) == (finding.kind != "kept")
    assert "# theirs.yaml:" in imported.train  # where a value comes from
    assert str(given_file().parent) not in imported.train


def test_a_secret_is_named_and_not_repeated(given_file: Any) -> None:
    imported = import_config(given_file(hub__token="hf_secret", tracking__api_key="w_secret"))
    text = imported.train + "".join(map(str, imported.findings))
    assert "secret" in text and "hf_secret" not in text and "w_secret" not in text


def test_a_place_that_is_passed_over_is_said(given_file: Any) -> None:
    imported = import_config(given_file(beta=0.1, num_rollouts=16))
    assert dump(recipe(imported).method)["base"]["beta"] == 0.1  # flat goes before rl
    assert recipe(imported).rollout.group_size == 4  # but here rl goes before flat, as in their code
    assert "goes before it" in said(imported, "rl.beta")[0]
    assert "rl.num_rollouts = 4 goes before it" in next(
        f for f in said(imported, "num_rollouts") if f.startswith("dropped")
    )


# ---- guides


def test_token_and_random_become_cycles(given_file: Any) -> None:
    token = recipe(import_config(given_file(sage__guide="token", sage__token__use_source="ref")))
    guide = dump(token.method)["guide"]
    assert guide["alpha"] == {
        "name": "cosine_cycles",
        "upper": 0.3,
        "lower": 0.1,
        "cycles": 8,
        "decay": 0.9,
        "tail": "final",
    }
    assert (guide["sigma"]["upper"], guide["norm"], guide["signal"]) == (0.25, "minmax", "reference")
    bounds = {"eps_ub": 0.1, "eps_lb": 0.0, "sig_ub": 0.15, "sig_lb": 0.05, "num_cycles": 5, "decay_rate": 0.5}
    random = dump(recipe(import_config(given_file(sage__guide="random", sage__random=bounds))).method)["guide"]
    assert random["eps"] == {
        "name": "cosine_cycles",
        "upper": 0.1,
        "lower": 0.0,
        "cycles": 5,
        "decay": 0.5,
        "tail": "final",
    }


def test_plain_is_their_train_grpo(given_file: Any) -> None:
    plain = recipe(import_config(given_file(), plain=True))
    assert dump(plain.method)["name"] == "grpo"
    none = recipe(import_config(given_file(sage__guide="none")))
    assert none == plain
    no_kl = import_config(given_file(rl__use_kl=False), plain=True)
    assert dump(recipe(no_kl).method)["beta"] == 0.0
    assert "beta = 0.04 is not read" in said(no_kl, "use_kl")[0]


# ---- refusals

REFUSED = [
    ({"rl__learning_rat": 1e-6}, ["theirs.yaml:", "rl.learning_rat", "did you mean rl.learning_rate?"]),
    ({"generation__epsilon": 0.1}, ["generation.epsilon", "did you mean epsilon?"]),
    ({"rl__use_kl": False}, ["use_kl", "--plain"]),
    ({"rl__beta": 0.0}, ["a guide has no KL term"]),
    ({"use_fkl": True}, ["use_fkl", "forward_kl.yaml"]),
    ({"rl__max_steps": -1}, ["max_steps = -1", "three epochs"]),
    ({"generation__batch_size": 12}, ["12 rows are no multiple"]),
    ({"generation__batch_size": 24, "rl__gradient_accumulation_steps": 2}, ["parts of two rollouts"]),
    ({"rl__per_device_train_batch_size": 2}, ["no whole groups of 4"]),
    ({"rl__loss_type": "cispo"}, ["loss_type = cispo", "bnpo"]),
    ({"rl__lr_scheduler": "polynomial"}, ["constant_with_warmup"]),
    ({"rl__beta": "much"}, ["rl.beta = 'much'", "a number"]),
    ({"rl__max_steps": True}, ["a whole number"]),
    ({"sage__guide": "brunch"}, ["did you mean branch?"]),
    ({"sage__guide": "random"}, ["KeyError: 'eps_ub'"]),
    ({"sage__guide": "token", "sage__token__N": 0}, ["sage.token.N = 0", "above 0"]),
    ({"lora__bias": "all"}, ["lora.bias = all"]),
    ({"model__name": None}, ["model_name"]),
    ({"generation__k": 64}, ["evaluation configuration", "train_config.yaml"]),
    ({"target": {"model_path": "x"}}, ["evaluation configuration"]),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED, ids=[next(iter(case[0])) + case[1][0][:9] for case in REFUSED])
def test_a_refusal_names_place_and_next_step(given_file: Any, changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        import_config(given_file(**changes))
    for word in words:
        assert word in str(caught.value)


# ---- laws


@pytest.mark.slow
@settings(deadline=None)  # the first call imports TRL
@given(
    group=st.sampled_from([2, 4, 8]),
    problems=st.integers(1, 6),
    chunks=st.sampled_from([1, 2, 4]),
    accumulate=st.sampled_from([1, 2, 4, 8]),
    rollouts=st.integers(1, 30),
)
def test_trl_runs_their_loop_whatever_the_batch(
    tmp_path_factory: pytest.TempPathFactory, group: int, problems: int, chunks: int, accumulate: int, rollouts: int
) -> None:
    """micro-batch, accumulation and rows between two rollouts are theirs; updates per rollout and all updates too."""
    rows = group * problems
    steps = rollouts * max(1, chunks // accumulate)
    path = tmp_path_factory.mktemp("law") / "theirs.yaml"
    tree = {"model_name": "m", "generation_batch_size": rows * chunks, "per_device_train_batch_size": rows}
    tree |= {"num_rollouts": group, "gradient_accumulation_steps": accumulate, "max_steps": steps}
    path.write_text(yaml.safe_dump(tree))
    fields = grpo_arguments(recipe(import_config(path)), "out")
    assert (fields["per_device_train_batch_size"], fields["gradient_accumulation_steps"]) == (rows, accumulate)
    assert fields["steps_per_generation"] == max(chunks, accumulate)
    assert (fields["max_steps"], fields["num_generations"]) == (steps, group)


def test_every_place_is_looked_up_under_one_name() -> None:
    places = [place for key in KEYS.values() for place in key.places]
    assert len(places) == len(set(places))


# ---- the command


def test_the_verb_writes_recipes_that_load_and_dry_run(given_file: Any, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "new" / "mine.yaml"
    source = str(given_file(model__instruction_tuned=False))
    assert main(["authors-yaml", source, "-o", str(out)]) == 0
    assert "written: " in capsys.readouterr().err
    config = load_config(TrainConfig, out)
    assert config.model == "runs/mine-sft/adapter"
    assert decode(TrainConfig, dump(config)) == config
    load_config(FinetuneConfig, out.with_name("mine-sft.yaml"))
    assert call("train", str(out), "--dry-run") == 0
    assert "max_steps = 100" in capsys.readouterr().out
    assert main(["authors-yaml", source, "-o", str(out)]) == 2
    assert "there already" in capsys.readouterr().err
    assert main(["authors-yaml", source]) == 0
    shown, err = capsys.readouterr()
    assert shown.count("# From theirs.yaml") == 2
    findings = [str(finding) for finding in import_config(source, sft_run="runs/theirs-sft").findings]
    lines = [line.removeprefix("# ") for line in (shown + err).splitlines()]
    assert findings and all(lines.count(finding) == 1 for finding in findings)


@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="needs the trl extra")
@pytest.mark.parametrize("loss", ["grpo", "bnpo", "dapo", "dr_grpo"])
def test_trl_takes_what_was_imported(given_file: Any, loss: str) -> None:
    from trl import GRPOConfig, SFTConfig

    from sage_rlvr.training.trl.given import check_agreement

    changes = {"generation__use_vllm": True, "rl__loss_type": loss, "model__instruction_tuned": False}
    imported = import_config(given_file(**changes))
    config = recipe(imported)
    args = GRPOConfig(**grpo_arguments(config, "out") | {"use_cpu": True, "bf16": False, "optim": "adamw_torch"})
    check_agreement(config.method, args)
    assert (args.vllm_importance_sampling_mode, args.vllm_importance_sampling_clip_max) == ("token_truncate", 2.0)
    assert (args.generation_kwargs["stop"], args.vllm_max_model_length) == (["</SOLUTION>"], 2012)
    sft = decode(FinetuneConfig, parse_yaml(imported.sft or ""))
    assert (
        SFTConfig("out", use_cpu=True, bf16=False, **sft.engine.args | {"optim": "adamw_torch"}).completion_only_loss
        is False
    )
