"""The list of all comparisons: each pair of the design and each metric once, Holm-corrected in at most two families.

primary       the design's `questions:`; in a design with baselines, every candidate against them and against the tempered base,
              pass@8 and pass@k at equal pass@1; else every arm against its controls, pass@1 and pass@k on the main task at the
              reference temperature
exploratory   all other comparisons: other temperatures, frontiers, equal pass@1, equal KL, other tasks, the base
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from sage_rlvr.evaluation.record import Record
from sage_rlvr.results.baselines import ABOVE, Allowed, above, always_allowed, guesses_of
from sage_rlvr.results.design import AT_ANY, BASE, CONTROLS, TEMPERED, Arm, Design, Envelope, Question, Why
from sage_rlvr.results.exact_kl import Kls, base_of, exact_kls, exact_kls_of_main
from sage_rlvr.results.measurements import (
    ExactMeasurements,
    Measurement,
    Measurements,
    PolicyKey,
    SampledMeasurement,
)
from sage_rlvr.results.metric import FEW, PAPER, REFERENCE, Matched, Metric
from sage_rlvr.results.pairs import ArmPair, Arms, base_pairs, common_seeds, exact_pairs, other_tasks, pair_on
from sage_rlvr.results.read import Results
from sage_rlvr.results.row import Row
from sage_rlvr.results.scores import Floats, ProblemScores
from sage_rlvr.results.sources import Runs
from sage_rlvr.results.summary_io import rows_of_summary
from sage_rlvr.stats import comparison as paired_by
from sage_rlvr.stats import frontier as frontiers
from sage_rlvr.stats.comparison import PairedDifference, Reason, holm, paired, paired_seeds
from sage_rlvr.stats.hull import compare_hull
from sage_rlvr.stats.mixture import above_mixtures, above_mixtures_of_counts
from sage_rlvr.stats.passk import powers
from sage_rlvr.stats.tempered import power_frontier, power_table
from sage_rlvr.tasks.chance import Chance


def above_colder(k: int) -> list[Metric]:
    """The metrics of a policy against `COLDER`, over powers of two: at equal pass@1, and where the base reaches the policy's
    pass@1 at no temperature, against the temperature with its best."""
    ks = [n for n in powers(k) if n >= FEW]
    metrics = [Metric(k=1, at="b best")]
    metrics += [Metric(k=n, at="mixture") for n in ks]
    metrics += [Metric(k=n, at="b best") for n in ks]
    return metrics


def compare(results: Results) -> list[Row]:
    """Every comparison of these results, corrected. A stored summary has only the comparisons that it contains."""
    if results.stored is not None:
        made = rows_of_summary(results.stored)
    else:
        made = list(_exact(results))
    made += _sampled(results)
    policies = results.table.policies()
    return [with_chance(row, results.chances.get(row.task), policies) for row in corrected(results, made)]


def with_chance(row: Row, chance: Chance | None, policies: Mapping[PolicyKey, Measurements[Measurement]]) -> Row:
    """The row with the chance floor of its k > 1; a row of a stored summary has it already."""
    k, t = row.metric.k or 0, row.metric.temperature
    if chance is None or row.chance is not None or k < 2 or row.metric.name != "pass":
        return row
    below = (False, False)
    if row.metric == Metric(k=k, temperature=t):
        a, b = (policies.get((name, row.task, t)) for name in (row.a, row.b))
        below = (_is_below(a, k, chance), _is_below(b, k, chance))
    return replace(row, chance=chance.at(k), below=below)


def _is_below(policy: Measurements[Measurement] | None, k: int, chance: Chance) -> bool:
    scores = None if policy is None else policy.scores()
    return scores is not None and scores.below(k, chance)


def corrected(results: Results, made: Sequence[Row]) -> list[Row]:
    """The rows with their family and Holm's p.

    A candidate that the design discarded counts in the primary family with p = 1, with as many tests as a candidate that was
    run."""
    made = [replace(row, comparison=row.comparison.of_shares()) if row.metric.name == "pass" else row for row in made]
    primary, design = _primary(results, made), results.design
    rows = [replace(row, family="primary" if row in primary else "exploratory") for row in made]
    for family in ("primary", "exploratory"):
        tested = [i for i, row in enumerate(rows) if row.family == family and math.isfinite(row.comparison.p)]
        p_values = [rows[i].comparison.p for i in tested]
        if family == "primary":
            tests = Counter(rows[i].a for i in tested if rows[i].a in design.candidates)
            p_values += [1.0] * (len(design.discarded) * max(tests.values(), default=0))
        adjusted = holm(p_values).tolist()
        for i, p in zip(tested, adjusted, strict=False):
            rows[i] = replace(rows[i], adjusted=p, family_size=len(adjusted))
    return rows


def answering(design: Design, rows: Sequence[Row]) -> list[tuple[Question, list[Row]]]:
    """The design's questions, each with its rows of either sign. A row at equal KL answers questions about each of the arms
    that it interpolates between."""
    tasks = {row.task for row in rows}
    main = tasks.pop() if len(tasks) == 1 else ""  # of samples alone every row carries its task's name

    def is_of(row: Row, q: Question) -> bool:
        a, b = design.called(q.a), design.called(q.b)
        arm = design.arm(row.a) if row.metric.matched else None
        rivals = {row.b, *(arm.matched if arm else ())}
        same_pair = (row.a == a and b in rivals) or (row.a == b and a in rivals)
        return same_pair and (row.metric, row.task) == (q.metric, q.task or main)

    return [(q, [row for row in rows if is_of(row, q)]) for q in design.questions]


def _primary(results: Results, rows: Sequence[Row]) -> list[Row]:
    """The rows of the primary family."""
    design = results.design
    if design.questions:
        answers = [row for _, of_question in answering(design, rows) for row in of_question]
        return [row for row in rows if row in answers]
    if design.baselines:
        against = [row for row in rows if row.why in ("envelope", "power") and row.a in design.candidates]
        for at in ("mixture", "hull", "a equal"):  # older summaries have the hull, or the last alone
            metrics = [Metric(k=k, at=at) for k in (FEW, results.k)]  # type: ignore[arg-type]
            primary = [row for row in against if row.metric in metrics]
            if primary:
                return primary
        return []
    main = {""} if any(row.task == "" for row in rows) else {row.task for row in rows}
    temperatures = {row.metric.temperature for row in rows if row.task}
    only = temperatures.pop() if len(temperatures) == 1 else REFERENCE  # of samples, where there is a single one
    plain = []
    for row in rows:
        temperature = only if row.task else REFERENCE
        if row.task in main and row.metric == Metric(k=row.metric.k, temperature=temperature):
            plain.append(row)
    controls = [row for row in plain if row.why in CONTROLS and row.a not in design.extra_arms]
    return controls or [row for row in plain if row.why == "base"]


# ------------------------------------------------------------------------------------------------------------------
# exact records


def _exact(results: Results) -> Iterator[Row]:
    design, table, k, several = results.design, results.table.exact(), results.k, results.several
    arms = table.where(task="").by_arm()
    base = arms.get(results.home or "", ExactMeasurements())
    pairs, based = exact_pairs(design, arms), base_pairs(design, arms)
    kls = _kls(results.runs, exact_kls_of_main(results.table.sampled()))
    for temperature in (REFERENCE, PAPER):
        for pair in (*pairs, *based):
            yield from _scores(pair, temperature, k, several)
        for arm in design.arms:
            yield from _matched(arm, arms, kls, temperature, (1, k))
    for pair in (*pairs, *based):
        yield from _frontiers(pair, k, several)
    for pair in (*pairs, *_added(design, arms)) if several else ():
        yield from _near(pair, k)
    for pair in (*pairs, *based):
        if pair.b == results.home or design.every:
            yield from _at_best(pair, k, several)
    yield from _envelopes(design, arms, always_allowed(base, results.base_record), k)
    yield from _tempered(design, arms, base, results.base_record, k)
    for pair in pairs if several else ():
        seeds = common_seeds(pair.left.exact(), pair.right.exact())
        yield from _of_kls(pair, kls["raw KL"], seeds, Metric(name="raw KL", at="end"))
        yield from _of_kls(pair, kls["exact KL"], seeds, Metric(name="exact KL"))
    for pair in other_tasks(design, table):
        yield from _scores(pair, REFERENCE, k, several)


def _row(pair: ArmPair, metric: Metric, comparison: PairedDifference) -> Row:
    return Row(a=pair.a, b=pair.b, why=pair.why, task=pair.task, metric=metric, comparison=comparison)


def _scores(pair: ArmPair, temperature: float, k: int, several: bool) -> Iterator[Row]:
    sides = pair.sides(temperature)
    if sides is None:
        return
    for n in (1, k):
        left, right = (side.passes([n])[..., 0] for side in sides)
        yield _row(pair, Metric(k=n, temperature=temperature), _paired(left, right, several))


def _paired(left: Floats, right: Floats, several: bool) -> PairedDifference:
    """(S, N) each: over training seeds where some arm has several, else over problems."""
    return paired_seeds(*np.broadcast_arrays(left, right)) if several else paired(left[0], right[0])


def _of_gaps(gaps: Sequence[float | None], reason: Reason) -> tuple[PairedDifference, int]:
    """One gap per training seed against zero, and the number of seeds without a gap. "unknown" if there is one: such seeds are
    those with the largest differences."""
    known = [gap for gap in gaps if gap is not None]
    if known and len(known) == len(gaps):
        return paired_seeds(known, np.zeros(len(known))), 0
    return paired_by.unknown(reason, n=len(known), over="training seeds"), len(gaps) - len(known)


def _runs_with_frontiers(pair: ArmPair) -> list[tuple[ExactMeasurements, ExactMeasurements]]:
    """The runs of both arms at every common seed; empty if a run has a single temperature."""
    runs = pair.runs
    return runs if all(len(run.rows) > 1 for both in runs for run in both) else []


def _frontiers(pair: ArmPair, k: int, several: bool) -> Iterator[Row]:
    """pass@k at equal pass@1: the mean over the pass@1 that both arms cover."""
    runs, metric = _runs_with_frontiers(pair), Metric(k=k, at="equal")
    if runs and not several:
        one, two = runs[0]
        yield _of_frontier(pair, metric, frontiers.compare_frontiers(one.p, two.p, k=k))
    elif runs:
        gaps = [frontiers.gap_to_frontier(one.points, two.points) for one, two in runs]
        comparison, left_out = _of_gaps([gap.value for gap in gaps], Reason.NO_COMMON_RANGE)
        row = replace(_row(pair, metric, comparison), left_out=left_out)
        if comparison.known:
            low = float(np.mean([gap.low for gap in gaps]))
            high = float(np.mean([gap.high for gap in gaps]))
            row = replace(row, covers=(low, high))
        yield row


def _of_frontier(pair: ArmPair, metric: Metric, gap: frontiers.FrontierGap) -> Row:
    covers = (gap.low, gap.high) if gap.value is not None else None
    return replace(_row(pair, metric, gap.comparison), covers=covers)


def _near(pair: ArmPair, k: int) -> Iterator[Row]:
    """pass@k and distinct right answers at equal pass@1 near the reference temperature: one point of the frontiers instead of their
    mean, which the coldest temperatures dominate."""
    runs = _runs_with_frontiers(pair)
    if not runs:
        return
    for metric in (Metric(k=k, at="near"), Metric(name="distinct", k=k, at="near")):
        gaps = [frontiers.gap_near(one.line(metric.name), two.line(metric.name)) for one, two in runs]
        comparison, left_out = _of_gaps(gaps, Reason.NOT_NEAR)
        yield replace(_row(pair, metric, comparison), left_out=left_out)


def _at_best(pair: ArmPair, k: int, several: bool) -> Iterator[Row]:
    """pass@1 of an arm and the base, or of two arms passed as separate paths, each at its best temperature. For a single training
    seed also: the arm at T = 1 against the base's best, and the base at the temperature that gives the arm's pass@1."""
    runs = pair.runs
    if not runs or any(len(two.rows) < 2 for _, two in runs):
        return
    left, right = (np.stack([_at_own_best(both[i]) for both in runs]) for i in (0, 1))
    if all(len(one.rows) > 1 for one, _ in runs):
        yield _row(pair, Metric(k=1, at="best"), _paired(left, right, several))
    if not several:
        ((one, two),) = runs
        reference = one.p[REFERENCE]
        yield _row(pair, Metric(k=1, at="b best"), paired(reference, right[0]))
        equal = frontiers.at_equal_pass1(reference, two.p, k=k)
        yield _row(pair, Metric(k=k, at="a equal"), equal.comparison)


def _at_own_best(run: ExactMeasurements) -> Floats:
    """Probabilities (N,) at the temperature with the best pass@1."""
    return run.p[frontiers.best_pass1(run.points).temperature]


def _envelopes(design: Design, arms: Arms, allowed: Allowed, k: int) -> Iterator[Row]:
    """Every candidate against the best mixture of each set of baselines."""
    metrics = [replace(metric, k=metric.k or k) for metric in ABOVE]
    for envelope, name, metric in product(design.baselines, design.candidates, metrics):
        gap = above(arms, name, envelope, metric, allowed)
        if gap is not None:
            yield Row(a=name, b=envelope.name, why="envelope", metric=metric, comparison=compare_hull(gap))


def _tempered(design: Design, arms: Arms, base: ExactMeasurements, record: Record | None, k: int) -> Iterator[Row]:
    """Every arm against the base tempered over whole completions, which uses no reward."""
    if record is None or not record.norms:
        return
    logps = base.logps
    tempered, table = power_frontier(logps, record.norms, k), power_table(logps, record.norms)
    if not tempered:
        return
    best = frontiers.best_pass1(tempered).pass1
    for name in design.names:
        runs = [] if name == design.base or name not in arms else list(arms[name].runs.values())
        if not runs:
            continue
        pair = ArmPair(a=name, b=TEMPERED, why="power", left=arms[name], right=Measurements())
        if name in design.candidates and design.baselines:
            own = [run.p for run in runs]
            for n in (k, FEW):
                gap = above_mixtures(own, [[table] * len(own)], n)
                if gap is not None:
                    yield _row(pair, Metric(k=n, at="mixture"), compare_hull(gap))
        lines = [run.points for run in runs]
        readings: dict[Metric, list[float | None]] = {
            Metric(k=1, at="best"): [frontiers.best_pass1(one).pass1 - best for one in lines],
            Metric(k=k, at="a equal"): [_at_reference(one, tempered) for one in lines],
            Metric(k=k, at="equal"): [frontiers.gap_to_frontier(one, tempered).value for one in lines],
        }
        for metric, gaps in readings.items():
            comparison, left_out = _of_gaps(gaps, Reason.NO_COMMON_RANGE)
            yield replace(_row(pair, metric, comparison), left_out=left_out)


def _at_reference(points: Sequence[frontiers.FrontierPoint], line: Sequence[frontiers.FrontierPoint]) -> float | None:
    """pass@k of the policy at the reference temperature minus pass@k of the line at the same pass@1; None outside the line."""
    point = frontiers.at_temperature(points, REFERENCE)
    if point is None:
        return None
    on_line = frontiers.passk_at(point.pass1, line)
    return None if on_line is None else point.passk - on_line[0]


def _kls(runs: Runs, exact: Kls) -> dict[Matched, Kls]:
    """The KLs at which an arm can be matched, by name."""
    raw = {key: run.raw_kl for key, run in runs.items()}
    return {"raw KL": {key: kl for key, kl in raw.items() if kl is not None}, "exact KL": exact}


def _matched(
    arm: Arm, arms: Mapping[str, Measurements[Measurement]], kls: Mapping[Matched, Kls], temperature: float, ks: Sequence[int]
) -> Iterator[Row]:
    """An arm against another method at equal KL, interpolated between that method's betas: for a guided arm, the same method
    without the guide. arms: their rows of one task."""
    names = (arm.name, *arm.matched)
    if not arm.matched or not all(name in arms for name in names):
        return
    scores = [arms[name].where(temperature=temperature).scores() for name in names]
    values = [one for one in scores if one is not None]
    seeds = sorted(set.intersection(*(set(arms[name].seeds) for name in names)))
    if len(values) < len(names) or any(not set(seeds) <= set(one.seeds) for one in values):
        return
    means = {seed: _means(values, seed, ks) for seed in seeds}
    for kind, known in kls.items():
        yield from _matched_by(kind, known, arm, means, temperature, ks, values[0].task)


def _means(values: Sequence[ProblemScores], seed: int, ks: Sequence[int]) -> Floats:
    """pass@k of each arm at a training seed, means over problems, (arms, K)."""
    own = [one.only([seed]) for one in values]
    for other in own[1:]:
        own[0].check_alike(other)
    return np.stack([one.passes(ks)[0].mean(axis=0) for one in own])


def _matched_by(
    kind: Matched, kls: Kls, arm: Arm, means: Mapping[int, Floats], temperature: float, ks: Sequence[int], task: str
) -> Iterator[Row]:
    """At equal KL of one kind; "unknown" where no training seed has a KL between those of the betas, no row without KLs."""
    own, interpolated, known = [], [], False
    for seed, (of_arm, *others) in means.items():
        kl, *rivals = [kls.get((name, seed)) for name in (arm.name, *arm.matched)]
        if kl is None or None in rivals:
            continue
        known = True
        at_kl = between(kl, np.array(rivals, dtype=float), np.stack(others))
        if at_kl is not None:
            own.append(of_arm)
            interpolated.append(at_kl)
    if not known:
        return
    rival = arm.plain or arm.matched[0]
    left_out = len(means) - len(own)
    for j, k in enumerate(ks):
        comparison = paired_by.unknown(Reason.OUTSIDE, over="training seeds")
        if own:
            comparison = paired_seeds([one[j] for one in own], [one[j] for one in interpolated])
        metric = Metric(k=k, temperature=temperature, matched=kind)
        yield Row(a=arm.name, b=rival, why="matched", task=task, metric=metric, comparison=comparison, left_out=left_out)


def between(kl: float, kls: Floats, scores: Floats) -> Floats | None:
    """Scores (K,) at KL `kl` of a method trained at several betas with kls (B,) and scores (B, K): linear interpolation in
    log KL. None outside the trained range, and if a KL is 0 or not finite and thus has no logarithm."""
    if not all(0 < one < math.inf for one in (kl, *kls)):
        return None
    order = np.argsort(kls)
    x, y = np.log(kls[order]), scores[order]
    if not x[0] <= math.log(kl) <= x[-1]:
        return None
    return np.array([np.interp(math.log(kl), x, column) for column in y.T])


def _of_kls(pair: ArmPair, kls: Kls, seeds: Sequence[int], metric: Metric) -> Iterator[Row]:
    """KL to the reference, nats per token, paired over these training seeds."""
    left = [kls.get((pair.a, seed)) for seed in seeds]
    right = [kls.get((pair.b, seed)) for seed in seeds]
    if seeds and None not in left and None not in right:
        yield _row(pair, metric, paired_seeds(np.array(left, dtype=float), np.array(right, dtype=float)))


def _added(design: Design, arms: Arms) -> list[ArmPair]:
    """Added controls, except placebos, against the control, only near the reference temperature."""
    control = design.control or ""
    if control not in arms:
        return []
    left_out = {control, *(arm.placebo for arm in design.arms)}
    added = [arm.name for arm in design.arms if arm.why and arm.name in arms and arm.name not in left_out]
    return [ArmPair(a=name, b=control, why="control", left=arms[name], right=arms[control]) for name in added]


# ------------------------------------------------------------------------------------------------------------------
# samples


def _sampled(results: Results) -> Iterator[Row]:
    """Every arm against the control on each task, from samples; in a sweep also the base and each pair of the design. Pairs with
    exact records of both arms are left out, because the exact comparison is more precise."""
    design, table, k = results.design, results.table, results.k
    sampled, exact = table.sampled(), table.exact().where(task="").by_arm()
    for task in sampled.tasks:
        here = sampled.where(task=task)
        on_task = table.where(task=task)
        kls = {}
        for t in _temperatures(here):
            kls[t] = _kls(results.runs, exact_kls(here.where(temperature=t), base_of(sampled)))
        for a, b, why in _sampled_pairs(design, here):
            if not (a in exact and b in exact):
                yield from _of_counts(pair_on(design, a, b, why, on_task), here, design.ks(k), kls)
        for arm, t in product(design.arms, kls):
            if not {arm.name, *arm.matched} <= {*exact}:
                ks = design.ks(min(k, *(row.n for row in here.rows)))
                yield from _matched(arm, here.by_arm(), kls[t], t, ks)
        for envelope, name in product(design.baselines, design.candidates):
            if name not in exact:
                yield from _envelope_of_counts(here, name, envelope, k)
        others = [on_task.where(arm=name) for name in design.names if name not in exact]
        yield from _colder(here.where(arm=control_of(design, here)), others, k)


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


def _colder(control: Measurements[SampledMeasurement], others: Sequence[Measurements[Measurement]], k: int) -> Iterator[Row]:
    """Every other arm against the control sampled at several temperatures, once each, and a guesser."""
    base = {row.temperature: (row.n, row.values.astype(int)) for row in control.rows}
    plain = not any(row.sizes is not None or row.cluster for row in control.rows)
    if len(base) < 2 or REFERENCE not in base or len(base) < len(control.rows) or not plain:
        return
    first = control.rows[0]
    best_n, best_right = max(base.values(), key=lambda counts: float(counts[1].mean()) / counts[0])
    for other in others:
        own = other.where(temperature=REFERENCE).scores()
        if own is None or own.arm == first.arm or own.n is None or not own.is_plain:
            continue
        n, right = own.n, own.values.astype(int)
        beyond = right.mean() / n > best_right.mean() / best_n  # no mixture of temperatures has this pass@1
        largest = min(k, n, *(size for size, _ in base.values()))
        for metric in above_colder(largest):
            if (metric.at == "b best") != (beyond or metric.k == 1):
                continue
            if metric.at == "mixture":
                tables = [{REFERENCE: (n, row)} for row in right]
                above_it = above_mixtures_of_counts(tables, [[base]], metric.k or 0, guesser=guesses_of(first.chance))
                assert above_it is not None  # the base has samples
                comparison = compare_hull(above_it)
            elif len(right) > 1:
                comparison = paired_by.paired_seed_counts(n, right, best_right, metric.k or 0, n_b=best_n)
            else:
                comparison = paired_by.paired_counts(n, right[0], best_right, metric.k or 0, n_b=best_n)
            yield Row(a=own.arm, b=first.arm + AT_ANY, why="colder", task=own.task, metric=metric, comparison=comparison)


def _envelope_of_counts(here: Measurements[SampledMeasurement], name: str, envelope: Envelope, k: int) -> Iterator[Row]:
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
    largest, guesser = min(k, *(row.n for row in here.rows)), guesses_of(first.chance)
    for metric in ABOVE:
        if metric.at != "mixture" or (metric.k or 0) > largest:
            continue
        metric = replace(metric, k=metric.k or largest)
        gap = above_mixtures_of_counts(own, rivals, metric.k or 0, metric.temperature, guesser=guesser)
        if gap is not None:
            comparison = compare_hull(gap)
            yield Row(a=name, b=envelope.name, why="envelope", task=first.task, metric=metric, comparison=comparison)


def _tables(arm: Measurements[SampledMeasurement]) -> dict[int, dict[float, frontiers.RightCounts]]:
    """Training seed -> temperature -> (n, right samples (N,))."""
    tables: dict[int, dict[float, frontiers.RightCounts]] = {}
    for row in arm.rows:
        tables.setdefault(row.seed or 0, {})[row.temperature] = (row.n, row.values)
    return tables


def _of_counts(
    pair: ArmPair, here: Measurements[SampledMeasurement], ks: Sequence[int], kls: Mapping[float, Mapping[Matched, Kls]]
) -> Iterator[Row]:
    """At every temperature that both have, pass@k at each k that the samples suffice for, and at all samples if they are fewer."""
    both: dict[float, tuple[ProblemScores, ProblemScores]] = {}
    for t in _temperatures(here):
        sides = pair.sides(t)
        if sides is None:
            continue
        one, two = both[t] = sides
        one.check_alike(two)
        for m in sorted({min(k, one.n or 0) for k in ks}):
            yield _row(pair, Metric(k=m, temperature=t), counted(one, two, m))
        seeds = sorted(set(one.seeds) & set(two.seeds))
        if len(seeds) > 1:
            yield from _of_kls(pair, kls[t]["exact KL"], seeds, Metric(name="exact KL", temperature=t))
    plain = all(len(side.values) == 1 and side.is_plain for sides in both.values() for side in sides)
    if len(both) > 1 and plain:
        left = {t: (one.n or 0, one.values[0]) for t, (one, _) in both.items()}
        right = {t: (two.n or 0, two.values[0]) for t, (_, two) in both.items()}
        k = min(max(ks), *(one.n or 0 for one, _ in both.values()))
        yield _of_frontier(pair, Metric(k=k, at="equal"), frontiers.compare_count_frontiers(left, right, k=k))


def counted(a: ProblemScores, b: ProblemScores, k: int) -> PairedDifference:
    """pass@k of two arms from samples: over problems, or over training seeds where an arm has several."""
    left, right = a.values.astype(int), b.values.astype(int)
    if max(len(left), len(right)) == 1:
        return paired_by.paired_counts(a.samples[0], left[0], right[0], k, n_b=b.samples[0], cluster=a.cluster or None)
    return paired_by.paired_seed_counts(a.samples, left, right, k, n_b=b.samples)
