"""The list of all comparisons: each pair of the design and each metric once, Holm-corrected in at most two families.

primary       the design's `questions:`; in a design with baselines, every candidate against them and against the tempered base,
              pass@8 and pass@k at equal pass@1; else every arm against its controls, pass@1 and pass@k on the main task at the
              reference temperature
exploratory   all other comparisons: other temperatures, frontiers, equal pass@1, equal raw KL, other tasks, the base
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Literal

import numpy as np

from sage_rlvr.results.design import BASE, CONTROLS, Arm, Design, Envelope, Question, Why
from sage_rlvr.results.metric import FEW, PAPER, REFERENCE, Metric
from sage_rlvr.results.read import Exact, Results
from sage_rlvr.results.scores import Floats, Scores
from sage_rlvr.stats import comparison as paired_by
from sage_rlvr.stats import frontier as frontiers
from sage_rlvr.stats.comparison import Comparison, Reason, holm, paired, paired_seeds
from sage_rlvr.stats.hull import AboveHull, above_hull, compare_hull
from sage_rlvr.stats.mixture import Table, above_mixtures, above_mixtures_of_counts
from sage_rlvr.stats.passk import powers
from sage_rlvr.stats.tempered import power_frontier, power_table

Family = Literal["primary", "exploratory"]
Pair = tuple[str, str, Why]
TEMPERED = "base tempered over whole completions"
AT_ANY = " at any temperature"
COLDER = BASE + AT_ANY
"""The base sampled at several temperatures, mixed per completion: what sampling alone reaches. Another control that was sampled so
has its own name in it."""


def above_colder(k: int) -> list[Metric]:
    """The metrics of a policy against `COLDER`, over powers of two: at equal pass@1, and where the base reaches the policy's
    pass@1 at no temperature, against the temperature with its best."""
    ks = [n for n in powers(k) if n >= FEW]
    return [Metric(k=1, at="b best"), *(Metric(k=n, at="mixture") for n in ks), *(Metric(k=n, at="b best") for n in ks)]


@dataclass(frozen=True, kw_only=True)
class Row:
    """The difference a minus b in a metric on a task ("": the main task).

    adjusted: Holm's p among the `family_size` tests of the family, NaN without a test. left_out: number of training seeds without
    a value. covers: the range of pass@1 that a mean is taken over. chance: the chance floor of pass@k with k > 1, where it is
    known; below: whether a and b lie below it."""

    a: str
    b: str
    metric: Metric
    comparison: Comparison
    task: str = ""
    why: Why = "control"
    family: Family = "exploratory"
    adjusted: float = math.nan
    family_size: int = 0
    left_out: int = 0
    covers: tuple[float, float] | None = None
    chance: float | None = None
    below: tuple[bool, bool] = (False, False)

    @property
    def holds(self) -> bool:
        """Whether the difference is significant after the correction of its family."""
        level = self.comparison.difference.level
        return self.comparison.outcome in ("better", "worse") and self.adjusted < 1 - level


def compare(results: Results) -> list[Row]:
    """Every comparison of these results, corrected. A stored summary has only the comparisons that it contains."""
    if results.stored is not None and not results.records:
        from sage_rlvr.results.stored import rows_of_summary

        made = rows_of_summary(results.stored)
    else:
        made = list(_exact(results))
    return [beside_chance(results, row) for row in corrected(results, [*made, *_sampled(results)])]


def beside_chance(results: Results, row: Row) -> Row:
    """The row with the chance floor of its k > 1; a row of a stored summary has it already."""
    k, chance = row.metric.k or 0, results.chance(row.task)
    if chance is None or row.chance is not None or k < 2 or row.metric.name != "pass":
        return row
    arms = (row.a, row.b) if row.metric == Metric(k=k, temperature=row.metric.temperature) else ()
    sides = [results.scores(arm, row.task, row.metric.temperature) for arm in arms]
    one, two = [side is not None and side.below(k, chance) for side in sides] or (False, False)
    return replace(row, chance=chance.at(k), below=(one, two))


def corrected(results: Results, made: Sequence[Row]) -> list[Row]:
    """The rows with their family and Holm's p.

    A candidate that the design discarded counts in the primary family with p = 1, with as many tests as a candidate that was
    run."""
    made = [replace(row, comparison=row.comparison.of_shares()) if row.metric.name == "pass" else row for row in made]
    primary, design = _primary(results, made), results.design
    rows = [replace(row, family="primary" if row in primary else "exploratory") for row in made]
    for family in ("primary", "exploratory"):
        tested = [i for i, row in enumerate(rows) if row.family == family and math.isfinite(row.comparison.p)]
        each = Counter(rows[i].a for i in tested if family == "primary" and rows[i].a in design.candidates)
        unrun = [1.0] * (len(design.discarded) * max(each.values(), default=0))
        adjusted = holm([*(rows[i].comparison.p for i in tested), *unrun]).tolist()
        for i, p in zip(tested, adjusted, strict=False):
            rows[i] = replace(rows[i], adjusted=p, family_size=len(adjusted))
    return rows


def answering(design: Design, rows: Sequence[Row]) -> list[tuple[Question, list[Row]]]:
    """The design's questions, each with its rows of either sign. A row at equal raw KL answers questions about each of the arms
    that it interpolates between."""
    tasks = {row.task for row in rows}
    main = tasks.pop() if len(tasks) == 1 else ""  # of samples alone every row carries its task's name

    def is_of(row: Row, q: Question) -> bool:
        a, b = design.called(q.a), design.called(q.b)
        arm = design.arm(row.a) if row.metric.matched else None
        rivals = {row.b, *(arm.matched if arm else ())}
        asked = (row.a == a and b in rivals) or (row.a == b and a in rivals)
        return asked and (str(row.metric), row.task) == (q.metric, q.task or main)

    return [(q, [row for row in rows if is_of(row, q)]) for q in design.questions]


def _primary(results: Results, rows: Sequence[Row]) -> list[Row]:
    design = results.design
    if design.questions:
        asked = [row for _, found in answering(design, rows) for row in found]
        return [row for row in rows if row in asked]
    if design.baselines:
        against = [row for row in rows if row.why in ("envelope", "power") and row.a in design.candidates]
        for at in ("mixture", "hull", "a equal"):  # older summaries have the hull, or the last alone
            ends = [Metric(k=k, at=at) for k in (FEW, results.k)]  # type: ignore[arg-type]
            if found := [row for row in against if row.metric in ends]:
                return found
        return []
    main = {""} if any(row.task == "" for row in rows) else {row.task for row in rows}
    alone = {row.metric.temperature for row in rows if row.task}
    home = REFERENCE if REFERENCE in alone or len(alone) != 1 else next(iter(alone))
    here = [row for row in rows if row.task in main]
    plain = [row for row in here if row.metric == Metric(k=row.metric.k, temperature=home if row.task else REFERENCE)]
    controls = [row for row in plain if row.why in CONTROLS and row.a not in design.beside]
    return controls or [row for row in plain if row.why == "base"]


# ------------------------------------------------------------------------------------------------------------------
# exact records


def _exact(results: Results) -> Iterator[Row]:
    design, base = results.design, results.home
    known = [arm.name for arm in design.arms if results.seeds(arm.name)]
    pairs = [pair for pair in design.pairs() if results.seeds(pair[0]) and results.seeds(pair[1])]
    based: list[Pair] = [(name, base, "base") for name in known if base and name != base and not design.every]
    for temperature in (REFERENCE, PAPER):
        for pair in (*pairs, *based):
            yield from _scores(results, pair, temperature)
        for arm in design.arms:
            yield from _matched(results, arm, temperature)
    for pair in (*pairs, *based):
        yield from _frontiers(results, pair)
    for pair in (*pairs, *_added(results)):
        yield from _near(results, pair)
    for pair in (*pairs, *based):
        yield from _at_best(results, pair)
    yield from _envelopes(results)
    yield from _tempered(results, known)
    for pair in pairs:
        yield from _raw_kl(results, pair)
    for task in results.tasks[1:]:
        for pair in pairs:
            if pair[2] == "control" and results.seeds(pair[0], task):
                yield from _scores(results, pair, REFERENCE, task)


def shared(results: Results, a: str, b: str, task: str = "") -> list[int]:
    """Training seeds with an evaluation of both arms. The base counts for every seed."""
    one, two = set(results.seeds(a, task)), set(results.seeds(b, task))
    base = results.design.base
    return sorted(one if b == base and two else two if a == base and one else one & two)


def _row(pair: Pair) -> partial[Row]:
    return partial(Row, a=pair[0], b=pair[1], why=pair[2])


def sides(results: Results, a: str, b: str, task: str = "", temperature: float = REFERENCE) -> tuple[Scores, Scores] | None:
    """Scores of both arms at their common training seeds. Samples of the base, and of arms that were passed as separate paths, are
    used unpaired.

    None if an arm has no evaluation there, or if only one of the two is exact. None with a note in the results if a common training
    seed has no evaluation at this temperature."""
    one, two = (results.scores(name, task, temperature) for name in (a, b))
    if one is None or two is None or (one.n is None) != (two.n is None):
        return None
    if one.n is not None and (not results.design.facts or BASE in (a, b)):
        return one, two
    seeds = shared(results, a, b, task) if one.n is None else sorted({*one.seeds} & {*two.seeds})
    lacking = {side.arm: {*seeds} - {*side.seeds} for side in (one, two) if side.arm != results.design.base}
    for name, missing in lacking.items():
        on, which = f" on {task}" if task else "", ", ".join(map(str, sorted(missing)))
        note = f"{a} and {b} are not compared at T = {temperature:g}{on}: {name} has no evaluation there of training seed {which}."
        if missing and note not in results.notes:  # called for every list and table
            results.notes.append(note)
    return (one.only(seeds), two.only(seeds)) if seeds and not any(lacking.values()) else None


def _scores(results: Results, pair: Pair, temperature: float, task: str = "") -> Iterator[Row]:
    if (both := sides(results, *pair[:2], task, temperature)) is None:
        return
    for k in (1, results.k):
        left, right = (side.passes([k])[..., 0] for side in both)
        yield _row(pair)(task=task, metric=Metric(k=k, temperature=temperature), comparison=_paired(results, left, right))


def _paired(results: Results, left: Floats, right: Floats) -> Comparison:
    """(S, N) each: over training seeds where some arm has several, else over problems."""
    return paired_seeds(*np.broadcast_arrays(left, right)) if results.several else paired(left[0], right[0])


def _of_gaps(pair: Pair, metric: Metric, gaps: Sequence[float | None], reason: Reason) -> Row:
    """One gap per training seed against zero. "unknown" if a seed has no gap: such seeds are those with the largest differences."""
    known = [gap for gap in gaps if gap is not None]
    if known and len(known) == len(gaps):
        found = paired_seeds(known, np.zeros(len(known)))
    else:
        found = paired_by.unknown(reason, n=len(known), over="training seeds")
    return _row(pair)(metric=metric, comparison=found, left_out=len(gaps) - len(known))


def _both(results: Results, pair: Pair) -> list[tuple[Exact, Exact]]:
    """The records of both arms at every shared seed; empty if a record has a single temperature."""
    both = [(results.exact(pair[0], seed), results.exact(pair[1], seed)) for seed in shared(results, *pair[:2])]
    return both if all(len(one.record.logps) > 1 for two in both for one in two) else []


def _frontiers(results: Results, pair: Pair) -> Iterator[Row]:
    """pass@k at equal pass@1: the mean over the pass@1 that both arms cover."""
    both, metric = _both(results, pair), Metric(k=results.k, at="equal")
    if both and not results.several:
        one, two = both[0]
        yield _of_frontier(pair, metric, frontiers.compare_frontiers(one.p, two.p, k=results.k))
    elif both:
        gaps = [frontiers.gap_to_frontier(one.points, two.points) for one, two in both]
        found = _of_gaps(pair, metric, [gap.value for gap in gaps], Reason.NO_COMMON_RANGE)
        low, high = (float(np.mean([getattr(gap, end) for gap in gaps])) for end in ("low", "high"))
        yield replace(found, covers=(low, high)) if found.comparison.known else found


def _of_frontier(pair: Pair, metric: Metric, gap: frontiers.FrontierGap, task: str = "") -> Row:
    covers = (gap.low, gap.high) if gap.value is not None else None
    return _row(pair)(task=task, metric=metric, comparison=gap.comparison, covers=covers)


def _near(results: Results, pair: Pair) -> Iterator[Row]:
    """pass@k and distinct right answers at equal pass@1 near the reference temperature: one point of the frontiers instead of their
    mean, which the coldest temperatures dominate."""
    both = _both(results, pair) if results.several else []
    for metric in (Metric(k=results.k, at="near"), Metric(name="distinct", k=results.k, at="near")) if both else ():
        gaps = [frontiers.gap_near(*(side.line(metric.name, results.k) for side in two)) for two in both]
        yield _of_gaps(pair, metric, gaps, Reason.NOT_NEAR)


def _at_best(results: Results, pair: Pair) -> Iterator[Row]:
    """pass@1 of an arm and the base, or of two arms passed as separate paths, each at its best temperature. For a single training
    seed also: the arm at T = 1 against the base's best, and the base at the temperature that gives the arm's pass@1."""
    a, b, _ = pair
    asked = b == results.home or results.design.every
    both = [(results.exact(a, seed), results.exact(b, seed)) for seed in shared(results, a, b)] if asked else []
    if not both or any(len(two.record.logps) < 2 for _, two in both):
        return
    tops = [tuple(one.p[frontiers.best_pass1(one.points).temperature] for one in pair) for pair in both]
    if all(len(one.record.logps) > 1 for one, _ in both):
        left, right = (np.stack([pair[i] for pair in tops]) for i in (0, 1))
        yield _row(pair)(metric=Metric(k=1, at="best"), comparison=_paired(results, left, right))
    if not results.several:
        ((one, two),) = both
        yield _row(pair)(metric=Metric(k=1, at="b best"), comparison=paired(one.p[REFERENCE], tops[0][1]))
        equal = frontiers.at_equal_pass1(one.p[REFERENCE], two.p, k=results.k)
        yield _row(pair)(metric=Metric(k=results.k, at="a equal"), comparison=equal.comparison)


ABOVE = tuple(
    Metric(name=name, k=k, at=at, temperature=t)  # type: ignore[arg-type]
    for t in (REFERENCE, PAPER)
    for name, k, at in (("pass", FEW, "mixture"), ("pass", 0, "mixture"), ("distinct", 0, "hull"))
)
"""The metrics compared with a set of baselines; k = 0 stands for the largest k."""
GUESSER = "uniform guesser"


def always_allowed(results: Results) -> dict[str, Table]:
    """What every mixture per completion may use besides the baselines: the base at its temperatures, and a guesser, uniform over
    the answers of a problem, where the task can count them."""
    home = results.home
    chance = {} if home is None else results.exact(home).record.meta.get("chance") or {}
    found: dict[str, Table] = {} if home is None else {home: results.exact(home).p}
    return found | ({GUESSER: {REFERENCE: chance["each"]}} if chance.get("law") in ("answers", "values") else {})


def above(results: Results, name: str, envelope: Envelope, metric: Metric) -> AboveHull | None:
    """One arm against the best mixture of a set of baselines at the arm's pass@1, over their common seeds. None without a common
    seed or without an evaluation of the arm at the metric's temperature."""
    seeds = sorted(set(results.seeds(name)).intersection(*(results.seeds(rival) for rival in envelope.arms)))
    both = [[results.exact(one, seed) for seed in seeds] for one in (name, *envelope.arms)]
    if metric.at == "hull":
        lines = [[one.line(metric.name, metric.k or 0) for one in arm] for arm in both]
        return above_hull(lines[0], lines[1:], metric.temperature)
    own, *rivals = ([one.p for one in arm] for arm in both)
    others = [[table] * len(seeds) for table in always_allowed(results).values()]
    return above_mixtures(own, [*rivals, *others], metric.k or 0, metric.temperature)


