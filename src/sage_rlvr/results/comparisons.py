"""THE list of comparisons: pairs from the design, each metric once, corrected by Holm once in at most two families.

primary       what the design asks under `questions:`; by default every arm against its controls at pass@1 and pass@k on the main
              task, at the reference temperature
exploratory   everything else: other temperatures, frontiers, equal pass@1, equal raw KL, other worlds, the base
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from sage_rlvr.results.design import BASE, CONTROLS, Arm, Why
from sage_rlvr.results.metric import PAPER, REFERENCE, Metric
from sage_rlvr.results.read import Results
from sage_rlvr.results.scores import Exact, Floats, Scores
from sage_rlvr.stats.comparison import (
    Comparison,
    Reason,
    holm,
    paired,
    paired_counts,
    paired_seed_counts,
    paired_seeds,
    unknown,
)
from sage_rlvr.stats.frontier import (
    FrontierPoint,
    at_equal_pass1,
    best_pass1,
    compare_count_frontiers,
    compare_frontiers,
    gap_near,
    gap_to_frontier,
    passk_at,
)
from sage_rlvr.stats.tempered import power_frontier

Family = Literal["primary", "exploratory"]
TEMPERED = "base tempered over whole completions"


@dataclass(frozen=True, kw_only=True)
class Row:
    """a minus b on a metric and a task ("": the main one). adjusted: Holm's p among the `family_size` tests of its family, NaN if
    no test was made. left_out: training seeds in which it could not be read; covers: the pass@1 over which a mean goes."""

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

    @property
    def holds(self) -> bool:
        """Whether a difference outlasts the correction of its family."""
        level = self.comparison.difference.level
        return self.comparison.outcome in ("better", "worse") and self.adjusted < 1 - level

    def flipped(self) -> Row:
        """The same from b's side; b's reading places ("b best", "a equal") have no other side."""
        c, gap = self.comparison, self.comparison.difference
        outcome = {"better": "worse", "worse": "better"}.get(c.outcome, c.outcome)
        turned = replace(gap, value=-gap.value, low=-gap.high, high=-gap.low)
        other = replace(c, difference=turned, outcome=outcome, mean_a=c.mean_b, mean_b=c.mean_a)  # type: ignore[arg-type]
        return replace(self, a=self.b, b=self.a, comparison=other)


def compare(results: Results) -> list[Row]:
    """Every comparison of these results, corrected; of a stored summary those that it holds."""
    if results.stored is not None and not results.records and not results.stores:
        from sage_rlvr.results.stored import rows_of_summary

        made = rows_of_summary(results.stored, results.design)
    else:
        made = [*_exact(results), *_sampled(results)]
    return corrected(results, made)


def corrected(results: Results, made: Sequence[Row]) -> list[Row]:
    """The rows in their families, with Holm's p over the tests of each."""
    rows = [
        replace(row, family="primary" if primary else "exploratory")
        for row, primary in zip(made, _primary(results, made), strict=True)
    ]
    for family in ("primary", "exploratory"):
        tested = [i for i, row in enumerate(rows) if row.family == family and math.isfinite(row.comparison.p)]
        for i, p in zip(tested, holm([rows[i].comparison.p for i in tested]).tolist(), strict=True):
            rows[i] = replace(rows[i], adjusted=p, family_size=len(tested))
    return rows


def _primary(results: Results, rows: Sequence[Row]) -> list[bool]:
    design = results.design
    if design.questions:
        asked = {(design.called(q.a), design.called(q.b), q.metric, q.task) for q in design.questions}
        asked |= {(b, a, metric, task) for a, b, metric, task in asked}
        return [(row.a, row.b, str(row.metric), row.task) in asked for row in rows]
    main = {""} if any(row.task == "" for row in rows) else {row.task for row in rows}
    alone = {t for row in rows if row.task and (t := row.metric.temperature)}
    home = REFERENCE if REFERENCE in alone or len(alone) != 1 else next(iter(alone))
    plain = [
        row.task in main and row.metric == Metric(k=row.metric.k, temperature=home if row.task else REFERENCE)
        for row in rows
    ]
    controls = [is_plain and row.why in CONTROLS for is_plain, row in zip(plain, rows, strict=True)]
    return (
        controls
        if any(controls)
        else [is_plain and row.why == "base" for is_plain, row in zip(plain, rows, strict=True)]
    )


# ------------------------------------------------------------------------------------------------------------------
# exact records


