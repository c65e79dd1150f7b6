"""Tables of scores, curves over k and their differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from sage_rlvr.evaluation.verdicts import Scored, own_interval
from sage_rlvr.report import figures
from sage_rlvr.report.exact import passk_picture
from sage_rlvr.report.parts import HEADING, Part, Picture, Prose, Tabular, missing, quiet
from sage_rlvr.report.sections.stores import beside, by_arm, by_task, common_k, one_seed, set_name, slug
from sage_rlvr.report.study import SampleSet, Study
from sage_rlvr.report.summary import SeedSummary, Summary, seed_differences
from sage_rlvr.report.tables import Table, interval_cell, results_table, seeds_table
from sage_rlvr.stats.comparison import FEWEST_SEEDS
from sage_rlvr.stats.curves import CurveComparison, paired_count_curve
from sage_rlvr.stats.intervals import Interval, passk_interval


def numbers(study: Study, exact: Summary | SeedSummary | None) -> tuple[Part, ...]:
    """Tables of pass@k: exact ones, and those from samples where there are no others."""
    if isinstance(exact, SeedSummary):
        return (Tabular(table=seeds_table(exact), about="pass@k of each method"), *_sampled_tables(beside(study)))
    if exact is not None:
        return (Tabular(table=results_table(exact), about="pass@k of each policy"), *_sampled_tables(beside(study)))
    return _sampled_tables(study.samples) or (missing("No evaluation was given."),)


def _sampled_tables(samples: Sequence[SampleSet]) -> tuple[Part, ...]:
    """Sampled pass@1 and pass@k: a table a task with one row an arm, and folded the stores one by one where that is more."""
    out: list[Part] = []
    for task, sets in by_task(samples).items():
        ks = tuple(dict.fromkeys((1, common_k(sets))))
        header = ("arm", "task", "problems x samples", *(f"pass@{k}" for k in ks))
        single = tuple(_store_row(s, ks) for s in sets)
        rows = tuple(row for mine in by_arm(sets).values() for row in _arm_rows(mine, ks))
        several = len(rows) < len(single)
        over = "over problems and their samples"
        each = f"From samples; beneath each number its 95 % interval {over}."
        whole = (
            "From samples; beneath each number its 95 % interval: over training seeds (Student's t) where an arm has "
            f"several, else {over}."
        )
        table = Table(header=header, rows=rows, notes=(whole if several else each,))
        out += [Prose(text=f"From samples: {task}", kind=HEADING), Tabular(table=table, about=f"pass@k on {task}")]
        if several:
            line = f"pass@k on {task}, every training seed by itself ({len(single)} rows)"
            out.append(Tabular(table=Table(header=header, rows=single, notes=(each,)), about=line, folded=True))
    return tuple(out)


def _store_row(s: SampleSet, ks: Sequence[int]) -> tuple[str, ...]:
    cells = [interval_cell(passk_interval(s.n, s.right, k)) for k in ks]
    return set_name(s), s.task, f"{len(s.problems)} x {s.n}", *cells


def _arm_rows(mine: Sequence[SampleSet], ks: Sequence[int]) -> list[tuple[str, ...]]:
    """One row over the training seeds; a row a store where there is one alone, or where they are of other problems."""
    first = mine[0]
    if len(mine) == 1 or any((s.problems, s.n) != (first.problems, first.n) for s in mine):
        return [_store_row(s, ks) for s in mine]
    scored = Scored(first.problems, first.n, np.stack([s.right for s in mine]))
    cells = [interval_cell(_inside(own_interval(scored, k))) for k in ks]
    return [(first.arm, first.task, f"{len(first.problems)} x {first.n}, {len(mine)} seeds", *cells)]


def _inside(found: Interval) -> Interval:
    return replace(found, low=max(found.low, 0.0), high=min(found.high, 1.0))


def curves(study: Study, exact: Summary | SeedSummary | None) -> tuple[Part, ...]:
    """pass@k over k."""
    if exact is not None:
        return (passk_picture(exact),)
    out: list[Part] = []
    for task, sets in by_task(study.samples).items():
        lines = {}
        for s in one_seed(sets):
            ks = _powers(s.n)
            found = [passk_interval(s.n, s.right, k) for k in ks]
            lines[s.arm] = (ks, [i.value for i in found], [i.low for i in found], [i.high for i in found])
        caption = (
            f"{task}: chance that one at least of k samples is right, from samples, with 95 % intervals over problems "
            "and their "
            "samples, one k at a time."
        )
        figure = figures.passk_figure(lines)
        out.append(Picture(key=f"passk-{slug(task)}", figure=figure, label=f"pass@k on {task}", caption=caption))
    return tuple(out) or (missing("No evaluation was given."),)


def _powers(n: int) -> list[int]:
    return [*(2**i for i in range(n.bit_length()) if 2**i < n), n]


def differences(study: Study, exact: Summary | SeedSummary | None) -> tuple[Part, ...]:
    """Paired differences over k with bands that hold at all k at once."""
    if exact is None:
        return _sampled_differences(study.samples)
    if isinstance(exact, SeedSummary):
        if exact.seeds < FEWEST_SEEDS:
            return (missing("Two training seeds are too few for a band on a difference."),)
        found = seed_differences(exact)
        over = "training seeds (Student's t, with Bonferroni's share of the level at each k)"
        who = "these methods differ on these problems"
    else:
        found, over, who = dict(exact.differences), "problems", "these checkpoints differ"
    caption = f"Paired differences. The band holds at all k at once (95 %, over {over}): where it leaves zero, {who}. "
    caption += figures.SCALE
    return _difference_parts(found, caption, "differences")


def _difference_parts(found: Mapping[str, CurveComparison], caption: str, key: str) -> tuple[Part, ...]:
    if not found:
        return (missing("There is one policy alone, so there is no difference."),)
    table = Table(
        header=("pair", *(f"k = {k}" for k in next(iter(found.values())).ks)),
        rows=tuple(
            (
                name,
                *(
                    f"{d:+.3f}\n{low:+.3f} to {high:+.3f}".replace("-", "−")
                    for d, low, high in zip(c.difference, c.low, c.high, strict=True)
                ),
            )
            for name, c in found.items()
        ),
    )
    limits = _limits(found)
    drawn: list[Part] = [
        Picture(
            key=f"{key}-{i}",
            figure=figures.difference_figure({name: c}, limits=limits),
            label=f"{name}: paired difference in pass@k",
            small=True,
        )
        for i, (name, c) in enumerate(found.items(), start=1)
    ]
    about = "differences in pass@k with their simultaneous bands"
    return (*drawn, *quiet(caption), Tabular(table=table, about=about, folded=True))


def _limits(found: Mapping[str, CurveComparison]) -> tuple[float, float]:
    """One scale for all differences, zero in it."""
    edges = np.concatenate([np.concatenate([c.low, c.high, c.difference]) for c in found.values()])
    known = edges[np.isfinite(edges)]
    low, high = min(0.0, float(known.min(initial=0.0))), max(0.0, float(known.max(initial=0.0)))
    room = 0.06 * (high - low) or 0.01
    return low - room, high + room


def _sampled_differences(samples: Sequence[SampleSet]) -> tuple[Part, ...]:
    out: list[Part] = []
    for task, sets in by_task(samples).items():
        first, *others = one_seed(sets)
        found = {
            f"{s.arm} − {first.arm}": paired_count_curve(s.n, s.right, first.right)
            for s in others
            if s.problems == first.problems and s.n == first.n
        }
        if found:
            caption = f"{task}: the band holds at all k at once (95 %, over problems and their samples)."
            out += [
                p for p in _difference_parts(found, caption, f"differences-{slug(task)}") if not isinstance(p, Tabular)
            ]
    return tuple(out) or (missing("No two policies were sampled on the same problems."),)