def _envelopes(results: Results) -> Iterator[Row]:
    """Every candidate against the best mixture of each set of baselines."""
    for envelope in results.design.baselines:
        for name in results.design.candidates:
            for metric in (replace(metric, k=metric.k or results.k) for metric in ABOVE):
                if (found := above(results, name, envelope, metric)) is not None:
                    yield _row((name, envelope.name, "envelope"))(metric=metric, comparison=compare_hull(found))


def _tempered(results: Results, known: Sequence[str]) -> Iterator[Row]:
    """Every arm against the base tempered over whole completions, which uses no reward."""
    base, k = results.home, results.k
    record = results.exact(base).record if base else None
    if record is None or not record.norms:
        return
    line, table = power_frontier(record.logps[REFERENCE], record.norms, k), power_table(record.logps[REFERENCE], record.norms)
    for name in known if line else ():
        ones = [results.exact(name, seed) for seed in results.seeds(name) if name != base]
        readings: dict[Metric, list[float | None]] = {
            Metric(k=1, at="best"): [frontiers.best_pass1(one.points).pass1 - frontiers.best_pass1(line).pass1 for one in ones],
            Metric(k=k, at="a equal"): [_at_home(one.points, line) for one in ones],
            Metric(k=k, at="equal"): [frontiers.gap_to_frontier(one.points, line).value for one in ones],
        }
        if name in results.design.candidates and results.design.baselines:
            for n in (k, FEW):
                if (found := above_mixtures([one.p for one in ones], [[table] * len(ones)], n)) is not None:
                    yield _row((name, TEMPERED, "power"))(metric=Metric(k=n, at="mixture"), comparison=compare_hull(found))
        for metric, gaps in readings.items() if ones else ():
            yield _of_gaps((name, TEMPERED, "power"), metric, gaps, Reason.NO_COMMON_RANGE)


