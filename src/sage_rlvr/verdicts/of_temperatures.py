"""The comparisons of samples with mixtures of temperatures, and with mixtures of the weights of a base and a policy: the lists
`AnyTemperature.plan` and `plan_of_weights`, and their estimators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from sage_rlvr.verdicts.baselines import guesses_of
from sage_rlvr.verdicts.chance import Chance
from sage_rlvr.verdicts.design import AT_ANY, BASE, Why
from sage_rlvr.verdicts.measurements import Measurement, Measurements, SampledMeasurement
from sage_rlvr.verdicts.metric import FEW, REFERENCE, Metric, above_baselines
from sage_rlvr.verdicts.of_samples import Sampled
from sage_rlvr.verdicts.pairs import ArmPair, Line, Plan
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

    def _against_control(self) -> Plan:
        """Every other arm against the control sampled at several temperatures, once each, with equal numbers of samples of
        independent problems: a line per arm."""
        rows, control = self.control.rows, self.of_task.control
        points = {row.temperature: (row.n, row.values.astype(int)) for row in rows}
        plain = not any(row.sizes is not None or row.cluster for row in rows)
        if len(points) < 2 or REFERENCE not in points or len(points) < len(rows) or not plain:
            return []
        rivals = Rivals(control + AT_ANY, "colder", points, rows[0].chance, self.of_task)
        arms = (self.of_task.table.where(arm=name) for name in self.names if name != control)
        return [line for arm in arms for line in rivals.plan(arm, self.control)]


@dataclass(frozen=True, eq=False)
class Rivals:
    """Policies that need no further training, each sampled once: a base at several temperatures, or mixed weights.

    name, why: `b` and `why` of the rows.
    points: (n, right (N,)) by temperature, or by distance from a policy, as `may_rise` takes them.
    chance: The floor, whose guessers are allowed in a mixture.
    of_task: The samples of the task.
    """

    name: str
    why: Why
    points: Mapping[float, tuple[int, Ints]]
    chance: Chance | None
    of_task: Sampled

    @cached_property
    def rising(self) -> bool:
        """`may_rise` of the points."""
        return may_rise(self.points)

    def plan(self, arm: Measurements[Measurement], right: Measurements[SampledMeasurement]) -> Plan:
        """The comparisons of an arm with them, if it has independent samples at the reference temperature. right: of the
        `ArmPair`."""
        own = arm.where(temperature=REFERENCE).scores()
        if own is None or own.n is None or not own.is_plain:
            return []
        pair = ArmPair(a=own.arm, b=self.name, why=self.why, left=arm, right=right, task=self.of_task.task)
        # A point estimate above their best is no sign of more: half of the arms that are only as good have one.
        beyond = self._against_best(own, 1).outcome == "better"
        k = min(self.of_task.k, own.n, *(n for n, _ in self.points.values()))
        metrics = [metric for metric in above_colder(k) if (metric.at == "b best") == (beyond or metric.k == 1)]
        return [([pair], metrics, self.against)]

    def against(self, pair: ArmPair, metric: Metric) -> Estimate | None:
        """An arm against the point with the best pass@1, or against the best mixture per completion of the points and a guesser."""
        own = pair.left.where(temperature=REFERENCE).scores()
        if own is None or own.n is None:
            return None
        if metric.at == "b best":
            return Estimate(self._against_best(own, metric.k or 0), rising=self.rising)
        tables = [{REFERENCE: (own.n, right)} for right in own.values.astype(int)]
        guessers = guesses_of(self.chance)
        gap = above_mixtures_of_counts(tables, [[self.points]], metric.k or 0, guessers=guessers, capped=True)
        return None if gap is None else Estimate(compare_hull(gap), rising=self.rising)

    def _against_best(self, own: ProblemScores, k: int) -> PairedDifference:
        """pass@k of an arm less that of the point with the best pass@1."""
        n, right, fixed = own.n or 0, own.values.astype(int), self.of_task.fixed
        best_n, best = max(self.points.values(), key=lambda counts: float(counts[1].mean()) / counts[0])
        if len(right) > 1:
            return paired_by.paired_seed_counts(n, right, best, k, n_b=best_n, fixed=fixed)
        return paired_by.paired_counts(n, right[0], best, k, n_b=best_n)


# ---- weights between a base and a policy


def plan_of_weights(of_task: Sampled) -> Plan:
    """Every other arm against the policies between the control and a policy (`lines_of`), as against a colder control."""
    lines: list[Line] = []
    names = [name for name in of_task.design.names if name not in of_task.exact]
    for one in lines_of(of_task.samples, of_task.control):
        mixed = {row.arm for row in one.points.values() if row.mixture}
        for name in names:
            points = {d: (row.n, row.values.astype(int)) for d, row in one.points.items() if row.arm != name}
            if name not in {*mixed, of_task.control} and len(points) > 1:
                rivals = Rivals(one.name, "weights", points, one.points[max(one.points)].chance, of_task)
                lines += rivals.plan(of_task.table.where(arm=name), Measurements())
    return lines


@dataclass(frozen=True, eq=False)
class WeightLine:
    """The policies between a control and a policy whose weights are mixed, each sampled once at the reference temperature.

    name: The second arm of the rows.
    points: Measurement by its distance from the policy: 1 less the share of the policy's weights, 0 for the policy itself. The
        control has 1, or 2 if only the upper layers are mixed: the control is then no mixture of the line.
    """

    name: str
    points: dict[float, SampledMeasurement]


def lines_of(here: Measurements[SampledMeasurement], control: str) -> list[WeightLine]:
    """Every `WeightLine` of a task whose base is the control. here: the samples of the task."""
    rows = [row for row in here.where(temperature=REFERENCE).rows if row.sizes is None and not row.cluster]
    by_revision = {row.identity.get("revision"): row for row in rows if not row.mixture}
    of_control = {row.identity.get("revision"): row for row in rows if not row.mixture and row.arm == control}
    mixed: dict[tuple[str, str, str], list[SampledMeasurement]] = {}
    for row in rows:
        if row.mixture:
            mixed.setdefault((row.mixture["policy"], row.mixture["base"], row.mixture["layers"]), []).append(row)
    lines = []
    unknown = {policy for policy, _, _ in mixed} - {*by_revision}
    for (policy, base, layers), some in mixed.items():
        of_base, own = of_control.get(base), by_revision.get(policy)
        if of_base is None:
            continue
        points = {2.0 if layers == "upper" else 1.0: of_base} | {1 - float(row.mixture["share"]): row for row in some}
        several = own is not None and sum(row.arm == own.arm for row in rows) > 1
        name = ("its policy" if len(unknown) == 1 else f"policy {policy[:12]}") if own is None else own.name if several else own.arm
        if own is not None:
            points[0.0] = own
        upper = " in the upper layers" * (layers == "upper")
        lines.append(WeightLine(f"weights between {control} and {name}{upper}", points))
    return lines


def may_rise(base: Mapping[float, frontiers.RightCounts]) -> bool:
    """Return whether a temperature below the lowest may have a higher pass@1, so that the best may not be among the given ones.

    It may unless pass@1 is shown to fall at the lowest: some higher temperature has more right samples on these problems than the
    noise of the samples gives, one-sided at `FALL` shared among the higher temperatures (Bonferroni). A rise that is not
    significant does not count as a fall. A temperature of `COLDEST` or less is the lowest worth sampling.

    For mixtures of weights the lowest distance from the policy is judged in the same way: a larger share may have a higher pass@1.

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
