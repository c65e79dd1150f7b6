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
from sage_rlvr.sweeps.design import (
    KINDS,
)
from sage_rlvr.sweeps.plan import Cell, SweepPlan, note, task_words
from sage_rlvr.sweeps.reuse import adoptable, adoption_lines, replaced

LINE_SECONDS = 20.0


def table(sweep: SweepPlan) -> rich.table.Table:
    """Arm x seed, the state of every run."""
    seeds = sweep.design.seeds
    shown = rich.table.Table("arm", *(f"s{seed}" for seed in seeds), box=None, pad_edge=False, title=sweep.design.title)
    status = {(cell.arm.name, cell.job.seed): _status(sweep, cell) for cell in sweep.cells}
    for arm in sweep.arms:
        shown.add_row(arm.label + (" +" if arm.why else ""), *(status[arm.name, seed] for seed in seeds))
    return shown


def _status(sweep: SweepPlan, cell: Cell) -> str:
    status = sweep.status(cell)
    return f"{cell.job.done}/{cell.job.config.steps}" if status == "training" else status


@contextmanager
def display(sweep: SweepPlan, console: Console) -> Iterator[Callable[[], None]]:
    """The table, live in a terminal; a line every 20 seconds elsewhere. design.json follows what has ended."""
    every = 5 if console.is_terminal else LINE_SECONDS
    last, seen = [time.monotonic()], [len(sweep.over)]

    def show() -> None:
        """Update design.json where a task has ended, and the table or line where it is due."""
        if len(sweep.over) != seen[0]:
            seen[0] = len(sweep.over)
            note(sweep)
        if time.monotonic() - last[0] >= every:
            last[0] = time.monotonic()
            said = Text(line(sweep) + running_words(sweep))
            console.print(said, soft_wrap=True) if live is None else live.update(
                Group(table(sweep), said), refresh=True
            )

    live = Live(table(sweep), console=console, auto_refresh=False) if console.is_terminal else None
    if live is None:
        yield show
        return
    with live:
        yield show
        live.update(table(sweep), refresh=True)


def line(sweep: SweepPlan, taken: Collection[Cell] = ()) -> str:
    """How far the sweep is, in one line; `taken`: runs whose training is about to be taken over, and counts as done."""
    total = sum(cell.job.config.steps for cell in sweep.cells)
    done = sum(cell.job.config.steps if cell in taken else cell.job.done for cell in sweep.cells)
    whole = sum(sweep.status(cell) in ("evaluated", "validation only") for cell in sweep.cells)
    failed = f", {len(sweep.failures)} failed" if sweep.failures else ""
    return (
        f"sweep: {done}/{total} steps, {whole} of {len(sweep.cells)} runs complete{failed}, {left_words(sweep, taken)}"
    )


def left_words(sweep: SweepPlan, taken: Collection[Cell] = ()) -> str:
    """Time left on `sweep.workers` processes: the newest steps of each run, as much longer as finished runs took by the clock, and
    the evaluations as long as those that ended here; nothing is guessed."""
    rows = {cell: read_metrics(cell.job.directory) if cell.job.done else [] for cell in sweep.cells}
    runs = {c: (0 if c in taken else c.job.config.steps - c.job.done, found[-NEWEST:]) for c, found in rows.items()}
    training = seconds_left(runs, sweep.workers) if any(steps for steps, _ in runs.values()) else 0.0
    if training is None:
        return "time left unknown before the first steps, without evaluation"
    training *= _by_the_clock(sweep, rows)
    behind = [(cell, task) for cell in sweep.cells for task in sweep.wanted(cell) if task is not cell.train]
    exact = [task for cell, task in behind if task not in (cell.samples, cell.kl)]
    sampled = [*sweep.base_samples, *(task for cell, task in behind if task is cell.samples)]
    kls = [task for cell, task in behind if task is cell.kl]
    seconds = 0.0
    for of_kind in (exact, sampled, kls):
        left = sum(task not in sweep.over for task in of_kind)
        made = [sweep.took[task] for task in of_kind if task in sweep.took] or (_recorded(sweep) if of_kind is exact else [])
        if left and not made:
            return in_words(training) + ", without evaluation" if training else "no training left"
        seconds += left * statistics.median(made[-3:]) if left else 0.0
    seconds = training + seconds / sweep.workers
    return in_words(seconds) if seconds else "nothing left to do"


def _by_the_clock(sweep: SweepPlan, rows: Mapping[Cell, list[dict[str, Any]]]) -> float:
    """How much longer finished runs took by the clock than their steps: their start, what they saved. 1 before one ended here."""
    took = {cell: sweep.took[cell.train] for cell in rows if cell.train in sweep.took}
    steps = {cell: sum(row.get("time/step_s", 0.0) for row in rows[cell]) for cell in took}
    shares = [seconds / steps[cell] for cell, seconds in took.items() if 0 < steps[cell] <= seconds]  # of a resumed run: a part
    return statistics.median(shares) if shares else 1.0


def _recorded(sweep: SweepPlan) -> list[float]:
    """What the newest exact evaluations say that they took. The base's takes minutes, being tempered over whole completions too:
    it stands in only until an arm's is there."""
    over = [(cell.job.directory.name, name) for cell in sweep.cells for name, task in cell.exact.items() if task in sweep.over]
    made = [path for path in (record_path(sweep.out, *one) for one in over[-3:]) if path.is_file()]
    known = made or [path for path in (record_path(sweep.out, "base"),) if path.is_file()]
    return [float(load_record(path).meta["seconds"]) for path in known]


def running_words(sweep: SweepPlan) -> str:
    """Reward, KL and q at the newest step of each unfinished run."""
    half = [cell.job for cell in sweep.cells if 0 < cell.job.done < cell.job.config.steps]
    return "".join(
        f"\n  {job.label} {job.done}/{job.config.steps}  {noted(read_metrics(job.directory)[-1])}" for job in half
    )


def dry_lines(sweep: SweepPlan) -> list[str]:
    """What the design means: arms with their objectives, controls that were added and why, what is there and what is left."""
    lines = [f"{sweep.design.title}: {len(sweep.cells)} runs in {sweep.out}, {task_words(sweep)}"]
    for arm in sweep.arms:
        lines.append(f"  {arm.label} ({arm.name}): " + (f"ADDED, {arm.why}" if arm.why else arm.recipe))
        lines += [f"    {arm.dropped}"] * bool(arm.dropped)
        lines += [f"  {text}" for text in essence(arm.config.method)]
    lines += [f"  {said}" for said in sweep.left_out]
    samples = sweep.design.evaluate.samples
    if sweep.base:
        lines += ["  ADDED: the base at every temperature of the evaluation, and tempered over whole completions"]
    elif samples is not None:
        lines += [f"  by samples (right completions cannot be enumerated): {samples.n} for each of {samples.problems} problems"]
    if any(arm.why for arm in sweep.arms):
        lines.append(
            f"  to omit ADDED arms: set `controls: none` in {sweep.source}, or list the required kinds, such as "
            f"`controls: [{', '.join(KINDS[:2])}]` (of {', '.join(KINDS)})"
        )
    lines += [f"  {said}" for said in replaced(sweep)]
    taken = adoptable(sweep)
    lines += [f"  {said}" for said in adoption_lines(sweep, taken)]
    return [*lines, line(sweep, [cell for cell, _ in taken])]