def _at_home(points: Sequence[frontiers.FrontierPoint], line: Sequence[frontiers.FrontierPoint]) -> float | None:
    """pass@k of the policy at the reference temperature minus pass@k of the line at the same pass@1; None outside the line."""
    home = frontiers.at_temperature(points, REFERENCE)
    there = None if home is None else frontiers.passk_at(home.pass1, line)
    return None if home is None or there is None else home.passk - there[0]


def _matched(results: Results, arm: Arm, temperature: float) -> Iterator[Row]:
    """An arm against another method at equal raw KL, interpolated between that method's betas: for a guided arm, the same method
    without the guide."""
    names = (arm.name, *arm.matched)
    if not arm.matched or not all(results.seeds(name) for name in arm.matched):
        return
    own, there, outside = [], [], 0
    for seed in sorted(set.intersection(*(set(results.seeds(name)) for name in names))):
        values = [results.scores(name, "", temperature) for name in names]
        if any(one is None or seed not in one.seeds for one in values):
            return
        mine, *means = [one.only([seed]).passes((1, results.k))[0].mean(axis=0) for one in values if one is not None]
        kl, *kls = [run.raw_kl if (run := results.runs.get((name, seed))) else None for name in names]
        at = None if kl is None or None in kls else between(kl, np.array(kls, dtype=float), np.stack(means))
        outside += at is None
        if at is not None:
            own.append(mine)
            there.append(at)
    for j, k in enumerate((1, results.k) if own else ()):
        found = paired_seeds([one[j] for one in own], [one[j] for one in there])
        metric = Metric(k=k, temperature=temperature, matched=True)
        pair: Pair = (arm.name, arm.plain or arm.matched[0], "matched")
        yield _row(pair)(metric=metric, comparison=found, left_out=outside)


