"""`sweep` and `demo`: train the arms of a design, evaluate and compare them."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from sage_rlvr.api.compare import Comparison, compared
from sage_rlvr.api.report import write_page
from sage_rlvr.api.train import RUNS, pairs_of, to_stderr
from sage_rlvr.errors import SageError
from sage_rlvr.extras import explained
from sage_rlvr.progress import PlainConsole
from sage_rlvr.results.probabilities import save_probabilities
from sage_rlvr.results.read import read_results
from sage_rlvr.verifiers.pool import cores

Say = Callable[[str], None]


@explained
def sweep(
    design: str | Path, *, out: str | Path | None = None, workers: int | None = None, quiet: bool = False
) -> Comparison:
    """Train and evaluate the arms and training seeds of a design file, and compare them, as `sage-rlvr sweep` does.

        sweep("recipes/designs/quick.yaml", workers=4)

    Args:
        design: A design file, or the name of a shipped one.
        out: The output folder; by default runs/<design name>. Using the same folder again continues.
        workers: Processes at a time, one thread each; by default the number of cores.
        quiet: No progress.

    Returns:
        The `Comparison`; `complete` is False if a run failed.

    Raises:
        ConfigError: If the design is invalid.
    """
    from sage_rlvr.sweeps.plan import plan  # torch

    planned = plan(Path(design), Path(out) if out is not None else RUNS / Path(design).stem)
    return swept(planned, workers, PlainConsole(file=io.StringIO()) if quiet else None)


def swept(planned: Any, workers: int | None, console: Any = None) -> Comparison:
    """Run the missing parts of a plan, write its summary, and compare."""
    from sage_rlvr.render import write_summary  # matplotlib
    from sage_rlvr.sweeps.sweep import run  # torch

    try:
        complete = run(planned, cores() if workers is None else workers, console or PlainConsole(stderr=True))
    except BaseException:
        with suppress(SageError, OSError):  # for a folder that cannot be written, the cause is the other error
            write_summary(planned.out)
        raise
    write_summary(planned.out)
    results = read_results(planned.out)
    save_probabilities(results, planned.out)
    return compared(results, complete=complete)


@explained
def demo(
    out: str | Path | None = None,
    *,
    model: str = "embedded",
    short: bool = False,
    seeds: Sequence[int] = (0,),
    arms: Sequence[str] | None = None,
    problems: int | None = None,
    power_tempering: bool = True,
    workers: int | None = None,
    edits: Mapping[str, Any] | Sequence[tuple[str, str]] = (),
) -> Comparison:
    """Train three methods on this machine, evaluate and compare them, as `sage-rlvr demo` does.

        demo(edits={"steps": 40})
        demo(model="smollm2", short=True)

    Args:
        out: The folder of runs, evaluations, pictures and the page; by default runs/demo or runs/demo-<model>. Using the same
            folder again continues.
        model: "embedded", the shipped base policy; "smollm2", a pretrained model of 135 M parameters; or a folder instead of the
            shipped policy.
        short: The short form of smollm2.
        seeds: Training seeds; statements about methods, not checkpoints, need at least three.
        arms: Methods by name; by default those of the design: no_kl, grpo and sage_branch, in the short form grpo.
        problems: Test problems; by default those of the design.
        power_tempering: Also temper the shipped base over full completions: its scores without any reward.
        workers: Training runs at a time; by default as many as fit on the cores.
        edits: {dotted key: value}, in every arm's recipe.

    Returns:
        The `Comparison`; `complete` is False if a run failed.

    Raises:
        ConfigError: If an arm or an edit is invalid.
    """
    from sage_rlvr.sweeps import demo as demos  # torch

    folder = demo_folder(model) if out is None else Path(out)
    more: dict[str, Any] = {"powers": power_tempering, "model": model, "short": short}
    return demonstrated(demos.plan(folder, seeds, arms, pairs_of(edits), problems, **more), workers)


def demo_folder(model: str) -> Path:
    """The default folder of a demo."""
    return RUNS / ("demo" if model == "embedded" else f"demo-{Path(model).name}")


def demonstrated(planned: Any, workers: int | None, console: Any = None, say: Say = to_stderr) -> Comparison:
    """Run a demo's plan, check it by sampling, write its page, and compare. notes: cross_check, and seconds of both parts."""
    from sage_rlvr.sweeps import demo as demos  # torch
    from sage_rlvr.sweeps.display import line  # torch
    from sage_rlvr.sweeps.forecast import forecast  # torch

    clock = [time.monotonic()]
    count = demos.at_a_time(planned) if workers is None else workers
    steps = "/".join(dict.fromkeys(str(arm.config.steps) for arm in planned.arms))
    say(f"training {len(planned.runs)} runs of {steps} steps, {count} at a time, in {planned.out / 'runs'}")
    say("\n".join([line(planned), *forecast(planned)]))
    comparison = swept(planned, count, console)
    clock.append(time.monotonic())
    if not comparison.complete:
        return comparison
    say("all runs are evaluated; checking the exact numbers by sampling, then the page" if planned.base else "writing the page")
    checked = demos.check_by_sampling(planned)
    write_page(comparison, planned.out)
    clock.append(time.monotonic())
    return replace(comparison, notes={"cross_check": checked, "clock": clock})
