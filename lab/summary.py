"""`python -m lab summary EXPERIMENT`: summary.json from design, counts and exact KLs, for a sweep whose sample stores are gone.

The comparisons are those of the sweep's folder but for the ones at equal raw KL, which need training metrics
(lab/tests/test_summary.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tyro

from lab.primaries import COUNTS, DESIGN, KLS, kls_of
from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import DataError
from sage_rlvr.evaluation.chance import chance_of_task
from sage_rlvr.evaluation.kl import TokenKl
from sage_rlvr.results.design import BASE
from sage_rlvr.results.measurements import Measurements, SampledMeasurement
from sage_rlvr.results.metric import REFERENCE
from sage_rlvr.results.page import report_of
from sage_rlvr.results.read import Results
from sage_rlvr.runs import write_json_atomic
from sage_rlvr.sweeps.plan import plan, write_record
from sage_rlvr.tasks import known_task

THE_BASE = "the base"
"""Stands for the revision of the base, which the files do not hold."""
UNKNOWN = ("no_answer_frac", "cut_frac", "undecided_frac")
"""Of a policy's samples: counts do not tell why a sample is wrong."""


@dataclass(frozen=True, eq=False)
class StoredKl(TokenKl):
    """An exact KL of which only the reverse one per token is known."""

    value: float

    @property
    def per_token(self) -> float:
        """As `TokenKl.per_token`."""
        return self.value


def results_of(experiment: Path) -> Results:
    """The results of a complete sweep, from the files of its experiment."""
    lacking = [name for name in (DESIGN, COUNTS, KLS) if not (experiment / name).is_file()]
    if lacking:
        raise DataError(f"{experiment}: no {', '.join(lacking)}; give the folder of an experiment that has counts and exact KLs")
    with TemporaryDirectory() as folder:
        sweep = plan(experiment / DESIGN, Path(folder))
        write_record(sweep)
        (Path(folder) / "runs").mkdir(exist_ok=True)
        planned = Results.read(folder)
    kls, rows = kls_of(experiment / KLS), Results.read(experiment / COUNTS).table.sampled().rows
    found = {(row.arm, row.seed) for row in rows}
    wanted = [(arm.label, seed) for arm in sweep.arms for seed in sweep.design.seeds]
    for arm, seed in wanted:
        if (arm, seed) not in found or (arm, seed) not in kls:
            raise DataError(
                f"{experiment}: no counts or no exact KL of {arm}, training seed {seed}; nothing is judged before all are there"
            )
    rows = tuple(_row(row, kls) for row in rows)
    config = {"model": sweep.arms[0].config.model}
    runs = {policy: replace(run, state="evaluated", config=config) for policy, run in planned.runs.items()}
    complete = [{**run, "complete": True} for run in planned.design.facts["runs"]]
    facts = {**planned.design.facts, "runs": complete, "versions": None}  # of the runs, which nobody wrote down
    return replace(
        planned,
        design=replace(planned.design, facts=facts, base=BASE),
        table=Measurements(rows),
        runs=runs,
        chances={row.task: row.chance for row in rows},
        k=min(row.n for row in rows),
    )


def _row(row: SampledMeasurement, kls: Mapping[tuple[str, int], float]) -> SampledMeasurement:
    """With the chance floor of its problems and, of an arm at the reference temperature, its KL to the base."""
    chance = chance_of_task(known_task(row.task), row.problems)
    kl = None if row.seed is None or row.temperature != REFERENCE else kls[row.arm, row.seed]
    return replace(row, chance=chance, kls={} if kl is None else {THE_BASE: StoredKl({}, (), {}, kl)})


def summary_of(experiment: Path) -> dict[str, Any]:
    """The contents of summary.json."""
    summary: dict[str, Any] = report_of(results_of(experiment), brief=True)["summary"]
    for row in summary["sampled"]:
        row |= dict.fromkeys(UNKNOWN)
    return summary


@dataclass(frozen=True)
class Summary(Command):
    """Write summary.json of an experiment from its design, counts and exact KLs."""

    experiment: tyro.conf.Positional[Path]
    """A folder of lab/experiments, with every run of its design in counts.jsonl and exact_kl.jsonl."""

    def execute(self, session: Session) -> int:
        write_json_atomic(self.experiment / "summary.json", json.loads(json.dumps(summary_of(self.experiment))))
        session.say(self.experiment / "summary.json")
        return 0