def between(kl: float, kls: Floats, scores: Floats) -> Floats | None:
    """Scores (K,) at raw KL `kl` of a method trained at several betas with kls (B,) and scores (B, K): linear interpolation in
    log KL. None outside the trained range, and if a KL is 0 or not finite and thus has no logarithm."""
    if not all(0 < one < math.inf for one in (kl, *kls)):
        return None
    order = np.argsort(kls)
    x, y = np.log(kls[order]), scores[order]
    if not x[0] <= math.log(kl) <= x[-1]:
        return None
    return np.array([np.interp(math.log(kl), x, column) for column in y.T])


def _raw_kl(results: Results, pair: Pair) -> Iterator[Row]:
    """Raw KL at the end of training, nats per token."""
    runs = [[results.runs.get((name, seed)) for name in pair[:2]] for seed in shared(results, *pair[:2])]
    kls = [[None if run is None else run.raw_kl for run in two] for two in runs]
    if results.several and kls and not any(None in two for two in kls):
        found = paired_seeds(*np.array(kls, dtype=float).T)
        yield _row(pair)(metric=Metric(name="raw KL", at="end"), comparison=found)


def _added(results: Results) -> list[Pair]:
    """Added controls, except placebos, against the control, only near the reference temperature."""
    arms, control = results.design.arms, results.design.control or ""
    added = [arm.name for arm in arms if control and arm.why and results.seeds(arm.name)]
    return [(name, control, "control") for name in added if name not in {control, *(arm.placebo for arm in arms)}]


