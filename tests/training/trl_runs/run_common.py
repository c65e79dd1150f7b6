"""What the tests of runs on TRL share. Needs TRL."""

# ruff: noqa: E402  (what needs TRL is imported after importorskip)

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

trl = pytest.importorskip("trl")


from sage_rlvr.config import TrainConfig, decode, dump
from sage_rlvr.progress import Silent
from sage_rlvr.runs import RunDir
from sage_rlvr.training.trl import run as trl_run

TREE: dict[str, Any] = {
    "steps": 4,
    "world": {"counts": {3: 1.0}, "max_number": 6, "max_target": 12, "train_problems": 40},
    "method": {"name": "sage", "base": {"name": "grpo", "beta": 0.3}, "guide": {"name": "branch", "threshold": 0.1}},
    "rollout": {"prompts_per_step": 4, "group_size": 4, "max_new_tokens": 12},
    "updates": {"minibatches": 2, "micro_batch": 1},
    "optimizer": {"lr": 1e-3},
    "checkpoint": {"every": 1, "keep": 3},
    "engine": {"name": "trl"},
}


def config(**changes: Any) -> TrainConfig:
    return decode(TrainConfig, TREE | changes)


def trained(folder: Path, given: TrainConfig) -> int:
    with RunDir.open(folder, dump(given)) as run:
        return trl_run.train(given, run, folder, Silent())
