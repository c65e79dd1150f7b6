"""`sweep` and `demo`: arms x seeds."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import tyro

from sage_rlvr.cli.session import RUNS, Command, Session


@dataclass(frozen=True)
class Sweep(Command):
    """Train and evaluate the arms and training seeds of a matrix file, and compare them.

    Files: recipes/matrices. Pairs share a seed. Killed, the same command continues. What the folder holds by configuration
    and weights is not made again, a demo's included; missing controls are added, and said. Exit code 2 if a cell failed."""

    matrix: tyro.conf.Positional[Path]
    """A matrix file."""
    out: Path | None = None
    """Where everything goes (default runs/<matrix name>)."""
    workers: int | None = None
    """Processes at a time, one thread each (default: the number of cores)."""
    dry_run: bool = False
    """Print what the matrix means, what was added, what is there and what is left; nothing is written."""

    def execute(self, session: Session) -> int:
        from sage_rlvr.experiments import sweep

        planned = sweep.plan(self.matrix, self.out or RUNS / self.matrix.stem)
        session.say(*sweep.dry_lines(planned))
        if self.dry_run:
            session.out.print(sweep.table(planned))
            return 0
        try:
            whole = sweep.run(planned, _workers(self.workers), session.out)
        finally:
            found = sweep.write_summary(planned.out)
        session.say(sweep.table(planned), *sweep.closing_lines(found), f"summary: {planned.out / 'summary.md'}")
        return 0 if whole else 2


@dataclass(frozen=True)
class Demo(Command):
    """Train three methods on this machine, evaluate them exactly, and say what differs.

    They are no-KL, GRPO and SAGE-Branch, from the shipped base. Killed, the same command continues.
    `--a.b value` edits every arm's recipe, e.g. `--steps 40` for a short look."""

    edits_recipe: ClassVar[bool] = True

    out: Path = RUNS / "demo"
    """Where runs, evaluations, pictures and the page go. The same folder again continues."""
    seeds: tuple[int, ...] = (0,)
    """Training seeds; claims about methods, not checkpoints, need at least three."""
    arms: tuple[str, ...] | None = None
    """Recipes of recipes/countdown to train (default: no_kl grpo sage_branch; placebo is there too)."""
    problems: int = 300
    """Test problems."""
    workers: int | None = None
    """Training runs at a time, one thread each (default: the number of cores)."""

    def execute(self, session: Session) -> int:
        from sage_rlvr.cli.compare import write_pages
        from sage_rlvr.cli.records import print_cross_check
        from sage_rlvr.cli.tables import print_summary
        from sage_rlvr.experiments.demo import check_by_sampling, choose_arms, evaluate_all, exact_of, plan, results
        from sage_rlvr.experiments.jobs import evaluation_seconds, train_all
        from sage_rlvr.report import summarise, summarise_seeds

        edits = [word for name, value in session.edits for word in (f"--{name}", value)]
        workers = _workers(self.workers)
        arms = choose_arms(self.arms)
        jobs = plan(self.out, self.seeds, arms, edits, problems=self.problems, workers=workers)
        session.out.print(
            f"training {len(jobs)} runs of {jobs[0].config.steps} steps, {workers} at a time, in {self.out / 'runs'}"
        )
        clock = [time.monotonic()]
        after = evaluation_seconds(self.out, jobs, exact_of(jobs[0].config, self.problems))
        train_all(jobs, workers, session.out, after)
        clock.append(time.monotonic())
        base, trained = evaluate_all(self.out, jobs, self.problems, session.out)
        checked = check_by_sampling(jobs, base)
        clock.append(time.monotonic())
        found = results(base, trained, self.seeds)
        shown = summarise(found[0]) if len(found) == 1 else summarise_seeds(found)
        print_summary(session.out, shown)
        write_pages(shown, self.out, session)
        print_cross_check(session.out, checked)
        parts = zip(
            ("training", "evaluation", "report"), (b - a for a, b in pairwise([*clock, time.monotonic()])), strict=True
        )
        took = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in parts)
        session.out.print(f"took: {took}, together {time.monotonic() - clock[0]:.0f} s", highlight=False)
        return 0


def _workers(given: int | None) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores if given is None else given
