"""Reuse finished runs of other sweeps (`reuse_runs`)."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sage_rlvr.errors import ConfigError, choose_from
from sage_rlvr.evaluation.record import record_path
from sage_rlvr.evaluation.store import is_store
from sage_rlvr.evaluation.store.database import FILE
from sage_rlvr.runs import RECORD, is_run, write_bytes_atomic, write_json_atomic, writing
from sage_rlvr.runs.files import METRICS
from sage_rlvr.safe_io import ARRAYS, read_bytes
from sage_rlvr.sweeps.jobs import Job
from sage_rlvr.sweeps.plan import ADOPTED, Cell, SweepPlan

FILES = (RECORD, METRICS)  # of a run that is taken over, beside its policy


def adoptable(sweep: SweepPlan) -> list[tuple[Cell, Path]]:
    """Runs without a start, each with a finished run of the same configuration and weights in a folder of `reuse_runs`. Raises
    ConfigError for links: reused runs must be in that folder.
    """
    out = []
    for cell in sweep.cells:
        if not is_run(cell.job.directory):
            beside = (sweep.out.absolute().parent / name / "runs" for name in sweep.design.reuse_runs)
            runs = (run for folder in beside for run in sorted(folder.glob(f"*-s{cell.job.seed}")))
            found = next((run for run in runs if _is_of(cell.job, run)), None)
            if found is not None and (link := next(filter(Path.is_symlink, _parts(found)), None)) is not None:
                raise ConfigError(f"{link}: a link, but reuse_runs needs copies; replace it by a copy of its target")
            out += [] if found is None else [(cell, found)]
    return out


def adoption_lines(sweep: SweepPlan, taken: Sequence[tuple[Cell, Path]]) -> list[str]:
    """Lines about reused runs, and about folders of `reuse_runs` without a matching run."""
    lines = [f"reused: {found} for {cell.job.label}" for cell, found in taken]
    begun = all(is_run(cell.job.directory) for cell in sweep.cells)
    for name in () if begun else sweep.design.reuse_runs:
        folder = sweep.out.absolute().parent / name
        if not (folder / "runs").is_dir():
            beside = [path.parent.name for path in folder.parent.glob("*/runs")]
            lines.append(f"NOT REUSED: reuse_runs = {name!r}: {folder} contains no runs{choose_from(name, beside)}")
        elif not any(found.parents[1] == folder for _, found in taken):
            lines.append(f"NOT REUSED: reuse_runs = {name!r}: no finished run there matches a missing run (settings, weights)")
    return lines


def _parts(run: Path) -> list[Path]:
    """What a run consists of for who takes it over, and the folders above it."""
    policy = run / "policy"
    return [run.parents[1], run.parent, run, *(run / file for file in FILES), policy, *policy.rglob("*")]


def _is_of(job: Job, run: Path) -> bool:
    try:
        return replace(job, directory=run).finished
    except ConfigError:  # no run.json, or a damaged one
        return False


def take_over(found: Path, place: Path) -> None:
    """A copy without checkpoints and evaluations, there whole or not at all."""
    place.parent.mkdir(parents=True, exist_ok=True)
    partial_copy = place.with_name(f".tmp-{place.name}")
    shutil.rmtree(partial_copy, ignore_errors=True)
    with writing("run taken over", place, 8 << 20):
        (partial_copy / "policy").mkdir(parents=True)
        for file in FILES:
            shutil.copyfile(found / file, partial_copy / file)
        shutil.copytree(found / "policy", partial_copy / "policy", dirs_exist_ok=True)
        write_json_atomic(partial_copy / ADOPTED, {"from": str(found)})
        partial_copy.rename(place)


def take_records(found: Path, cell: Cell, sweep: SweepPlan) -> None:
    """Copies of the exact evaluations beside a finished run, as far as they are called for. Of other problems, temperatures or
    weights they count as missing, and the evaluation writes over them."""
    for suffix, task in cell.exact.items():
        theirs, ours = (record_path(run.parent.parent, run.name, suffix) for run in (found, cell.job.directory))
        if task in sweep.wanted(cell) and theirs.is_file() and not theirs.is_symlink() and not ours.exists():
            with writing("evaluation taken over", ours, theirs.stat().st_size):
                write_bytes_atomic(ours, read_bytes(theirs, ARRAYS))


def _stale(sweep: SweepPlan) -> list[Path]:
    """Evaluations in the folder that are not those called for and cannot become them: their policy is trained first, or it or their
    problems are others."""
    asked = [(task, task.place) for task in sweep.tasks if task.place is not None and task not in sweep.over]
    there = [(task, place) for task, place in asked if place.is_file() or is_store(place)]
    return [place for task, place in there if not (sweep.over.issuperset(task.after) and task.goes_on())]


def replaced(sweep: SweepPlan) -> list[str]:
    """Lines about evaluations in the folder that will be replaced."""
    names = [str(place.relative_to(sweep.out)) for place in _stale(sweep)]
    if not names:
        return []
    shown = ", ".join(names[:3]) + ", ..." * (len(names) > 3)
    return [
        f"REPLACES {len(names)} evaluations in {sweep.out} ({shown}), which are damaged or have other problems, "
        "temperatures, weights or guide than this design, and their summary; use --out ANOTHER_FOLDER to keep them"
    ]


def clear(sweep: SweepPlan) -> None:
    """Remove the sample stores that are replaced; `eval` overwrites records but not stores."""
    for store in filter(is_store, _stale(sweep)):
        with writing("sample store", store, 0):
            for file in store.glob(f"{FILE}*"):  # with SQLite's log
                file.unlink()
