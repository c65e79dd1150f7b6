"""Check whether an arm does more than its base sampled at a lower temperature, or with weights mixed with those of a policy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from sage_rlvr.verdicts.design import AT_ANY, BASE
from sage_rlvr.verdicts.metric import FEW, REFERENCE
from sage_rlvr.verdicts.of_samples import control_of
from sage_rlvr.verdicts.of_temperatures import COLDEST, lines_of
from sage_rlvr.verdicts.results import Results
from sage_rlvr.verdicts.row import Row
from sage_rlvr.verdicts.row_text import End, grouped, listed, outcome
from sage_rlvr.verdicts.stats.passk import pass_at_k, powers

Finding = Literal["above", "below", "same temperature", "sharpened", "flattened", "too hot", "unknown"]
TOO_LARGE = 0.25
"""A detectable difference above which a test without a significant difference does not show that the base does the same."""
HELD_BACK = (
    "cannot be told before {home}, whose pass@1 is not shown to fall at T = {coldest:g}, its lowest, is sampled at T = {next:g}"
)
WORDS: dict[Finding, str] = {
    "above": "yes, higher at k = {ks}",
    "below": "no, lower at k = {ks}",
    "same temperature": "no difference from {home} at the same temperature can be told",
    "sharpened": "only sharpened, as far as can be told",
    "flattened": "no more than at a higher temperature, as far as can be told",
    "too hot": HELD_BACK,
    "unknown": "cannot be told",
}
NEAREST = "Each arm beside {home} at the temperature with the nearest pass@1: {arms}."
OF_ARM = "{arm} beside T = {t:g} ({facts})"
QUESTION = "Does it do more than {home} at a lower temperature? {arms}."
ANSWERS: dict[Finding, str] = {
    "above": "{arm}: yes, higher at k = {ks} ({pairs} of {home} at T = {t:g})",
    "below": "{arm}: no, lower at k = {ks} ({pairs} of {home} at T = {t:g})",
    "same temperature": "{arm}: no difference from {home} at the same temperature can be told ({facts})",
    "too hot": f"{{arm}}: {HELD_BACK} (higher so far at k = {{ks}}: {{pairs}} of {{home}} at T = {{t:g}})",
    "unknown": "{arm}: cannot be told ({home} at T = {t:g} has the nearest pass@1: {facts})",
    "sharpened": "{arm}: only sharpened, as far as can be told ({home} at T = {t:g} does the same: {facts})",
    "flattened": "{arm}: no more than {home} at a higher temperature, as far as can be told (T = {t:g} does the same: {facts})",
}
OF_WEIGHTS: dict[Finding, str] = {
    "above": "{arm}: yes, higher at k = {ks} ({pairs} at {place})",
    "below": "{arm}: no, lower at k = {ks} ({pairs} at {place})",
    "too hot": (
        "{arm}: cannot be told, since their pass@1 is not shown to fall at the largest share, {largest:g} (higher so far at "
        "k = {ks}: {pairs} at {place})"
    ),
    "unknown": "{arm}: cannot be told (the nearest pass@1 is that at {place}: {facts})",
    "sharpened": "{arm}: no more, as far as can be told ({place} does the same: {facts})",
}
MIXED = "Does it do more than {home}, without training? {arms}."


ColderCurves = dict[float, dict[int | None, float]]
"""Temperature -> k -> pass@k of the base."""


@dataclass(frozen=True, kw_only=True)
class ColderBaseComparison:
    """An arm compared with the base at the temperature with the nearest pass@1.

    ks: each k at which the difference is significant
    before: words on differences that are significant only before correction
    passes: k -> the scores of arm and base
    temperature: of the base; of mixed weights the distance from the policy
    detectable: the largest detectable difference at k > 1, NaN without one
    coldest: the lowest temperature of the base, or the lowest distance
    weights: whether the base has mixed weights"""

    arm: str
    home: str
    finding: Finding
    ks: tuple[int | None, ...]
    before: str
    temperature: float
    passes: dict[int | None, tuple[float, float]]
    detectable: float
    coldest: float
    weights: bool = False

    @property
    def word(self) -> str:
        """The finding without numbers of the arm."""
        return self._filled(WORDS[self.finding])

    @property
    def text(self) -> str:
        """The finding with its numbers."""
        return self._filled((OF_WEIGHTS if self.weights else ANSWERS)[self.finding])

    @property
    def numbers(self) -> str:
        """Return only the numbers."""
        return self._filled(OF_ARM)

    def _filled(self, template: str) -> str:
        pairs = ", ".join(f"pass@{k} {own:.3f} and {base:.3f}" for k, (own, base) in self.passes.items())
        seen = f"detectable at k > 1: {self.detectable:.3f}" if math.isfinite(self.detectable) else ""
        ks, facts = ", ".join(map(str, self.ks)), listed(pairs, self.before, seen, by="; ")
        named = {"arm": self.arm, "home": self.home, "t": self.temperature, "coldest": self.coldest}
        place = f"share {1 - self.temperature:g}" if 0 <= self.temperature <= 1 else "the base itself"
        named |= {"place": place, "largest": 1 - self.coldest}
        return template.format(**named, next=below(self.coldest), ks=ks, pairs=pairs, facts=facts)


def sharpened(rows: Sequence[Row], results: Results) -> str:
    """Whether the arms do more than their base at a lower temperature; "" if the base was sampled at one temperature."""
    findings = colder_base_comparisons(rows, results)
    return QUESTION.format(home=_homes(findings), arms="; ".join(one.text for one in findings)) if findings else ""


def sharpened_in_two(rows: Sequence[Row], results: Results) -> tuple[str, str]:
    """The same in two parts: the findings with their arms, and the numbers of each arm."""
    findings = colder_base_comparisons(rows, results)
    if not findings:
        return "", ""
    by_finding = grouped(findings, lambda one: one.word)
    arms = "; ".join(f"{word}: {', '.join(one.arm for one in some)}" for word, some in by_finding.items())
    numbers = NEAREST.format(home=_homes(findings), arms="; ".join(one.numbers for one in findings))
    return QUESTION.format(home=_homes(findings), arms=f"{arms[:1].upper()}{arms[1:]}"), numbers


def between(rows: Sequence[Row], results: Results) -> str:
    """Whether the arms do more than policies whose weights are mixed; "" without such policies."""
    apart = grouped((row for row in rows if row.why == "weights"), lambda row: (row.b, row.task, row.a))
    by_line = grouped([_colder_base_comparison(some, results) for some in apart.values()], lambda one: one.home)
    return " ".join(MIXED.format(home=home, arms="; ".join(one.text for one in some)) for home, some in by_line.items())


def colder_base_comparisons(rows: Sequence[Row], results: Results) -> list[ColderBaseComparison]:
    """Compare every arm with its base at the temperature with the nearest pass@1."""
    apart = grouped((row for row in rows if row.why == "colder"), lambda row: (row.a, row.task))
    return [_colder_base_comparison(some, results) for some in apart.values()]


def _homes(findings: Sequence[ColderBaseComparison]) -> str:
    return ", ".join(dict.fromkeys(one.home for one in findings))


def _colder_base_comparison(rows: Sequence[Row], results: Results) -> ColderBaseComparison:
    curves = _curves(results, rows[0])
    at, base = nearest_colder(results, rows[0])
    home = _home(rows[0])
    shown = (1, FEW, max(row.metric.k or 0 for row in rows if row.metric.k in base))
    hidden = [row.comparison.mde for row in rows if row.metric.k != 1 and math.isfinite(row.comparison.mde)]
    higher = [row.metric.k for row in rows if outcome(row) == End.HIGHER]
    # a pass@1 below the best of all temperatures shows nothing: the arm has another temperature
    lower = [row.metric.k for row in rows if outcome(row) == End.LOWER and row.metric.k != 1]
    weights = rows[0].why == "weights"
    same: Finding = "same temperature" if at == REFERENCE else "sharpened" if at < REFERENCE else "flattened"
    same = "sharpened" if weights else same
    before = _before(rows)
    # at the end of the base's range of pass@1 the mixture has no lower bound
    if before or not min(hidden, default=math.nan) <= TOO_LARGE:
        same = "unknown"
    return ColderBaseComparison(
        arm=rows[0].a,
        home="the base" if home == BASE else home,
        finding=("too hot" if rows[0].rising else "above") if higher else "below" if lower else same,
        ks=tuple(higher or lower),
        before=before,
        temperature=at,
        passes={row.metric.k: (row.comparison.mean_a, base[row.metric.k]) for row in rows if row.metric.k in shown},
        detectable=max(hidden, default=math.nan),
        coldest=min(curves),
        weights=weights,
    )


def below(coldest: float) -> float:
    """The next temperature to sample below the coldest: half of it, not below `COLDEST`."""
    return max(COLDEST, float(f"{coldest / 2:.2g}"))


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
