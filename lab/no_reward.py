"""What a policy moves where no completion earns anything: `python -m lab no-reward`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
import tyro

from sage_rlvr.cli.session import RUNS, Command, Session
from sage_rlvr.config import TrainConfig, read_recipe
from sage_rlvr.core.advantages.base import Groups, GroupSignals
from sage_rlvr.core.extras import Extra
from sage_rlvr.core.state import PartState
from sage_rlvr.errors import require
from sage_rlvr.results.tables import Table
from sage_rlvr.training.loop import build, train_step
from sage_rlvr.training.loop_state import TrainState
from sage_rlvr.verdicts.stats.intervals import seed_interval

METHODS: dict[str, dict[str, str]] = {
    "no KL term": {"method": "{name: grpo, beta: 0.0}"},
    "no guide": {"method": "{name: grpo, beta: 0.05}"},
    "Branch, p80": {"method": "{name: sage, base: {name: grpo, beta: 0.05}, guide: {name: branch, threshold: p80}}"},
}
UPDATES: dict[str, dict[str, str]] = {
    "plain": {},
    "warm-up": {},  # over half of the steps
    "epsilon 1e-5": {"optimizer.eps": "1e-5"},
    "skipped": {"updates.skip_without_signal": "always"},
}
KL = "kl/to_reference"


class Unpaid(Extra):
    """Every reward is 0."""

    equation: ClassVar[str] = "0"

    def after_rewards(self, rewards: Groups, seen: GroupSignals, state: PartState) -> Groups:
        return torch.zeros_like(rewards)


@dataclass(frozen=True)
class Moved:
    """kl: nats per token to the base after the steps; weights: |change| / |weights|; gradient: mean norm; by seed."""

    method: str
    update: str
    kl: list[float]
    weights: list[float]
    gradient: list[float]


@dataclass(frozen=True)
class NoReward(Command):
    """Measure how far a policy moves in steps whose rewards are all 0, by guide and by kind of update."""

    recipe: tyro.conf.Positional[str] = "grpo"
    """Whose task, rollout and optimizer are taken; its method is replaced."""
    model: str | None = None
    """A model folder in place of the recipe's."""
    steps: int = 20
    """Updates before the KL is read."""
    seeds: int = 5
    """How many training seeds, from 0 on."""
    method: tuple[str, ...] = tuple(METHODS)
    """Some methods alone."""
    update: tuple[str, ...] = tuple(UPDATES)
    """Some kinds of update alone."""
    set: tuple[str, ...] = ()
    """Further settings of the recipe, as in optimizer.lr=1e-4."""
    out: Path = RUNS / "no_reward"
    """Where no_reward.json goes."""

    def execute(self, session: Session) -> int:
        require(self.steps > 1, "--steps", self.steps, "must be above 1")
        edits = dict(one.split("=", 1) for one in self.set) | ({} if self.model is None else {"model": self.model})
        found = []
        for method in self.method:
            for update in self.update:
                given = {**edits, **METHODS[method], **UPDATES[update]}
                given |= {"optimizer.warmup_steps": str(self.steps // 2 if update == "warm-up" else 0)}
                found.append(moved(method, update, self.recipe, given, self.steps, range(self.seeds)))
                session.note(f"{method}, {update}: done")
        table = table_of(found, self.steps)
        session.say(table.markdown())
        self.out.mkdir(parents=True, exist_ok=True)
        facts = {"recipe": self.recipe, "steps": self.steps, "set": dict(edits), "rows": [asdict(one) for one in found]}
        (self.out / "no_reward.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        return 0


def moved(
    method: str, update: str, recipe: str, edits: Mapping[str, str], steps: int, seeds: Sequence[int]
) -> Moved:
    """One row: so many steps of each seed."""
    rows = []
    for seed in seeds:
        given = {**edits, "steps": str(steps + 1), "seed": str(seed)}
        config = read_recipe(recipe, command="train", edits=list(given.items()))
        assert isinstance(config, TrainConfig)
        rows.append(distance(build(config), steps))
    kl, weights, gradient = zip(*rows, strict=True)
    return Moved(method, update, list(kl), list(weights), list(gradient))


def distance(loop: TrainState, steps: int) -> tuple[float, float, float]:
    """KL, relative change of the weights and mean gradient norm of a loop after so many steps without a reward; a skipped update
    computes no gradient and counts as 0."""
    loop.method = replace(loop.method, extras=(*loop.method.extras, Unpaid()))
    before = [p.detach().clone() for p in loop.policy.parameters()]
    norms = [train_step(loop, step).get("optimizer/grad_norm", 0.0) for step in range(steps)]
    change = sum(float((p.detach() - b).double().square().sum()) for p, b in zip(loop.policy.parameters(), before, strict=True))
    size = sum(float(b.double().square().sum()) for b in before)
    return train_step(loop, steps).get(KL, 0.0), (change / size) ** 0.5, sum(norms) / steps  # the KL is read before its update


def table_of(found: Sequence[Moved], steps: int) -> Table:
    """Means over seeds with 95 % intervals."""

    def cell(values: Sequence[float]) -> str:
        gap = seed_interval(values)
        ends = f" ({gap.low:.2g} to {gap.high:.2g})" if len(values) > 1 else ""
        return f"{gap.value:.2g}{ends}" if any(values) else "0"

    header = ("method", "update", f"raw KL after {steps} steps", "change of the weights", "gradient norm")
    rows = ((one.method, one.update, cell(one.kl), cell(one.weights), f"{np.mean(one.gradient):.2g}") for one in found)
    return Table(header=header, rows=tuple(rows))
