"""Contents of the paths besides exact records: training runs, sample stores, files of rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sage_rlvr.verdicts.readers import CountTable, EvaluationFile

State = Literal["not run", "training", "trained", "validation only", "evaluated", "failed"]
"""The state of a run. In a sweep, "evaluated" means that all evaluations of the design exist."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingRun:
    """One training run, finished or not.

    metrics: the rows of metrics.jsonl
    warnings: the first warning of each kind (kind, step, message)
    processors: the processors it was trained on, in order, () if unknown
    created: ISO 8601
    start: hash of the weights it was trained from, as in the record of their evaluation; "" if unknown"""

    arm: str
    seed: int
    path: Path | None = None
    state: State = "not run"
    config: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    processors: Sequence[str] = ()
    commit: str = ""
    created: str = ""
    start: str = ""
    metrics: Sequence[Mapping[str, Any]] = ()
    warnings: Sequence[Mapping[str, Any]] = ()

    def total(self, name: str) -> float | None:
        """The sum of a metric over all steps; None if a step lacks it."""
        whole = bool(self.metrics) and all(name in row for row in self.metrics)
        return float(sum(float(row[name]) for row in self.metrics)) if whole else None

    @property
    def steps(self) -> int:
        """Number of finished steps."""
        return max((int(row["step"]) + 1 for row in self.metrics), default=0)

    @property
    def optimizer_steps(self) -> int:
        """Number of optimizer updates over all steps; a step with missing groups counts with its requested number of updates."""
        updates = self.config.get("updates") or {}
        each = int(updates.get("epochs", 1)) * int(updates.get("minibatches", 1))
        return each * sum("loss" in row for row in self.metrics)

    @property
    def raw_kl(self) -> float | None:
        """Raw KL at the end of training, nats per token: the mean over the last tenth of the steps that logged it. None if no step
        logged it or if the mean is not finite."""
        values = [float(row["kl/to_reference"]) for row in self.metrics if "kl/to_reference" in row]
        kl = float(np.mean(values[-max(1, len(values) // 10) :])) if values else math.nan
        return kl if math.isfinite(kl) else None


Runs = Mapping[tuple[str, int], TrainingRun]
"""(Arm, training seed) -> run."""


def by_arm(runs: Runs) -> dict[str, dict[int, TrainingRun]]:
    """Arm -> training seed -> run, in order."""
    arms: dict[str, dict[int, TrainingRun]] = {}
    for (arm, seed), run in runs.items():
        arms.setdefault(arm, {})[seed] = run
    return arms


@dataclass(frozen=True, kw_only=True)
class Store:
    """A sample store with its arm. seed: None if unknown."""

    arm: str
    path: Path
    seed: int | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class GivenRows:
    """A file of rows that was passed for an arm.

    name: NAME of NAME=PATH, "" without one
    index: the place of the path in NAME=PATH[,PATH...], None for a single path
    label: the arm of rows without an arm
    short: arms of rows that are paths -> the names that are printed"""

    evaluation: EvaluationFile
    name: str
    index: int | None
    label: str
    short: Mapping[str, str] = field(default_factory=dict)

    def arm_of(self, table: CountTable) -> str:
        """The arm of a table of the file: NAME, or else the arm of its rows, shortened, or else the label."""
        full = self.full_arm_of(table)
        return self.short.get(full, full)

    def full_arm_of(self, table: CountTable) -> str:
        """The arm before it is shortened."""
        return self.name or table.group.arm or self.label

    @property
    def arms(self) -> dict[str, str]:
        """The arms of the file, each with its full name."""
        return {self.arm_of(table): self.full_arm_of(table) for table in self.evaluation.tables}


@dataclass(frozen=True, kw_only=True, eq=False)
class GivenTable:
    """One table of a file, with its place in the comparison. score: the name of the score that was counted."""

    arm: str
    seed: int | None
    task: str
    temperature: float
    path: Path
    table: CountTable
    format: str
    score: str

    @property
    def name(self) -> str:
        """Arm, training seed and file, for errors."""
        seed = "" if self.seed is None else f", seed {self.seed}"
        return f"{self.arm}{seed} ({self.path})"


__all__ = ["GivenRows", "GivenTable", "Runs", "State", "Store", "TrainingRun", "by_arm"]
