"""The comparisons of exact records: the list `Exact.plan` and its estimators. A new comparison is a line and an estimator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product

import numpy as np

from sage_rlvr.verdicts.baselines import Allowed, above, always_allowed
from sage_rlvr.verdicts.design import TEMPERED, Why
from sage_rlvr.verdicts.kl import Kls, exact_kls_of_main, kl_difference, kls_of, matched
from sage_rlvr.verdicts.measurements import ExactMeasurements, Measurements
from sage_rlvr.verdicts.metric import FEW, KLS, PAPER, REFERENCE, Matched, Metric, above_baselines
from sage_rlvr.verdicts.pairs import ArmPair, Plan, base_pairs, common_seeds, exact_pairs, matched_pairs, other_tasks
from sage_rlvr.verdicts.results import Results
from sage_rlvr.verdicts.row import Estimate
from sage_rlvr.verdicts.stats import frontier as frontiers
from sage_rlvr.verdicts.stats import paired as paired_by
from sage_rlvr.verdicts.stats.arrays import Floats
from sage_rlvr.verdicts.stats.hull import compare_hull
from sage_rlvr.verdicts.stats.mixture import above_mixtures
from sage_rlvr.verdicts.stats.paired import Reason, paired, paired_seeds
from sage_rlvr.verdicts.stats.tempered import power_frontier, power_table
from sage_rlvr.verdicts.units import units_of


class Exact:
    """The exact records of results, and the estimators that read them."""

    def __init__(self, results: Results) -> None:
        self.results, self.design, self.k = results, results.design, results.k
        self.several, self.fixed = results.several, results.fixed
        self.arms = results.table.exact().where(task="").by_arm()
        self.base = self.arms.get(results.home or "", ExactMeasurements())

    def plan(self) -> Plan:
        """The comparisons, in the order of the rows."""
        design, k = self.design, self.k
        pairs = exact_pairs(design, self.arms)
        main = [*pairs, *base_pairs(design, self.arms)]
        of_seeds = pairs if self.several else []
        near = [*of_seeds, *self._added_controls()] if self.several else []
        at_best = [pair for pair in main if pair.b == self.results.home or design.every]
        matches = matched_pairs(design, self.arms)
        pass1_and_k = {t: [Metric(k=n, temperature=t) for n in (1, k)] for t in (REFERENCE, PAPER)}
        at_kl = {t: [Metric(k=n, temperature=t, matched=kl) for kl in KLS for n in (1, k)] for t in (REFERENCE, PAPER)}
        best = [Metric(k=1, at="best"), Metric(k=1, at="b best"), Metric(k=k, at="a equal")]
        mixtures = [Metric(k=k, at="mixture"), Metric(k=FEW, at="mixture")]
        readings = [Metric(k=1, at="best"), Metric(k=k, at="a equal"), Metric(k=k, at="equal")]
        return (
            (main, pass1_and_k[REFERENCE], self.scores),
            (matches, at_kl[REFERENCE], self.at_equal_kl),
            (main, pass1_and_k[PAPER], self.scores),
            (matches, at_kl[PAPER], self.at_equal_kl),
            (main, [Metric(k=k, at="equal")], self.at_equal_pass1),
            (near, [Metric(k=k, at="near"), Metric(name="distinct", k=k, at="near")], self.near_reference),
            (at_best, best, self.at_best),
            (self._against_baselines(), above_baselines(k), self.above_baselines),
            (self._against_tempered(), [*mixtures, *readings], self.against_tempered),
            (of_seeds, [Metric(name="raw KL", at="end"), Metric(name="exact KL")], self.kl),
            (other_tasks(design, self.results.table.exact()), pass1_and_k[REFERENCE], self.scores),
        )

    # ---- pairs of one line

    def _added_controls(self) -> list[ArmPair]:
        """Added controls, except placebos, against the control."""
        arms, control = self.arms, self.design.control or ""
        if control not in arms:
            return []
        left_out = {control, *(arm.placebo for arm in self.design.arms)}
        added = [arm.name for arm in self.design.arms if arm.why and arm.name in arms and arm.name not in left_out]
        return [ArmPair(a=name, b=control, why="control", left=arms[name], right=arms[control]) for name in added]

    def _against_baselines(self) -> list[ArmPair]:
        """Every candidate against each set of baselines."""
        both = product(self.design.baselines, self.design.candidates)
        return [self._alone(name, envelope.name, "envelope") for envelope, name in both]

    def _against_tempered(self) -> list[ArmPair]:
        """Every arm against the base tempered over full completions, which needs no reward."""
        names = [name for name in self.design.names if name != self.design.base and name in self.arms]
        return [self._alone(name, TEMPERED, "power") for name in names] if self.tempered else []

    def _alone(self, name: str, rival: str, why: Why) -> ArmPair:
        """An arm compared with a policy that is not an arm."""
        return ArmPair(a=name, b=rival, why=why, left=self.arms.get(name, ExactMeasurements()), right=Measurements())

    @cached_property
    def allowed(self) -> Allowed:
        """The tables that every mixture of baselines may use."""
        return always_allowed(self.base, self.results.base_record)

    @cached_property
    def kls(self) -> dict[Matched, Kls]:
        """The KLs at which arms are matched."""
        return kls_of(self.results.runs, exact_kls_of_main(self.results.table.sampled()))

    @cached_property
    def tempered(self) -> Sequence[frontiers.FrontierPoint]:
        """The frontier of the base tempered over full completions; () without its norms."""
        record = self.results.base_record
        return power_frontier(self.base.logps, record.norms, self.k) if record is not None and record.norms else ()

    # ---- estimators

    def scores(self, pair: ArmPair, metric: Metric) -> Estimate | None:
        """pass@k at one temperature."""
        sides = pair.sides(metric.temperature)
        if sides is None:
            return None
        return Estimate(units_of(*sides, fixed=self.fixed, several=self.several).gap(metric.k or 0))

    def at_equal_kl(self, pair: ArmPair, metric: Metric) -> Estimate | None:
        """`kl.matched` of these arms."""
        return matched(self.design, self.arms, self.kls, pair, metric, self.fixed)

    def at_equal_pass1(self, pair: ArmPair, metric: Metric) -> Estimate | None:
        """pass@k at equal pass@1: the mean over the pass@1 that both arms cover."""
        run_pairs = runs_with_frontiers(pair)
        if not run_pairs:
            return None
        if not self.several:
            ((one, two), *_), k = run_pairs, metric.k or 0
            gap = frontiers.compare_frontiers(one.p, two.p, k=k)
            return Estimate(gap.comparison, covers=gap.covers)
        gaps = [frontiers.gap_to_frontier(one.points, two.points) for one, two in run_pairs]
        found = of_gaps([gap.value for gap in gaps], Reason.NO_COMMON_RANGE)
        if not found.comparison.known:
            return found
        return replace(found, covers=(float(np.mean([gap.low for gap in gaps])), float(np.mean([gap.high for gap in gaps]))))

    def near_reference(self, pair: ArmPair, metric: Metric) -> Estimate | None:
        """A score at equal pass@1 near the reference temperature: one point of the frontiers instead of their mean, which the
        coldest temperatures dominate."""
        run_pairs = runs_with_frontiers(pair)
        gaps = [frontiers.gap_near(one.line(metric.name), two.line(metric.name)) for one, two in run_pairs]
        return of_gaps(gaps, Reason.NOT_NEAR) if run_pairs else None

    def at_best(self, pair: ArmPair, metric: Metric) -> Estimate | None:
        """pass@1 of an arm and the base, or of two arms passed as separate paths, each at its best temperature. For a single
        training seed also: the arm at T = 1 against the base's best, and the base at the temperature that gives the arm's
        pass@1."""
        run_pairs = pair.runs
        if not run_pairs or any(len(two.rows) < 2 for _, two in run_pairs):
            return None
        if metric.at == "best":
            if any(len(one.rows) < 2 for one, _ in run_pairs):
                return None
            left, right = (np.stack([at_own_best(both[i]) for both in run_pairs]) for i in (0, 1))
            return Estimate(paired_seeds(left, right, fixed=self.fixed) if self.several else paired(left[0], right[0]))
        if self.several:
            return None
        ((one, two),) = run_pairs
        if metric.at == "b best":
            return Estimate(paired(one.p[REFERENCE], at_own_best(two)))
        return Estimate(frontiers.at_equal_pass1(one.p[REFERENCE], two.p, k=metric.k or 0).comparison)

    def above_baselines(self, pair: ArmPair, metric: Metric) -> Estimate | None:
        """A candidate against the best mixture of a set of baselines."""
        envelope = next(one for one in self.design.baselines if one.name == pair.b)
        gap = above(self.arms, pair.a, envelope, metric, self.allowed)
        return None if gap is None else Estimate(compare_hull(gap))

    def against_tempered(self, pair: ArmPair, metric: Metric) -> Estimate | None:
        """An arm against the tempered base; a candidate of a design with baselines also against its best mixture."""
        runs, record = list(pair.left.exact().runs.values()), self.results.base_record
        assert record is not None  # the pairs exist
        if metric.at == "mixture":
            if pair.a not in self.design.candidates or not self.design.baselines:
                return None
            table = power_table(self.base.logps, record.norms)
            gap = above_mixtures([run.p for run in runs], [[table] * len(runs)], metric.k or 0)
            return None if gap is None else Estimate(compare_hull(gap))
        if metric.at == "best":
            best = frontiers.best_pass1(self.tempered).pass1
            gaps: list[float | None] = [frontiers.best_pass1(run.points).pass1 - best for run in runs]
        elif metric.at == "a equal":
            gaps = [at_reference(run.points, self.tempered) for run in runs]
        else:
            gaps = [frontiers.gap_to_frontier(run.points, self.tempered).value for run in runs]
        return of_gaps(gaps, Reason.NO_COMMON_RANGE)

    def kl(self, pair: ArmPair, metric: Metric) -> Estimate | None:
        """KL to the reference."""
        seeds = common_seeds(pair.left.exact(), pair.right.exact())
        return kl_difference(pair, self.kls["raw KL" if metric.name == "raw KL" else "exact KL"], seeds)


def of_gaps(gaps: Sequence[float | None], reason: Reason) -> Estimate:
    """One gap per training seed against zero. "unknown" if a seed has no gap: such seeds are those with the largest differences."""
    known = [gap for gap in gaps if gap is not None]
    if known and len(known) == len(gaps):
        return Estimate(paired_seeds(known, np.zeros(len(known))))
    return Estimate(paired_by.unknown(reason, n=len(known), over="training seeds"), left_out=len(gaps) - len(known))


def runs_with_frontiers(pair: ArmPair) -> list[tuple[ExactMeasurements, ExactMeasurements]]:
    """The runs of both arms at every common seed; empty if a run has a single temperature."""
    run_pairs = pair.runs
    return run_pairs if all(len(run.rows) > 1 for both in run_pairs for run in both) else []


def at_own_best(run: ExactMeasurements) -> Floats:
    """Probabilities (N,) at the temperature with the best pass@1."""
    return run.p[frontiers.best_pass1(run.points).temperature]


def at_reference(points: Sequence[frontiers.FrontierPoint], line: Sequence[frontiers.FrontierPoint]) -> float | None:
    """pass@k of the policy at the reference temperature minus pass@k of the line at the same pass@1; None outside the line."""
    point = frontiers.at_temperature(points, REFERENCE)
    if point is None:
        return None
    on_line = frontiers.passk_at(point.pass1, line)
    return None if on_line is None else point.passk - on_line[0]