def _exact(results: Results) -> Iterator[Row]:
    design = results.design
    known = [arm.name for arm in design.arms if results.seeds(arm.name)]
    pairs = [(a, b, why) for a, b, why in design.pairs() if results.seeds(a) and results.seeds(b)]
    base = design.base if design.base and results.seeds(design.base) else None
    based: list[tuple[str, str, Why]] = [
        (name, base, "base") for name in known if base and name != base and not design.every
    ]
    for temperature in (REFERENCE, PAPER):
        for a, b, why in (*pairs, *based):
            yield from _scores(results, a, b, why, temperature)
        for arm in design.arms:
            yield from _matched(results, arm, temperature)
    for a, b, why in (*pairs, *based):
        yield from _frontiers(results, a, b, why)
    for a, b, why in (*pairs, *_added(results)):
        yield from _near(results, a, b, why)
    for a, b, why in [pair for pair in (*pairs, *based) if pair[1] == base]:
        yield from _at_best(results, a, b, why)
    yield from _tempered(results, known)
    for a, b, why in pairs:
        yield from _raw_kl(results, a, b, why)
    for task in results.tasks[1:]:
        for a, b, why in pairs:
            if why == "control" and results.seeds(a, task):
                yield from _scores(results, a, b, why, REFERENCE, task)


def shared(results: Results, a: str, b: str, task: str = "") -> list[int]:
    """Training seeds that both arms were evaluated with; the base stands for all."""
    one, two = set(results.seeds(a, task)), set(results.seeds(b, task))
    base = results.design.base
    return sorted(one if b == base and two else two if a == base and one else one & two)


def _scores(results: Results, a: str, b: str, why: Why, temperature: float, task: str = "") -> Iterator[Row]:
    seeds = shared(results, a, b, task)
    if not seeds:
        return
    both = [results.scores(name, task, temperature) for name in (a, b)]
    if any(side is None or (not {*seeds} <= {*side.seeds} and len(side.values) > 1) for side in both):
        return
    left, right = (side.only(seeds).passes((1, results.k)) for side in both if side is not None)
    for j, k in enumerate((1, results.k)):
        found = _paired(results, left[..., j], right[..., j])
        yield Row(a=a, b=b, why=why, task=task, metric=Metric(k=k, temperature=temperature), comparison=found)


def _paired(results: Results, left: Floats, right: Floats) -> Comparison:
    """(S, N) each: over training seeds where some arm has several, else over problems."""
    if not results.several:
        return paired(left[0], right[0])
    return paired_seeds(*np.broadcast_arrays(left, right))


def _of_gaps(gaps: Sequence[float | None], reason: Reason) -> Comparison:
    """One gap per training seed against zero; unknown where some seed has none: those are the ones in which the two lie farthest
    apart."""
    known = [gap for gap in gaps if gap is not None]
    if not known or len(known) < len(gaps):
        return unknown(reason, n=len(known), over="training seeds")
    return paired_seeds(known, np.zeros(len(known)))


def _frontiers(results: Results, a: str, b: str, why: Why) -> Iterator[Row]:
    """pass@k at equal pass@1: the mean over all that both cover."""
    both = [(results.exact(a, seed), results.exact(b, seed)) for seed in shared(results, a, b)]
    if not both or any(len(one.record.logps) < 2 for pair in both for one in pair):
        return
    metric = Metric(k=results.k, at="equal")
    if not results.several:
        yield Row(a=a, b=b, why=why, metric=metric, **_one_seed_frontier(both[0], results.k))
        return
    gaps = [gap_to_frontier(one.points, two.points) for one, two in both]
    low, high = (float(np.mean([getattr(gap, end) for gap in gaps])) for end in ("low", "high"))
    found = _of_gaps([gap.value for gap in gaps], Reason.NO_COMMON_RANGE)
    left_out = sum(gap.value is None for gap in gaps)
    yield Row(
        a=a,
        b=b,
        why=why,
        metric=metric,
        comparison=found,
        left_out=left_out,
        covers=(low, high) if found.known else None,
    )


def _near(results: Results, a: str, b: str, why: Why) -> Iterator[Row]:
    """pass@k and distinct right answers at equal pass@1 near the reference temperature: one place on the frontiers instead of their
    mean, which their coldest ends drown."""
    both = [(results.exact(a, seed), results.exact(b, seed)) for seed in shared(results, a, b)]
    if not both or not results.several or any(len(one.record.logps) < 2 for pair in both for one in pair):
        return
    for name, read in _LINES:
        gaps = [gap_near(read(one), read(two)) for one, two in both]
        metric, left_out = Metric(name=name, k=results.k, at="near"), sum(gap is None for gap in gaps)
        yield Row(a=a, b=b, why=why, metric=metric, comparison=_of_gaps(gaps, Reason.NOT_NEAR), left_out=left_out)


def _points(one: Exact) -> Sequence[FrontierPoint]:
    return one.points


