"""The settings of a made GRPOConfig as a recipe, with the defaults of the installed TRL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from trl import GRPOConfig

from imported_common import METHODS, assert_same, recipe
from sage_rlvr.config import TrainConfig, decode
from sage_rlvr.contrib.io.import_config import import_config
from sage_rlvr.training.trl.arguments import grpo_arguments


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method['name']} {method.get('beta')}")
def test_from_a_recipe_to_a_grpo_config_and_back(tmp_path: Path, method: dict[str, Any]) -> None:
    """The JSON of a GRPOConfig has every field, those that it has computed too."""
    went = recipe(method=method, engine={"name": "trl", "threads": None, "args": {"per_device_train_batch_size": 4}})
    fields = grpo_arguments(went, str(tmp_path / "out"))
    if lacking := fields.keys() - GRPOConfig.__dataclass_fields__.keys():
        pytest.skip(f"this TRL has no {', '.join(lacking)}")
    args = GRPOConfig(**fields, use_cpu=True, bf16=False, save_total_limit=3)
    (tmp_path / "args.json").write_text(args.to_json_string())
    found = import_config(tmp_path / "args.json", [("model", "owner/policy")])
    assert_same(decode(TrainConfig, found.recipe), went)
    lost = [one for one in found.findings if one.kind in ("no counterpart", "unknown")]
    by_run = {"output_dir", "remove_unused_columns", "num_train_epochs", "resume_from_checkpoint"}
    assert {one.key for one in lost} <= by_run | {"hub_token", "push_to_hub_token"}, [str(one) for one in lost]
    assert "hub_token" not in found.text


def test_a_config_that_says_nothing_has_trls_defaults(tmp_path: Path) -> None:
    (tmp_path / "bare.yaml").write_text("model_name_or_path: owner/policy\nmax_steps: 10\n")
    config = decode(TrainConfig, import_config(tmp_path / "bare.yaml").recipe)
    bare = GRPOConfig(str(tmp_path), use_cpu=True, bf16=False)
    fields = grpo_arguments(config, str(tmp_path))
    for name in ("beta", "loss_type", "epsilon", "learning_rate", "num_generations", "max_completion_length", "lr_scheduler_type"):
        assert fields[name] == getattr(bare, name), name
    assert fields["gradient_accumulation_steps"] == bare.gradient_accumulation_steps
    assert json.dumps(fields["per_device_train_batch_size"]) == json.dumps(bare.per_device_train_batch_size)
