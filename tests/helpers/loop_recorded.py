"""A run of the loop, kept so that it can be replayed through another engine. Needs neither TRL nor verl."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from torch import Tensor

from sage_rlvr.config import TrainConfig, load_config
from sage_rlvr.training import loop as engine
from sage_rlvr.training.groups import DrawnGroups, Groups
from sage_rlvr.training.loop_state import TrainState
from sage_rlvr.training.reference import follow
from sage_rlvr.training.samplers import sampler_of


def small_run(case: str, *more: str, steps: int, seed: int) -> TrainConfig:
    """A small run of a shipped recipe: `name key=value ...`; what is named later holds."""
    size = f"steps={steps} rollout.prompts_per_step=4 rollout.group_size=8 optimizer.eps=1e-6 seed={seed}"
    name, *edits = f"{case} {size} {' '.join(more)}".split()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load_config(TrainConfig, name, [tuple(edit.split("=", 1)) for edit in edits])  # type: ignore[misc]


def draw_groups(loop: TrainState, step: int) -> DrawnGroups:
    """What the loop's sampler draws for a step."""
    return sampler_of(loop.method).draw(loop, step)


def record(config: TrainConfig) -> tuple[list[Groups], dict[str, Tensor]]:
    """All that a run of the loop drew, step by step, and the weights after it."""
    kept: list[Groups] = []
    loop = engine.build(config)
    kind = type(sampler_of(loop.method))
    plain = kind.draw

    def keep(sampler: Any, loop: Any, step: int) -> Any:
        drawn = plain(sampler, loop, step)
        kept.append(drawn.first_stage)
        return drawn

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "draw", keep)
        for step in range(config.steps):
            engine.train_step(loop, step)
            follow(loop, step + 1)
    return kept, loop.policy.state_dict()


def furthest(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """The largest difference of a weight of `found`; `wanted` may have more."""
    return max(float((found[name] - wanted[name]).abs().max()) for name in found)
