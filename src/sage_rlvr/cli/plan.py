"""`plan`: what a design can see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import tyro

from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import ConfigError, DataError

if TYPE_CHECKING:
    from sage_rlvr.stats.plan import Pilot


@dataclass(frozen=True)
class Plan(Command):
    """Power analysis before training: the smallest difference that a design detects, and how to improve it."""

    problems: int
    samples: int = 256
    """Of each problem."""
    seeds: int = 3
    """Training seeds of each of the two arms."""
    k: int | None = None
    """Of pass@k: default 256, or --samples where that is less."""
    discordant: float = 0.1
    """Assumed share of problems on which two checkpoints differ at pass@k."""
    noise_share: float = 0.5
    """Assumed part of it that is chance of the samples, and shrinks with their number."""
    run_sd: float = 0.01
    """Assumed standard deviation between training runs of one arm's score."""
    run_cost: float = 64_000
    """What a training run costs, in sampled completions."""
    from_: Annotated[tuple[str, ...], tyro.conf.arg(name="from")] = ()
    """Measure these on a pilot instead: two arms as in compare, A=PATH[,PATH...] B=PATH[,PATH...]."""
    split: Literal["train", "validation", "test"] = "test"
    """The split of the evaluations."""

    def execute(self, session: Session) -> int:
        from sage_rlvr.results.read import K
        from sage_rlvr.stats.plan import Design, assume, make_plan, plan_lines

        design = Design(problems=self.problems, samples=self.samples, seeds=self.seeds)
        k = min(K, self.samples) if self.k is None else self.k
        if not 1 <= k <= self.samples:
            raise ConfigError(f"--k {k}: pass@k needs at least k samples, the design has --samples {self.samples}")
        if not self.run_cost > 0:
            raise ConfigError(f"--run-cost {self.run_cost:g}: the cost of a training run in completions must be above 0")
        if self.from_:
            pilot = pilot_of(self.from_, self.split, k, self.run_sd, fewer=self.k is None)
        else:
            pilot = assume(
                k=k,
                samples=self.samples,
                discordant=self.discordant,
                run_sd=self.run_sd,
                noise_share=self.noise_share,
            )
        session.say(*plan_lines(make_plan(design, pilot, run_cost=self.run_cost), run_cost=self.run_cost))
        return 0


def pilot_of(arms: Sequence[str], split: str, k: int, run_sd: float, fewer: bool = False) -> Pilot:
    """A pilot from two arms, A=PATH[,PATH...] B=...: records, run directories or sample stores.

    fewer: take a smaller k where the stores hold fewer samples than k, for a k that nobody asked for."""
    from sage_rlvr.results import Results
    from sage_rlvr.stats.plan import pilot_of_counts, pilot_of_exact

    if len(arms) != 2:
        raise ConfigError(f"--from {' '.join(arms)}: expected two arms, A=PATH[,PATH...] B=PATH[,PATH...]")
    results = Results.read(*arms, split=split, apart=True)
    tasks = results.tasks
    if len(tasks) != 1:
        raise ConfigError(f"--from: evaluations of {', '.join(tasks)}; a plan is for one data set, pass evaluations of one")
    a, b = (results.table.only_scores(name, tasks[0]) for name in results.design.names)
    if {len(a.values), len(b.values)} - {1, max(len(a.values), len(b.values))}:
        raise DataError(f"--from: {len(a.values)} and {len(b.values)} training seeds; pass the same number, or one")
    if a.n is None or b.n is None:
        left, right = np.broadcast_arrays(a.values, b.values)
        return pilot_of_exact(left, right, k, run_sd)
    if a.problems != b.problems:
        raise DataError(f"{a.arm} and {b.arm} have different problems of {a.task}; complete both evaluations first")
    k = min(k, a.n, b.n) if fewer else k
    if min(a.n, b.n) < k or a.n != b.n:
        raise DataError(f"{a.task}: pass@{k} needs {k} samples, but there are {a.n} and {b.n}; set a smaller --k")
    return pilot_of_counts(a.n, a.values.astype(int), b.values.astype(int), k, run_sd)
