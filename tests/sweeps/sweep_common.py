"""What the tests of sweeps share."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from sage_rlvr.config import SftConfig, load_config
from sage_rlvr.results.read import read_results
from sage_rlvr.results.summary import summary_of
from sage_rlvr.sweeps.controls import PlannedArm
from sage_rlvr.sweeps.design import load_design, sft_recipe, world_named
from sage_rlvr.sweeps.plan import SweepPlan
from sage_rlvr.sweeps.resolve import resolve
from sage_rlvr.verdicts.findings import findings_of

DESIGN = """
title: small
seeds: [0, 1]
base:
  steps: 2
  model: {model}
  world: {{counts: {{2: 1.0}}, max_number: 12, max_target: 144, train_problems: 60}}
  rollout: {{prompts_per_step: 4, group_size: 4, max_new_tokens: 8}}
arms: {{grpo: grpo, branch: sage_branch}}
control: grpo
controls: [no_kl]
evaluate: {{problems: 6, temperatures: [0.5, 1.0]}}
"""
Started = list[tuple[str, ...]]


def arms_of(path: Path) -> tuple[dict[str, PlannedArm], list[str]]:
    design = load_design(path)
    sft_recipe(design, path)
    arms, said = resolve(design, path, None if design.policy is None else "elsewhere")
    return {arm.name: arm for arm in arms}, said


def check_design(path: Path) -> None:
    """A design that is shipped, or of an experiment, can be run and compared: its arms differ and share model and world."""
    design = load_design(path)
    arms, _ = arms_of(path)
    few = "demo" in f"{path.parent.name}/{path.stem}" or design.evaluate.split == "validation"  # nothing is claimed from one seed
    assert (len(design.seeds) >= 3 or few) and set(design.arms) <= set(arms) and design.control in arms
    assert len({json.dumps([arm.config.model, str(arm.config.world)]) for arm in arms.values()}) == 1
    assert len({arm.label for arm in arms.values()}) == len(arms)
    for name in design.evaluate.ood:
        assert world_named(name, path.parent) != arms[design.control].config.world
    if design.policy is not None:
        recipe = sft_recipe(design, path)
        assert recipe is not None
        assert load_config(SftConfig, recipe).model != load_config(SftConfig, "sft").model  # else the shipped one


def screen() -> Console:
    return Console(file=io.StringIO(), width=120)


def said(console: Console) -> str:
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


class Ended:
    """A process that ran to its end in this one, when it was asked for."""

    pid = 0

    def __init__(self, code: int):
        self.returncode = code

    def poll(self) -> int:
        return self.returncode


def states(sweep: SweepPlan) -> dict[str, str]:
    return {cell.directory.name: sweep.status(cell) for cell in sweep.runs}


def summarize(path: Path) -> dict[str, Any]:
    results = read_results(path)
    return summary_of(results, findings_of(results))
