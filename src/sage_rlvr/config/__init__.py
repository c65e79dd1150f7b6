"""The schemas of recipes: keyword-only frozen dataclasses, parsed from YAML by `recipes.py` and `schema.py`.

Read runs.py first (the recipes of training, SFT and offline runs), then parts.py (the sections that recipes share:
rollout, update, optimizer, checkpoints, engine) and tasks.py (tasks by name).

A configuration is a value: these dataclasses are the only schema, YAML is how one is shared.

    config = load_config(TrainConfig, "recipe.yaml", [("rollout.group_size", "16")])   # or a ConfigError with the next step
    decode(TrainConfig, dump(config)) == config                                        # always

Methods, guides and schedules are chosen by name: `method: {name: sage, base: grpo, guide: {name: branch, ratio: 0.3}}`.
"""

from __future__ import annotations

from sage_rlvr.config.kinds import RunConfig, read_recipe, schema_of
from sage_rlvr.config.parts import (
    CheckpointConfig,
    DataConfig,
    EngineConfig,
    LoraConfig,
    ModelConfig,
    OptimizerConfig,
    PairsConfig,
    RolloutConfig,
    UpdateConfig,
    WorldConfig,
)
from sage_rlvr.config.runs import FinetuneConfig, OfflineConfig, SftConfig, TrainConfig
from sage_rlvr.config.tasks import task_named, task_of, task_of_data, world_of
from sage_rlvr.recipes import Tree, load, merge, override, parse_scalar, parse_yaml
from sage_rlvr.schema import build, decode, dump, load_config, to_yaml

__all__ = [
    "CheckpointConfig",
    "DataConfig",
    "EngineConfig",
    "FinetuneConfig",
    "LoraConfig",
    "ModelConfig",
    "OfflineConfig",
    "OptimizerConfig",
    "PairsConfig",
    "RolloutConfig",
    "RunConfig",
    "SftConfig",
    "TrainConfig",
    "Tree",
    "UpdateConfig",
    "WorldConfig",
    "build",
    "decode",
    "dump",
    "load",
    "load_config",
    "merge",
    "override",
    "parse_scalar",
    "parse_yaml",
    "read_recipe",
    "schema_of",
    "task_named",
    "task_of",
    "task_of_data",
    "to_yaml",
    "world_of",
]
