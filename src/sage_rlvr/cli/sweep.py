"""`sweep` and `demo`: train and compare arms over training seeds."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import tyro

from sage_rlvr.cli.session import RUNS, Command, Session


@dataclass(frozen=True)
class Sweep(Command):
    """Train and evaluate the arms and training seeds of a design file, and compare them.

    Files: recipes/designs. Comparisons are paired by seed. After an interruption the same command continues. Existing results with
    the same configuration and weights are reused; missing controls are added and printed. Exit code 2 if a run failed."""

    design: tyro.conf.Positional[Path]
    """A design file."""
    out: Path | None = None
    """The output folder (default runs/<design name>)."""
    workers: int | None = None
    """Processes at a time, one thread each (default: the number of cores)."""
    dry_run: bool = False
    """Print the resolved design, added controls, finished and remaining work; write no files."""

    def execute(self, session: Session) -> int:
        """Print the plan; without --dry-run, run what it lacks and print the comparisons. Returns 0, or 2 where a run failed."""
        from sage_rlvr.api.compare import swept
        from sage_rlvr.api.printed import print_results
        from sage_rlvr.sweeps.display import dry_lines, table
        from sage_rlvr.sweeps.plan import plan

        planned = plan(self.design, self.out or RUNS / self.design.stem)
        session.say(*dry_lines(planned))
        if self.dry_run:
            session.out.print(table(planned))
            return 0
        comparison = swept(planned, self.workers, session.out)
        session.say(table(planned))
        print_results(session.out, comparison.results, comparison.findings, details=False)
        session.say(f"summary: {planned.out / 'summary.md'}")
        return 0 if comparison.complete else 2


@dataclass(frozen=True)
class Demo(Command):
    """Train three methods on this machine, evaluate and compare them, and write a page.

    The methods are no-KL, GRPO and SAGE-Branch, from the shipped base, evaluated exactly. With --model smollm2 they start from
    a pretrained model and are evaluated by samples, beside the base at lower temperatures. After an interruption the same
    command continues. `--a.b value` edits every arm's recipe, e.g. `--steps 40` for a short look."""

    edits_recipe: ClassVar[bool] = True

    model: str = "embedded"
    """embedded, smollm2 (the command prints how long that takes), or a policy in place of the embedded one."""
    short: bool = False
    """The short form of --model smollm2: a third of the time."""
    out: Path | None = None
    """The folder of runs, evaluations, figures and the page (default runs/demo, or runs/demo-MODEL). The same folder continues."""
    seeds: tuple[int, ...] = (0,)
    """Training seeds; claims about methods need at least three."""
    arms: tuple[str, ...] | None = None
    """Methods to train by name (default: no_kl grpo sage_branch)."""
    problems: int | None = None
    """Number of test problems (default 300; of smollm2 100, or 40 in the short form)."""
    power_tempering: bool = True
    """Also evaluate the embedded base tempered over whole completions, without any reward."""
    workers: int | None = None
    """Training runs at a time (default: as many as the cores hold; of smollm2 one, with all cores)."""

    def execute(self, session: Session) -> int:
        """Train, evaluate and compare, write the page and print it. Returns 0, or 2 where a run failed."""
        from sage_rlvr.api.compare import demo_folder, demonstrated
        from sage_rlvr.api.printed import print_results
        from sage_rlvr.cli.evaluate import print_cross_check
        from sage_rlvr.sweeps import demo

        out = demo_folder(self.model) if self.out is None else self.out
        more: dict[str, Any] = {"powers": self.power_tempering, "model": self.model, "short": self.short}
        planned = demo.plan(out, self.seeds, self.arms, session.edits, self.problems, **more)
        comparison = demonstrated(planned, self.workers, session.out, session.say)
        if not comparison.complete:
            return 2
        session.say(f"\npage     {out / 'report.html'}\nfigures  {out / 'figures'}/*.png")
        if checked := comparison.notes["cross_check"]:
            print_cross_check(session.out, checked)
        clock = comparison.notes["clock"]
        parts = zip(("training and evaluation", "report"), (b - a for a, b in pairwise(clock)), strict=True)
        took = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in parts)
        session.say(f"took: {took}, total {clock[-1] - clock[0]:.0f} s")
        print_results(session.out, comparison.results, comparison.findings, details=False)
        return 0
