"""A log as a table, step -> metric -> value, under this package's short names of metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

METRICS: dict[str, str] = {
    "reward": "mean reward of the sampled completions",
    "unmixed": "share of groups whose rewards are all equal",
    "entropy": "mean entropy of the policy, nats per token",
    "kl": "KL to the reference, nats per token",
    "length": "mean tokens of a completion",
    "cut": "share of completions at the length limit",
    "clip": "share of tokens without gradient because of the clip",
    "grad_norm": "norm of the gradient before clipping",
    "gap": "difference of sampler and scorer, nats per token",
    "held_out": "score on problems that are not trained on",
    "lr": "learning rate",
    "loss": "loss",
    "beta": "weight of the KL term",
    "no_answer": "share of completions without an answer",
    "undecided": "share of verdicts that are neither right nor wrong",
    "changed": "share of the weights that an update changed after rounding",
    "missing_groups": "share of a step's groups that dynamic sampling did not find",
    "draws": "draws that a step of dynamic sampling took",
}
"""Short name -> description. names.py has the names in each program, and extremes that no line or picture shows."""


@dataclass(frozen=True)
class CompletionRow:
    """A completion in a log. reward: None if the log has none; gold: "" likewise; messages: whether the prompt was a list of
    messages, which the trainer renders by a chat template."""

    step: int
    prompt: str
    text: str
    reward: float | None = None
    gold: str = ""
    messages: bool = False


@dataclass(frozen=True, kw_only=True)
class LogTable:
    """A log.

    columns: metric -> {step: value}
    rewards: name of a reward function -> {step: mean}, if there are several
    completions: rows of the tables in the same folder
    settings: the run's settings in the log, under short names
    ended: the log's message about an abnormal end
    begins: the number of the first step in this program
    notes: restarts, further runs in the same file, missing steps"""

    program: str
    source: str
    columns: Mapping[str, Mapping[int, float]]
    rewards: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    completions: Sequence[CompletionRow] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    ended: str = ""
    warnings: Sequence[str] = ()
    begins: int = 1
    notes: Sequence[str] = ()

    @property
    def steps(self) -> list[int]:
        """All steps."""
        return sorted({step for column in self.columns.values() for step in column})

    def curve(self, name: str) -> tuple[list[int], Floats]:
        """Steps and values of a metric; empty if the log lacks it."""
        return curve_of(self.columns.get(name, {}))

    def has(self, *names: str) -> bool:
        """Whether all of these exist with a finite value."""
        return all(any(math.isfinite(value) for value in self.columns.get(name, {}).values()) for name in names)

    @property
    def line(self) -> str:
        """Describe the log in words."""
        steps = self.steps
        span = f"steps {steps[0]} to {steps[-1]}" if steps else "no steps"
        there = ", ".join(name for name in METRICS if self.has(name))
        texts = f"; {len(self.completions):,} completions" if self.completions else ""
        return f"{self.source}: a log of {self.program}, {span}: {there or 'no known metric'}{texts}"


def curve_of(column: Mapping[int, float]) -> tuple[list[int], Floats]:
    """Steps and values in order."""
    steps = sorted(column)
    return steps, np.array([column[step] for step in steps], dtype=np.float64)


__all__ = ["METRICS", "CompletionRow", "Floats", "LogTable", "curve_of"]
