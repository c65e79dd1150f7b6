"""Print arms beside their base at other temperatures: templates, and the texts that they arrange."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sage_rlvr.verdicts.colder import ColderBaseComparison, Finding, colder_base_comparisons, comparisons_of_weights
from sage_rlvr.verdicts.design import BASE
from sage_rlvr.verdicts.results import Results
from sage_rlvr.verdicts.row import Row
from sage_rlvr.verdicts.row_text import End, grouped, listed

TOO_HOT = (
    "cannot be told before {home}, whose pass@1 is not shown to fall at T = {coldest:g}, its lowest, is sampled at T = {next:g}"
)
WORDS: dict[Finding, str] = {
    "above": "yes, higher at k = {ks}",
    "below": "no, lower at k = {ks}",
    "same temperature": "no difference from {home} at the same temperature can be told",
    "sharpened": "only sharpened, as far as can be told",
    "flattened": "no more than at a higher temperature, as far as can be told",
    "too hot": TOO_HOT,
    "unknown": "cannot be told",
}
NEAREST = "Each arm beside {home} at the temperature with the nearest pass@1: {arms}."
OF_ARM = "{arm} beside T = {t:g} ({facts})"
QUESTION = "Does it do more than {home} at a lower temperature? {arms}."
ANSWERS: dict[Finding, str] = {
    "above": "{arm}: yes, higher at k = {ks} ({pairs} of {home} at T = {t:g})",
    "below": "{arm}: no, lower at k = {ks} ({pairs} of {home} at T = {t:g})",
    "same temperature": "{arm}: no difference from {home} at the same temperature can be told ({facts})",
    "too hot": f"{{arm}}: {TOO_HOT} (higher so far at k = {{ks}}: {{pairs}} of {{home}} at T = {{t:g}})",
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


def sharpened(rows: Sequence[Row], results: Results) -> str:
    """The answer whether the arms do more than their base at a lower temperature; "" if the base was sampled at one temperature."""
    found = colder_base_comparisons(rows, results)
    arms = "; ".join(map(beside_base, found))
    return QUESTION.format(home=_homes(found), arms=arms) if found else ""


def sharpened_in_two(rows: Sequence[Row], results: Results) -> tuple[str, str]:
    """The same in two parts: the findings with their arms, and the numbers of each arm."""
    found = colder_base_comparisons(rows, results)
    if not found:
        return "", ""
    by_finding = grouped(found, lambda one: _beside(WORDS[one.finding], one))
    arms = "; ".join(f"{word}: {', '.join(one.arm for one in some)}" for word, some in by_finding.items())
    numbers = NEAREST.format(home=_homes(found), arms="; ".join(_beside(OF_ARM, one) for one in found))
    return QUESTION.format(home=_homes(found), arms=f"{arms[:1].upper()}{arms[1:]}"), numbers


def between(rows: Sequence[Row], results: Results) -> str:
    """The answer whether the arms do more than policies whose weights are mixed; "" without such policies."""
    by_line = grouped(comparisons_of_weights(rows, results), lambda one: one.home)
    texts = ((home, "; ".join(_beside(OF_WEIGHTS[one.finding], one) for one in some)) for home, some in by_line.items())
    return " ".join(MIXED.format(home=home, arms=arms) for home, arms in texts)


def beside_base(one: ColderBaseComparison) -> str:
    """The finding of an arm beside its base at the temperature with the nearest pass@1, with its numbers."""
    return _beside(ANSWERS[one.finding], one)


def _beside(template: str, one: ColderBaseComparison) -> str:
    """A template filled with the numbers of an arm beside its base."""
    pairs = ", ".join(f"pass@{k} {own:.3f} and {base:.3f}" for k, (own, base) in one.passes.items())
    before = {End.HIGHER_BEFORE: one.higher_before, End.LOWER_BEFORE: one.lower_before}
    ends = [f"{end} at k = {', '.join(map(str, ks))}" for end, ks in before.items() if ks]
    seen = f"detectable at k > 1: {one.detectable:.3f}" if math.isfinite(one.detectable) else ""
    place = f"share {1 - one.temperature:g}" if 0 <= one.temperature <= 1 else "the base itself"
    return template.format(
        arm=one.arm, home=_home(one), t=one.temperature, coldest=one.coldest, next=one.next_temperature, place=place,
        largest=1 - one.coldest, ks=", ".join(map(str, one.ks)), pairs=pairs, facts=listed(pairs, *ends, seen, by="; "),
    )  # fmt: skip


def _home(one: ColderBaseComparison) -> str:
    return "the base" if one.home == BASE else one.home


def _homes(found: Sequence[ColderBaseComparison]) -> str:
    return ", ".join(dict.fromkeys(map(_home, found)))