def _variety(one: Exact) -> Sequence[FrontierPoint]:
    return one.variety


_LINES: tuple[tuple[Literal["pass", "distinct"], Callable[[Exact], Sequence[FrontierPoint]]], ...] = (
    ("pass", _points),
    ("distinct", _variety),
)


def _one_seed_frontier(pair: tuple[Exact, Exact], k: int) -> dict[str, object]:
    gap = compare_frontiers(pair[0].p, pair[1].p, k=k)
    return {"comparison": gap.comparison, "covers": (gap.low, gap.high) if gap.value is not None else None}


def _at_best(results: Results, a: str, b: str, why: Why) -> Iterator[Row]:
    """pass@1 of an arm against the base, each at the temperature of its best; of one training seed also the arm as it is against
    the base's best, and at the temperature that gives the base the arm's pass@1."""
    both = [(results.exact(a, seed), results.exact(b, seed)) for seed in shared(results, a, b)]
    if any(len(two.record.logps) < 2 for _, two in both):
        return
    tops = [tuple(one.p[best_pass1(one.points).temperature] for one in pair) for pair in both]
    if all(len(one.record.logps) > 1 for one, _ in both):
        left, right = (np.stack([pair[i] for pair in tops]) for i in (0, 1))
        yield Row(a=a, b=b, why=why, metric=Metric(k=1, at="best"), comparison=_paired(results, left, right))
    if results.several:
        return
    ((one, two),) = both
    yield Row(a=a, b=b, why=why, metric=Metric(k=1, at="b best"), comparison=paired(one.p[REFERENCE], tops[0][1]))
    equal = at_equal_pass1(one.p[REFERENCE], two.p, k=results.k)
    yield Row(a=a, b=b, why=why, metric=Metric(k=results.k, at="a equal"), comparison=equal.comparison)


def _tempered(results: Results, known: Sequence[str]) -> Iterator[Row]:
    """Every arm against the base tempered over whole completions, which uses no reward."""
    base, k = results.design.base, results.k
    if base is None or not results.seeds(base) or not results.exact(base).record.norms:
        return
    record = results.exact(base).record
    line = power_frontier(record.logps[REFERENCE], record.norms, k)
    for name in known if line else ():
        ones = [results.exact(name, seed) for seed in results.seeds(name) if name != base]
        top = best_pass1(line).pass1
        readings: dict[Metric, list[float | None]] = {
            Metric(k=1, at="best"): [best_pass1(one.points).pass1 - top for one in ones],
            Metric(k=k, at="a equal"): [_at_home(one, line) for one in ones],
            Metric(k=k, at="equal"): [gap_to_frontier(one.points, line).value for one in ones],
        }
        for metric, gaps in readings.items() if ones else ():
            found = _of_gaps(gaps, Reason.NO_COMMON_RANGE)
            left_out = sum(gap is None for gap in gaps)
            yield Row(a=name, b=TEMPERED, why="power", metric=metric, comparison=found, left_out=left_out)


def _at_home(one: Exact, line: Sequence[FrontierPoint]) -> float | None:
    """pass@k of the policy at the reference temperature minus that of the line at its pass@1; None outside."""
    home = next((point for point in one.points if point.temperature == REFERENCE), None)
    there = None if home is None else passk_at(home.pass1, line)
    return None if home is None or there is None else home.passk - there[0]


def _matched(results: Results, arm: Arm, temperature: float) -> Iterator[Row]:
    """A guided arm against its unguided method at the beta whose realized raw KL is the arm's own, read between betas."""
    others = [name for name in arm.matched if results.seeds(name)]
    if len(others) < len(arm.matched) or not others:
        return
    own, there, outside = [], [], 0
    for seed in sorted(set(results.seeds(arm.name)).intersection(*(results.seeds(name) for name in others))):
        values = [results.scores(name, "", temperature) for name in (arm.name, *others)]
        runs = [results.runs.get((name, seed)) for name in (arm.name, *others)]
        kls = [None if run is None else run.raw_kl for run in runs]
        if any(one is None or seed not in one.seeds for one in values):
            return
        means = [one.only([seed]).passes((1, results.k))[0].mean(axis=0) for one in values if one is not None]
        known = [kl for kl in kls if kl is not None]
        at = between(known[0], np.array(known[1:]), np.stack(means[1:])) if len(known) == len(kls) else None
        outside += at is None
        if at is not None:
            own.append(means[0])
            there.append(at)
    for j, k in enumerate((1, results.k) if own else ()):
        found = paired_seeds([one[j] for one in own], [one[j] for one in there])
        metric = Metric(k=k, temperature=temperature, matched=True)
        yield Row(
            a=arm.name, b=arm.plain or others[0], why="matched", metric=metric, comparison=found, left_out=outside
        )


