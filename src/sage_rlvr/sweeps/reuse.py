"""Reuse finished runs of other sweeps (`reuse_runs`)."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from sage_rlvr.errors import ConfigError, choose_from
from sage_rlvr.evaluation.record import record_path
from sage_rlvr.evaluation.store import is_store
from sage_rlvr.evaluation.store.folder import remove
from sage_rlvr.runs import RECORD, is_run, write_bytes_atomic, write_json_atomic, writing
from sage_rlvr.runs.files import METRICS
from sage_rlvr.safe_io import ARRAYS, read_bytes
from sage_rlvr.sweeps.plan import ADOPTED, SweepPlan
from sage_rlvr.sweeps.runs import SweepRun

FILES = (RECORD, METRICS)  # name of a reused run's file, next to its policy


def reusable(sweep: SweepPlan) -> list[tuple[SweepRun, Path]]:
    """Runs without a start, each with a finished run of the same configuration and weights in a folder of `reuse_runs`. Raises
    ConfigError for links: reused runs must be in that folder.
    """
    pairs = []
    for run in sweep.runs:
        if not is_run(run.directory) and (directory := _finished_elsewhere(run, sweep)):
            for part in _parts(directory):
                if part.is_symlink():
                    raise ConfigError(f"{part}: a link, but reuse_runs needs copies; replace it by a copy of its target")
            pairs.append((run, directory))
    return pairs


def _finished_elsewhere(run: SweepRun, sweep: SweepPlan) -> Path | None:
    """The first finished run of the same configuration, weights and seed in a folder of `reuse_runs`."""
    for name in sweep.design.reuse_runs:
        for directory in sorted(_folder(sweep, name).glob(f"runs/*-s{run.seed}")):
            try:
                if run.is_trained_in(directory):
                    return directory
            except ConfigError:  # no run.json, or a damaged one
                continue
    return None


def _folder(sweep: SweepPlan, name: str) -> Path:
    return sweep.out.absolute().parent / name


def _parts(directory: Path) -> list[Path]:
    """The files to copy from a run, and the folders above it."""
    policy = directory / "policy"
    files = [directory / file for file in FILES]
    return [directory.parents[1], directory.parent, directory, *files, policy, *policy.rglob("*")]


def reuse_lines(sweep: SweepPlan, taken: Sequence[tuple[SweepRun, Path]]) -> list[str]:
    """Lines about reused runs, and about folders of `reuse_runs` without a matching run."""
    lines = [f"reused: {directory} for {run.label}" for run, directory in taken]
    if all(is_run(run.directory) for run in sweep.runs):
        return lines
    used = {directory.parents[1] for _, directory in taken}
    for name in sweep.design.reuse_runs:
        folder = _folder(sweep, name)
        if not (folder / "runs").is_dir():
            siblings = [path.parent.name for path in folder.parent.glob("*/runs")]
            lines.append(f"NOT REUSED: reuse_runs = {name!r}: {folder} contains no runs{choose_from(name, siblings)}")
        elif folder not in used:
            lines.append(f"NOT REUSED: reuse_runs = {name!r}: no finished run there matches a missing run (settings, weights)")
    return lines


def reuse(directory: Path, run: SweepRun, sweep: SweepPlan) -> None:
    """Copy a finished run and its exact evaluations. The evaluations come first: an existing run counts as reused completely."""
    _copy_records(directory, run, sweep)
    _copy_run(directory, run.directory)
    sweep.finished.add(run.train)
    sweep.finished.update(task for task in run.exact.values() if task.done())


def _copy_records(directory: Path, run: SweepRun, sweep: SweepPlan) -> None:
    """Copy the exact evaluations of a finished run, as far as they are required. Those of other problems, temperatures or
    weights count as missing, and the evaluation overwrites them."""
    for suffix, task in run.exact.items():
        record = record_path(directory.parent.parent, directory.name, suffix)
        copy = record_path(sweep.out, run.directory.name, suffix)
        if task in sweep.tasks_of(run) and record.is_file() and not record.is_symlink() and not copy.exists():
            with writing("evaluation taken over", copy, record.stat().st_size):
                write_bytes_atomic(copy, read_bytes(record, ARRAYS))


def _copy_run(directory: Path, copy: Path) -> None:
    """Copy without checkpoints and evaluations, completely or not at all."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    unfinished = copy.with_name(f".tmp-{copy.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    with writing("run taken over", copy, 8 << 20):
        (unfinished / "policy").mkdir(parents=True)
        for file in FILES:
            shutil.copyfile(directory / file, unfinished / file)
        shutil.copytree(directory / "policy", unfinished / "policy", dirs_exist_ok=True)
        write_json_atomic(unfinished / ADOPTED, {"from": str(directory)})
        unfinished.rename(copy)


def _stale(sweep: SweepPlan) -> list[Path]:
    """Evaluations in the folder that are not the required ones and cannot become them: their policy is trained first, or it or
    their problems are others."""
    stale = []
    for task in sweep.tasks:
        if task.output is None or task in sweep.finished or not (task.output.is_file() or is_store(task.output)):
            continue
        if not sweep.finished.issuperset(task.after) or not task.resumable():
            stale.append(task.output)
    return stale


def replaced(sweep: SweepPlan) -> list[str]:
    """Lines about evaluations in the folder that will be replaced."""
    names = [str(path.relative_to(sweep.out)) for path in _stale(sweep)]
    if not names:
        return []
    shown = ", ".join(names[:3])
    if len(names) > 3:
        shown += ", ..."
    return [
        f"REPLACES {len(names)} evaluations in {sweep.out} ({shown}), which are damaged or have other problems, "
        "temperatures, weights or guide than this design, and their summary; use --out ANOTHER_FOLDER to keep them"
    ]


def clear(sweep: SweepPlan) -> None:
    """Remove the sample stores that are replaced; `eval` overwrites records but not stores."""
    for store in filter(is_store, _stale(sweep)):
        with writing("sample store", store, 0):
            remove(store)
