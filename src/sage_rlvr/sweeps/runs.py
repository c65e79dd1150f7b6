"""A run of a sweep: one arm trained with one seed, and the processes that train and evaluate it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from sage_rlvr.config import TrainConfig, dump
from sage_rlvr.errors import ConfigError
from sage_rlvr.models.policy import run_facts
from sage_rlvr.runs import config_differences, differences, is_run, read_record
from sage_rlvr.runs.files import METRICS, count_lines
from sage_rlvr.sweeps.controls import PlannedArm
from sage_rlvr.sweeps.processes import ProcessTask
from sage_rlvr.training.opening import cores


@dataclass(eq=False)
class SweepRun:
    """One arm with one training seed. Made by `plan`, read by all modules of a sweep; hashed by identity.

    recipe: the file that it is trained from. after: tasks that must be finished before it is trained. exact: suffix of the record
        -> its evaluation; samples, kl: None if the design has none.
    """

    arm: PlannedArm
    seed: int
    directory: Path
    recipe: Path
    after: tuple[ProcessTask, ...] = ()
    exact: dict[str, ProcessTask] = field(default_factory=dict)
    samples: ProcessTask | None = None
    kl: ProcessTask | None = None

    @cached_property
    def config(self) -> TrainConfig:
        """The configuration of the arm, with this seed."""
        return self.arm.at(self.seed)

    @property
    def label(self) -> str:
        """Arm and seed, as in progress and messages: "GRPO s0"."""
        return f"{self.arm.label} s{self.seed}"

    @cached_property
    def train(self) -> ProcessTask:
        """The process that trains it, or continues."""
        return ProcessTask(
            label=self.label,
            args=("train", str(self.recipe), "--run", str(self.directory), "--quiet", "--seed", str(self.seed)),
            log=self.directory / "output.log",
            done=lambda: self.trained,
            threads=self.config.engine.threads or cores(),
            advice=f"The same command continues it; after an error about settings, {self._elsewhere()}.",
            after=self.after,
        )

    @property
    def tasks(self) -> list[ProcessTask]:
        """Training and evaluations, in order."""
        return [self.train, *self.exact.values(), *(task for task in (self.samples, self.kl) if task is not None)]

    @property
    def steps_done(self) -> int:
        """Number of finished steps, from its metrics (a torn last line does not count)."""
        return min(self.config.steps, count_lines(self.directory / METRICS))

    @property
    def trained(self) -> bool:
        """Whether exactly this configuration has ended in the folder: a run of `--steps 40` must not count as the full one."""
        return self.is_trained_in(self.directory)

    def is_trained_in(self, directory: Path) -> bool:
        """Whether the folder contains a finished run of this configuration. Raises ConfigError for a damaged run.json."""
        if not (directory / "policy" / "config.json").exists() or count_lines(directory / METRICS) < self.config.steps:
            return False
        return not self._differences(directory)

    def check_same_run(self) -> None:
        """Raise ConfigError for a folder whose run has other settings; only a larger number of steps continues a run."""
        if not is_run(self.directory):
            return
        changed = self._differences(self.directory)
        if set(changed) == {"steps"} and changed["steps"][1] > changed["steps"][0]:
            return
        if changed:
            lines = [f"\n  {key}: {json.dumps(old)} -> {json.dumps(new)}" for key, (old, new) in changed.items()]
            raise ConfigError(
                f"{self.directory} contains a run with other settings:{''.join(lines)}\n{self._elsewhere()}"
            )

    def _differences(self, directory: Path) -> dict[str, tuple[Any, Any]]:
        """Key -> (in the folder, in this run) for differing settings. A local policy is identified by its weights,
        wherever its folder is."""
        facts = read_record(directory, ("config", "data"), ConfigError, self._elsewhere())
        changed = config_differences(facts["config"], as_json(dump(self.config)))
        data = differences({"data": facts["data"]}, as_json({"data": run_facts(self.config)}))
        data = {key: pair for key, pair in data.items() if "(absent)" not in pair}  # what only one version records
        if not data and "model_sha256" in facts["data"]:
            changed.pop("model", None)
        return changed | data

    def _elsewhere(self) -> str:
        """The next step if this run cannot continue."""
        return f"choose another --out, or delete {self.directory} to train this arm again"


def as_json(tree: Any) -> Any:
    """The tree after a JSON round trip: text keys, lists."""
    return json.loads(json.dumps(tree))
