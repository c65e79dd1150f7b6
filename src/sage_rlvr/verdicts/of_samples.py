"""The comparisons of the samples of a task: the list `Sampled.plan` and its estimators. A new comparison is a line and an
estimator; mixtures of temperatures are in of_temperatures.py.
"""

from __future__ import annotations

from itertools import product

from sage_rlvr.verdicts.design import BASE, Design, Why
from sage_rlvr.verdicts.exact_kl import base_of, exact_kls
from sage_rlvr.verdicts.matched import kl_difference, kls_of, matched, matched_pairs
from sage_rlvr.verdicts.measurements import Measurements, SampledMeasurement
from sage_rlvr.verdicts.metric import KLS, Metric
from sage_rlvr.verdicts.pairs import ArmPair, Plan, pair_on
from sage_rlvr.verdicts.results import Results
from sage_rlvr.verdicts.row import Estimate


class Sampled:
    """The samples of a task, and the estimators that read them.

    table: all measurements of the task; samples: those from samples; arms: the same by arm
    control: the arm that others are compared with
    fewest: the largest k that every arm has at every temperature
    exact: arms with exact records of the main task; a pair of two such arms is left out, since the exact comparison is more precise
    kls: temperature -> the KLs at which arms are matched"""

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
        by_temperature = {t: exact_kls(self.samples.where(temperature=t), base_of(sampled)) for t in self.temperatures}
        self.kls = {t: kls_of(results.runs, kls) for t, kls in by_temperature.items()}

    def plan(self) -> Plan:
        """The comparisons, in the order of the rows."""
        at_kl = [Metric(k=n, temperature=t, matched=kl) for t, kl, n in product(self.kls, KLS, self.design.ks(self.fewest))]
        of_pairs = [line for pair in self._pairs() for line in self._of_pair(pair)]
        return [*of_pairs, (self._matched_pairs(), at_kl, self.at_equal_kl)]

    # ---- pairs, and the lines of one pair

    def _pairs(self) -> list[ArmPair]:
        """Every arm against the control; in a sweep with samples of the base also each pair of the design."""
        design, control = self.design, self.control
        why: Why = "base" if control == design.base != design.control else "control"
        names: list[tuple[str, str, Why]] = [(name, control, why) for name in self.arms if name != control]
        if design.facts and control == BASE:
            names += [pair for pair in design.pairs() if pair[0] in self.arms and pair[1] in self.arms]
        return [pair_on(design, a, b, why, self.table) for a, b, why in names if not (a in self.exact and b in self.exact)]

    def _matched_pairs(self) -> list[ArmPair]:
        """`matched.matched_pairs`, unless all of the arms have exact records."""
        pairs = matched_pairs(self.design, self.arms, self.task)
        arms = {arm.name: {arm.name, *arm.matched} for arm in self.design.arms}
        return [pair for pair in pairs if not arms[pair.a] <= self.exact]

    def _of_pair(self, pair: ArmPair) -> Plan:
        """pass@k at each k and the KL, at every temperature that both arms have; then pass@k at equal pass@1. k is at most the
        number of samples."""
        both = {t: sides for t in self.temperatures if (sides := pair.sides(t)) is not None}
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
        return Estimate(one.minus(two, metric.k or 0, fixed=self.fixed))

    def kl(self, pair: ArmPair, metric: Metric) -> Estimate | None:
        """KL to the reference, over several training seeds."""
        sides = pair.sides(metric.temperature)
        seeds = sorted({*sides[0].seeds} & {*sides[1].seeds}) if sides is not None else []
        return kl_difference(pair, self.kls[metric.temperature]["exact KL"], seeds) if len(seeds) > 1 else None

    def at_equal_pass1(self, pair: ArmPair, metric: Metric) -> Estimate | None:
        """pass@k at equal pass@1 of two arms with one run each; None for several training seeds, for problems with different
        numbers of samples, and for clusters."""
        from sage_rlvr.verdicts.stats.frontier import compare_count_frontiers  # a single temperature has no frontier

        both = {t: sides for t in self.temperatures if (sides := pair.sides(t)) is not None}
        if not all(len(side.values) == 1 and side.is_plain for sides in both.values() for side in sides):
            return None
        left, right = ({t: (sides[i].n or 0, sides[i].values[0]) for t, sides in both.items()} for i in (0, 1))
        gap = compare_count_frontiers(left, right, k=metric.k or 0)
        return Estimate(gap.comparison, covers=gap.covers)

    def at_equal_kl(self, pair: ArmPair, metric: Metric) -> Estimate | None:
        """`matched.matched` of these arms."""
        return matched(self.design, self.arms, self.kls[metric.temperature], pair, metric, self.fixed)


def control_of(design: Design, here: Measurements[SampledMeasurement]) -> str:
    """The arm that others are compared with on a task; here: its samples."""
    arms = list(here.by_arm())
    first = (design.control,) if design.every else (BASE, design.control)
    return next((name for name in first if name in arms), arms[0])
