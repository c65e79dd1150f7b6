"""The counts of a sweep's sample stores as rows that `sage-rlvr compare` reads: small enough for the repository."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tyro

from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.evaluation.forms import forms_of
from sage_rlvr.evaluation.kl import kls_in
from sage_rlvr.evaluation.store import SampleStore
from sage_rlvr.results.read import read_results
from sage_rlvr.verdicts.design import BASE
from sage_rlvr.verdicts.kl import base_of
from sage_rlvr.verdicts.metric import REFERENCE


def rows_of(folder: Path) -> Iterator[dict[str, object]]:
    """One row per policy and problem: {"arm", "seed", "task", "temperature", "id", "n", "c"}; the base has no seed.

    The base is first, because `sage-rlvr compare` takes the first policy of a file as the control of all others.
    """
    for row in sorted(read_results(folder).table.sampled().rows, key=lambda row: row.arm != BASE):
        seed = {} if row.seed is None or row.arm == BASE else {"seed": row.seed}
        for problem, right in zip(row.problems, row.values.tolist(), strict=True):
            group = {"arm": row.arm, **seed, "task": row.task, "temperature": row.temperature}
            yield group | {"id": problem, "n": row.n, "c": int(right)}


def kl_rows_of(folder: Path) -> Iterator[dict[str, object]]:
    """One row per trained policy whose exact KL to the base was evaluated: {"arm", "seed", "reverse", "forward"}, nats per token,
    on the policy's own completions at T = 1. Of a task that classes its states also "states": class -> [tokens, sum of the reverse,
    sum of the forward KL]."""
    table = read_results(folder).table.sampled().where(temperature=REFERENCE)
    base = base_of(table)
    for row in table.rows:
        if row.store is None or base not in row.kls:
            continue
        (kl,) = [kl for kl in kls_in(row.store.path).values() if kl.about["base_revision"] == base]
        own = kl.sides["policy"]
        kls = {direction: own.interval(direction, "token").value for direction in ("reverse", "forward")}
        parts = ("tokens", "reverse", "forward")
        states = {name: [round(float(getattr(side, part).sum()), 4) for part in parts] for name, side in own.states.items()}
        yield {"arm": row.arm, "seed": row.seed, **kls, **({"states": states} if states else {})}


def form_rows_of(folder: Path) -> Iterator[dict[str, object]]:
    """One row per policy and temperature, for tasks whose answers have forms (`evaluation/forms.py`): {"arm", "seed",
    "temperature", "n"}, and of each number one list, by the sorted ids of the problems."""
    for row in read_results(folder).table.sampled().rows:
        if row.store is None:
            continue
        with SampleStore.open(row.store.path) as store:
            forms = forms_of(store, row.n)
        if forms is None:
            continue
        problems = sorted(forms.rows(), key=lambda one: str(one["problem"]))
        columns = {name: [one[name] for one in problems] for name in problems[0] if name not in ("problem", "n")}
        yield {"arm": row.arm, "seed": row.seed, "temperature": row.temperature, "n": row.n, **columns}


def cost_rows_of(folder: Path) -> Iterator[dict[str, object]]:
    """One row per training run: {"arm", "seed", "steps", "seconds"}, wall-clock time of its steps without evaluation.

    Runs beside each other count their whole time each, and other work on the machine is in it.
    """
    results = read_results(folder)
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

    forms: bool = False
    """Print the forms of the answers of each policy instead."""

    cost: bool = False
    """Print the training seconds of each run instead."""

    def execute(self, session: Session) -> int:
        if self.kl + self.cost + self.forms > 1:
            raise ConfigError("--kl, --forms and --cost print different rows; give one of them")
        if self.cost:
            rows, missing = cost_rows_of(self.folder), "no training time; give the folder of a sweep with its runs"
        elif self.forms:
            rows, missing = form_rows_of(self.folder), "no samples of a task whose answers have forms"
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
