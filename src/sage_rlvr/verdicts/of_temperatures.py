"""The comparisons of samples with mixtures of temperatures: the list `AnyTemperature.plan` and its estimators."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from itertools import product

from sage_rlvr.verdicts.baselines import guesses_of
from sage_rlvr.verdicts.design import AT_ANY, BASE
from sage_rlvr.verdicts.measurements import Measurements, SampledMeasurement
from sage_rlvr.verdicts.metric import FEW, REFERENCE, Metric, above_baselines
from sage_rlvr.verdicts.of_samples import Sampled
from sage_rlvr.verdicts.pairs import ArmPair, Plan
from sage_rlvr.verdicts.row import Estimate
from sage_rlvr.verdicts.scores import ProblemScores
from sage_rlvr.verdicts.stats import frontier as frontiers
from sage_rlvr.verdicts.stats import paired as paired_by
from sage_rlvr.verdicts.stats.arrays import Ints
from sage_rlvr.verdicts.stats.hull import compare_hull
from sage_rlvr.verdicts.stats.mixture import above_mixtures_of_counts
from sage_rlvr.verdicts.stats.paired import PairedDifference
from sage_rlvr.verdicts.stats.passk import powers

COLDEST = 0.05
"""The lowest temperature above 0 that is worth sampling: below it a policy is nearly greedy."""
BASE_TEMPERATURES = (1.0, 0.8, 0.6, 0.4, 0.2, 0.1, COLDEST)
"""The default temperatures of a base. They end at `COLDEST`: above it a verdict against the base often asks for a lower one."""
FALL = 0.05
"""The p, over all temperatures above the lowest together, below which pass@1 is shown to fall at the lowest."""


def above_colder(k: int) -> list[Metric]:
    """The metrics of a policy against `COLDER`, over powers of two: at equal pass@1, and if the policy's pass@1 is shown to be
    above that of the base at every temperature, against the temperature with the base's best."""
    ks = [n for n in powers(k) if n >= FEW]
    metrics = [Metric(k=1, at="b best")]
    metrics += [Metric(k=n, at="mixture") for n in ks]
    metrics += [Metric(k=n, at="b best") for n in ks]
    return metrics


