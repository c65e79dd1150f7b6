"""Print a verdict: templates, and the texts that they arrange."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sage_rlvr.errors import ConfigError, suggest
from sage_rlvr.results.comparisons import counted
from sage_rlvr.results.distinct import distinct_lines
from sage_rlvr.results.readers.rows import span
from sage_rlvr.results.row_counts import TASK
from sage_rlvr.results.row_text import difference_text, ends_text, first_of, listed, many, score_text
from sage_rlvr.results.sources import GivenRows
from sage_rlvr.results.verdict import CurveVerdict
from sage_rlvr.stats.comparison import DETECTABLE, p_text, signed
from sage_rlvr.stats.curves import CurveComparison

OVER_K = "pass@k is higher at {gain} and lower at {loss}"
CANNOT = "whether it solves {more} than {{b}} in {{top}} tries cannot be told"
FINDINGS = {
    "widened": f"{{a}} widened what {{b}} solves: {OVER_K}",
    "sharpened": f"{{a}} sharpened what {{b}} solves: {OVER_K}",
    "narrowed": f"{{a}} narrowed what {{b}} solves: {OVER_K}",
    "better": f"{{a}} is better at {{gain}} and worse at {{loss}}; {CANNOT.format(more='more')}",
    "worse": f"{{a}} is worse at {{loss}} and better at {{gain}}; {CANNOT.format(more='less')}",
    "no difference": f"No difference between {{a}} and {{b}}: pass@k differs by less than {DETECTABLE:g} at every k up to {{top}}",
    "undecided": "Inconclusive: {a} and {b} cannot be told apart at any k up to {top}",
}
OF_ONE_SAMPLE = {
    "better": "{a} has a higher pass@1 than {b}; whether it solves more in several tries cannot be told from {one_sample}",
    "worse": "{a} has a lower pass@1 than {b}; whether it solves less in several tries cannot be told from {one_sample}",
    "undecided": "Inconclusive: {a} and {b} cannot be told apart in pass@1",
}
"""In place of `FINDINGS` where k = 1 is all there is."""
HEADLINE = "{on}{finding} ({about})."
NO_VERDICT = "{on}Two training seeds of {a} support no verdict; at least three are needed, or one run of each."
READ = "{arms}: {path} ({format}), {rows} rows, {problems} problems, n = {n}, {seeds}{heats}; correct: {correct}"
SCORE = "pass@{k}: {b} {score_b}, {a} {score_a}; difference {difference}"
FLOOR_AT = "; chance floor {floor:.3f}"
FLOOR = "chance floor: {about}"
BELOW = (
    "{arm} lies below the chance floor in {scores}: guessing scores higher, so a difference from {arm} may only be one of answers "
    "in the right form"
)
GAIN_AND_LOSS = (
    "gain at {gain}; loss at {loss}; {neither}{first_loss} ({level:g} % band over {ks}, over {v.curve.n:,} {v.curve.over})"
)
NOT_TOLD = "cannot be told at {ks}; "
WITHIN = f"less than {DETECTABLE:g} apart at {{ks}}; "
FIRST_LOSS = "the first lost k lies in [{v.crossing.first_loss[0]}, {v.crossing.first_loss[1]}]"
NO_LOSS = "the first lost k, if any, is at least {low}"
ANY_LOSS = "no bound on the first lost k"
ALL_GAINED = "no k is lost"
SOLVED = (
    "solved in {samples}: kept {kept}, gained {new} (only {a}; {gained}), lost {gone} (only {b}; {lost}), neither {neither}; two "
    "equal models would show {chance} of each"
)
EQUAL = "{p} for equal models"
SOLVED_BY_SEEDS = (
    "solved in {samples}, means over training seeds: kept {kept}, gained {new} (only {a}), lost {gone} (only {b}), neither "
    "{neither}"
)
CERTAIN = "{n} of them significant alone: {problems}"
POWER = "this design could have seen a difference of {seen} (80 % power); four times the {units} halve it"
NO_POWER = "this design could not have seen any difference: more problems or training seeds are needed"
PLAN = "what more problems, samples or training seeds would show: {command}"
SHOWN = 3  # problems by name


def headline(verdict: CurveVerdict) -> str:
    """The finding in one sentence."""
    texts = _texts(verdict)
    if verdict.curve is None:
        return NO_VERDICT.format(**texts)
    findings = FINDINGS | OF_ONE_SAMPLE if verdict.curve.ks[-1] == 1 else FINDINGS
    return HEADLINE.format(finding=findings[verdict.finding].format(**texts), **texts)


def paragraphs(verdicts: Sequence[CurveVerdict]) -> Iterator[str]:
    """The findings, and in a second paragraph their numbers."""
    yield " ".join(map(headline, verdicts))
    numbers = [line for one in verdicts for line in (gain_and_loss(one), solved(one), *below(one)) if line]
    yield " ".join(f"{line[:1].upper()}{line[1:]}." for line in numbers)


def lines(given: Sequence[GivenRows], sources: Sequence[str], verdicts: Sequence[CurveVerdict]) -> Iterator[str]:
    """What a terminal shows: the finding first, what was read, scores, gain and loss over k, problems solved by one only, power."""
    yield from map(headline, verdicts)
    yield ""
    yield from map(read_line, given)
    for one in verdicts:
        yield from filter(None, ("\n" + scores(one), gain_and_loss(one), solved(one)))
        yield from distinct_lines(one.a, one.b, one.distinct)
        yield from below(one)
        yield from (() if one.chance is None else [FLOOR.format(about=one.chance.words)])
        yield power(one)
    if len(verdicts) == 1 and given:
        yield PLAN.format(command=suggest("plan", "--from", *sources, *given[0].evaluation.options))


def ranges_of_k(ranges: Sequence[tuple[int, int]]) -> str:
    """ "k = 1 to 10, 61 to 128", "no k"."""
    parts = [f"{first}" if first == last else f"{first} to {last}" for first, last in ranges]
    return f"k = {', '.join(parts)}" if parts else "no k"


def _at(curve: CurveComparison | None, ranges: Sequence[tuple[int, int]]) -> str:
    """Ranges of k in words; where the band has only some k, those k and none between."""
    if curve is None or len(curve.ks) == curve.ks[-1]:
        return ranges_of_k(ranges)
    return ranges_of_k([(k, k) for first, last in ranges for k in curve.ks if first <= k <= last])


def _neither(verdict: CurveVerdict) -> str:
    """Where over k there is neither gain nor loss, and what that means there; "" for nowhere."""
    if not verdict.crossing.undecided:
        return ""
    template = WITHIN if verdict.finding == "no difference" else NOT_TOLD
    return template.format(ks=_at(verdict.curve, verdict.crossing.undecided))


def _texts(verdict: CurveVerdict) -> dict[str, Any]:
    """What the templates name, of one verdict."""
    curve, crossed = verdict.curve, verdict.crossing
    return {
        "v": verdict,
        "a": verdict.a.arm,
        "b": verdict.b.arm,
        "on": "" if verdict.a.task == TASK else f"{verdict.a.task}: ",
        "gain": _at(curve, crossed.gain),
        "loss": _at(curve, crossed.loss),
        "top": curve.ks[-1] if curve else "",
        "one_sample": "one sample per problem" if verdict.a.sizes is verdict.b.sizes is None else "a problem with one sample",
        "about": _about(verdict),
    }


def _about(verdict: CurveVerdict) -> str:
    if verdict.curve is None or verdict.curve.over == "training seeds":
        return many(len(verdict.a.values), "training seed")
    samples = span(np.concatenate([verdict.a.samples, verdict.b.samples]))
    clusters = f" in {verdict.curve.n:,} clusters" if verdict.a.cluster else ""
    each = f"{samples} sample{'s' * (samples != '1')} each"
    return f"{len(verdict.a.problems):,} problems{clusters}, {each}; one run of each, so about these checkpoints"


def read_line(given: GivenRows) -> str:
    """What was read of a file of rows."""
    evaluation = given.evaluation
    seeds = {table.group.seed for table in evaluation.tables if table.group.seed is not None}
    heats = sorted({table.group.temperature for table in evaluation.tables if table.group.temperature is not None})
    return READ.format(
        arms=" and ".join(dict.fromkeys(given.arm_of(table) for table in evaluation.tables)),
        path=evaluation.path,
        format=evaluation.format,
        rows=f"{evaluation.rows:,}",
        problems=f"{len({problem for table in evaluation.tables for problem in table.problems}):,}",
        n=span(np.concatenate([table.n for table in evaluation.tables])),
        seeds=f"{len(seeds)} training seeds, " if len(seeds) > 1 else "",
        heats=f"T = {', '.join(f'{t:g}' for t in heats)}" if heats else "temperature not given",
        correct=evaluation.correct,
    )


def scores(verdict: CurveVerdict) -> str:
    """pass@k of both arms at the shown k, one line per k."""
    names = {"a": verdict.a.arm, "b": verdict.b.arm}
    return "\n".join(
        SCORE.format(k=k, score_a=score_text(a), score_b=score_text(b), difference=difference_text(gap), **names)
        + _floor_at(verdict, k)
        for k, (a, b, gap) in verdict.shown.items()
    )


def _floor_at(verdict: CurveVerdict, k: int) -> str:
    return "" if verdict.chance is None else FLOOR_AT.format(floor=verdict.chance.at(k))


def below(verdict: CurveVerdict) -> Iterator[str]:
    """The arms below the chance floor, one line each."""
    scores: dict[str, list[str]] = {}
    for k in verdict.shown:
        for arm in verdict.below(k):
            scores.setdefault(arm, []).append(f"pass@{k}")
    yield from (BELOW.format(arm=arm, scores=" and ".join(some)) for arm, some in scores.items())


def gain_and_loss(verdict: CurveVerdict) -> str:
    """Where over k the arm gains and loses; "" without a curve, and at k = 1 alone, where the line of pass@1 has it."""
    curve = verdict.curve
    if curve is None or curve.ks[-1] == 1:
        return ""
    every, top = len(curve.ks) == curve.ks[-1], curve.ks[-1]  # over training seeds the band has only some k
    ks = f"all {top} values of k at once" if every else f"{_at(curve, [(1, top)])} at once"
    return GAIN_AND_LOSS.format(
        first_loss=_first_loss(verdict), level=100 * curve.level, ks=ks, neither=_neither(verdict), **_texts(verdict)
    )


def _first_loss(verdict: CurveVerdict) -> str:
    """The set that holds the first lost k."""
    crossed = verdict.crossing
    if crossed.first_loss:
        return FIRST_LOSS.format(v=verdict)
    if crossed.low == 1:
        return ANY_LOSS
    return NO_LOSS.format(low=crossed.low) if verdict.curve and crossed.low <= verdict.curve.ks[-1] else ALL_GAINED


def solved(verdict: CurveVerdict) -> str:
    """Problems by who solves them. Several training seeds have means, and no chance."""
    one = verdict.solved
    template = SOLVED if math.isfinite(one.chance) else SOLVED_BY_SEEDS
    gained, lost = _by_chance(one.p_gained, one.certain_gained), _by_chance(one.p_lost, one.certain_lost)
    return template.format(
        samples=many(one.k, "sample"), a=verdict.a.arm, b=verdict.b.arm, gained=gained, lost=lost, kept=_number(one.kept),
        new=_number(one.gained), gone=_number(one.lost), neither=_number(one.neither), chance=_about_number(one.chance),
    )  # fmt: skip


def _number(x: float) -> str:
    """A mean or expected number of problems: whole where it is, else with one decimal."""
    return f"{x:,.0f}" if x >= 100 or x == round(x) else f"{x:,.1f}"


def _about_number(x: float) -> str:
    """The same of an expected number; "" for NaN, which several training seeds have and their template does not name."""
    if math.isnan(x):
        return ""
    return "less than 0.1" if 0 < x < 0.1 else f"about {_number(x)}"


def _by_chance(p: float, certain: Sequence[str]) -> str:
    problems = first_of([problem if len(problem) < 30 else f"{problem[:27]}..." for problem in certain], SHOWN)
    return listed(EQUAL.format(p=p_text(p)), CERTAIN.format(n=len(certain), problems=problems) if certain else "")


def power(verdict: CurveVerdict) -> str:
    """The difference that could have been detected."""
    seen = ", ".join(f"{gap.mde:.3f} in pass@{k}" for k, (_, _, gap) in verdict.shown.items() if math.isfinite(gap.mde))
    units = "training seeds" if len(verdict.a.values) > 1 else "clusters" if verdict.a.cluster else "problems"
    return POWER.format(seen=seen, units=units) if seen else NO_POWER


# ---- `compare --fail-on`


def failures(verdicts: Sequence[CurveVerdict], rules: Sequence[str]) -> list[str]:
    """A sentence for each rule that a verdict breaks. rules: "loss" (lower at any k), "no-gain" (higher at no k), "pass@K" (lower
    at this k, by the interval at this k alone)."""
    out = []
    for rule in rules:
        match = re.fullmatch(r"pass@(\d+)", rule)
        if match is None and rule not in ("loss", "no-gain"):
            raise ConfigError(f"--fail-on {rule!r}: choose loss, no-gain or pass@K, for example pass@8")
        for one in verdicts:
            if match is not None:
                out += _fell(one, int(match[1]))
            elif rule == "loss" and one.crossing.loss:
                out.append(f"{one.a.arm} is lower than {one.b.arm} at {_at(one.curve, one.crossing.loss)}")
            elif rule == "no-gain" and not one.crossing.gain:
                out.append(f"{one.a.arm} is higher than {one.b.arm} at no k")
    return out


def _fell(one: CurveVerdict, k: int) -> list[str]:
    if k < 1 or k > (one.a.n or 0):
        raise ConfigError(
            f"--fail-on pass@{k}: {one.a.arm} has {one.a.n} samples per problem; choose a k from 1 to {one.a.n}"
        )
    gap = counted(one.a, one.b, k)
    if gap.outcome != "worse":
        return []
    size = f"{signed(gap.difference.value)} ({ends_text(gap.difference)})"
    alone = ", by the interval at this k alone; the verdict's band over all k is wider" if (one.a.n or 0) > 1 else ""
    return [f"pass@{k} of {one.a.arm} fell: {size} against {one.b.arm}{alone}"]
