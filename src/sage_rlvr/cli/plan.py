"""`plan`: the detectable difference of a design."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import tyro

from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import ConfigError, DataError

if TYPE_CHECKING:
    from sage_rlvr.verdicts.readers import Choice
    from sage_rlvr.verdicts.scores import ProblemScores
    from sage_rlvr.verdicts.stats.plan import Pilot


@dataclass(frozen=True)
class Plan(Command):
    """Power analysis before training: the smallest difference that a design detects, and how to improve it."""

    problems: int | None = None
    """Number of problems (default: those of --from)."""
    samples: int | None = None
    """Samples of each problem (default: those of --from if these are samples, else 256)."""
    seeds: int = 3
    """Training seeds of each of the two arms."""
    k: int | None = None
    """k of pass@k: default 256, or --samples if that is less."""
    discordant: float = 0.1
    """Assumed share of problems on which two checkpoints differ at pass@k."""
    noise_share: float = 0.5
    """Assumed part of it that is sampling noise, and shrinks with the number of samples."""
    run_sd: float = 0.01
    """Assumed standard deviation between training runs of one arm's score."""
    run_cost: float = 64_000
    """Cost of a training run, in sampled completions."""
    difference: float | None = None
    """Also print how many problems, or how many samples, detect this difference between two checkpoints."""
    from_: Annotated[tuple[str, ...], tyro.conf.arg(name="from")] = ()
    """Measure these on a pilot instead: two arms as in compare, A=PATH[,PATH...] B=PATH[,PATH...], files of rows too."""
    correct: tuple[str, ...] = ()
    """For files of rows with several scores: the one that means correct, as in compare."""
    fields: str | None = None
    """For files of rows with other columns, as in compare."""
    judge: str | None = None
    """For files of rows with texts: mark every completion here, as in compare."""
    common: bool = False
    """For files of rows: only the problems that both have."""
    unscored: Literal["wrong", "omit"] | None = None
    """For files of rows: completions without a score count as wrong, or their problems are left out, as in compare."""
    right_from: float | None = None
    """For files of rows with graded scores: the least score that counts as correct."""
    split: Literal["train", "validation", "test"] = "test"
    """The split of the evaluations."""

    def execute(self, session: Session) -> int:
        """Print what an experiment of that size can detect. Returns 0; raises ConfigError for impossible sizes."""
        from sage_rlvr.verdicts.results import K
        from sage_rlvr.verdicts.stats.plan import EvaluationSize, assume, make_plan, needed_line, plan_lines

        self._check_numbers()
        from sage_rlvr.api.compare import choice_of
        from sage_rlvr.verdicts.readers import Choice

        choice = choice_of(
            correct=self.correct, right_from=self.right_from, unscored=self.unscored, fields=self.fields, judge=self.judge or "",
            common=self.common,
        )  # fmt: skip
        if not self.from_ and choice != Choice():
            raise ConfigError(
                "--correct, --right-from, --unscored, --fields, --judge, --common: only for files of rows; pass them with "
                "--from A B"
            )
        read = MeasuredArms.read(self.from_, self.split, choice) if self.from_ else None
        problems, samples = self.problems, self.samples
        if read is not None:
            problems = read.problems if problems is None else problems
            samples = read.n if samples is None else samples
        samples = 256 if samples is None else samples
        if problems is None:
            raise ConfigError("--problems: how many problems? Pass --problems N, or --from A B to take those of two evaluations")
        design = EvaluationSize(problems=problems, samples=samples, seeds=self.seeds)
        k = min(K, samples) if self.k is None else self.k
        if k < 1:
            raise ConfigError(f"--k {k}: pass@k needs k >= 1")
        if read is not None:
            pilot = read.pilot(k, self.run_sd, fewer=self.k is None)
        else:
            pilot = assume(
                k=k, samples=samples, discordant=self.discordant, run_sd=self.run_sd, noise_share=self.noise_share
            )
        if k > samples:
            raise ConfigError(f"--k {k}: pass@k needs at least k samples, the design has --samples {samples}")
        made = make_plan(design, pilot, run_cost=self.run_cost)
        session.say(*plan_lines(made, run_cost=self.run_cost, measured=read is not None))
        if self.difference is not None:
            session.say(needed_line(design, pilot, self.difference))
        return 0


    def _check_numbers(self) -> None:
        """Raise ConfigError for an impossible number, before anything is read or computed."""
        rules: list[tuple[str, float | None, bool, str]] = [
            ("--run-cost", self.run_cost, 0 < self.run_cost < math.inf, "what a training run costs in completions is above 0"),
            ("--run-sd", self.run_sd, 0 <= self.run_sd < math.inf, "a standard deviation of scores is a number from 0 on"),
            ("--discordant", self.discordant, 0 < self.discordant <= 1, "a share of the problems is above 0 and at most 1"),
            ("--noise-share", self.noise_share, 0 <= self.noise_share <= 1, "a share is a number from 0 to 1"),
            ("--difference", self.difference, self.difference is None or 0 < self.difference < 1,
             "a difference in pass@k lies between 0 and 1"),
        ]  # fmt: skip
        for option, value, fits, means in rules:
            if not fits:
                raise ConfigError(f"{option} {value:g}: {means}")


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasuredArms:
    """Two arms that were evaluated on one data set."""

    a: ProblemScores
    b: ProblemScores

    @classmethod
    def read(cls, arms: Sequence[str], split: str, choice: Choice) -> MeasuredArms:
        """Read A=PATH[,PATH...] B=...: files of rows, records, run directories or sample stores, or one file with two arms."""
        from sage_rlvr.results.read import read_results
        from sage_rlvr.verdicts.files import rows_in

        two = f"--from {' '.join(arms)}: expected two arms, A=PATH[,PATH...] B=PATH[,PATH...]"
        if len(arms) != 2 and not (len(arms) == 1 and rows_in(arms[0])):
            raise ConfigError(two)
        results = read_results(*arms, split=split, apart=True, choice=choice)
        if len(results.design.names) != 2:
            raise ConfigError(f"{two}, and not {', '.join(results.design.names)}")
        if len(results.tasks) != 1:
            raise ConfigError(
                f"--from: evaluations of {', '.join(results.tasks)}; a plan is for one data set, pass evaluations of one"
            )
        a, b = (results.table.only_scores(name, results.tasks[0]) for name in results.design.names)
        if {len(a.values), len(b.values)} - {1, max(len(a.values), len(b.values))}:
            raise DataError(f"--from: {len(a.values)} and {len(b.values)} training seeds; pass the same number, or one")
        return cls(a=a, b=b)

    @property
    def problems(self) -> int:
        """Number of problems."""
        return len(self.a.problems)

    @property
    def n(self) -> int | None:
        """The smallest number of samples of a problem; None for exact records."""
        return None if self.a.n is None or self.b.n is None else min(self.a.n, self.b.n)

    def pilot(self, k: int, run_sd: float, *, fewer: bool = False) -> Pilot:
        """The plan's input from the two arms. fewer: use a smaller k if there are fewer samples than k, for a default k."""
        from sage_rlvr.verdicts.stats.plan import pilot_of_counts, pilot_of_exact

        a, b = self.a, self.b
        if a.n is None or b.n is None:
            left, right = np.broadcast_arrays(a.values, b.values)
            return pilot_of_exact(left, right, k, run_sd)
        if a.problems != b.problems:
            raise DataError(f"{a.arm} and {b.arm} have different problems of {a.task}; complete both evaluations first")
        k = min(k, a.n, b.n) if fewer else k
        if min(a.n, b.n) < k or a.n != b.n:
            raise DataError(f"{a.task}: pass@{k} needs {k} samples, but there are {a.n} and {b.n}; set a smaller --k")
        counts = (a.values.astype(int), b.values.astype(int))
        return pilot_of_counts(a.samples, *counts, k, run_sd, n_b=b.samples, cluster=a.cluster or None)
