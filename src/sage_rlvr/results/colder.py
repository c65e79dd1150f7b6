"""Whether an arm does more than its base sampled at a lower temperature."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sage_rlvr.results.design import AT_ANY, BASE
from sage_rlvr.results.metric import FEW, REFERENCE
from sage_rlvr.results.read import Results
from sage_rlvr.results.row import Row
from sage_rlvr.results.row_text import End, grouped, listed, outcome
from sage_rlvr.stats.passk import powers

Finding = Literal["above", "below", "same temperature", "sharpened", "flattened", "unknown"]
TOO_LARGE = 0.25
"""A detectable difference above which a test without a significant difference does not show that the base does the same."""
WORDS: dict[Finding, str] = {
    "above": "yes, higher at k = {ks}",
    "below": "no, lower at k = {ks}",
    "same temperature": "no difference from {home} at the same temperature can be told",
    "sharpened": "only sharpened, as far as can be told",
    "flattened": "no more than at a higher temperature, as far as can be told",
    "unknown": "cannot be told",
}
NEAREST = "Each arm beside {home} at the temperature with the nearest pass@1: {arms}."
OF_ARM = "{arm} beside T = {t:g} ({facts})"
QUESTION = "Does it do more than {home} at a lower temperature? {arms}."
ANSWERS: dict[Finding, str] = {
    "above": "{arm}: yes, higher at k = {ks} ({pairs} of {home} at T = {t:g})",
    "below": "{arm}: no, lower at k = {ks} ({pairs} of {home} at T = {t:g})",
    "same temperature": "{arm}: no difference from {home} at the same temperature can be told ({facts})",
    "unknown": "{arm}: cannot be told ({home} at T = {t:g} has the nearest pass@1: {facts})",
    "sharpened": "{arm}: only sharpened, as far as can be told ({home} at T = {t:g} does the same: {facts})",
    "flattened": "{arm}: no more than {home} at a higher temperature, as far as can be told (T = {t:g} does the same: {facts})",
}


@dataclass(frozen=True, kw_only=True)
class ColderBaseComparison:
    """An arm beside the base at the temperature with the nearest pass@1. ks: at which k the difference is significant; before:
    words on those that are significant before correction only; passes: k -> the scores of arm and base; detectable: the largest
    detectable difference at k > 1, NaN without one."""

    arm: str
    home: str
    finding: Finding
    ks: tuple[int | None, ...]
    before: str
    temperature: float
    passes: dict[int | None, tuple[float, float]]
    detectable: float

    @property
    def text(self) -> str:
        """The finding with its numbers."""
        return self._filled(ANSWERS[self.finding])

    @property
    def numbers(self) -> str:
        """The numbers alone."""
        return self._filled(OF_ARM)

    def _filled(self, template: str) -> str:
        pairs = ", ".join(f"pass@{k} {own:.3f} and {base:.3f}" for k, (own, base) in self.passes.items())
        seen = f"detectable at k > 1: {self.detectable:.3f}" if math.isfinite(self.detectable) else ""
        ks, facts = ", ".join(map(str, self.ks)), listed(pairs, self.before, seen, by="; ")
        return template.format(arm=self.arm, home=self.home, ks=ks, pairs=pairs, facts=facts, t=self.temperature)


def sharpened(rows: Sequence[Row], results: Results) -> str:
    """Whether the arms do more than their base at a lower temperature; "" where the base was sampled at one temperature."""
    findings = colder_base_comparisons(rows, results)
    return QUESTION.format(home=_homes(findings), arms="; ".join(one.text for one in findings)) if findings else ""


def sharpened_in_two(rows: Sequence[Row], results: Results) -> tuple[str, str]:
    """The same in two parts: the findings with their arms, and the numbers of each arm."""
    findings = colder_base_comparisons(rows, results)
    if not findings:
        return "", ""
    by_finding = grouped(findings, lambda one: WORDS[one.finding].format(ks=", ".join(map(str, one.ks)), home=one.home))
    arms = "; ".join(f"{word}: {', '.join(one.arm for one in some)}" for word, some in by_finding.items())
    numbers = NEAREST.format(home=_homes(findings), arms="; ".join(one.numbers for one in findings))
    return QUESTION.format(home=_homes(findings), arms=f"{arms[:1].upper()}{arms[1:]}"), numbers


def colder_base_comparisons(rows: Sequence[Row], results: Results) -> list[ColderBaseComparison]:
    """Every arm beside its base at the temperature with the nearest pass@1."""
    apart = grouped((row for row in rows if row.why == "colder"), lambda row: (row.a, row.task))
    return [_colder_base_comparison(some, results) for some in apart.values()]


def _homes(findings: Sequence[ColderBaseComparison]) -> str:
    return ", ".join(dict.fromkeys(one.home for one in findings))


def _colder_base_comparison(rows: Sequence[Row], results: Results) -> ColderBaseComparison:
    at, base = nearest_colder(results, rows[0])
    home = _home(rows[0])
    shown = (1, FEW, max(row.metric.k or 0 for row in rows if row.metric.k in base))
    hidden = [row.comparison.mde for row in rows if row.metric.k != 1 and math.isfinite(row.comparison.mde)]
    higher = [row.metric.k for row in rows if outcome(row) == End.HIGHER]
    # a pass@1 below the best of all temperatures shows nothing: the arm has a temperature of its own
    lower = [row.metric.k for row in rows if outcome(row) == End.LOWER and row.metric.k != 1]
    same: Finding = "same temperature" if at == REFERENCE else "sharpened" if at < REFERENCE else "flattened"
    before = _before(rows)
    # at the end of the base's range of pass@1 the mixture has no lower bound
    if before or not min(hidden, default=math.nan) <= TOO_LARGE:
        same = "unknown"
    return ColderBaseComparison(
        arm=rows[0].a,
        home="the base" if home == BASE else home,
        finding="above" if higher else "below" if lower else same,
        ks=tuple(higher or lower),
        before=before,
        temperature=at,
        passes={row.metric.k: (row.comparison.mean_a, base[row.metric.k]) for row in rows if row.metric.k in shown},
        detectable=max(hidden, default=math.nan),
    )


def _before(rows: Sequence[Row]) -> str:
    """At which k the arm is higher, and at k > 1 lower, before correction only."""
    by_end = {end: [row.metric.k for row in rows if outcome(row) == end] for end in (End.HIGHER_BEFORE, End.LOWER_BEFORE)}
    by_end[End.LOWER_BEFORE] = [k for k in by_end[End.LOWER_BEFORE] if k != 1]
    return listed(*(f"{end} at k = {', '.join(map(str, ks))}" if ks else "" for end, ks in by_end.items()), by="; ")


def _home(row: Row) -> str:
    """The arm that was sampled at several temperatures in a row against it at any."""
    return row.b.removesuffix(AT_ANY)


def nearest_colder(results: Results, row: Row) -> tuple[float, dict[int | None, float]]:
    """The temperature at which the base has the pass@1 nearest to that of the row's arm, and its pass@k there."""
    curves, pass1 = _of_samples(results, row) if results.stored is None else _of_summary(results.stored, row)
    nearest = min(curves, key=lambda t: abs(curves[t][1] - pass1))
    return nearest, curves[nearest]


