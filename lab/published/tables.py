"""The arithmetic of published tables: what printed means and standard deviations of evaluation seeds can and cannot say.

    d = mean_b - mean_a,   se^2 = (sd_a^2 + sd_b^2) / s,   t = d / se
    df = se^4 s^2 (s - 1) / (sd_a^4 + sd_b^4)                              (Welch 1947)

s evaluation seeds of one checkpoint each: the standard deviations hold the noise of sampling, neither that of the problems
nor that of the training run. The tables are recipes/paper/tables.json.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sage_rlvr.errors import DataError
from sage_rlvr.safe_io import read_json
from sage_rlvr.verdicts.row import end_of
from sage_rlvr.verdicts.stats.intervals import Interval
from sage_rlvr.verdicts.stats.laws import t_ppf, t_sf
from sage_rlvr.verdicts.stats.paired import DETECTABLE, Outcome, holm, outcome_of, signed
from sage_rlvr.verdicts.stats.power import detectable_up_to
from sage_rlvr.verdicts.text.words import detectable_text, p_text

SEEDS = 5
PLUS, NO_KL, WITHOUT_KL = " + ", " (no KL)", " w/o KL"  # in the names of arms
HELD = "These standard errors hold the noise of sampling alone: the problems are fixed and every arm was trained once."


@dataclass(frozen=True)
class Cell:
    """A printed mean and standard deviation over evaluation seeds."""

    mean: float
    sd: float


Cells = dict[tuple[str, str], Cell]  # (data set, metric) -> cell


@dataclass(frozen=True)
class Table:
    """One table of means: arm -> cells, and the averages over data sets as printed."""

    number: str
    title: str
    model: str
    arms: dict[str, Cells]
    averages: dict[str, dict[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Welch:
    """b - a of two means of s seeds each, with the interval of Welch's t. `outcome`: from b's side, by the rule of every
    comparison (`outcome_of`), before any correction. `detectable`: found 4 times in 5 at this se; `detectable_high`: its upper 95 %
    limit, from df."""

    difference: float
    se: float
    df: float
    low: float
    high: float
    p: float
    outcome: Outcome
    level: float
    detectable: float

    @property
    def detectable_high(self) -> float:
        """Upper 95 % limit of `detectable`: the printed standard deviations are of few seeds."""
        return detectable_up_to(self.detectable, self.df + 1) if math.isfinite(self.df) else self.detectable

    @property
    def t(self) -> float:
        """difference / se, infinite where neither printed standard deviation leaves any doubt."""
        return self.difference / self.se if self.se > 0 else math.copysign(math.inf, self.difference)


@dataclass(frozen=True, kw_only=True)
class PublishedComparison:
    """b - a in every cell that both arms have, with Holm's p over these cells, and averaged over the data sets."""

    a: str
    b: str
    table: Table
    cells: dict[tuple[str, str], Welch]
    adjusted: dict[tuple[str, str], float]
    averages: dict[str, Welch]

    @property
    def seen(self) -> list[tuple[str, str]]:
        """The cells whose difference outlasts Holm's correction."""
        return [key for key, w in self.cells.items() if w.outcome != "tied" and self.adjusted[key] < 1 - w.level]


@dataclass(frozen=True, kw_only=True)
class PairsOfGuide:
    """One guide in every pair of arms of one model that differ in it, at one metric averaged over the data sets.

    pairs: (table, arm without, arm with). confounded: those whose arm without the guide has no KL either, so that they differ in
    both. `pooled` is over all pairs, each counting alike; `clean` over the pairs that differ in the guide alone, `mixed` over the
    confounded ones, None where there are none.
    """

    guide: str
    metric: str
    pairs: tuple[tuple[str, str, str], ...]
    confounded: tuple[tuple[str, str, str], ...]
    pooled: Welch
    clean: Welch | None
    mixed: Welch | None


def load_document(path: str | Path) -> dict[str, Any]:
    """tables.json as it stands; `DataError` names the file where it is missing or damaged."""
    return dict(read_json(path, advice="restore it from the repository"))


def read_tables(document: Mapping[str, Any]) -> dict[str, Table]:
    """The tables of means and standard deviations by data set (1, 3, 4 and 9) of `load_document`."""
    tables = {}
    for number, entry in document["tables"].items():
        arms = {
            arm: {
                (data, metric): Cell(*pair)
                for data, metrics in cells.items()
                if isinstance(metrics, Mapping)
                for metric, pair in metrics.items()
            }
            for arm, cells in entry.get("arms", {}).items()
        }
        if arms and all(arms.values()):
            tables[number] = Table(number, entry["title"], entry["model"], arms, entry.get("average", {}))
    return tables


def welch(a: Cell, b: Cell, *, seeds: int = SEEDS, level: float = 0.95) -> Welch:
    """b - a of two cells, unpaired: the module's equation."""
    return welch_average([(a, b)], seeds=seeds, level=level)