# ------------------------------------------------------------------------------------------------------------------
# sample stores


def _sampled(results: Results) -> Iterator[Row]:
    """Every arm against the control on each task, from samples; in a sweep also the base and each pair of the design. Pairs with
    exact records of both arms are left out, because the exact comparison is more precise."""
    for task in dict.fromkeys(c.task for c in results.counts):
        arms = list(dict.fromkeys(c.arm for c in results.counts if c.task == task))
        first = (results.design.control,) if results.design.every else (BASE, results.design.control)
        control = next((name for name in first if name in arms), arms[0])
        why: Why = "base" if control == results.design.base != results.design.control else "control"
        pairs: list[Pair] = [(name, control, why) for name in arms if name != control]
        if results.design.facts and control == BASE:
            pairs += [pair for pair in results.design.pairs() if pair[0] in arms and pair[1] in arms]
        for pair in pairs:
            if not (results.seeds(pair[0]) and results.seeds(pair[1])):
                yield from _of_counts(results, pair, task)
        for envelope, name in product(results.design.baselines, results.design.candidates):
            yield from _envelope_of_counts(results, name, envelope, task)
        yield from _colder(results, control, task)


def _colder(results: Results, control: str, task: str) -> Iterator[Row]:
    """Every arm against the control sampled at several temperatures, from samples of one training seed."""
    own_base = [c for c in results.counts if (c.arm, c.task) == (control, task)]
    base = {c.temperature: (c.n, c.right.astype(int)) for c in own_base}
    if len(base) < 2 or REFERENCE not in base or any(c.sizes is not None or c.cluster for c in own_base):
        return
    _, best = max(base.values(), key=lambda counts: float(counts[1].mean()))
    for arm in results.design.names:
        own = results.scores(arm, task)
        if arm == control or own is None or own.n is None or not own.is_plain or results.seeds(arm) or len(own.values) > 1:
            continue
        n, right = own.n, own.values[0].astype(int)
        beyond = right.mean() > best.mean()  # no mixture of temperatures has this pass@1
        for metric in above_colder(min(results.k, n)):
            if (metric.at == "b best") != (beyond or metric.k == 1):
                continue
            k = metric.k or 0
            if metric.at == "mixture":
                found = compare_hull(above_mixtures_of_counts([{REFERENCE: (n, right)}], [[base]], k))
            else:
                found = paired_by.paired_counts(n, right, best, k)
            yield _row((arm, control + AT_ANY, "colder"))(task=task, metric=metric, comparison=found)


