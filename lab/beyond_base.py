"""How often an arm that is its base at a lower temperature is said to do more than the base: `python -m lab false-verdicts`.

The base answers each problem by one of `ANSWERS` answers, of which a few are right; at temperature T an answer's probability is
proportional to its probability at T = 1 to the power 1 / T. Right answers are likelier than others on most problems, so that
pass@1 rises and pass@64 falls with cooling. The arm is the base at T = 0.3, sampled anew in each of its training seeds, so that
every "yes" is false.

A better arm is the base at the same temperature whose right answers are likelier by `LEARNED` in the logits: "yes" is then right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lab.studies.pages import percent
from sage_rlvr.results.tables import Table
from sage_rlvr.verdicts.colder import ColderBaseComparison, colder_base_comparisons
from sage_rlvr.verdicts.comparisons import compare
from sage_rlvr.verdicts.design import BASE, Arm, Design
from sage_rlvr.verdicts.measurements import Measurements, SampledMeasurement
from sage_rlvr.verdicts.metric import Metric
from sage_rlvr.verdicts.results import Results
from sage_rlvr.verdicts.row import End, Row
from sage_rlvr.verdicts.sources import Store
from sage_rlvr.verdicts.stats.arrays import Floats, Ints

SEED, SAMPLES, ANSWERS, TASK, ARM = 3407, 64, 40, "simulated", "arm"
SPREAD, ADVANTAGE = 1.5, 0.8
"""Of the logits of all answers, and by how much those of right answers are higher."""
OF_ARM = 0.3
"""The temperature of the base that the arm is."""
LEARNED = 0.6
"""How much likelier right answers are to a better arm, in logits at T = 1."""
TO_A_TENTH = (1.0, 0.8, 0.6, 0.4, 0.2, 0.1)


@dataclass(frozen=True)
class Grid:
    """A study: the base's temperatures, the number of problems and of the arm's training seeds."""

    name: str
    temperatures: tuple[float, ...]
    problems: int = 200
    seeds: int = 5


DESIGNS = (
    Grid("1, 0.7, 0.4; 200 problems, 5 seeds", (1.0, 0.7, 0.4)),
    Grid("1, 0.8, 0.6, 0.4; 100 problems, 1 seed", (1.0, 0.8, 0.6, 0.4), 100, 1),
    Grid("1, 0.6, 0.3; 100 problems, 1 seed", (1.0, 0.6, 0.3), 100, 1),
    Grid("1, 0.6, 0.3; 200 problems, 5 seeds", (1.0, 0.6, 0.3)),
    Grid("1, 0.8, 0.6, 0.4, 0.3, 0.2; 100 problems, 1 seed", (1.0, 0.8, 0.6, 0.4, 0.3, 0.2), 100, 1),
    Grid("1, 0.8, 0.6, 0.4, 0.2, 0.1; 100 problems, 1 seed", TO_A_TENTH, 100, 1),
    Grid("1, 0.8, 0.6, 0.4, 0.2, 0.1; 200 problems, 5 seeds", TO_A_TENTH),
    Grid("the same and 0.05; 100 problems, 1 seed", (*TO_A_TENTH, 0.05), 100, 1),
    Grid("the same and 0.05; 200 problems, 5 seeds", (*TO_A_TENTH, 0.05)),
    Grid("the same and 0; 100 problems, 1 seed", (*TO_A_TENTH, 0.0), 100, 1),
    Grid("the same and 0; 200 problems, 5 seeds", (*TO_A_TENTH, 0.0)),
)


@dataclass(frozen=True)
class FalseYes:
    """Of `of` studies: with a "yes" (now), with a k at which the arm is higher without Holm's correction, and with a pass@1 that is
    shown to be above the base's best; and of as many with a better arm those with a "yes"."""

    name: str
    of: int
    now: int
    uncorrected: int
    beyond: int
    better: int


def right_at(logits: Floats, rights: Ints, t: float) -> Floats:
    """Probability of a right completion at temperature t, of each problem (N,).

    logits: (N, ANSWERS) log-probs at T = 1, up to a constant and to the advantage of right answers. rights: (N,), how many of the
    first answers are right."""
    is_right = np.arange(ANSWERS) < rights[:, None]
    scores = logits + np.where(is_right, ADVANTAGE, 0.0)
    scores = scores - scores.max(axis=1, keepdims=True)
    weights = (scores == 0).astype(float) if t == 0 else np.exp(scores / t)
    return np.asarray((weights * is_right).sum(axis=1) / weights.sum(axis=1))


def study(grid: Grid, rng: np.random.Generator, learned: float = 0.0) -> Results:
    """The samples of one simulated study. learned: how much likelier right answers are to the arm, in logits at T = 1."""
    logits, rights = rng.normal(0, SPREAD, (grid.problems, ANSWERS)), rng.integers(1, 6, grid.problems)

    more = np.where(np.arange(ANSWERS) < rights[:, None], learned, 0.0)

    def measured(arm: str, t: float, temperature: float, seed: int | None) -> SampledMeasurement:
        p = right_at(logits + more if arm == ARM else logits, rights, t)
        where = Path(f"{arm}-{temperature}-{seed}")
        return SampledMeasurement(
            arm=arm, seed=seed, path=where, store=Store(arm=arm, path=where, seed=seed), task=TASK, temperature=temperature,
            problems=tuple(map(str, range(grid.problems))), n=SAMPLES, identity={"revision": arm}, chance=None,
            values=rng.binomial(SAMPLES, p),
        )  # fmt: skip

    rows = [measured(BASE, t, t, None) for t in grid.temperatures]
    rows += [measured(ARM, OF_ARM, 1.0, seed) for seed in range(grid.seeds)]
    facts = {"evaluate": {"problems": grid.problems, "split": "test"}, "runs": []}
    design = Design(arms=(Arm(name=ARM, key=ARM),), base=BASE, control=ARM, seeds=tuple(range(grid.seeds)), facts=facts)
    return Results(design=design, k=SAMPLES, table=Measurements(tuple(rows)), chances={})


def false_yes(grid: Grid, times: int, seed: int = SEED) -> FalseYes:
    """Simulate a design."""
    rng = np.random.default_rng([seed, len(grid.temperatures), grid.problems, grid.seeds])
    now = uncorrected = beyond = better = 0
    for _ in range(times):
        rows, found = _judged(study(grid, rng))
        uncorrected += bool({End.HIGHER, End.HIGHER_BEFORE} & {row.outcome for row in rows})
        now += found.finding == "above"
        beyond += any(row.metric == Metric(k=SAMPLES, at="b best") for row in rows)
        better += _judged(study(grid, rng, LEARNED))[1].finding == "above"
    return FalseYes(grid.name, times, now, uncorrected, beyond, better)


def _judged(results: Results) -> tuple[list[Row], ColderBaseComparison]:
    rows = compare(results)
    (found,) = colder_base_comparisons(rows, results)
    return [row for row in rows if row.why == "colder"], found


def yes_table(found: Sequence[FalseYes]) -> Table:
    """One row a design."""
    rows = []
    for one in found:
        shares = (one.uncorrected, one.now, one.better)
        rows.append((one.name, *(percent(hits, one.of) for hits in shares), f"{one.beyond} of {one.of}"))
    head = (
        "the base's temperatures", "higher at some k, without Holm", "false yes", "yes of a better arm",
        "pass@1 shown above the base's best",
    )  # fmt: skip
    return Table(header=head, rows=tuple(rows))
