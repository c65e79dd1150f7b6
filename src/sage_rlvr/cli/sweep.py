"""`sweep` and `demo`: arms x seeds."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import tyro

from sage_rlvr.cli.session import RUNS, Command, Session


@dataclass(frozen=True)
class Sweep(Command):
    """Train and evaluate the arms and training seeds of a design file, and compare them.

    Files: recipes/designs. Pairs share a seed. Killed, the same command continues. What the folder holds by configuration
    and weights is not made again, a demo's included; missing controls are added, and said. Exit code 2 if a run failed."""

    design: tyro.conf.Positional[Path]
    """A design file."""
    out: Path | None = None
    """Where everything goes (default runs/<design name>)."""
    workers: int | None = None
    """Processes at a time, one thread each (default: the number of cores)."""
    dry_run: bool = False
    """Print what the design means, what was added, what is there and what is left; nothing is written."""

    def execute(self, session: Session) -> int:
        from sage_rlvr.api.compare import swept
        from sage_rlvr.api.printed import print_results
        from sage_rlvr.experiments.display import dry_lines, table
        from sage_rlvr.experiments.plan import plan

        planned = plan(self.design, self.out or RUNS / self.design.stem)
        session.say(*dry_lines(planned))
        if self.dry_run:
            session.out.print(table(planned))
            return 0
        found = swept(planned, self.workers, session.out)
        session.say(table(planned))
        print_results(session.out, found.results, found.comparisons, details=False)
        session.say(f"summary: {planned.out / 'summary.md'}")
        return 0 if found.complete else 2


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
    """Methods to train by name (default: no_kl grpo sage_branch)."""
    problems: int = 300
    """Test problems."""
    power_tempering: bool = True
    """Also temper the base over whole completions: what it reaches without any reward."""
    workers: int | None = None
    """Training runs at a time, one thread each (default: the number of cores)."""

    def execute(self, session: Session) -> int:
        from sage_rlvr.api.compare import demonstrated
        from sage_rlvr.api.printed import print_results
        from sage_rlvr.cli.evaluate import print_cross_check
        from sage_rlvr.experiments import demo

        planned = demo.plan(self.out, self.seeds, self.arms, session.edits, self.problems, powers=self.power_tempering)
        found = demonstrated(planned, self.workers, session.out, session.say)
        if not found.complete:
            return 2
        session.say(f"\npage     {self.out / 'report.html'}\npictures {self.out / 'figures'}/*.png")
        print_cross_check(session.out, found.notes["cross_check"])
        clock = found.notes["clock"]
        parts = zip(("training and evaluation", "report"), (b - a for a, b in pairwise(clock)), strict=True)
        took = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in parts)
        session.say(f"took: {took}, together {clock[-1] - clock[0]:.0f} s")
        print_results(session.out, found.results, found.comparisons, details=False)
        return 0
