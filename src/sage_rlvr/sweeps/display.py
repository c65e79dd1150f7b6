"""Display of a sweep: progress as a table and a line, and the resolved design for --dry-run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import rich.table
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from sage_rlvr.core.describe import essence
from sage_rlvr.evaluation.record import load_record, record_path
from sage_rlvr.progress import NEWEST, in_words, noted, seconds_left
from sage_rlvr.runs import read_metrics
from sage_rlvr.sweeps.controls import KINDS
from sage_rlvr.sweeps.plan import SweepPlan, task_words, write_record
from sage_rlvr.sweeps.processes import ProcessTask, progress_of
from sage_rlvr.sweeps.resolve import several_parts
from sage_rlvr.sweeps.reuse import replaced, reusable, reuse_lines
from sage_rlvr.sweeps.runs import SweepRun

LINE_SECONDS = 20.0


def table(sweep: SweepPlan) -> rich.table.Table:
    """Arm x seed, the state of every run."""
    seeds = sweep.design.seeds
    columns = ["arm", *(f"s{seed}" for seed in seeds)]
    shown = rich.table.Table(*columns, box=None, pad_edge=False, title=sweep.design.title)
    status = {(run.arm.name, run.seed): _status(sweep, run) for run in sweep.runs}
    for arm in sweep.arms:
        label = f"{arm.label} +" if arm.why else arm.label
        shown.add_row(label, *(status[arm.name, seed] for seed in seeds))
    return shown


def _status(sweep: SweepPlan, run: SweepRun) -> str:
    status = sweep.status(run)
    return f"{run.steps_done}/{run.config.steps}" if status == "training" else status


@contextmanager
def display(sweep: SweepPlan, console: Console) -> Iterator[Callable[[], None]]:
    """The table, live in a terminal; otherwise a line every 20 seconds. design.json is written when a task has ended."""
    every = 5 if console.is_terminal else LINE_SECONDS
    shown_at, recorded = time.monotonic(), len(sweep.finished)

    def show() -> None:
        """Update design.json when a task has ended, and the table or line when it is due."""
        nonlocal shown_at, recorded
        if len(sweep.finished) != recorded:
            recorded = len(sweep.finished)
            write_record(sweep)
        if time.monotonic() - shown_at < every:
            return
        shown_at = time.monotonic()
        text = Text(line(sweep) + running_words(sweep))
        if live is None:
            console.print(text, soft_wrap=True)
        else:
            live.update(Group(table(sweep), text), refresh=True)

    live = Live(table(sweep), console=console, auto_refresh=False) if console.is_terminal else None
    if live is None:
        yield show
        return
    with live:
        yield show
        live.update(table(sweep), refresh=True)


def line(sweep: SweepPlan, taken: Collection[SweepRun] = ()) -> str:
    """The progress in one line; `taken`: runs that are about to be reused, and count as trained."""
    total = sum(run.config.steps for run in sweep.runs)
    done = sum(run.config.steps if run in taken else run.steps_done for run in sweep.runs)
    complete = sum(sweep.is_complete(run) for run in sweep.runs)
    failed = f", {len(sweep.failures)} failed" if sweep.failures else ""
    return f"sweep: {done}/{total} steps, {complete} of {len(sweep.runs)} runs complete{failed}, {left_words(sweep, taken)}"


def left_words(sweep: SweepPlan, taken: Collection[SweepRun] = ()) -> str:
    """Time left on `sweep.workers` processes: from the newest steps of each run, scaled by the clock time of finished runs, and
    the evaluations of this sweep that have ended; nothing is guessed."""
    metrics = {run: read_metrics(run.directory) if run.steps_done else [] for run in sweep.runs}
    left = {run: 0 if run in taken else run.config.steps - run.steps_done for run in sweep.runs}
    training: float | None = 0.0
    if any(left.values()):
        training = seconds_left({run: (left[run], metrics[run][-NEWEST:]) for run in sweep.runs}, sweep.workers)
    if training is None:
        return "time left unknown before the first steps, without evaluation"
    training *= _clock_ratio(sweep, metrics)
    evaluation = _evaluation_seconds(sweep)
    if evaluation is None:
        return in_words(training) + ", without evaluation" if training else "no training left"
    seconds = training + evaluation / sweep.workers
    return in_words(seconds) if seconds else "nothing left to do"


def _clock_ratio(sweep: SweepPlan, metrics: Mapping[SweepRun, list[dict[str, Any]]]) -> float:
    """Clock time of finished runs over the time of their steps: start and saving included. 1 before one has ended in this
    process."""
    ratios = []
    for run, rows in metrics.items():
        if run.train in sweep.seconds:
            seconds, steps = sweep.seconds[run.train], sum(row.get("time/step_s", 0.0) for row in rows)
            if 0 < steps <= seconds:  # for a run that was resumed in this process, only the end was timed
                ratios.append(seconds / steps)
    return statistics.median(ratios) if ratios else 1.0


def _evaluation_seconds(sweep: SweepPlan) -> float | None:
    """Seconds of the remaining evaluations of runs and samples of the base, one after the other; None if unknown."""
    exact: list[ProcessTask] = []
    sampled: list[ProcessTask] = list(sweep.base_samples)
    kl: list[ProcessTask] = []
    for run in sweep.runs:
        for task in sweep.tasks_of(run):
            if task is run.samples:
                sampled.append(task)
            elif task is run.kl:
                kl.append(task)
            elif task is not run.train:
                exact.append(task)
    total = 0.0
    for tasks in (exact, sampled, kl):
        left = sum(task not in sweep.finished for task in tasks)
        if not left:
            continue
        seconds = [sweep.seconds[task] for task in tasks if task in sweep.seconds]
        if not seconds and tasks is exact:
            seconds = _recorded_seconds(sweep)
        if not seconds:
            return None
        total += left * statistics.median(seconds[-3:])
    return total


def _recorded_seconds(sweep: SweepPlan) -> list[float]:
    """Durations recorded in the newest exact evaluations. The base's takes minutes, because it is also tempered over full
    completions: it is used only until an arm's exists."""
    paths = []
    for run in sweep.runs:
        for suffix, task in run.exact.items():
            if task in sweep.finished:
                paths.append(record_path(sweep.out, run.directory.name, suffix))
    paths = [path for path in paths[-3:] if path.is_file()] or [record_path(sweep.out, "base")]
    return [float(load_record(path).meta["seconds"]) for path in paths if path.is_file()]


