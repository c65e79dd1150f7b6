"""The counts of a sweep's sample stores as rows that `sage-rlvr compare` reads: small enough for the repository."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tyro

from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import DataError
from sage_rlvr.results.design import BASE
from sage_rlvr.results.exact_kl import base_of
from sage_rlvr.results.metric import REFERENCE
from sage_rlvr.results.read import Results


def rows_of(folder: Path) -> Iterator[dict[str, object]]:
    """One row per policy and problem: {"arm", "seed", "task", "temperature", "id", "n", "c"}; the base has no seed."""
    for row in Results.read(folder).table.sampled().rows:
        seed = {} if row.seed is None or row.arm == BASE else {"seed": row.seed}
        for problem, right in zip(row.problems, row.values.tolist(), strict=True):
            group = {"arm": row.arm, **seed, "task": row.task, "temperature": row.temperature}
            yield group | {"id": problem, "n": row.n, "c": int(right)}


def kl_rows_of(folder: Path) -> Iterator[dict[str, object]]:
    """One row per trained policy whose exact KL to the base was evaluated: {"arm", "seed", "reverse", "forward"}, nats per token,
    on the policy's own completions at T = 1."""
    table = Results.read(folder).table.sampled().where(temperature=REFERENCE)
    base = base_of(table)
    for row in table.rows:
        if base is not None and base in row.kls:
            own = row.kls[base].sides["policy"]
            forward = own.interval("forward", "token").value
            yield {"arm": row.arm, "seed": row.seed, "reverse": own.interval("reverse", "token").value, "forward": forward}


def cost_rows_of(folder: Path) -> Iterator[dict[str, object]]:
    """One row per training run: {"arm", "seed", "steps", "seconds"}, wall-clock time of its steps without evaluation.

    With two workers on two cores, a run of `seconds` takes half as many of both cores. Whatever else the machine did is in them.
    """
    results = Results.read(folder)
    for run in results.runs.values():
        if (seconds := run.total("time/step_s")) is not None:
            yield {"arm": results.design.called(run.arm), "seed": run.seed, "steps": run.steps, "seconds": round(seconds)}


@dataclass(frozen=True)
class Counts(Command):
    """Print the counts of a sweep or demo as JSON lines that `sage-rlvr compare` reads."""

    folder: tyro.conf.Positional[Path]
    """The folder of the sweep or demo."""

    kl: bool = False
    """Print the exact KL of each trained policy to the base instead."""

    cost: bool = False
    """Print the training seconds of each run instead."""

    def execute(self, session: Session) -> int:
        if self.cost:
            rows = list(cost_rows_of(self.folder))
        else:
            rows = list(kl_rows_of(self.folder) if self.kl else rows_of(self.folder))
        if not rows:
            step = "--kl-to BASE" if self.kl else "--samples 64"
            missing = "exact KL" if self.kl else "samples"
            raise DataError(f"{self.folder}: no {missing}; evaluate its runs with `sage-rlvr eval RUN {step}` first")
        for row in rows:
            session.say(json.dumps(row))
        return 0
