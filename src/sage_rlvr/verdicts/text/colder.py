"""Arms against their base at other temperatures, and against policies whose weights are mixed: does training do more than that?"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sage_rlvr.verdicts.colder import ColderBaseComparison, colder_base_comparisons, comparisons_of_weights
from sage_rlvr.verdicts.design import BASE
from sage_rlvr.verdicts.grouped import grouped
from sage_rlvr.verdicts.results import Results
from sage_rlvr.verdicts.row import End, Row
from sage_rlvr.verdicts.text.words import listed


def sharpened(rows: Sequence[Row], results: Results) -> str:
    """The answer whether the arms do more than their base at a lower temperature; "" if the base was sampled at one temperature."""
    found = colder_base_comparisons(rows, results)
    return f"{_question(found)} {'; '.join(map(beside_base, found))}." if found else ""


def sharpened_in_two(rows: Sequence[Row], results: Results) -> tuple[str, str]:
    """The same in two parts: the findings with their arms, and the numbers of each arm."""
    found = colder_base_comparisons(rows, results)
    if not found:
        return "", ""
    findings = grouped(found, _finding).items()
    arms = "; ".join(f"{finding}: {', '.join(one.arm for one in some)}" for finding, some in findings)
    numbers = "; ".join(f"{one.arm} beside T = {one.temperature:g} ({_facts(one)})" for one in found)
    beside = f"Each arm beside {_homes(found)} at the temperature with the nearest pass@1"
    return f"{_question(found)} {arms[:1].upper()}{arms[1:]}.", f"{beside}: {numbers}."


def between(rows: Sequence[Row], results: Results) -> str:
    """The answer whether the arms do more than policies whose weights are mixed; "" without such policies."""
    by_line = grouped(comparisons_of_weights(rows, results), lambda one: one.home)
    texts = ((home, "; ".join(map(_beside_weights, some))) for home, some in by_line.items())
    return " ".join(f"Does it do more than {home}, without training? {arms}." for home, arms in texts)


def beside_base(one: ColderBaseComparison) -> str:
    """The finding of an arm against its base at the temperature with the nearest pass@1, with its numbers."""
    home, at, finding = _home(one), f"T = {one.temperature:g}", f"{one.arm}: {_finding(one)}"
    if one.finding == "too hot":
        return f"{finding} (higher so far at k = {_ks(one)}: {_pairs(one)} of {home} at {at})"
    if one.finding in ("above", "below"):
        return f"{finding} ({_pairs(one)} of {home} at {at})"
    if one.finding == "same temperature":
        return f"{finding} ({_facts(one)})"
    if one.finding == "sharpened":
        return f"{finding} ({home} at {at} does the same: {_facts(one)})"
    if one.finding == "unknown":
        return f"{finding} ({home} at {at} has the nearest pass@1: {_facts(one)})"
    return f"{one.arm}: no more than {home} at a higher temperature, as far as can be told ({at} does the same: {_facts(one)})"


def _finding(one: ColderBaseComparison) -> str:
    """The finding of an arm against its base, without numbers."""
    home = _home(one)
    words = {
        "above": f"yes, higher at k = {_ks(one)}",
        "below": f"no, lower at k = {_ks(one)}",
        "same temperature": f"no difference from {home} at the same temperature can be told",
        "sharpened": "only sharpened, as far as can be told",
        "flattened": "no more than at a higher temperature, as far as can be told",
        "too hot": (
            f"cannot be told before {home}, whose pass@1 is not shown to fall at T = {one.coldest:g}, its lowest, is sampled at "
            f"T = {one.next_temperature:g}"
        ),
        "unknown": "cannot be told",
    }
    return words[one.finding]


def _beside_weights(one: ColderBaseComparison) -> str:
    """The finding of an arm against mixed weights, with its numbers."""
    place = f"share {1 - one.temperature:g}" if 0 <= one.temperature <= 1 else "the base itself"
    finding = {
        "above": f"yes, higher at k = {_ks(one)} ({_pairs(one)} at {place})",
        "below": f"no, lower at k = {_ks(one)} ({_pairs(one)} at {place})",
        "too hot": (
            f"cannot be told, since their pass@1 is not shown to fall at the largest share, {1 - one.coldest:g} (higher so far at "
            f"k = {_ks(one)}: {_pairs(one)} at {place})"
        ),
        "unknown": f"cannot be told (the nearest pass@1 is that at {place}: {_facts(one)})",
        "sharpened": f"no more, as far as can be told ({place} does the same: {_facts(one)})",
    }
    return f"{one.arm}: {finding[one.finding]}"


def _ks(one: ColderBaseComparison) -> str:
    return ", ".join(map(str, one.ks))


def _pairs(one: ColderBaseComparison) -> str:
    """The scores of arm and base at each k."""
    return ", ".join(f"pass@{k} {own:.3f} and {base:.3f}" for k, (own, base) in one.passes.items())


def _facts(one: ColderBaseComparison) -> str:
    """The scores, the k at which they differ before correction, and the detectable difference."""
    before = {End.HIGHER_BEFORE: one.higher_before, End.LOWER_BEFORE: one.lower_before}
    ends = [f"{end} at k = {', '.join(map(str, ks))}" for end, ks in before.items() if ks]
    seen = f"detectable at k > 1: {one.detectable:.3f}" if math.isfinite(one.detectable) else ""
    return listed(_pairs(one), *ends, seen, by="; ")


def _question(found: Sequence[ColderBaseComparison]) -> str:
    return f"Does it do more than {_homes(found)} at a lower temperature?"


def _home(one: ColderBaseComparison) -> str:
    return "the base" if one.home == BASE else one.home


def _homes(found: Sequence[ColderBaseComparison]) -> str:
    return ", ".join(dict.fromkeys(map(_home, found)))
