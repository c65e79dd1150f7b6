"""What the tests of the loop share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sage_rlvr.config import TrainConfig, dump, load_config
from sage_rlvr.progress import Silent
from sage_rlvr.runs import RunDir
from sage_rlvr.training.loop import build, train
from sage_rlvr.training.loop_state import TrainState
from sage_rlvr.training.rollouts import problems_of_step


def own_problems(loop: TrainState, step: int) -> list[Any]:
    """The problems of a step before any refill."""
    return problems_of_step(loop, step, 0, loop.config.rollout.prompts_per_step)


def make(recipe: Path, *overrides: tuple[str, str]) -> TrainState:
    return build(load_config(TrainConfig, recipe, overrides))


def weights(loop: TrainState) -> Tensor:
    return torch.cat([p.detach().flatten() for p in loop.policy.parameters()])


def run_of(recipe: Path, folder: Path, progress: Any = None, **overrides: str) -> int:
    config = load_config(TrainConfig, recipe, [(k.replace("__", "."), v) for k, v in overrides.items()])
    with RunDir.open(folder, dump(config)) as run:
        return train(config, run, progress or Silent())