def welch_average(pairs: Sequence[tuple[Cell, Cell]], *, seeds: int = SEEDS, level: float = 0.95) -> Welch:
    """Mean over data sets of b - a: se^2 is the sum of all sd^2 / s over m^2, the degrees of freedom Satterthwaite's."""
    m = len(pairs)
    if m == 0 or seeds < 2:
        raise DataError(f"{m} pairs of {seeds} seeds: give at least one pair and two seeds.")
    parts = np.array([cell.sd**2 / seeds / m**2 for pair in pairs for cell in pair])
    difference, variance = float(np.mean([b.mean - a.mean for a, b in pairs])), float(parts.sum())
    se = math.sqrt(variance)
    df = variance**2 / float(np.sum(parts**2) / (seeds - 1)) if variance > 0 else math.inf
    critical = float(t_ppf((1 + level) / 2, df))
    p = float(2 * t_sf(abs(difference) / se, df)) if se > 0 else float(difference == 0)
    low, high = difference - critical * se, difference + critical * se
    gap = Interval(value=difference, low=low, high=high, level=level, over="evaluation seeds", n=seeds)
    return Welch(
        difference=difference,
        se=se,
        df=df,
        low=low,
        high=high,
        p=p,
        outcome=outcome_of(gap, p, level),
        level=level,
        detectable=(critical + float(t_ppf(0.8, df))) * se,
    )


def compare_arms(table: Table, a: str, b: str, *, seeds: int = SEEDS) -> PublishedComparison:
    """b against a in one table: every shared cell, Holm's p over them, and the mean over data sets of each metric."""
    left, right = table.arms[a], table.arms[b]
    cells = {key: welch(left[key], right[key], seeds=seeds) for key in left if key in right}
    adjusted = dict(zip(cells, holm([w.p for w in cells.values()]).tolist(), strict=True))
    metrics = dict.fromkeys(metric for _, metric in cells)
    averages = {
        metric: welch_average([(left[key], right[key]) for key in cells if key[1] == metric], seeds=seeds)
        for metric in metrics
        if sum(key[1] == metric for key in cells) > 1
    }
    return PublishedComparison(a=a, b=b, table=table, cells=cells, adjusted=adjusted, averages=averages)


def pairs_of_guide(
    tables: Mapping[str, Table], found: PublishedComparison, *, seeds: int = SEEDS
) -> list[PairsOfGuide]:
    """The evidence of all tables on the guide in which `found` compares "X" and "X + guide": for each metric with averages,
    every pair "Y" or "Y (no KL)" and "Y + guide" of the same model. [] where `found` is no such pair, or the only one.

    The arms of different pairs are different checkpoints, so the pooled mean is `welch_average` over the cells of all pairs.
    """
    guide = found.b.removeprefix(found.a.removesuffix(NO_KL) + PLUS)
    if guide == found.b:
        return []
    out = []
    for metric in found.averages:
        pairs: dict[tuple[str, str, str], list[tuple[Cell, Cell]]] = {}
        for number, table in tables.items():
            for arm in table.arms if table.model == found.table.model else ():
                base = arm.removesuffix(PLUS + guide)
                plain = next((name for name in (base, base + NO_KL) if name != arm and name in table.arms), None)
                cells = [] if plain is None else _shared_cells(table, plain, arm, metric)
                if plain is not None and len(cells) > 1:
                    pairs[number, plain, arm] = cells
        confounded = tuple(pair for pair in pairs if pair[1].endswith(NO_KL))
        pooled, clean, mixed = (
            welch_average([cell for pair in chosen for cell in pairs[pair]], seeds=seeds) if chosen else None
            for chosen in (tuple(pairs), tuple(pair for pair in pairs if pair not in confounded), confounded)
        )
        if pooled is not None and len(pairs) > 1:
            out.append(
                PairsOfGuide(
                    guide=guide, metric=metric, pairs=tuple(pairs), confounded=confounded,
                    pooled=pooled, clean=clean, mixed=mixed,
                )
            )  # fmt: skip
    return out


def pooled_lines(tables: Mapping[str, Table], found: PublishedComparison) -> list[str]:
    """`pairs_of_guide` in sentences: all pairs, then what the confounded ones and the others give apart, and, where the table
    of `found` has the arm, what a KL alone does."""
    lines = []
    for one in pairs_of_guide(tables, found):
        many = ", ".join(f"{with_} against {plain}" for _, plain, with_ in one.pairs)
        lines.append(
            f"{one.guide}, average {one.metric}, {len(one.pairs)} pairs pooled ({many}): {_pooled_text(one.pooled)}, for these "
            "checkpoints, each trained once."
        )
        if one.mixed is not None and one.confounded:
            names = " and ".join(plain for _, plain, _ in one.confounded)
            text = f"{len(one.confounded)} of the pairs confound the guide with the KL ({names}): {_pooled_text(one.mixed)}."
            if one.clean is not None:
                text += f" What differs in {one.guide} alone: {_pooled_text(one.clean)}."
            lines.append(text)
        without = found.a + WITHOUT_KL
        if without in found.table.arms:
            w = welch_average(_shared_cells(found.table, without, found.a, one.metric))
            lines.append(f"A KL alone ({found.a} against {without}), average {one.metric}: {_pooled_text(w)}.")
    return lines


