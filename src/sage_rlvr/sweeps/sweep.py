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

from rich.console import Console

from sage_rlvr.config import to_yaml
from sage_rlvr.runs import write_text_atomic, writing
from sage_rlvr.safe_io import read_text
from sage_rlvr.sweeps.design import suffix_of, world_named
from sage_rlvr.sweeps.display import display
from sage_rlvr.sweeps.jobs import ProcessTask, run_tasks
from sage_rlvr.sweeps.plan import SweepPlan, note, recipe_of, settle
from sage_rlvr.sweeps.reuse import adoptable, adoption_lines, clear, replaced, take_over, take_records


def run(sweep: SweepPlan, workers: int, console: Console) -> bool:
    """Make what is missing, `workers` processes of one thread at a time; True where nothing failed. A failure is printed and
    the rest goes on; Ctrl-C lets every training run save, and writes down how far everything is."""
    sweep.workers = workers
    write_recipes(sweep)
    for said in replaced(sweep):
        console.print(said, soft_wrap=True)
    clear(sweep)
    taken = adoptable(sweep)
    for said in adoption_lines(sweep, taken):
        console.print(said, soft_wrap=True)
    for cell, found in taken:
        take_records(found, cell, sweep)  # before the run, which alone says that something was taken over
        take_over(found, cell.job.directory)
        sweep.over.add(cell.train)
        sweep.over.update(task for task in cell.exact.values() if task.done())
    note(sweep)

    def failed(task: ProcessTask, problem: str) -> None:
        sweep.failures[task] = problem
        console.print(f"FAILED: {problem}", soft_wrap=True)
        note(sweep)

    try:
        with display(sweep, console) as show:
            run_tasks(sweep.tasks, workers, show, failed, sweep.over, sweep.took)
            settle(sweep)
            if sweep.choice is not None and sweep.choice["chosen"]:  # its test, which waited for the choice
                run_tasks(sweep.tasks, workers, show, failed, sweep.over, sweep.took)
    finally:
        note(sweep)
    return not sweep.failures


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
