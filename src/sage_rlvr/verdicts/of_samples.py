"""Rows of samples: every arm against the control on each task, and in a sweep each pair of the design."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from sage_rlvr.verdicts.design import BASE, Design, Why
from sage_rlvr.verdicts.exact_kl import Kls, base_of, exact_kls
from sage_rlvr.verdicts.matched import kl_difference, kls_of, matched, matched_pairs
from sage_rlvr.verdicts.measurements import Measurements, SampledMeasurement
from sage_rlvr.verdicts.metric import KLS, Matched, Metric
from sage_rlvr.verdicts.pairs import ArmPair, pair_on
from sage_rlvr.verdicts.results import Results
from sage_rlvr.verdicts.row import Estimate, Row
from sage_rlvr.verdicts.scores import ProblemScores
from sage_rlvr.verdicts.stats import paired as paired_by
from sage_rlvr.verdicts.stats.paired import PairedDifference


def rows_of_samples(results: Results) -> Iterator[Row]:
    """Every arm against the control on each task, from samples; in a sweep also the base and each pair of the design. Pairs with
    exact records of both arms are left out, because the exact comparison is more precise."""
    design, table, k = results.design, results.table, results.k
    sampled, exact = table.sampled(), table.exact().where(task="").by_arm()
    for task in sampled.tasks:
        here = sampled.where(task=task)
        on_task = table.where(task=task)
        kls = {}
        for t in _temperatures(here):
            kls[t] = kls_of(results.runs, exact_kls(here.where(temperature=t), base_of(sampled)))
        for a, b, why in _sampled_pairs(design, here):
            if not (a in exact and b in exact):
                yield from _of_counts(pair_on(design, a, b, why, on_task), here, design.ks(k), kls, results.fixed)
        for pair, t, kl in product(matched_pairs(design, here.by_arm(), task), kls, KLS):
            arm = design.arm(pair.a)
            if arm is None or {arm.name, *arm.matched} <= {*exact}:
                continue
            for n in design.ks(min(k, *(row.n for row in here.rows))):
                metric = Metric(k=n, temperature=t, matched=kl)
                found = matched(design, here.by_arm(), kls[t], pair, metric, results.fixed)
                yield from [] if found is None else [pair.row(metric, found)]
        if design.baselines or len(kls) > 1:
            from sage_rlvr.verdicts import (
                of_temperatures,  # frontiers and mixtures, which a single temperature needs not
            )

            for envelope, name in product(design.baselines, design.candidates):
                if name not in exact:
                    yield from of_temperatures.envelope_rows(here, name, envelope, k)
            others = [on_task.where(arm=name) for name in design.names if name not in exact]
            yield from of_temperatures.colder_rows(here.where(arm=control_of(design, here)), others, k, results.fixed)
        if any(row.mixture for row in here.rows):
            from sage_rlvr.verdicts import of_temperatures

            others = [on_task.where(arm=name) for name in design.names if name not in exact]
            yield from of_temperatures.mixture_rows(here, control_of(design, here), others, k, results.fixed)


def _temperatures(here: Measurements[SampledMeasurement]) -> list[float]:
    """The temperatures of all arms, hot before cold."""
    return sorted({row.temperature for row in here.rows}, reverse=True)


def control_of(design: Design, here: Measurements[SampledMeasurement]) -> str:
    """The arm that others are compared with on a task; here: its samples."""
    arms = list(here.by_arm())
    first = (design.control,) if design.every else (BASE, design.control)
    return next((name for name in first if name in arms), arms[0])


def _sampled_pairs(design: Design, here: Measurements[SampledMeasurement]) -> list[tuple[str, str, Why]]:
    arms, control = list(here.by_arm()), control_of(design, here)
    why: Why = "base" if control == design.base != design.control else "control"
    pairs: list[tuple[str, str, Why]] = [(name, control, why) for name in arms if name != control]
    if design.facts and control == BASE:
        pairs += [pair for pair in design.pairs() if pair[0] in arms and pair[1] in arms]
    return pairs


def _of_counts(
    pair: ArmPair, here: Measurements[SampledMeasurement], ks: Sequence[int], kls: Mapping[float, Mapping[Matched, Kls]],
    fixed: bool,
) -> Iterator[Row]:  # fmt: skip
    """At every temperature that both have, pass@k at each k that the samples suffice for, and at all samples if they are fewer."""
    both: dict[float, tuple[ProblemScores, ProblemScores]] = {}
    for t in _temperatures(here):
        sides = pair.sides(t)
        if sides is None:
            continue
        one, two = both[t] = sides
        one.check_alike(two)
        for m in sorted({min(k, one.n or 0) for k in ks}):
            yield pair.row(Metric(k=m, temperature=t), Estimate(counted(one, two, m, fixed=fixed)))
        seeds = sorted(set(one.seeds) & set(two.seeds))
        if len(seeds) > 1:
            found = kl_difference(pair, kls[t]["exact KL"], seeds)
            yield from [] if found is None else [pair.row(Metric(name="exact KL", temperature=t), found)]
    plain = all(len(side.values) == 1 and side.is_plain for sides in both.values() for side in sides)
    if len(both) > 1 and plain:
        from sage_rlvr.verdicts import of_temperatures

        yield of_temperatures.count_frontier_row(pair, both, max(ks))


def counted(a: ProblemScores, b: ProblemScores, k: int, *, fixed: bool = False) -> PairedDifference:
    """pass@k of two arms from samples: over problems, and over training seeds if an arm has several. fixed: as in
    `paired_seeds`."""
    left, right = a.values.astype(int), b.values.astype(int)
    if max(len(left), len(right)) == 1:
        return paired_by.paired_counts(a.samples[0], left[0], right[0], k, n_b=b.samples[0], cluster=a.cluster or None)
    return paired_by.paired_seed_counts(a.samples, left, right, k, n_b=b.samples, fixed=fixed, cluster=a.cluster)