def _shared_cells(table: Table, a: str, b: str, metric: str) -> list[tuple[Cell, Cell]]:
    left, right = table.arms[a], table.arms[b]
    return [(left[key], right[key]) for key in left if key in right and key[1] == metric]


def _pooled_text(w: Welch) -> str:
    ends = f"95 % interval {signed(w.low)} to {signed(w.high)}"
    return f"{signed(w.difference)} (standard error {w.se:.3f}, t {w.t:.1f}, {ends}, {p_text(w.p)})"


def find_arms(tables: Mapping[str, Table], names: Sequence[str]) -> tuple[Table, list[str]]:
    """The first table in which every name means exactly one arm. "4/GRPO" asks for Table 4; "Branch" finds the one arm that
    ends with it, "Base" the one that starts with it. `DataError` lists the arms otherwise."""
    asked = {number for number, slash, _ in (name.partition("/") for name in names) if slash and number in tables}
    if len(asked) > 1:
        raise DataError(f"{', '.join(names)}: arms of Tables {', '.join(sorted(asked))}; compare within one table")
    bare = [name.partition("/")[2] if name.partition("/")[0] in tables else name for name in names]
    for number, table in tables.items():
        found = [_arms_named(name, table) for name in bare]
        if (not asked or number in asked) and all(len(arms) == 1 for arms in found):
            return table, [arms[0] for arms in found]
    lines = [f"Table {number}: {', '.join(table.arms)}" for number, table in tables.items()]
    raise DataError(
        f"paper arms {', '.join(names)}: no one table has each of them once. There are:\n  " + "\n  ".join(lines)
    )


def comparison_lines(found: PublishedComparison, problems: Mapping[str, int | None], seeds: int = SEEDS) -> list[str]:
    """The comparison as a Markdown table and sentences; `problems`: data set -> how many it has, or None."""
    name_a, name_b, t = found.a, found.b, found.table
    lines = [
        f"{name_b} against {name_a}, Table {t.number} of arXiv 2605.18864 ({t.model}), {seeds} evaluation seeds of one "
        "checkpoint each",
        "",
        f"| {name_b} - {name_a} | diff | SE | t | p | Holm's p | in problems |",
        "|---|---|---|---|---|---|---|",
    ]
    for (data, metric), w in found.cells.items():
        n = problems.get(data)
        count = f"{w.difference * n:.1f} of {n}" if n else ""
        adjusted = found.adjusted[data, metric]
        lines.append(
            f"| {data} {metric} | {w.difference:+.3f} | {w.se:.3f} | {w.t:.2f} | {w.p:.2f} | {adjusted:.2f} | {count} |"
        )
    for metric, w in found.averages.items():
        ends = f"95 % interval {signed(w.low)} to {signed(w.high)}"
        lines.append(
            f"| **average {metric}** | **{w.difference:+.3f}** | {w.se:.3f} | {w.t:.2f} | **{w.p:.2f}** | | {ends} |"
        )
    return [*lines, "", *_sentences(found), HELD]


def _sentences(found: PublishedComparison) -> list[str]:
    least = min(found.adjusted.values())
    where = f"in any of {len(found.cells)} cells" if len(found.cells) > 1 else "in the only cell"
    cells = ", ".join(f"{data} {metric}" for data, metric in found.seen)
    head = f"a difference in {cells} (Holm)" if cells else f"no difference {where} (smallest Holm's p = {least:.2f})"
    lines = [f"{found.b} vs {found.a}, these checkpoints on these problems: {head}."]
    for metric, w in found.averages.items():
        word = end_of(w.outcome, detected=w.detectable <= DETECTABLE)
        hidden = f"; {detectable_text(w.detectable, w.detectable_high)}" if w.outcome == "tied" else ""
        inside = f"{signed(w.difference)}, 95 % interval {signed(w.low)} to {signed(w.high)}, p = {w.p:.3f}{hidden}"
        lines.append(f"{found.b} vs {found.a}, average {metric}: {word} for these checkpoints ({inside}).")
    return lines


def _arms_named(name: str, table: Table) -> list[str]:
    wanted = name.strip().lower()
    exact = [arm for arm in table.arms if arm.lower() == wanted]
    return exact or [
        arm for arm in table.arms if arm.lower().endswith(" " + wanted) or arm.lower().startswith(wanted + " ")
    ]
