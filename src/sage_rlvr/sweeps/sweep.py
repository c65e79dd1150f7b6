"""`sage-rlvr sweep DESIGN.yaml`: train, evaluate and sample every run of a design in separate processes; resumable at any time.

    OUT/design.json                    the resolved design: arms, added controls and why, state of every run
    OUT/recipes/<arm>.yaml             the full recipe of an arm, as its runs receive it
    OUT/runs/<arm>-s<seed>/            the training runs, each with samples/; runs/base/samples/ for the base
    OUT/evaluations/base.npz           exact evaluations: base and <arm>-s<seed>, with -<world> for others, -validation
    OUT/policy/                        the base policy, if the design trains one
    OUT/summary.json, summary.md       numbers, sentences, and omitted runs
    OUT/probabilities.npz              success probabilities of every problem, policy and temperature
    OUT/lock                           held by the running sweep or demo

The folder of a `sage-rlvr demo` is one of these: complete results, by configuration and weights, are not made again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from rich.console import Console

from sage_rlvr.config import to_yaml
from sage_rlvr.errors import RunLocked
from sage_rlvr.runs import write_text_atomic, writing
from sage_rlvr.safe_io import read_text
from sage_rlvr.sweeps.design import suffix_of, world_named
from sage_rlvr.sweeps.display import display
from sage_rlvr.sweeps.evaluations import recipe_of
from sage_rlvr.sweeps.plan import SweepPlan, select_arm, write_record
from sage_rlvr.sweeps.processes import ProcessTask, run_tasks
from sage_rlvr.sweeps.reuse import clear, replaced, reusable, reuse, reuse_lines

LOCK = "lock"


def run(sweep: SweepPlan, workers: int, console: Console) -> bool:
    """Run missing tasks, `workers` processes of one thread at a time; True if nothing failed. A failure is printed and
    the rest continues; Ctrl-C lets every training run save, and records the progress."""
    sweep.workers = workers
    with _alone(sweep.out):
        return _run(sweep, workers, console)


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Hold the lock of a sweep's folder. Raises RunLocked if another sweep has it: the two would train the same runs."""
    with writing("sweep", out, 0):
        out.mkdir(parents=True, exist_ok=True)
        lock = FileLock(out / LOCK, timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise RunLocked(
                f"{out}: another sweep or demo is working in this folder. Wait until it ends, or stop it; then the same command "
                "continues. For a second sweep at the same time choose another --out"
            ) from None
    try:
        yield
    finally:
        lock.release()


def _run(sweep: SweepPlan, workers: int, console: Console) -> bool:
    write_recipes(sweep)
    _print(console, replaced(sweep))
    clear(sweep)
    taken = reusable(sweep)
    _print(console, reuse_lines(sweep, taken))
    for one, directory in taken:
        reuse(directory, one, sweep)
    write_record(sweep)

    def failed(task: ProcessTask, problem: str) -> None:
        sweep.failures[task] = problem
        _print(console, [f"FAILED: {problem}"])
        write_record(sweep)

    try:
        with display(sweep, console) as show:
            run_tasks(sweep.tasks, workers, show, failed, sweep.finished, sweep.seconds, sweep.started)
            select_arm(sweep)
            if sweep.choice is not None and sweep.choice["chosen"]:  # its test evaluation, which waited for the selection
                run_tasks(sweep.tasks, workers, show, failed, sweep.finished, sweep.seconds, sweep.started)
    finally:
        write_record(sweep)
    return not sweep.failures


def _print(console: Console, lines: Sequence[str]) -> None:
    for line in lines:
        console.print(line, soft_wrap=True)


def write_recipes(sweep: SweepPlan) -> None:
    """Write the recipe of every arm and world for its runs."""
    with writing("sweep", sweep.out, 1 << 20):
        (sweep.out / "recipes").mkdir(parents=True, exist_ok=True)
        (sweep.out / "evaluations").mkdir(exist_ok=True)
        texts = {arm.name: to_yaml(arm.config) for arm in sweep.arms}
        for name in sweep.design.evaluate.ood:
            world = to_yaml(world_named(name, sweep.source.parent)).replace("\n", "\n  ").rstrip()
            # a recipe that is never run: `eval --world` reads only the world
            texts[f"world-{suffix_of(name)}"] = f"steps: 1\nworld:\n  {world}\n"
        for name, text in texts.items():
            path = recipe_of(sweep.out, name)
            if not path.exists() or read_text(path) != text:
                write_text_atomic(path, text)