class AnyTemperature:
    """The samples of a task at several temperatures, and the estimators that compare an arm with mixtures of temperatures."""

    def __init__(self, of_task: Sampled) -> None:
        self.of_task, self.design, self.arms = of_task, of_task.design, of_task.arms
        self.control = of_task.arms[of_task.control]
        self.names = [name for name in of_task.design.names if name not in of_task.exact]

    def plan(self) -> Plan:
        """The comparisons, in the order of the rows."""
        k = self.of_task.fewest
        above = [metric for metric in above_baselines(k) if metric.at == "mixture" and (metric.k or 0) <= k]
        return [(self._against_baselines(), above, self.above_baselines), *self._against_control()]

    # ---- against sets of baselines

    def _against_baselines(self) -> list[ArmPair]:
        """Every candidate against each set of baselines, if all of them have samples."""
        candidates = [name for name in self.design.candidates if name in self.names]
        return [
            ArmPair(a=name, b=one.name, why="envelope", left=self.arms[name], right=Measurements(), task=self.of_task.task)
            for one, name in product(self.design.baselines, candidates)
            if {name, *one.arms} <= {*self.arms}
        ]

    def above_baselines(self, pair: ArmPair, metric: Metric) -> Estimate | None:
        """A candidate against the best mixture of a set of baselines; the base and a guesser are allowed in it."""
        envelope = next(one for one in self.design.baselines if one.name == pair.b)
        names = (pair.a, *envelope.arms)
        tables = {one: _tables(self.arms[one]) for one in (*names, BASE) if one in self.arms}
        seeds = sorted(set.intersection(*(set(tables[one]) for one in names)))
        if not seeds:
            return None
        own, *rivals = ([tables[one][seed] for seed in seeds] for one in names)
        if BASE in tables and BASE not in names:
            rivals.append(list(tables[BASE].values())[:1])
        guessers = guesses_of(self.of_task.samples.rows[0].chance)
        gap = above_mixtures_of_counts(own, rivals, metric.k or 0, metric.temperature, guessers=guessers)
        return None if gap is None else Estimate(compare_hull(gap))

    # ---- against the control at any temperature

    @cached_property
    def base(self) -> dict[float, tuple[int, Ints]]:
        """Temperature -> (n, right (N,)) of the control; {} unless it was sampled once at each of several temperatures, with
        equal numbers of samples of independent problems."""
        rows = self.control.rows
        base = {row.temperature: (row.n, row.values.astype(int)) for row in rows}
        plain = not any(row.sizes is not None or row.cluster for row in rows)
        return base if len(base) > 1 and REFERENCE in base and len(base) == len(rows) and plain else {}

    @cached_property
    def rising(self) -> bool:
        """`may_rise` of the control."""
        return may_rise(self.base)

    def _against_control(self) -> Plan:
        """Every other arm against the control sampled at several temperatures, once each, and a guesser: a line per arm."""
        lines = []
        for name in self.names if self.base else []:
            pair = ArmPair(
                a=name, b=self.of_task.control + AT_ANY, why="colder", left=self.of_task.table.where(arm=name), right=self.control,
                task=self.of_task.task,
            )  # fmt: skip
            own = pair.left.where(temperature=REFERENCE).scores()
            if own is None or name == self.of_task.control or own.n is None or not own.is_plain:
                continue
            # A point estimate above the base's best is no sign that the base does not reach it: half of the arms that do have one.
            beyond = self._against_best(own, 1).outcome == "better"
            k = min(self.of_task.k, own.n, *(n for n, _ in self.base.values()))
            metrics = [metric for metric in above_colder(k) if (metric.at == "b best") == (beyond or metric.k == 1)]
            lines.append(([pair], metrics, self.against_control))
        return lines

    def against_control(self, pair: ArmPair, metric: Metric) -> Estimate | None:
        """An arm against the control at its best temperature, or against its best mixture of temperatures and a guesser."""
        own = pair.left.where(temperature=REFERENCE).scores()
        if own is None or own.n is None:
            return None
        if metric.at == "b best":
            return Estimate(self._against_best(own, metric.k or 0), rising=self.rising)
        tables = [{REFERENCE: (own.n, right)} for right in own.values.astype(int)]
        guessers = guesses_of(self.control.rows[0].chance)
        gap = above_mixtures_of_counts(tables, [[self.base]], metric.k or 0, guessers=guessers, capped=True)
        return None if gap is None else Estimate(compare_hull(gap), rising=self.rising)

    def _against_best(self, own: ProblemScores, k: int) -> PairedDifference:
        """pass@k of an arm less that of the control at the temperature of its best pass@1."""
        n, right, fixed = own.n or 0, own.values.astype(int), self.of_task.fixed
        best_n, best = max(self.base.values(), key=lambda counts: float(counts[1].mean()) / counts[0])
        if len(right) > 1:
            return paired_by.paired_seed_counts(n, right, best, k, n_b=best_n, fixed=fixed)
        return paired_by.paired_counts(n, right[0], best, k, n_b=best_n)


def may_rise(base: Mapping[float, frontiers.RightCounts]) -> bool:
    """Return whether a temperature below the lowest may have a higher pass@1, so that the best may not be among the given ones.

    It may unless pass@1 is shown to fall at the lowest: some higher temperature has more right samples on these problems than the
    noise of the samples gives, one-sided at `FALL` shared among the higher temperatures (Bonferroni). A rise that is not
    significant does not count as a fall. A temperature of `COLDEST` or less is the lowest worth sampling.

    base: temperature -> (n, right (N,)), two temperatures or more."""
    lowest, *warmer = sorted(base)
    fallen = any(paired_by.more_right_p(*base[t], *base[lowest]) < FALL / len(warmer) for t in warmer)
    return lowest > COLDEST and not fallen


def _tables(arm: Measurements[SampledMeasurement]) -> dict[int, dict[float, frontiers.RightCounts]]:
    """Training seed -> temperature -> (n, right samples (N,))."""
    tables: dict[int, dict[float, frontiers.RightCounts]] = {}
    for row in arm.rows:
        tables.setdefault(row.seed or 0, {})[row.temperature] = (row.n, row.values)
    return tables
