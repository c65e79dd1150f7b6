"""What the tests of sweeps share."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from rich.console import Console

from sage_rlvr.results.read import read_results
from sage_rlvr.results.summary import summary_of
from sage_rlvr.sweeps.plan import SweepPlan
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
