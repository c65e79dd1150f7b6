"""The verdict on arms that were compared by samples: which k each gains and loses, which problems it unlocked, and what could
be seen.

    verdicts(...)      one `CurveVerdict` per arm, task and temperature, against the control
    text/verdicts.py   prints it, and the reports of `compare --fail-on`
    verdict_json.py    strict JSON, docs/reference/verdict.schema.json
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from sage_rlvr.verdicts.chance import Chance
from sage_rlvr.verdicts.distinct import DistinctAnswers, distinct_of
from sage_rlvr.verdicts.metric import Metric
from sage_rlvr.verdicts.pairs import control_of, pair_on
from sage_rlvr.verdicts.results import Results
from sage_rlvr.verdicts.row import Row
from sage_rlvr.verdicts.scores import ProblemScores
from sage_rlvr.verdicts.stats.curves import Crossing, CurveComparison, crossing
from sage_rlvr.verdicts.stats.intervals import Interval
from sage_rlvr.verdicts.stats.leash import leash_discoveries
from sage_rlvr.verdicts.stats.paired import DETECTABLE, Outcome, PairedDifference
from sage_rlvr.verdicts.stats.strata import LEAST_SAMPLES, Strata, stratified
from sage_rlvr.verdicts.units import units_of

SHOWN = (1, 8)
"""The k at which a verdict has both scores and a test, besides the largest."""
ALL_RIGHT = 8
"""Tries of pass^k, or all samples if they are fewer."""
CurveFinding = Literal["widened", "sharpened", "narrowed", "better", "worse", "no difference", "undecided"]
"""widened: higher at the largest k. sharpened: higher at a smaller k and lower at the largest. narrowed: lower at the largest k and
higher nowhere. better, worse: higher or lower at some k, undecided at the largest. no difference: the band is within 0.05 of 0
at every k, and so is every interval that is shown. undecided: none of these. With one sample per problem the word is at most
better or worse: pass@1 is no evidence about what several samples solve."""


@dataclass(frozen=True, kw_only=True)
class Unlocked:
    """Problems that an arm gained and lost, judged on samples that did not choose them (stats/strata.py).

    gained: pass@k of the arm less that of the control, in strata by how often the control solves a problem; None if a problem has
        too few samples for halves.
    lost: pass@k of the control less that of the arm, in strata by how often the arm solves a problem.
    alone_gained, alone_lost: Single problems whose counts are significant, corrected over all problems
        (`leash.leash_discoveries`); empty for several training seeds, and if problems differ in their numbers of samples.
    """

    gained: Strata | None = None
    lost: Strata | None = None
    alone_gained: tuple[str, ...] = ()
    alone_lost: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class AllRight:
    """pass^k of both sides, the probability that all of k samples are right: how reliable they are.

    k: Tries.
    arm, control: Means over problems with their intervals.
    gap: arm less control.
    """

    k: int
    arm: Interval
    control: Interval
    gap: PairedDifference


@dataclass(frozen=True, kw_only=True, eq=False)
class CurveVerdict:
    """One arm against the control.

    curve: the difference over k with its simultaneous band, None for two training seeds
    crossing: the k at which the arm gains and loses; empty without a curve
    shown: k -> both scores and their difference at this k
    chance: the chance floor of the problems, None if unknown
    distinct: distinct right answers, None if unknown
    fixed: whether the claim about methods is restricted to these problems
    heated: whether there are verdicts at several temperatures"""

    a: ProblemScores
    b: ProblemScores
    curve: CurveComparison | None
    crossing: Crossing
    shown: Mapping[int, tuple[Interval, Interval, PairedDifference]]
    unlocked: Unlocked
    all_right: AllRight | None = None
    chance: Chance | None = None
    distinct: DistinctAnswers | None = None
    fixed: bool = False
    heated: bool = False

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
        ends = [*self.curve.low, *self.curve.high]
        ends += [end for _, _, gap in self.shown.values() for end in (gap.difference.low, gap.difference.high)]
        within = np.all(np.abs(ends) <= DETECTABLE)
        return "no difference" if within and not self.curve.reason else "undecided"


def verdicts(results: Results, rows: Sequence[Row]) -> list[CurveVerdict]:
    """Every arm against the control, on every task and temperature at which both have samples. rows: the comparisons, of which
    those of pass@1 and the largest k are used."""
    sampled, design, curve_verdicts = results.table.sampled(), results.design, []
    for task, temperature in sorted({(task, t) for _, task, t in sampled.policies()}, key=lambda key: (key[0], -key[1])):
        here = sampled.where(task=task, temperature=temperature)
        arms = list(here.by_arm())
        control = control_of(design, here)
        for arm in arms:
            both = None if arm == control else pair_on(design, arm, control, "control", here).sides(temperature)
            if both is not None:
                curve_verdicts.append(replace(_verdict(*both, results.k, rows, results.fixed), chance=results.chances.get(task)))
    heated = len({one.a.temperature for one in curve_verdicts}) > 1
    return [replace(one, heated=heated) for one in curve_verdicts]


def _verdict(a: ProblemScores, b: ProblemScores, k: int, rows: Sequence[Row], fixed: bool) -> CurveVerdict:
    a.check_alike(b)
    top = min(k, a.n or 1)
    ks = [*(k for k in SHOWN if k < top), top]
    scores = {k: (a.interval(k, fixed=fixed), b.interval(k, fixed=fixed)) for k in ks}
    key = a.arm, b.arm, a.task, Metric(temperature=a.temperature)
    known = {
        row.metric.k: row.comparison for row in rows if (row.a, row.b, row.task, replace(row.metric, k=None)) == key
    }
    units = units_of(a, b, fixed=fixed)
    curve, shown = units.curve(top), {}
    for k in ks:
        # the test of the list of comparisons, so that both print the same interval
        gap = known[k] if k in known else units.gap(k).of_shares()
        seen = math.inf if curve is None else max(units.detectable(k, curve), least_detectable(gap.difference, curve, k))
        shown[k] = *scores[k], replace(gap, mde=seen)
    if curve is not None:
        curve = _agreeing(curve, {k: gap for k, (_, _, gap) in shown.items()})
    crossed = Crossing(gain=(), loss=(), undecided=(), first_loss=None) if curve is None else crossing(curve)
    return CurveVerdict(
        a=a, b=b, curve=curve, crossing=crossed, shown=shown, unlocked=_unlocked(a, b), all_right=_all_right(a, b, fixed),
        distinct=distinct_of(a, b, fixed=fixed), fixed=fixed,
    )


def _agreeing(curve: CurveComparison, shown: Mapping[int, PairedDifference]) -> CurveComparison:
    """The curve without a gain or loss at a shown k if the test at this k finds no difference: the band of few problems may
    exclude 0 although the test of their signs does not reject."""
    against = {k for k, gap in shown.items() if gap.outcome == "tied"}
    ends = zip(curve.ks, curve.outcomes, strict=True)
    return replace(curve, outcomes=tuple("tied" if k in against and end != "unknown" else end for k, end in ends))


def least_detectable(gap: Interval, curve: CurveComparison, k: int) -> float:
    """A lower bound of the difference that has 80 % power at k: the larger half-width of the interval and the band, each on its
    nearer side, since the estimate of a difference of this size is below it half of the time. An end at -1 or 1 is a limit of
    shares and shows no half-width; if both ends are, the farther one counts."""
    ends = [(gap.value, gap.low, gap.high)]
    ends += [(float(curve.difference[i]), float(curve.low[i]), float(curve.high[i])) for i, own in enumerate(curve.ks) if own == k]
    reaches = []
    for value, low, high in ends:
        inside = [reach for reach, end in ((value - low, low), (high - value, high)) if abs(end) < 1]
        reaches.append(min(inside) if inside else max(value - low, high - value))
    return min(1.0, max(reaches)) if math.isfinite(sum(reaches)) else math.inf


def _all_right(a: ProblemScores, b: ProblemScores, fixed: bool) -> AllRight | None:
    """pass^k is 1 less pass@k of the wrong samples: all of k are right if none is wrong. None if a problem has one sample."""
    k = min(ALL_RIGHT, int(a.samples.min()), int(b.samples.min()))
    if k < 2:
        return None
    arm, control = (replace(side, values=side.samples - side.values, tables=()) for side in (a, b))
    scores = (side.interval(k, fixed=fixed) for side in (arm, control))
    left, right = (replace(one, value=1 - one.value, low=1 - one.high, high=1 - one.low) for one in scores)
    gap = units_of(arm, control, fixed=fixed).gap(k).of_shares()
    turned = replace(gap.difference, value=-gap.difference.value, low=-gap.difference.high, high=-gap.difference.low)
    outcome: Outcome = "worse" if gap.outcome == "better" else "better" if gap.outcome == "worse" else gap.outcome
    gap = replace(gap, difference=turned, outcome=outcome, mean_a=1 - gap.mean_a, mean_b=1 - gap.mean_b)
    return AllRight(k=k, arm=left, control=right, gap=gap)


def _unlocked(a: ProblemScores, b: ProblemScores) -> Unlocked:
    sides = [(side.samples, side.values.astype(int)) for side in (a, b)]
    gained = lost = None
    if min(int(n.min()) for n, _ in sides) >= LEAST_SAMPLES:
        gained = stratified(*sides[1], *sides[0], cluster=a.cluster)
        lost = stratified(*sides[0], *sides[1], cluster=a.cluster)
    (n, c), (m, d) = sides
    if max(len(c), len(d)) > 1 or len({*n.ravel().tolist(), *m.ravel().tolist()}) > 1:
        return Unlocked(gained=gained, lost=lost)
    alone = leash_discoveries(m[0], d[0], n[0], c[0])
    new, gone = (tuple(p for p, hit in zip(a.problems, hits, strict=True) if hit) for hits in (alone.new, alone.lost))
    return Unlocked(gained=gained, lost=lost, alone_gained=new, alone_lost=gone)