ColderCurves = dict[float, dict[int | None, float]]
"""Temperature -> k -> pass@k of the base."""


def _of_summary(summary: Mapping[str, Any], row: Row) -> tuple[ColderCurves, float]:
    """The base at its temperatures, and the arm's pass@1 at the reference temperature."""
    here = [one for one in summary["sampled"] if one["task"] == row.task]
    curves: ColderCurves = {
        one["temperature"]: {int(k): float(value["value"]) for k, value in one["pass"].items()}
        for one in here if one["policy"] == _home(row)
    }  # fmt: skip
    own = {one["temperature"]: one for one in here if one["policy"] == row.a}  # the arm may have colder samples too
    return curves, float(own[REFERENCE]["pass"]["1"]["value"])


def _of_samples(results: Results, row: Row) -> tuple[ColderCurves, float]:
    curves: ColderCurves = {}
    here = results.table.where(task=row.task)
    base = here.where(arm=_home(row))
    for t in base.temperatures:
        scores = base.where(temperature=t).scores()
        if scores is not None and scores.n is not None:
            ks = powers(scores.n)
            curves[t] = dict(zip(ks, scores.passes(ks)[0].mean(axis=0).tolist(), strict=True))
    return curves, float(here.only_scores(row.a, row.task).passes([1]).mean())
