"""The counts of a sweep's sample stores as rows that `sage-rlvr compare` reads: small enough for the repository."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tyro

from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.results.design import BASE
from sage_rlvr.results.exact_kl import base_of
from sage_rlvr.results.metric import REFERENCE
from sage_rlvr.results.read import Results


def rows_of(folder: Path) -> Iterator[dict[str, object]]:
    """One row per policy and problem: {"arm", "seed", "task", "temperature", "id", "n", "c"}; the base has no seed.

    The base is first, because `sage-rlvr compare` takes the first policy of a file as the control of all others.
    """
    for row in sorted(Results.read(folder).table.sampled().rows, key=lambda row: row.arm != BASE):
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

    Runs beside each other count their whole time each, and other work on the machine is in it.
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
        if self.kl and self.cost:
            raise ConfigError("--kl and --cost print different rows; give one of them")
        if self.cost:
            rows, missing = cost_rows_of(self.folder), "no training time; give the folder of a sweep with its runs"
        elif self.kl:
            rows, missing = kl_rows_of(self.folder), "no exact KL; evaluate its runs with `sage-rlvr eval RUN --kl-to BASE` first"
        else:
            rows, missing = rows_of(self.folder), "no samples; evaluate its runs with `sage-rlvr eval RUN --samples 64` first"
        lines = [json.dumps(row) for row in rows]
        if not lines:
            raise DataError(f"{self.folder}: {missing}")
        for line in lines:
            session.say(line)
        return 0