def _envelope_of_counts(results: Results, name: str, envelope: Envelope, task: str) -> Iterator[Row]:
    """A candidate against the best mixture of a set of baselines, from samples; the base is allowed in the mixture."""
    found: dict[str, dict[int, dict[float, frontiers.Counts]]] = {}
    for c in results.counts:
        if c.task == task:
            found.setdefault(c.arm, {}).setdefault(c.seed or 0, {})[c.temperature] = (c.n, c.right)
    names = (name, *envelope.arms)
    if results.seeds(name) or not all(one in found for one in names):
        return
    seeds = sorted(set.intersection(*(set(found[one]) for one in names)))
    own, *rivals = ([found[one][seed] for seed in seeds] for one in names)
    others = [list(found[BASE].values())[:1] * len(seeds)] if BASE in found and BASE not in names else []
    largest = min(results.k, *(c.n for c in results.counts if c.task == task))
    for metric in (replace(one, k=one.k or largest) for one in ABOVE if one.at == "mixture"):
        if (metric.k or 0) > largest or not seeds:
            continue
        above = above_mixtures_of_counts(own, [*rivals, *others], metric.k or 0, metric.temperature)
        if above is not None:
            yield _row((name, envelope.name, "envelope"))(task=task, metric=metric, comparison=compare_hull(above))


def _of_counts(results: Results, pair: Pair, task: str) -> Iterator[Row]:
    both: dict[float, tuple[Scores, Scores]] = {}
    for t in sorted({c.temperature for c in results.counts if c.task == task}, reverse=True):
        if (found := sides(results, *pair[:2], task, t)) is None:
            continue
        one, two = both[t] = found
        one.check_alike(two)
        for m in dict.fromkeys((1, min(results.k, one.n or 0))):
            yield _row(pair)(task=task, metric=Metric(k=m, temperature=t), comparison=counted(one, two, m))
    if len(both) > 1 and all(len(side.values) == 1 and side.is_plain for two in both.values() for side in two):
        tables = [{t: (two[i].n or 0, two[i].values[0]) for t, two in both.items()} for i in (0, 1)]
        k = min(results.k, *(one.n or 0 for one, _ in both.values()))
        gap = frontiers.compare_count_frontiers(*tables, k=k)
        yield _of_frontier(pair, Metric(k=k, at="equal"), gap, task)


def counted(a: Scores, b: Scores, k: int) -> Comparison:
    """pass@k of two arms from samples: over problems, or over training seeds where an arm has several."""
    left, right = a.values.astype(int), b.values.astype(int)
    if max(len(left), len(right)) == 1:
        return paired_by.paired_counts(a.samples[0], left[0], right[0], k, n_b=b.samples[0], cluster=a.cluster or None)
    return paired_by.paired_seed_counts(a.samples, left, right, k, n_b=b.samples)
