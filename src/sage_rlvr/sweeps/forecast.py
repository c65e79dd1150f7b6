"""Forecast of a sweep by samples before it starts: a probe of its control in a process whose memory is freed afterward."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from sage_rlvr.config import TrainConfig, read_recipe
from sage_rlvr.errors import ConfigError, SageError
from sage_rlvr.evaluation.base_samples import base_of
from sage_rlvr.process import PARENT, end_with_parent
from sage_rlvr.sweeps.evaluations import recipe_of
from sage_rlvr.sweeps.plan import SweepPlan
from sage_rlvr.sweeps.sweep import write_recipes
from sage_rlvr.training.counts.probe import in_time, probe
from sage_rlvr.training.opening import cores


def forecast(planned: SweepPlan) -> list[str]:
    """Time of training and evaluation, and memory, in lines; [] if a run has begun, or if evaluations are exact."""
    spec = planned.design.evaluate.samples
    if planned.base or spec is None or any(run.steps_done for run in planned.runs):
        return []
    arm = next(arm for arm in planned.arms if arm.name == planned.design.control)
    write_recipes(planned)
    try:
        cost = probed(recipe_of(planned.out, arm.name), spec.problems, spec.n, arm.config.engine.threads or cores())
    except ConfigError as error:
        return [f"the time is not known before the first steps: {error}"]
    steps = sum(run.config.steps for run in planned.runs)
    evaluations = [*planned.base_samples, *(run.samples for run in planned.runs)]
    left = sum(task not in planned.finished for task in evaluations)
    total = steps * cost["seconds"] + left * cost["evaluation"]
    return [
        f"about {in_time(total)} on this machine, from a probe: {steps} steps of {cost['seconds']:.1f} s ({arm.label}), "
        f"{left} evaluations of {in_time(cost['evaluation'])}",
        f"memory: {cost['memory']}",
    ]


def probed(recipe: Path, problems: int, samples: int, threads: int) -> dict[str, Any]:
    """The probe of a recipe file in another process: `seconds` of a step, `evaluation` of this many problems and samples,
    `memory` in words. Raises ConfigError with the probe's reason."""
    env = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), PARENT: "1"}
    command = [sys.executable, "-m", __name__, str(recipe), str(problems), str(samples)]
    # Its input is a pipe that ends with this process, and then the probe ends.
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, env=env, text=True, **pipes) as process:
        assert process.stdout is not None
        lines = process.stdout.read().strip().splitlines() or ["the probe ended without a word"]
    if process.returncode:
        raise ConfigError(lines[-1])
    cost: dict[str, Any] = json.loads(lines[-1])
    return cost


def main(recipe: str, problems: str, samples: str) -> int:
    """The other process of `probed`."""
    end_with_parent()
    config = read_recipe(recipe, [], "train")
    assert isinstance(config, TrainConfig)
    try:
        cost = probe(config, base=base_of(config))
    except SageError as error:
        print(" ".join(str(error).split()))
        return 2
    evaluation = cost.evaluation(int(problems), int(samples))
    print(json.dumps({"seconds": cost.seconds, "evaluation": evaluation, "memory": cost.room_line()}))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
