"""`python -m lab summary EXPERIMENT`: summary.json from design, counts and exact KLs, for a sweep whose sample stores are gone.

It has the comparisons of the sweep's folder, without those at equal raw KL, which need training metrics. So Holm's correction of
the exploratory ones counts fewer comparisons (lab/tests/test_summary.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tyro

from lab.primaries import COUNTS, DESIGN, KLS, kls_of
from sage_rlvr.cli.session import Command, Session
from sage_rlvr.config import task_of
from sage_rlvr.errors import DataError
from sage_rlvr.evaluation.chance import chance_of_task
from sage_rlvr.results.read import read_results
from sage_rlvr.results.summary import summary_of as numbers_of
from sage_rlvr.runs import write_json_atomic
from sage_rlvr.sweeps.plan import SweepPlan, plan, write_record
from sage_rlvr.verdicts.design import BASE
from sage_rlvr.verdicts.findings import findings_of
from sage_rlvr.verdicts.measurements import Measurements, SampledMeasurement
from sage_rlvr.verdicts.metric import REFERENCE
from sage_rlvr.verdicts.results import Results

SUMMARY = "summary.json"
THE_BASE = "the base"
"""Stands for the revision of the base, which the files do not hold."""
UNKNOWN = ("no_answer_frac", "cut_frac", "undecided_frac")
"""Of a policy's samples: counts do not tell why a sample is wrong."""
NOTE = "Made from counts and exact KLs: versions, dates, warnings and training metrics of the runs are not known."


def results_of(experiment: Path) -> Results:
    """The results of a complete sweep, from the files of its experiment, without the base at temperatures beyond the design.
    DataError where a policy of the design lacks any of its samples, or its KL: nothing is judged before all are there."""
    lacking = [name for name in (DESIGN, COUNTS, KLS) if not (experiment / name).is_file()]
    if lacking:
        raise DataError(f"{experiment}: no {', '.join(lacking)}; give the folder of an experiment that has counts and exact KLs")
    with TemporaryDirectory() as folder:
        sweep = plan(experiment / DESIGN, Path(folder))
        write_record(sweep)
        (Path(folder) / "runs").mkdir(exist_ok=True)
        planned = read_results(folder)
    read, kls = read_results(experiment / COUNTS), kls_of(experiment / KLS)
    sampled = [row for row in read.table.sampled().rows if not _added(sweep, row)]
    if fault := next(_faults(sweep, sampled, kls), None):
        raise DataError(f"{experiment}: {fault}; nothing is judged before every policy of {DESIGN} is there as a whole")
    task = task_of(sweep.arms[0].config)
    rows = []
    for row in sampled:
        kl = {} if row.seed is None else {THE_BASE: kls[row.arm, row.seed]}
        rows.append(replace(row, chance=chance_of_task(task, row.problems), kls=kl))
    config = {"model": sweep.arms[0].config.model}
    complete = [{**run, "complete": True} for run in planned.design.facts["runs"]]
    facts = {**planned.design.facts, "runs": complete, "versions": None}  # those here are not those of the runs
    return replace(
        planned,
        design=replace(planned.design, facts=facts, base=BASE),
        table=Measurements(tuple(rows)),
        runs={policy: replace(run, state="evaluated", config=config) for policy, run in planned.runs.items()},
        chances={row.task: row.chance for row in rows},
        k=read.k,
        notes=[*read.notes, NOTE],
    )


def _added(sweep: SweepPlan, row: SampledMeasurement) -> bool:
    """Whether a row is of the base at a temperature that was sampled after the design."""
    spec = sweep.design.evaluate.samples
    return row.arm == BASE and spec is not None and row.temperature not in (REFERENCE, *spec.base_temperatures)


def _faults(sweep: SweepPlan, rows: Sequence[SampledMeasurement], kls: Mapping[tuple[str, int], float]) -> Iterator[str]:
    """What the files lack of the design, or have besides."""
    spec = sweep.design.evaluate.samples
    if spec is None:
        yield f"its {DESIGN} asks for no samples"
        return
    runs = [(arm.label, seed) for arm in sweep.arms for seed in sweep.design.seeds]
    wanted = [(BASE, None, t) for t in (REFERENCE, *spec.base_temperatures)] + [(*run, REFERENCE) for run in runs]
    found = {(row.arm, row.seed, row.temperature): row for row in rows}
    for policy in wanted:
        if policy not in found:
            yield f"no counts of {_name(*policy)}"
        elif (found[policy].n, len(found[policy].problems)) != (spec.n, spec.problems):
            yield (
                f"{_name(*policy)} has {found[policy].n} samples of {len(found[policy].problems)} problems, "
                f"not {spec.n} of {spec.problems}"
            )
    yield from (f"no exact KL of {_name(*run)}" for run in runs if run not in kls)
    yield from (f"{_name(*policy)} is not in {DESIGN}" for policy in found if policy not in wanted)


def _name(arm: str, seed: int | None, temperature: float = REFERENCE) -> str:
    words = [arm, *([f"training seed {seed}"] if seed is not None else [])]
    return ", ".join([*words, *([f"T = {temperature:g}"] if temperature != REFERENCE else [])])


def summary_of(experiment: Path) -> dict[str, Any]:
    """The contents of summary.json."""
    results = replace(results_of(experiment), fixed=True)  # as the protocols say, and as the stored summaries are
    summary: dict[str, Any] = numbers_of(results, findings_of(results))
    for arm in results.design.facts["arms"]:
        summary["arms"][arm["name"]]["steps"] = arm["config"]["steps"]  # each run is complete
    for row in summary["sampled"]:
        row |= dict.fromkeys(UNKNOWN)
    return summary


@dataclass(frozen=True)
class Summary(Command):
    """Write summary.json of an experiment from its design, counts and exact KLs."""

    experiment: tyro.conf.Positional[Path]
    """A folder of lab/experiments, with every policy of its design in counts.jsonl and exact_kl.jsonl."""

    def execute(self, session: Session) -> int:
        file = self.experiment / SUMMARY
        if file.exists():
            raise DataError(
                f"{file} is there already, and one from sample stores has more in it; move it away to make it from counts"
            )
        write_json_atomic(file, summary_of(self.experiment))
        session.say(file)
        return 0
