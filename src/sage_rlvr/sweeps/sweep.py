"""`sage-rlvr sweep DESIGN.yaml`: train, evaluate and sample every run of a design in separate processes; resumable at any time.

    OUT/design.json                    what was resolved: arms, controls that were added and why, state of every run
    OUT/recipes/<arm>.yaml             the whole recipe of an arm, as its runs are given it
    OUT/runs/<arm>-s<seed>/            the training runs, with samples/ in them; runs/base/samples/ of the base
    OUT/evaluations/base.npz           exact evaluations: base and <arm>-s<seed>, with -<world> of others, -validation
    OUT/policy/                        the base policy, where the design makes its own
    OUT/summary.json, summary.md       numbers, sentences, and what was not run
    OUT/probabilities.npz              success probabilities of every problem, policy and temperature

The folder of a `sage-rlvr demo` is one of these: what is complete there, by configuration and weights, is not made again.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from sage_rlvr.config import to_yaml
from sage_rlvr.runs import write_text_atomic, writing
from sage_rlvr.safe_io import read_text
from sage_rlvr.sweeps.design import suffix_of, world_named
from sage_rlvr.sweeps.display import display
from sage_rlvr.sweeps.evaluations import recipe_of
from sage_rlvr.sweeps.plan import SweepPlan, select_arm, write_record
from sage_rlvr.sweeps.processes import ProcessTask, run_tasks
from sage_rlvr.sweeps.reuse import clear, replaced, reusable, reuse, reuse_lines


def run(sweep: SweepPlan, workers: int, console: Console) -> bool:
    """Make what is missing, `workers` processes of one thread at a time; True where nothing failed. A failure is printed and
    the rest goes on; Ctrl-C lets every training run save, and writes down how far everything is."""
    sweep.workers = workers
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
            run_tasks(sweep.tasks, workers, show, failed, sweep.finished, sweep.seconds)
            select_arm(sweep)
            if sweep.choice is not None and sweep.choice["chosen"]:  # its test, which waited for the selection
                run_tasks(sweep.tasks, workers, show, failed, sweep.finished, sweep.seconds)
    finally:
        write_record(sweep)
    return not sweep.failures


def _print(console: Console, lines: Sequence[str]) -> None:
    for line in lines:
        console.print(line, soft_wrap=True)


def write_recipes(sweep: SweepPlan) -> None:
    """The recipe of every arm and world, as its runs are given it."""
    with writing("sweep", sweep.out, 1 << 20):
        (sweep.out / "recipes").mkdir(parents=True, exist_ok=True)
        (sweep.out / "evaluations").mkdir(exist_ok=True)
        texts = {arm.name: to_yaml(arm.config) for arm in sweep.arms}
        for name in sweep.design.evaluate.ood:
            world = to_yaml(world_named(name, sweep.source.parent)).replace("\n", "\n  ").rstrip()
            # a recipe that is never run: `eval --world` reads the world alone
            texts[f"world-{suffix_of(name)}"] = f"steps: 1\nworld:\n  {world}\n"
        for name, text in texts.items():
            path = recipe_of(sweep.out, name)
            if not path.exists() or read_text(path) != text:
                write_text_atomic(path, text)
