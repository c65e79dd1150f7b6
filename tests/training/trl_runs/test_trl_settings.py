"""A recipe as TRL's arguments: worked by hand, and nothing said twice. Needs no TRL."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_rlvr.config import TrainConfig, decode, load_config
from sage_rlvr.errors import ConfigError
from sage_rlvr.training.trl.arguments import OWNED, grpo_arguments, method_of


def config(**changes: Any) -> TrainConfig:
    tree = {"steps": 5, "method": {"name": "grpo", "beta": 0.05}, "engine": {"name": "trl"}}
    return decode(TrainConfig, tree | changes)


def test_the_frozen_recipe_by_hand():
    found = grpo_arguments(load_config(TrainConfig, "sage_branch", [("engine.name", "trl")]), "out")
    wanted = {
        "output_dir": "out",
        "max_steps": 250,
        "per_device_train_batch_size": 256,  # 16 prompts x 16 completions, one update
        "gradient_accumulation_steps": 1,
        "steps_per_generation": 1,
        "num_iterations": 1,
        "num_generations": 16,
        "max_completion_length": 24,
        "learning_rate": 1e-4,
        "lr_scheduler_type": "constant",
        "save_steps": 50,
        "beta": 0.05,
        "use_bias_correction_kl": False,
        "loss_type": "grpo",
    }
    assert {key: found[key] for key in wanted} == wanted


def test_updates_micro_batches_and_ranks_by_hand():
    """32 prompts x 8 = 256 rows; 2 mini-batches of 128, on 2 ranks 64 each, in micro-batches of 2 groups = 16 rows."""
    given = config(updates={"epochs": 3, "minibatches": 2, "micro_batch": 2}, optimizer={"warmup_steps": 4})
    found = grpo_arguments(given, "out", world_size=2)
    assert given.updates.per_step == 6 and found["max_steps"] == 30 and found["save_steps"] == 300
    assert (found["per_device_train_batch_size"], found["gradient_accumulation_steps"]) == (16, 4)
    assert (found["steps_per_generation"], found["num_iterations"]) == (8, 3)
    assert (found["lr_scheduler_type"], found["warmup_steps"]) == ("constant_with_warmup", 4)
    own = config(engine={"name": "trl", "args": {"per_device_train_batch_size": 8, "use_vllm": True}})
    assert grpo_arguments(own, "out")["gradient_accumulation_steps"] == 32 and grpo_arguments(own, "out")["use_vllm"]


@settings(deadline=None)
@given(
    prompts=st.integers(1, 24),
    group=st.integers(2, 6),
    parts=st.integers(1, 4),
    micro=st.integers(1, 8),
    ranks=st.integers(1, 4),
)
def test_no_row_is_lost(prompts: int, group: int, parts: int, micro: int, ranks: int):
    """micro-batch x accumulation x ranks x mini-batches = the rollout, or the split is refused."""
    if prompts % parts or micro > prompts // parts:
        return
    given = config(
        rollout={"prompts_per_step": prompts, "group_size": group},
        updates={"minibatches": parts, "micro_batch": micro},
    )
    if (prompts * group // parts) % ranks:
        with pytest.raises(ConfigError, match="ranks"):
            grpo_arguments(given, "out", ranks)
        return
    found = grpo_arguments(given, "out", ranks)
    rows = found["per_device_train_batch_size"] * found["gradient_accumulation_steps"] * ranks
    assert rows * parts == prompts * group
    assert found["steps_per_generation"] * found["per_device_train_batch_size"] * ranks == prompts * group


@pytest.mark.parametrize("key", [*OWNED, "beta", "loss_type", "epsilon", "use_bias_correction_kl"])
def test_what_the_recipe_owns_is_refused_with_its_place(key: str):
    with pytest.raises(ConfigError, match=f"engine.args.{key} = 1: the recipe sets this field; set .+ instead"):
        grpo_arguments(config(engine={"name": "trl", "args": {key: 1}}), "out")


def test_steps_of_a_reference_are_rollouts_in_a_recipe_and_updates_on_trl():
    """Two updates per rollout: after rollout 2 the reference is the policy after TRL's step 4, as on the loop engine."""
    method: dict[str, Any] = {"name": "grpo", "beta": 0.05}
    twice = {"minibatches": 2}
    found = method_of(config(method=method | {"source": "snapshot@2"}, updates=twice))
    assert found.anchor is not None and found.anchor.source == "snapshot@4"
    moving = config(method=method | {"refresh_every": 3}, updates=twice)
    assert grpo_arguments(moving, "out")["ref_model_sync_steps"] == 6
    plain = config(method=method | {"source": "sft"}, updates=twice)
    assert method_of(plain) == plain.method


def test_a_micro_batch_that_does_not_divide_is_refused():
    with pytest.raises(ConfigError, match="per_device_train_batch_size = 7: must divide the 256 completions"):
        grpo_arguments(config(engine={"name": "trl", "args": {"per_device_train_batch_size": 7}}), "out")


def test_a_method_that_trl_cannot_express_is_refused_with_the_engine_that_can():
    with pytest.raises(ConfigError, match="the loop engine"):
        grpo_arguments(replace(config(), method=config(method={"name": "grpo", "estimator": "k2"}).method), "out")
