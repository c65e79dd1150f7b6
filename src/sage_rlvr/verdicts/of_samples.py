"""The comparisons of the samples of a task: the list `Sampled.plan` and its estimators. A new comparison is a line and an
estimator; mixtures of temperatures are in of_temperatures.py.
"""

from __future__ import annotations

from itertools import product

from sage_rlvr.verdicts.kl import Kls, base_of, exact_kls, kl_difference, kls_of, matched
from sage_rlvr.verdicts.metric import KLS, Matched, Metric
from sage_rlvr.verdicts.pairs import ArmPair, Plan, control_of, matched_pairs, sampled_pairs
from sage_rlvr.verdicts.results import Results
from sage_rlvr.verdicts.row import Estimate
from sage_rlvr.verdicts.units import units_of


class Sampled:
    """The samples of a task, and the estimators that read them.

    table: all measurements of the task; samples: those from samples; arms: the same by arm
    control: the arm that others are compared with
    fewest: the largest k that every arm has at every temperature
    exact: arms with exact records of the main task; their pairs are left out, since the exact comparison is more precise
    base: the revision of the base that exact KLs refer to"""

    def __init__(self, results: Results, task: str) -> None:
        sampled = results.table.sampled()
        self.design, self.k, self.fixed, self.task = results.design, results.k, results.fixed, task
        self.table = results.table.where(task=task)
        self.samples = sampled.where(task=task)
        self.arms = self.samples.by_arm()
        self.control = control_of(self.design, self.samples)
        self.fewest = min(self.k, *(row.n for row in self.samples.rows))
        self.exact = {*results.table.exact().where(task="").by_arm()}
        self.temperatures = sorted({row.temperature for row in self.samples.rows}, reverse=True)
        self.runs, self.base = results.runs, base_of(sampled)

    def plan(self) -> Plan:
        """The comparisons, in the order of the rows."""
        pairs = sampled_pairs(self.design, self.table, self.arms, self.control, self.exact)
        matches = matched_pairs(self.design, self.arms, self.task, self.exact)
        ks = self.design.ks(self.fewest)
        at_kl = [Metric(k=n, temperature=t, matched=kl) for t, kl, n in product(self.temperatures, KLS, ks)]
        lines = [line for pair in pairs for line in self._of_pair(pair)]
        return [*lines, (matches, at_kl, self.at_equal_kl)]

    def _of_pair(self, pair: ArmPair) -> Plan:
        """pass@k at each k and the KL, at every temperature that both arms have; then pass@k at equal pass@1. k is at most the
        number of samples."""
        both = pair.by_temperature(self.temperatures)
        sizes, ks = {t: one.n or 0 for t, (one, _) in both.items()}, self.design.ks(self.k)
        lines = []
        for t, n in sizes.items():
            metrics = [Metric(k=k, temperature=t) for k in sorted({min(k, n) for k in ks})]
            lines += [([pair], metrics, self.scores), ([pair], [Metric(name="exact KL", temperature=t)], self.kl)]
        if len(both) > 1:
            lines.append(([pair], [Metric(k=min(self.k, *sizes.values()), at="equal")], self.at_equal_pass1))
        return lines

    # ---- estimators

    def scores(self, pair: ArmPair, metric: Metric) -> Estimate | None:
        """pass@k at one temperature."""
        sides = pair.sides(metric.temperature)
        if sides is None:
            return None
        one, two = sides
        one.check_alike(two)
        return Estimate(units_of(one, two, fixed=self.fixed).gap(metric.k or 0))

    def kl(self, pair: ArmPair, metric: Metric) -> Estimate | None:
        """KL to the reference, over several training seeds."""
        sides = pair.sides(metric.temperature)
        seeds = sorted({*sides[0].seeds} & {*sides[1].seeds}) if sides is not None else []
        return kl_difference(pair, self._kls(metric)["exact KL"], seeds) if len(seeds) > 1 else None

    def at_equal_pass1(self, pair: ArmPair, metric: Metric) -> Estimate | None:
        """pass@k at equal pass@1 of two arms with one run each; None for several training seeds, for problems with different
        numbers of samples, and for clusters."""
        from sage_rlvr.verdicts.stats.frontier import compare_count_frontiers  # a single temperature has no frontier

        both = pair.by_temperature(self.temperatures)
        if not all(len(side.values) == 1 and side.is_plain for sides in both.values() for side in sides):
            return None
        left, right = ({t: (sides[i].n or 0, sides[i].values[0]) for t, sides in both.items()} for i in (0, 1))
        gap = compare_count_frontiers(left, right, k=metric.k or 0)
        return Estimate(gap.comparison, covers=gap.covers)

    def at_equal_kl(self, pair: ArmPair, metric: Metric) -> Estimate | None:
        """`kl.matched` of these arms."""
        return matched(self.design, self.arms, self._kls(metric), pair, metric, self.fixed)

    def _kls(self, metric: Metric) -> dict[Matched, Kls]:
        """The KLs at which arms are matched at the temperature of a metric."""
        return kls_of(self.runs, exact_kls(self.samples.where(temperature=metric.temperature), self.base))
