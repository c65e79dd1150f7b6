"""Kinds of right answers, different right answers, and grids of recipes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sage_rlvr.report import panels
from sage_rlvr.report.parts import HEADING, Part, Picture, Prose, Tabular, missing, quiet
from sage_rlvr.report.sections.stores import by_task, one_seed, set_name, slug
from sage_rlvr.report.study import GridOf, SampleSet, Structure, Study
from sage_rlvr.report.summary import SeedSummary, Summary
from sage_rlvr.report.tables import Table, interval_cell
from sage_rlvr.stats.comparison import FEWEST_SEEDS
from sage_rlvr.stats.intervals import Interval, mean_interval, seed_interval

MOST_CLASSES = 10  # of operators in a figure; the table has all


def structure(study: Study) -> tuple[Part, ...]:
    """Which operators, trees and reasoning patterns the right answers show."""
    out: list[Part] = []
    if study.structure is not None:
        out += _exact_structure(study, study.structure)
    patterned = [s for s in study.samples if s.patterns]
    if patterned:
        out.append(Prose(text="Reasoning patterns among right samples", kind=HEADING))
        out.append(Tabular(table=_pattern_table(patterned), about="reasoning patterns"))
    if not out:
        return (
            missing(
                "Not recorded: the structure of right answers needs an exact evaluation of a world of expressions, "
                "reasoning patterns "
                "need samples in words."
            ),
        )
    return tuple(out)


def _exact_structure(study: Study, found: Structure) -> list[Part]:
    out: list[Part] = []
    for kind, arms in found.classes.items():
        base = next(iter(arms))
        order = sorted(arms[base][0], key=lambda name: -arms[base][0][name].share.value)
        shown = order[:MOST_CLASSES]
        shares = {
            arm: {name: _over_seeds([one[name].share for one in seeds]) for name in shown}
            for arm, seeds in arms.items()
        }
        rest = len(order) - len(shown)
        figure = panels.shares_figure(shares, "share of the right answers that the policy gives", _class_label)
        caption = (
            f"Right answers by their {kind}: of the right answers that a policy gives, the share of each kind, exactly."
        )
        caption += (
            f" The {len(shown)} most frequent under the base; the table has all {len(order)}." if rest > 0 else ""
        )
        out.append(
            Picture(key=f"structure_{kind}", figure=figure, label=f"shares of right answers by {kind}", caption=caption)
        )
        out.append(Tabular(table=_class_table(kind, order, arms), about=f"right answers by {kind}", folded=True))
    out.append(Tabular(table=_diversity_table(found), about="number of kinds of right answers"))
    return out


def _class_label(name: str) -> str:
    return name.replace("*", "×").replace("-", "−").replace("/", "÷").replace(".", "·")


def _over_seeds(intervals: Sequence[Interval]) -> Interval:
    """One interval as it is; of several the mean and Student's interval over seeds."""
    return intervals[0] if len(intervals) == 1 else seed_interval([i.value for i in intervals])


