"""Finished runs of other sweeps that are taken over, and evaluations that are not."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from sage_rlvr.errors import ConfigError
from sage_rlvr.evaluation.record import record_path
from sage_rlvr.experiments.jobs import Job
from sage_rlvr.experiments.plan import ADOPTED, Cell, Sweep
from sage_rlvr.reading import ARRAYS, read_bytes
from sage_rlvr.runs import RECORD, is_run, write_bytes_atomic, write_json_atomic, writing
from sage_rlvr.runs.files import METRICS

FILES = (RECORD, METRICS)  # of a run that is taken over, beside its policy


def adoptable(sweep: Sweep) -> list[tuple[Cell, Path]]:
    """Runs that have not begun, and a finished run of the same configuration and weights in a folder of `adopt`.

    ConfigError where it is a link, or holds one: what is taken over lies in that folder.
    """
    out = []
    for cell in sweep.cells:
        if not is_run(cell.job.directory):
            beside = (sweep.out.absolute().parent / name / "runs" for name in sweep.design.adopt)
            runs = (run for folder in beside for run in sorted(folder.glob(f"*-s{cell.job.seed}")))
            found = next((run for run in runs if _is_of(cell.job, run)), None)
            if found is not None and (link := next(filter(Path.is_symlink, _parts(found)), None)) is not None:
                raise ConfigError(f"{link}: a link, where a run is to be taken over (adopt); copy what it names to that place")
            out += [] if found is None else [(cell, found)]
    return out


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


def take_records(found: Path, cell: Cell, sweep: Sweep) -> None:
    """Copies of the exact evaluations beside a finished run, as far as they are called for. Of other problems, temperatures or
    weights they count as missing, and the evaluation writes over them."""
    for suffix, task in cell.exact.items():
        theirs, ours = (record_path(run.parent.parent, run.name, suffix) for run in (found, cell.job.directory))
        if task in sweep.wanted(cell) and theirs.is_file() and not theirs.is_symlink() and not ours.exists():
            with writing("evaluation taken over", ours, theirs.stat().st_size):
                write_bytes_atomic(ours, read_bytes(theirs, ARRAYS))


def replaced(sweep: Sweep) -> list[str]:
    """What is said where evaluations lie in the folder that are not those called for, and are made anew."""
    asked = [task for task in sweep.tasks if task not in sweep.over and "--out" in task.words]
    files = [Path(task.words[task.words.index("--out") + 1]) for task in asked]
    names = [file.name for file in files if file.is_file()]
    if not names:
        return []
    shown = ", ".join(names[:3]) + ", ..." * (len(names) > 3)
    return [
        f"REPLACES {len(names)} evaluations in {sweep.out / 'evaluations'} ({shown}), damaged or made of other problems, "
        "temperatures or weights than this design asks for, and the summary of them; give --out ANOTHER_FOLDER to keep them"
    ]
