"""Check whether an arm does more than its base sampled at a lower temperature, or with weights mixed with those of a policy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from sage_rlvr.verdicts.design import AT_ANY
from sage_rlvr.verdicts.grouped import grouped
from sage_rlvr.verdicts.metric import FEW, REFERENCE
from sage_rlvr.verdicts.of_temperatures import COLDEST, lines_of
from sage_rlvr.verdicts.pairs import control_of
from sage_rlvr.verdicts.results import Results
from sage_rlvr.verdicts.row import End, Row
from sage_rlvr.verdicts.stats.passk import pass_at_k, powers

Finding = Literal["above", "below", "same temperature", "sharpened", "flattened", "too hot", "unknown"]
TOO_LARGE = 0.25
"""A detectable difference above which a test without a significant difference does not show that the base does the same."""
ColderCurves = dict[float, dict[int | None, float]]
"""Temperature -> k -> pass@k of the base."""


@dataclass(frozen=True, kw_only=True)
class ColderBaseComparison:
    """An arm compared with the base at the temperature with the nearest pass@1.

    home: the name of the base
    ks: each k at which the difference is significant
    higher_before, lower_before: each k at which it is significant only before correction
    passes: k -> the scores of arm and base
    temperature: of the base; of mixed weights the distance from the policy
    detectable: the largest detectable difference at k > 1, NaN without one
    coldest: the lowest temperature of the base, or the lowest distance
    weights: whether the base has mixed weights"""

    arm: str
    home: str
    finding: Finding
    ks: tuple[int | None, ...]
    higher_before: tuple[int | None, ...]
    lower_before: tuple[int | None, ...]
    temperature: float
    passes: dict[int | None, tuple[float, float]]
    detectable: float
    coldest: float
    weights: bool = False

    @property
    def next_temperature(self) -> float:
        """The next temperature at which the base would be sampled."""
        return below(self.coldest)


def comparisons_of_weights(rows: Sequence[Row], results: Results) -> list[ColderBaseComparison]:
    """Compare every arm with each line of mixed weights, at the share with the nearest pass@1."""
    apart = grouped((row for row in rows if row.why == "weights"), lambda row: (row.b, row.task, row.a))
    return [_colder_base_comparison(some, results) for some in apart.values()]


def colder_base_comparisons(rows: Sequence[Row], results: Results) -> list[ColderBaseComparison]:
    """Compare every arm with its base at the temperature with the nearest pass@1."""
    apart = grouped((row for row in rows if row.why == "colder"), lambda row: (row.a, row.task))
    return [_colder_base_comparison(some, results) for some in apart.values()]


def _colder_base_comparison(rows: Sequence[Row], results: Results) -> ColderBaseComparison:
    curves = _curves(results, rows[0])
    at, base = nearest_colder(results, rows[0])
    shown = (1, FEW, max(row.metric.k or 0 for row in rows if row.metric.k in base))
    hidden = [row.comparison.mde for row in rows if row.metric.k != 1 and math.isfinite(row.comparison.mde)]
    ks = {end: [row.metric.k for row in rows if row.outcome == end] for end in End}
    # a pass@1 below the best of all temperatures shows nothing: the arm has another temperature
    ks |= {end: [k for k in ks[end] if k != 1] for end in (End.LOWER, End.LOWER_BEFORE)}
    higher, lower, weights = ks[End.HIGHER], ks[End.LOWER], rows[0].why == "weights"
    same: Finding = "same temperature" if at == REFERENCE else "sharpened" if at < REFERENCE else "flattened"
    same = "sharpened" if weights else same
    # at the end of the base's range of pass@1 the mixture has no lower bound
    if ks[End.HIGHER_BEFORE] or ks[End.LOWER_BEFORE] or not min(hidden, default=math.nan) <= TOO_LARGE:
        same = "unknown"
    return ColderBaseComparison(
        arm=rows[0].a,
        home=_home(rows[0]),
        finding=("too hot" if rows[0].rising else "above") if higher else "below" if lower else same,
        ks=tuple(higher or lower),
        higher_before=tuple(ks[End.HIGHER_BEFORE]),
        lower_before=tuple(ks[End.LOWER_BEFORE]),
        temperature=at,
        passes={row.metric.k: (row.comparison.mean_a, base[row.metric.k]) for row in rows if row.metric.k in shown},
        detectable=max(hidden, default=math.nan),
        coldest=min(curves),
        weights=weights,
    )


def below(coldest: float) -> float:
    """The next temperature to sample below the coldest: half of it, not below `COLDEST`."""
    return max(COLDEST, float(f"{coldest / 2:.2g}"))


def _home(row: Row) -> str:
    """The arm that was sampled at several temperatures in a row against it at any."""
    return row.b.removesuffix(AT_ANY)


def nearest_colder(results: Results, row: Row) -> tuple[float, dict[int | None, float]]:
    """The temperature at which the base has the pass@1 nearest to that of the row's arm, and its pass@k there."""
    curves, pass1 = _curves(results, row), _pass1(results, row)
    nearest = min(curves, key=lambda t: abs(curves[t][1] - pass1))
    return nearest, curves[nearest]


def _curves(results: Results, row: Row) -> ColderCurves:
    """pass@k of the base of a row at each of its temperatures."""
    if row.why == "weights":
        return _curves_of_line(results, row)
    curves: ColderCurves = {}
    if results.stored is not None:
        for one in _sampled(results.stored, row, _home(row)):
            curves[one["temperature"]] = {int(k): float(value["value"]) for k, value in one["pass"].items()}
        return curves
    base = results.table.where(task=row.task, arm=_home(row))
    for t in base.temperatures:
        scores = base.where(temperature=t).scores()
        if scores is not None and scores.n is not None:
            ks = powers(scores.n)
            curves[t] = dict(zip(ks, scores.passes(ks)[0].mean(axis=0).tolist(), strict=True))
    return curves


def _curves_of_line(results: Results, row: Row) -> ColderCurves:
    """pass@k of the policies with mixed weights of a row by their distance from the policy."""
    if results.stored is not None:
        mine = [one for one in results.stored["sampled"] if one["task"] == row.task and one["policy"] != row.a]
        found = {one["lines"][row.b]: one["pass"] for one in mine if row.b in one.get("lines", ())}
        return {d: {int(k): float(value["value"]) for k, value in passes.items()} for d, passes in found.items()}
    here = results.table.sampled().where(task=row.task)
    (line,) = [one for one in lines_of(here, control_of(results.design, here)) if one.name == row.b]
    curves: ColderCurves = {}
    for d, point in line.points.items():
        if point.arm != row.a:
            right = point.values.astype(int)
            curves[d] = {k: float(np.mean(pass_at_k(point.n, right, k))) for k in powers(point.n)}
    return curves


def _pass1(results: Results, row: Row) -> float:
    """pass@1 of the row's arm at the reference temperature."""
    if results.stored is None:
        return float(results.table.where(task=row.task).only_scores(row.a, row.task).passes([1]).mean())
    own = {one["temperature"]: one for one in _sampled(results.stored, row, row.a)}  # the arm may have colder samples too
    return float(own[REFERENCE]["pass"]["1"]["value"])


def _sampled(summary: Mapping[str, Any], row: Row, policy: str) -> list[Mapping[str, Any]]:
    """The summary's entries for a policy's samples on the row's task, one per temperature."""
    return [one for one in summary["sampled"] if one["task"] == row.task and one["policy"] == policy]