def _class_table(kind: str, order: Sequence[str], arms: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
    rows = []
    for name in order:
        cells = []
        for seeds in arms.values():
            share = np.mean([one[name].share.value for one in seeds])
            one = [found[name] for found in seeds]
            if one[0].kept is None:
                cells.append(f"{share:.1%}\n{one[0].supported:,} in support")
            else:
                kept, gained, lost = (float(np.mean([getattr(c, f) for c in one])) for f in ("kept", "gained", "lost"))
                cells.append(f"{share:.1%}\n{kept:,.0f} +{gained:,.0f} −{lost:,.0f}")
        rows.append((_class_label(name), *cells))
    note = (
        "Share of the right answers given, exactly; beneath it the completions of this kind in the support: the "
        "base's, and of each arm "
        "those kept, gained and lost (means over training seeds where there are several)."
    )
    if kind == "trees":
        note += " A dot is a number, a pair of parentheses an operation."
    return Table(header=(kind, *arms), rows=tuple(rows), notes=(note,))


def _diversity_table(found: Structure) -> Table:
    rows = []
    for arm in next(iter(found.effective.values())):
        cells = []
        for kind in found.effective:
            for table in (found.effective[kind][arm], found.reachable[kind][arm]):
                several = len(table) > 1
                values = np.nanmean(table, axis=1) if several else table[0][np.isfinite(table[0])]
                cells.append(interval_cell(seed_interval(values) if several else mean_interval(values), 2))
        rows.append((arm, *cells))
    header = [f"{word}" for kind in found.effective for word in (f"effective {kind}", f"{kind} in {found.k} samples")]
    notes = (
        "effective: the exponential of the entropy of the kinds among the right answers of a problem, mean over problems; in "
        f"{found.k} samples: expected number of different kinds among the right ones. Intervals over problems, or over "
        "training "
        "seeds where there are several.",
    )
    return Table(header=("arm", *header), rows=tuple(rows), notes=notes)


def _pattern_table(sets: Sequence[SampleSet]) -> Table:
    names = list(dict.fromkeys(name for s in sets for name in s.patterns))
    rows = []
    for s in sets:
        cells = [interval_cell(s.patterns[name].macro) if name in s.patterns else "–" for name in names]
        rows.append((set_name(s), s.task, *cells))
    cautions = [
        f"{set_name(s)}, {s.task}, {name}: {p.caution}" for s in sets for name, p in s.patterns.items() if p.caution
    ]
    note = "Share of a problem's right samples that show the pattern, mean over problems (Eq. 13), 95 % intervals over problems."
    return Table(header=("samples", "task", *names), rows=tuple(rows), notes=(note, *cautions[:6]))


def distinct(study: Study) -> tuple[Part, ...]:
    """Expected number of different right answers over k."""
    out: list[Part] = []
    if study.distinct and study.results:
        first = study.results[0]
        lines = {}
        for arm, table in study.distinct.items():
            found = [seed_interval(column) if len(table) >= FEWEST_SEEDS else None for column in table.T]
            mean = table.mean(axis=0)
            low = [i.low if i else m for i, m in zip(found, mean, strict=True)]
            high = [i.high if i else m for i, m in zip(found, mean, strict=True)]
            lines[arm] = (first.ks, mean, low, high)
        caption = (
            "Expected number of different right completions among k samples of a problem, exactly, mean over problems. "
        )
        caption += (
            "Bands: 95 % intervals over training seeds."
            if len(study.results) >= FEWEST_SEEDS
            else f"No bands; the table above has the interval at k = {first.k}."
        )
        figure = panels.over_k_figure(lines, "different right completions in k samples")
        out.append(
            Picture(key="distinct", figure=figure, label="different right completions in k samples", caption=caption)
        )
    for task, sets in ({} if out else by_task(study.samples)).items():
        counted = [s for s in one_seed(sets) if s.distinct is not None]
        lines = {}
        for s in counted:
            assert s.distinct is not None
            means = [mean_interval(column) for column in s.distinct.T]
            low, high = ([_finite(getattr(i, end), i.value) for i in means] for end in ("low", "high"))
            lines[s.arm] = (s.ks, [i.value for i in means], low, high)
        if lines:
            figure = panels.over_k_figure(lines, "different right answers in k samples")
            caption = (
                f"{task}: expected number of different right answers among k samples, from samples; 95 % intervals over "
                "problems."
            )
            out.append(Picture(key=f"distinct-{slug(task)}", figure=figure, label=caption, caption=caption))
    return tuple(out) or (missing("Not recorded: neither an exact evaluation nor samples were given."),)


def _finite(edge: float, value: float) -> float:
    return edge if math.isfinite(edge) else value


def grids(study: Study, exact: Summary | SeedSummary | None) -> tuple[Part, ...]:
    """pass@1 and pass@k of arms that differ in two keys of their recipe."""
    if not study.grids or exact is None:
        return (
            missing(
                "No four arms of this report differ in exactly two keys of their recipe, so there is no grid to draw."
            ),
        )
    out: list[Part] = []
    for i, grid in enumerate(study.grids[:3], start=1):
        out += _grid_parts(grid, study, i)
    return tuple(out)


def _grid_parts(grid: GridOf, study: Study, number: int) -> list[Part]:
    first = study.results[0]
    names = {arm.name for arm in first.arms}
    out: list[Part] = []
    for k in (1, first.k):
        cells = {
            (c.row, c.column): float(np.mean([np.mean(1 - (1 - r.arm(c.arm).p) ** k) for r in study.results]))
            for c in grid.cells
            if c.arm in names
        }
        figure = panels.heat_figure(grid.rows, grid.columns, cells, (grid.row_key, grid.column_key), f"pass@{k}")
        label = f"pass@{k} over {grid.row_key} and {grid.column_key}"
        out.append(Picture(key=f"grid{number}-{k}", figure=figure, label=label, small=True))
    said = [f"{c.row}, {c.column}: {c.arm or 'not run'}" for c in grid.cells]
    note = "Choose on validation problems: the best of many cells on these problems flatters itself."
    return [*out, *quiet(f"Arms ({grid.row_key}, {grid.column_key}): {'; '.join(said)}.", note)]
