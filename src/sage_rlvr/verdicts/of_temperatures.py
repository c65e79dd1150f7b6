"""Rows of samples at several temperatures: an arm against the base at any temperature, against sets of baselines, and frontiers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sage_rlvr.verdicts.baselines import ABOVE, guesses_of
from sage_rlvr.verdicts.chance import Chance
from sage_rlvr.verdicts.design import AT_ANY, BASE, Envelope, Why
from sage_rlvr.verdicts.measurements import Measurement, Measurements, SampledMeasurement
from sage_rlvr.verdicts.metric import FEW, REFERENCE, Metric
from sage_rlvr.verdicts.pairs import ArmPair, Sides
from sage_rlvr.verdicts.row import Estimate, Row
from sage_rlvr.verdicts.stats import frontier as frontiers
from sage_rlvr.verdicts.stats import paired as paired_by
from sage_rlvr.verdicts.stats.arrays import Ints
from sage_rlvr.verdicts.stats.hull import compare_hull
from sage_rlvr.verdicts.stats.mixture import above_mixtures_of_counts
from sage_rlvr.verdicts.stats.paired import PairedDifference
from sage_rlvr.verdicts.stats.passk import powers

COLDEST = 0.05
"""The lowest temperature above 0 that is worth sampling: below it a policy is nearly greedy."""
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


def colder_rows(
    control: Measurements[SampledMeasurement], others: Sequence[Measurements[Measurement]], k: int, fixed: bool
) -> Iterator[Row]:
    """Every other arm against the control sampled at several temperatures, once each, and a guesser. fixed: as in
    `paired_seeds`."""
    base = {row.temperature: (row.n, row.values.astype(int)) for row in control.rows}
    plain = not any(row.sizes is not None or row.cluster for row in control.rows)
    if len(base) < 2 or REFERENCE not in base or len(base) < len(control.rows) or not plain:
        return
    first = control.rows[0]
    for other in others:
        yield from _against_line(base, first.chance, other, first.arm, first.arm + AT_ANY, "colder", k, fixed)


def mixture_rows(
    here: Measurements[SampledMeasurement], control: str, others: Sequence[Measurements[Measurement]], k: int, fixed: bool
) -> Iterator[Row]:
    """Every other arm against the policies between the control and a policy (`lines_of`), as against a colder control. fixed: as
    in `paired_seeds`."""
    for line in lines_of(here, control):
        mixed = {row.arm for row in line.points.values() if row.mixture}
        for other in others:
            arm = other.rows[0].arm if other else control
            points = {d: (row.n, row.values.astype(int)) for d, row in line.points.items() if row.arm != arm}
            if arm not in mixed and len(points) > 1:
                chance = line.points[max(line.points)].chance
                yield from _against_line(points, chance, other, control, line.name, "weights", k, fixed)


@dataclass(frozen=True, eq=False)
class Line:
    """The policies between a control and a policy whose weights are mixed, each sampled once at the reference temperature.

    name: As the second arm of rows.
    points: Measurement by its distance from the policy: 1 less the share of the policy's weights, 0 for the policy itself. The
        control has 1, or 2 if only the upper layers are mixed, so that it is none of these mixtures.
    """

    name: str
    points: dict[float, SampledMeasurement]


def lines_of(here: Measurements[SampledMeasurement], control: str) -> list[Line]:
    """The lines of a task whose base is the control. here: the samples of the task."""
    rows = [row for row in here.where(temperature=REFERENCE).rows if row.sizes is None and not row.cluster]
    by_revision = {row.identity.get("revision"): row for row in rows if not row.mixture}
    mixed: dict[tuple[str, str, str], list[SampledMeasurement]] = {}
    for row in rows:
        if row.mixture:
            mixed.setdefault((row.mixture["policy"], row.mixture["base"], row.mixture["layers"]), []).append(row)
    lines = []
    for (policy, base, layers), some in mixed.items():
        home, own = by_revision.get(base), by_revision.get(policy)
        if home is None or home.arm != control:
            continue
        points = {2.0 if layers == "upper" else 1.0: home} | {1 - float(row.mixture["share"]): row for row in some}
        several = own is not None and sum(row.arm == own.arm for row in rows) > 1
        name = "its policy" if own is None else own.name if several else own.arm
        if own is not None:
            points[0.0] = own
        upper = " in the upper layers" * (layers == "upper")
        lines.append(Line(f"weights between {control} and {name}{upper}", points))
    return lines


def _against_line(
    line: Mapping[float, tuple[int, Ints]], chance: Chance | None, other: Measurements[Measurement], home: str, b: str,
    why: Why, k: int, fixed: bool,
) -> Iterator[Row]:  # fmt: skip
    """An arm against the best mixture per completion of policies that need no further training. line: as of `may_rise`, at
    temperatures or at distances from a policy. home: the arm that is not compared. b, why: of the rows."""
    own = other.where(temperature=REFERENCE).scores()
    if own is None or own.arm == home or own.n is None or not own.is_plain:
        return
    rising, (best_n, best_right) = may_rise(line), max(line.values(), key=lambda counts: float(counts[1].mean()) / counts[0])
    n, right = own.n, own.values.astype(int)
    # A point estimate above the line's best is no sign that the line does not reach it: half of the arms that do have one.
    beyond = _against_best(right, n, best_right, best_n, 1, fixed).outcome == "better"
    for metric in above_colder(min(k, n, *(size for size, _ in line.values()))):
        if (metric.at == "b best") != (beyond or metric.k == 1):
            continue
        if metric.at == "mixture":
            tables = [{REFERENCE: (n, row)} for row in right]
            above_it = above_mixtures_of_counts(tables, [[line]], metric.k or 0, guessers=guesses_of(chance), capped=True)
            assert above_it is not None  # the line has samples
            comparison = compare_hull(above_it)
        else:
            comparison = _against_best(right, n, best_right, best_n, metric.k or 0, fixed)
        yield Row(a=own.arm, b=b, why=why, task=own.task, metric=metric, comparison=comparison, rising=rising)


def may_rise(base: Mapping[float, frontiers.RightCounts]) -> bool:
    """Whether a temperature below the lowest may have a higher pass@1, so that the best may not be among the given ones.

    It may unless pass@1 is shown to fall at the lowest: some higher temperature has more right samples on these problems than the
    noise of the samples gives, one-sided at `FALL` shared among the higher temperatures (Bonferroni). A rise that is not
    significant does not count as a fall. A temperature of `COLDEST` or less is the lowest worth sampling.

    Of mixtures of weights the lowest distance from the policy is judged alike: a larger share may have a higher pass@1.

    base: temperature -> (n, right (N,)), two temperatures or more."""
    lowest, *warmer = sorted(base)
    fallen = any(paired_by.more_right_p(*base[t], *base[lowest]) < FALL / len(warmer) for t in warmer)
    return lowest > COLDEST and not fallen


def _against_best(right: Ints, n: int, best_right: Ints, best_n: int, k: int, fixed: bool) -> PairedDifference:
    """pass@k of an arm, right (S, N), less that of the control at the temperature of its best pass@1, best_right (N,)."""
    if len(right) > 1:
        return paired_by.paired_seed_counts(n, right, best_right, k, n_b=best_n, fixed=fixed)
    return paired_by.paired_counts(n, right[0], best_right, k, n_b=best_n)


def envelope_rows(here: Measurements[SampledMeasurement], name: str, envelope: Envelope, k: int) -> Iterator[Row]:
    """A candidate against the best mixture of a set of baselines, from samples; the base and a guesser are allowed in it."""
    arms, names = here.by_arm(), (name, *envelope.arms)
    if not all(one in arms for one in names):
        return
    tables = {one: _tables(arms[one]) for one in (*names, BASE) if one in arms}
    seeds = sorted(set.intersection(*(set(tables[one]) for one in names)))
    if not seeds:
        return
    own, *rivals = ([tables[one][seed] for seed in seeds] for one in names)
    if BASE in tables and BASE not in names:
        rivals.append(list(tables[BASE].values())[:1])
    first = here.rows[0]
    largest, guessers = min(k, *(row.n for row in here.rows)), guesses_of(first.chance)
    for metric in ABOVE:
        if metric.at != "mixture" or (metric.k or 0) > largest:
            continue
        metric = replace(metric, k=metric.k or largest)
        gap = above_mixtures_of_counts(own, rivals, metric.k or 0, metric.temperature, guessers=guessers)
        if gap is not None:
            comparison = compare_hull(gap)
            yield Row(a=name, b=envelope.name, why="envelope", task=first.task, metric=metric, comparison=comparison)


def _tables(arm: Measurements[SampledMeasurement]) -> dict[int, dict[float, frontiers.RightCounts]]:
    """Training seed -> temperature -> (n, right samples (N,))."""
    tables: dict[int, dict[float, frontiers.RightCounts]] = {}
    for row in arm.rows:
        tables.setdefault(row.seed or 0, {})[row.temperature] = (row.n, row.values)
    return tables


def count_frontier_row(pair: ArmPair, both: Mapping[float, Sides], most: int) -> Row:
    """pass@k at equal pass@1 of two arms with one run each. both: temperature -> their scores; most: the largest k."""
    left = {t: (one.n or 0, one.values[0]) for t, (one, _) in both.items()}
    right = {t: (two.n or 0, two.values[0]) for t, (_, two) in both.items()}
    k = min(most, *(one.n or 0 for one, _ in both.values()))
    found = of_frontier(frontiers.compare_count_frontiers(left, right, k=k))
    return pair.row(Metric(k=k, at="equal"), found)


def of_frontier(gap: frontiers.FrontierGap) -> Estimate:
    """A mean over the pass@1 that both frontiers cover."""
    return Estimate(gap.comparison, covers=None if gap.value is None else (gap.low, gap.high))
