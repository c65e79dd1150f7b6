"""Extras of tests, one for each hook, and the plugin examples/grpo_dropout.py. Needs neither TRL nor verl."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from sage_rlvr.core import EXTRAS, METHODS, Batch, Extra, GroupSignals

DROPOUT = Path(__file__).parents[2] / "examples" / "grpo_dropout.py"


@dataclass(frozen=True)
class Again(Extra):
    """Asks first for the problems that nobody solved in the step before. State: their ids."""

    equation: ClassVar[str] = "unsolved problems come back"
    needs: ClassVar[frozenset[str]] = frozenset({"problems"})

    def start(self) -> dict[str, Tensor]:
        return {"unsolved": torch.zeros(0, dtype=torch.int64), "steps": torch.zeros((), dtype=torch.int64)}

    def before_rollout(self, selected: Tensor, problems: Tensor, step: int, key: Any, state: Any) -> Tensor:
        back = torch.isin(problems, state["unsolved"].to(problems.device)).nonzero().squeeze(1)
        return torch.cat([back, selected[~torch.isin(selected, back)]])[: len(selected)]

    def learn(self, rewards: Tensor, seen: GroupSignals, state: Any) -> dict[str, Tensor]:
        ids = seen.require("problems", "Again")[:, 0]
        return {"unsolved": ids[rewards.amax(dim=1) <= 0].cpu(), "steps": state["steps"] + 1}


@dataclass(frozen=True)
class Doubled(Extra):
    """Rewards times `factor`."""

    factor: float = 2.0
    equation: ClassVar[str] = "r times factor"

    def after_rewards(self, rewards: Tensor, seen: GroupSignals, state: Any) -> Tensor:
        return self.factor * rewards


@dataclass(frozen=True)
class Rewarded(Extra):
    """Advantages times what the advantage read, so that the order of the hooks shows."""

    equation: ClassVar[str] = "A times r"

    def on_advantages(self, advantages: Tensor, rewards: Tensor, seen: GroupSignals, state: Any) -> Tensor:
        return advantages * rewards


@dataclass(frozen=True)
class Pull(Extra):
    """A price on the log-prob of each token."""

    price: float = 0.5
    equation: ClassVar[str] = "+ price log pi"

    def on_loss(self, batch: Batch, step: int, total_steps: int) -> Tensor:
        return self.price * batch.logps


@contextmanager
def registries_restored() -> Iterator[None]:
    """What is registered meanwhile is forgotten."""
    before = [(registry, dict(registry._parts)) for registry in (EXTRAS, METHODS)]
    try:
        yield
    finally:
        for registry, parts in before:
            registry._parts = parts


@contextmanager
def dropout_plugin() -> Iterator[dict[str, Any]]:
    """The names of examples/grpo_dropout.py, registered meanwhile."""
    with registries_restored():
        yield runpy.run_path(str(DROPOUT), run_name="grpo_dropout")