def running_words(sweep: SweepPlan) -> str:
    """Describe running tasks besides training, and their time; reward, KL and q at the newest step of each unfinished run."""
    trained, text = {run.train for run in sweep.runs}, ""
    for task, began in sweep.started.items():
        if task not in trained:
            how_far = progress_of(task) or f"{time.monotonic() - began:.0f} s so far"
            text += f"\n  {task.label}: {how_far}"
    for run in sweep.runs:
        if 0 < run.steps_done < run.config.steps:
            newest = read_metrics(run.directory)[-1]
            text += f"\n  {run.label} {run.steps_done}/{run.config.steps}  {noted(newest)}"
    return text


def dry_lines(sweep: SweepPlan) -> list[str]:
    """Describe the resolved design: arms with their objectives, added controls and why, finished and remaining work."""
    lines = [f"{sweep.design.title}: {len(sweep.runs)} runs in {sweep.out}, {task_words(sweep)}"]
    for arm in sweep.arms:
        origin = f"ADDED, {arm.why}" if arm.why else arm.recipe
        lines.append(f"  {arm.label} ({arm.name}): {origin}")
        if arm.dropped:
            lines.append(f"    {arm.dropped}")
        lines += [f"  {text}" for text in essence(arm.config.method)]
    lines += [f"  {text}" for text in (*several_parts(sweep.design, sweep.arms), *sweep.left_out)]
    samples = sweep.design.evaluate.samples
    if sweep.base:
        lines.append("  ADDED: the base at every temperature of the evaluation, and tempered over whole completions")
    elif samples is not None:
        count = f"{samples.n} for each of {samples.problems} problems"
        lines.append(f"  by samples (right completions cannot be enumerated): {count}")
    if any(arm.why for arm in sweep.arms):
        lines.append(
            f"  to omit ADDED arms: set `controls: none` in {sweep.source}, or list the required kinds, such as "
            f"`controls: [{', '.join(KINDS[:2])}]` (of {', '.join(KINDS)})"
        )
    taken = reusable(sweep)
    lines += [f"  {text}" for text in (*replaced(sweep), *reuse_lines(sweep, taken))]
    return [*lines, line(sweep, [run for run, _ in taken])]