def between(kl: float, kls: Floats, scores: Floats) -> Floats | None:
    """Scores (K,) at raw KL `kl` of a method that was trained at several betas: kls (B,) and scores (B, K), linear in log KL
    between neighbors. None outside, where nothing was trained."""
    order = np.argsort(kls)
    x, y = np.log(kls[order]), scores[order]
    if not x[0] <= math.log(kl) <= x[-1]:
        return None
    return np.array([np.interp(math.log(kl), x, column) for column in y.T])


def _raw_kl(results: Results, a: str, b: str, why: Why) -> Iterator[Row]:
    """Raw KL at the end of training, nats per token. It is no score: larger or smaller, never better."""
    runs = [[results.runs.get((name, seed)) for name in (a, b)] for seed in shared(results, a, b)]
    kls = [[None if run is None else run.raw_kl for run in pair] for pair in runs]
    if not results.several or not kls or any(None in pair for pair in kls):
        return
    left, right = np.array(kls, dtype=float).T
    yield Row(a=a, b=b, why=why, metric=Metric(name="raw KL", at="end"), comparison=paired_seeds(left, right))


def _added(results: Results) -> Iterator[tuple[str, str, Why]]:
    """Added controls but placebos against the control, near the reference temperature alone: their beta is what a guide has to
    beat."""
    design = results.design
    placebos = {arm.placebo for arm in design.arms}
    for arm in design.arms:
        control = design.control
        if control and arm.why and arm.name not in placebos and arm.name != control and results.seeds(arm.name):
            yield arm.name, control, "control"


# ------------------------------------------------------------------------------------------------------------------
# sample stores


def _sampled(results: Results) -> Iterator[Row]:
    """Every arm against the control on each task, from samples; where both have exact records these say more, and stand alone."""
    tasks = dict.fromkeys(c.task for c in results.counts)
    for task in tasks:
        arms = list(dict.fromkeys(c.store.arm for c in results.counts if c.task == task))
        control = next((name for name in (BASE, results.design.control) if name in arms), arms[0])
        for name in arms:
            both = bool(results.seeds(name)) and bool(results.seeds(control))
            if name != control and not both:
                yield from _of_counts(results, name, control, task)


def _of_counts(results: Results, a: str, b: str, task: str) -> Iterator[Row]:
    why: Why = "base" if b == results.design.base and b != results.design.control else "control"
    both: dict[float, tuple[Scores, Scores]] = {}
    for t in sorted({c.temperature for c in results.counts if c.task == task}, reverse=True):
        one, two = results.scores(a, task, t), results.scores(b, task, t)
        if one is None or two is None:
            continue
        _check_alike(one, two)
        both[t] = one, two
        k = min(results.k, one.n or 0)
        for m in dict.fromkeys((1, k)):
            yield Row(a=a, b=b, why=why, task=task, metric=Metric(k=m, temperature=t), comparison=_counted(one, two, m))
    if len(both) > 1 and all(len(side.values) == 1 for pair in both.values() for side in pair):
        tables = [{t: (pair[i].n or 0, pair[i].values[0]) for t, pair in both.items()} for i in (0, 1)]
        k = min(results.k, *(pair[0].n or 0 for pair in both.values()))
        gap = compare_count_frontiers(*tables, k=k)
        covers = (gap.low, gap.high) if gap.value is not None else None
        yield Row(
            a=a, b=b, why=why, task=task, metric=Metric(k=k, at="equal"), comparison=gap.comparison, covers=covers
        )


def _counted(a: Scores, b: Scores, k: int) -> Comparison:
    n, left, right = a.n or 0, a.values.astype(int), b.values.astype(int)
    if max(len(left), len(right)) == 1:
        return paired_counts(n, left[0], right[0], k)
    return paired_seed_counts(n, left, right, k)


def _check_alike(a: Scores, b: Scores) -> None:
    """Refuse arms that were not evaluated on the same problems with equally many samples and training seeds."""
    from sage_rlvr.errors import DataError

    if a.problems != b.problems:
        raise DataError(f"{a.arm} and {b.arm} have different problems of {a.task}; complete both evaluations first")
    if a.n != b.n:
        least = min(a.n or 0, b.n or 0)
        raise DataError(
            f"{a.task}: n = {a.n} for {a.arm}, {b.n} for {b.arm}; compare the first {least} samples of each, or top the other up"
        )
    if len(b.values) not in (1, len(a.values)):
        raise DataError(f"{a.arm} and {b.arm}: different numbers of training seeds on {a.task}; give each the same")
