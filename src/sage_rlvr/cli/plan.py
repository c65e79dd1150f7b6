"""`plan`: what a design can see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import ConfigError


@dataclass(frozen=True)
class Plan(Command):
    """Say what a design can see before anything is trained, and what to buy next."""

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
    split: Literal["validation", "test"] = "test"
    """Which record of a run directory to take."""

    def execute(self, session: Session) -> int:
        from sage_rlvr.cli.plans import pilot_of
        from sage_rlvr.cli.records import TOP_K
        from sage_rlvr.stats.plan import Design, assume, make_plan, plan_lines

        design = Design(problems=self.problems, samples=self.samples, seeds=self.seeds)
        k = min(TOP_K, self.samples) if self.k is None else self.k
        if not 1 <= k <= self.samples:
            raise ConfigError(f"--k {k}: pass@k needs at least k samples, the design has --samples {self.samples}")
        if not self.run_cost > 0:
            raise ConfigError(f"--run-cost {self.run_cost:g}: what a training run costs, in completions, is above 0")
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
