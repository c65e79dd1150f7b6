"""What a full report is made from: results of training seeds, curves, structure, samples and cards. Plain values, no files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sage_rlvr.report.result import Result, Training
from sage_rlvr.stats.samples.patterns import PatternFrequency
from sage_rlvr.stats.samples.structure import ClassOfAnswers

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """One training run, finished or not. state: in words; seconds of training, where recorded."""

    arm: str
    seed: int | None
    state: str
    equation: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    seconds: float | None = None
    tokens: float | None = None
    training: Training | None = None
    commit: str = ""


@dataclass(frozen=True, kw_only=True)
class Structure:
    """Classes of right answers: of each kind ("operators", "trees") arm -> one dict of classes a training seed.

    effective, reachable: kind -> arm -> (S, N); the base has one row.
    """

    classes: Mapping[str, Mapping[str, Sequence[Mapping[str, ClassOfAnswers]]]]
    effective: Mapping[str, Mapping[str, Floats]]
    reachable: Mapping[str, Mapping[str, Floats]]
    k: int


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One sample as the page shows it: text (cut, `left_out` characters more), tokens with their entropies and q where kept."""

    problem: str
    sample: int
    text: str
    verdict: str
    reason: str
    answer: str | None = None
    finish: str | None = None
    left_out: int = 0
    tokens: tuple[str, ...] | None = None
    entropies: tuple[float, ...] | None = None
    q: tuple[float, ...] | None = None
    perplexity: float | None = None


@dataclass(frozen=True, kw_only=True)
class SampleSet:
    """One sample store. counts (N,) of right ones among n of each of `problems`, in order; perplexities (M,) under `scored` with
    the problem and verdict of each, where recorded; distinct: (N, K) expected distinct right answers over `ks`."""

    arm: str
    seed: int | None
    task: str
    law: str
    problems: tuple[str, ...]
    n: int
    right: NDArray[np.int64]
    shown: tuple[Shown, ...] = ()
    scored: str | None = None
    perplexities: Floats | None = None
    owners: tuple[str, ...] = ()
    is_right: NDArray[np.bool_] | None = None
    ks: tuple[int, ...] = ()
    distinct: Floats | None = None
    patterns: Mapping[str, PatternFrequency] = field(default_factory=dict)
    guide: str | None = None
    temperature: float | None = None


@dataclass(frozen=True, kw_only=True)
class GridCell:
    """One cell of a grid: the values of its two keys, and its arm; "" where no arm has them."""

    row: str
    column: str
    arm: str


@dataclass(frozen=True, kw_only=True)
class GridOf:
    """Arms that differ in two keys alone: rows and columns in order, cells for each pair."""

    row_key: str
    column_key: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[GridCell, ...]


@dataclass(frozen=True, kw_only=True)
class Study:
    """Everything that a full report says; each part may be empty, and the page then says so.

    results: one a training seed, the same arms in each; distinct: arm -> (S, K) expected distinct right completions over `ks`
    of the results (the base one row); learning: (steps, arm) of arms that are one run stopped early, a tuple each; left_out:
    sentences on what is not in the comparison and why.
    """

    title: str = "What RL widened, and what it only sharpened"
    results: tuple[Result, ...] = ()
    distinct: Mapping[str, Floats] = field(default_factory=dict)
    structure: Structure | None = None
    samples: tuple[SampleSet, ...] = ()
    runs: tuple[RunFacts, ...] = ()
    grids: tuple[GridOf, ...] = ()
    learning: tuple[tuple[tuple[int, str], ...], ...] = ()
    left_out: tuple[str, ...] = ()
    control: str | None = None
    sources: tuple[str, ...] = ()


def grids_of(configs: Mapping[str, Mapping[str, Any]]) -> tuple[GridOf, ...]:
    """The largest sets of arms that differ in exactly two keys of their configuration, four arms and two values of each key at
    least. configs: arm -> nested configuration, without what differs by seed."""
    flat = {arm: _flat(tree) for arm, tree in configs.items()}
    keys = sorted({key for row in flat.values() for key in row})
    varying = [key for key in keys if len({str(row.get(key)) for row in flat.values()}) > 1]
    found: list[GridOf] = []
    for i, a in enumerate(varying):
        for b in varying[i + 1 :]:
            found += _grids(flat, a, b)
    found.sort(key=lambda grid: -len([cell for cell in grid.cells if cell.arm]))
    taken: set[frozenset[str]] = set()
    kept = []
    for grid in found:
        arms = frozenset(cell.arm for cell in grid.cells if cell.arm)
        if not any(arms <= other for other in taken):
            taken.add(arms)
            kept.append(grid)
    return tuple(kept)


def learning_of(configs: Mapping[str, Mapping[str, Any]]) -> tuple[tuple[tuple[int, str], ...], ...]:
    """Arms that differ in their number of steps alone, three at least: (steps, arm) each, the fewest first, one tuple a
    learning curve. configs: as for `grids_of`."""
    families: dict[str, list[tuple[int, str]]] = {}
    for arm, tree in configs.items():
        row = _flat(tree)
        if isinstance(row.get("steps"), int):
            rest = str(sorted((key, str(value)) for key, value in row.items() if key != "steps"))
            families.setdefault(rest, []).append((row["steps"], arm))
    return tuple(tuple(sorted(found)) for found in families.values() if len({steps for steps, _ in found}) > 2)


def _grids(flat: Mapping[str, Mapping[str, Any]], a: str, b: str) -> list[GridOf]:
    families: dict[str, dict[tuple[str, str], str]] = {}
    for arm, row in flat.items():
        if a in row and b in row:
            rest = str(sorted((key, str(value)) for key, value in row.items() if key not in (a, b)))
            families.setdefault(rest, {})[str(row[a]), str(row[b])] = arm
    out = []
    for cells in families.values():
        rows, columns = (sorted({pair[i] for pair in cells}, key=_by_value) for i in (0, 1))
        if len(cells) >= 4 and len(rows) > 1 and len(columns) > 1:
            filled = tuple(GridCell(row=r, column=c, arm=cells.get((r, c), "")) for r in rows for c in columns)
            out.append(
                GridOf(row_key=a, column_key=b, rows=tuple(rows), columns=tuple(columns), cells=filled)
            )  # fmt: skip
    return out


def _by_value(text: str) -> tuple[float, str]:
    try:
        return float(text), text
    except ValueError:
        return float("inf"), text


def _flat(tree: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in tree.items():
        place = f"{before}{key}"
        out |= _flat(value, f"{place}.") if isinstance(value, Mapping) else {place: value}
    return out
