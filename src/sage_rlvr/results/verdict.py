"""The verdict on arms that were compared by samples: which k each gains and loses, problems solved by one only, and what could be
seen.

    verdicts(...)   one `CurveVerdict` per arm, task and temperature, against the control
    verdict_text    prints it, and what `compare --fail-on` reports
    verdict_json    strict JSON, docs/reference/verdict.schema.json
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from sage_rlvr.results.comparisons import control_of, counted
from sage_rlvr.results.distinct import DistinctAnswers, distinct_of
from sage_rlvr.results.metric import Metric
from sage_rlvr.results.pairs import pair_on
from sage_rlvr.results.read import Results
from sage_rlvr.results.row import Row
from sage_rlvr.results.scores import ProblemScores
from sage_rlvr.stats.comparison import DETECTABLE, PairedDifference
from sage_rlvr.stats.curves import Crossing, CurveComparison, crossing
from sage_rlvr.stats.intervals import Interval
from sage_rlvr.stats.leash import leash_at_k, leash_discoveries, leash_noise_floor, lone_solver_p
from sage_rlvr.tasks.chance import Chance

SHOWN = (1, 8)
CurveFinding = Literal["widened", "sharpened", "narrowed", "better", "worse", "no difference", "undecided"]
"""widened: higher at the largest k. sharpened: higher at a smaller k and lower at the largest. narrowed: lower at the largest k and
higher nowhere. better, worse: higher or lower at some k, undecided at the largest. no difference: the band lies within 0.05 of 0 at
every k. undecided: none of these. With one sample a problem the word is at most better or worse: pass@1 says nothing about what
several samples solve."""


@dataclass(frozen=True, kw_only=True)
class SolvedByOne:
    """Problems by who solves them in all samples, means over training seeds. chance: how many only one of two equal models would
    solve. p_gained, p_lost: the probability that equal models show at least as many; certain_gained, certain_lost: problems for
    which chance is excluded one by one; all NaN or empty for several training seeds."""

    k: int
    kept: float
    gained: float
    lost: float
    neither: float
    chance: float = math.nan
    p_gained: float = math.nan
    p_lost: float = math.nan
    certain_gained: tuple[str, ...] = ()
    certain_lost: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class CurveVerdict:
    """One arm against the control. curve: the difference over k with its simultaneous band, None for two training seeds. crossing:
    where over k the arm gains and loses; nowhere without a curve. shown: k -> both scores and their difference at this k. chance:
    the chance floor of the problems; distinct: distinct right answers; both None where they are not known."""

    a: ProblemScores
    b: ProblemScores
    curve: CurveComparison | None
    crossing: Crossing
    shown: Mapping[int, tuple[Interval, Interval, PairedDifference]]
    solved: SolvedByOne
    chance: Chance | None = None
    distinct: DistinctAnswers | None = None

    def below(self, k: int) -> list[str]:
        """The arms below the chance floor at k, the control first."""
        return [one.arm for one in (self.b, self.a) if self.chance is not None and one.below(k, self.chance)]

    @property
    def finding(self) -> CurveFinding:
        """The finding as a word."""
        if self.curve is None:
            return "undecided"
        top, gain, loss = self.curve.ks[-1], self.crossing.gain, self.crossing.loss
        if top == 1 and (gain or loss):
            return "better" if gain else "worse"
        if gain and gain[-1][1] == top:
            return "widened"
        if loss and loss[-1][1] == top:
            return "sharpened" if gain else "narrowed"
        if gain or loss:
            return "better" if gain else "worse"
        within = np.all(np.maximum(np.abs(self.curve.low), np.abs(self.curve.high)) <= DETECTABLE)
        return "no difference" if within and not self.curve.reason else "undecided"


def verdicts(results: Results, rows: Sequence[Row]) -> list[CurveVerdict]:
    """Every arm against the control, on every task and temperature at which both have samples. rows: the comparisons, of which
    those of pass@1 and the largest k are read."""
    sampled, design, curve_verdicts = results.table.sampled(), results.design, []
    for task, temperature in sorted({(task, t) for _, task, t in sampled.policies()}, key=lambda key: (key[0], -key[1])):
        here = sampled.where(task=task, temperature=temperature)
        arms = list(here.by_arm())
        control = control_of(design, here)
        for arm in arms:
            both = None if arm == control else pair_on(design, arm, control, "control", here).sides(temperature)
            if both is not None:
                curve_verdicts.append(replace(_verdict(*both, results.k, rows), chance=results.chances.get(task)))
    return curve_verdicts


def _verdict(a: ProblemScores, b: ProblemScores, k: int, rows: Sequence[Row]) -> CurveVerdict:
    a.check_alike(b)
    several, top = max(len(a.values), len(b.values)) > 1, min(k, a.n or 1)
    ks = [*(k for k in SHOWN if k < top), top]
    key = a.arm, b.arm, a.task, Metric(temperature=a.temperature)
    known = {
        row.metric.k: row.comparison for row in rows if (row.a, row.b, row.task, replace(row.metric, k=None)) == key
    }
    shown = {k: (a.interval(k), b.interval(k), known[k] if k in known else counted(a, b, k).of_shares()) for k in ks}
    curve = a.band(b, top, several=several)
    crossed = Crossing(gain=(), loss=(), undecided=(), first_loss=None) if curve is None else crossing(curve)
    return CurveVerdict(
        a=a, b=b, curve=curve, crossing=crossed, shown=shown, solved=_solved(a, b), distinct=distinct_of(a, b)
    )


def _solved(a: ProblemScores, b: ProblemScores) -> SolvedByOne:
    n = a.n or 1
    left, right, left_n, right_n = np.broadcast_arrays(a.values.astype(int), b.values.astype(int), a.samples, b.samples)
    rows = [leash_at_k(*counts, n) for counts in zip(right_n, right, left_n, left, strict=True)]
    names = {"kept": "preserved", "gained": "expanded", "lost": "shrunk", "neither": "outside"}
    means = {ours: float(np.mean([getattr(row, name) for row in rows])) for ours, name in names.items()}
    if len(rows) > 1:
        return SolvedByOne(k=n, **means)
    counts = (right_n[0], right[0], left_n[0], left[0])
    discoveries, (gained, lost) = leash_discoveries(*counts), lone_solver_p(*counts)
    new, gone = (
        [p for p, hit in zip(a.problems, hits.tolist(), strict=True) if hit] for hits in (discoveries.new, discoveries.lost)
    )
    return SolvedByOne(
        k=n, **means, chance=leash_noise_floor(*counts, n).expanded, p_gained=gained, p_lost=lost, certain_gained=tuple(new),
        certain_lost=tuple(gone),
    )  # fmt: skip
