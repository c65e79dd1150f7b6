"""Print a verdict: templates, and the texts that they arrange."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sage_rlvr.errors import ConfigError, suggest
from sage_rlvr.verdicts.distinct import DistinctAnswers, has_answers
from sage_rlvr.verdicts.findings import Findings
from sage_rlvr.verdicts.readers.rows import span
from sage_rlvr.verdicts.results import Results
from sage_rlvr.verdicts.row_counts import TASK
from sage_rlvr.verdicts.row_text import (
    bracketed,
    difference_text,
    ends_text,
    first_of,
    listed,
    many,
    over_text,
    score_text,
)
from sage_rlvr.verdicts.scores import ProblemScores
from sage_rlvr.verdicts.sources import GivenRows
from sage_rlvr.verdicts.stats.curves import CurveComparison
from sage_rlvr.verdicts.stats.paired import DETECTABLE, signed
from sage_rlvr.verdicts.stats.power import least_share
from sage_rlvr.verdicts.stats.strata import LEAST_SAMPLES, Strata
from sage_rlvr.verdicts.verdict import CurveVerdict

CANNOT = "whether it solves {more} than {{b}} in {{top}} tries cannot be told"
FINDINGS = {
    "widened": "{a} widened what {b} solves: pass@k is higher at {gain}{and_lower}",
    "sharpened": "{a} sharpened what {b} solves: pass@k is higher at {gain}{and_lower}",
    "narrowed": "{a} narrowed what {b} solves: pass@k is lower at {loss}",
    "better": f"{{a}} is better at {{gain}}{{and_loss}}; {CANNOT.format(more='more')}",
    "worse": f"{{a}} is worse at {{loss}}{{and_gain}}; {CANNOT.format(more='less')}",
    "no difference": f"No difference between {{a}} and {{b}}: pass@k differs by less than {DETECTABLE:g} at every k up to {{top}}",
    "undecided": "Inconclusive: {a} and {b} cannot be told apart at any k up to {top}",
}
OF_ONE_SAMPLE = {
    "better": "{a} has a higher pass@1 than {b}; whether it solves more in several tries cannot be told from {one_sample}",
    "worse": "{a} has a lower pass@1 than {b}; whether it solves less in several tries cannot be told from {one_sample}",
    "undecided": "Inconclusive: {a} and {b} cannot be told apart in pass@1",
}
"""Replacement for `FINDINGS` if k = 1 is the only k."""
HEADLINE = "{on}{finding} ({about})."
HEADING = "{on}{a} against {b}:"
NO_VERDICT = "{on}Two training seeds of {a} support no verdict; at least three are needed, or one run of each."
READ = "{arms}: {path} ({format}), {rows}, {problems}, n = {n}, {seeds}{heats}; correct: {correct}{unchecked}"
UNCHECKED = "; counts do not show whether the samples are independent"
SCORE = "pass@{k}: {b} {score_b}, {a} {score_a}; difference {difference}"
FLOOR_AT = "; chance floor {floor:.3f}"
FLOOR = "chance floor: {about}"
BELOW = (
    "{arm} lies below the chance floor in {scores}: guessing scores higher, so a difference from {arm} may only be one of answers "
    "in the right form"
)
GAIN_AND_LOSS = (
    "gain at {gain}; loss at {loss}; {neither}{first_loss} ({level:g} % band over {ks}, over {over})"
)
NOT_TOLD = "cannot be told at {ks}; "
WITHIN = f"less than {DETECTABLE:g} apart at {{ks}}; "
FIRST_LOSS = "the first lost {k} lies in [{low:,}, {high:,}]"
NO_LOSS = "the first lost {k}, if any, is at least {low:,}"
ANY_LOSS = "no bound on the first lost {k}"
ALL_GAINED = "{no_k} is lost"
ALL_K = {"k": "k", "no_k": "no k"}
SOME_K = {"k": "one of these k", "no_k": "none of these k"}
"""The words if only some k are compared, as the sentence is about these."""
NEVER = (
    "on the {share} of problems that {sorting} never solved in {half} samples, {other} has pass@{k} {found}, {sorting} drawn again "
    "{again}: {difference}, {end}"
)
"""The first stratum of `strata.stratified`: problems are chosen by one half of the samples and scored by the other."""
UNTOLD = {"cannot be told": "which cannot be told from 0"}
GAINED = UNTOLD | {"higher": "so {a} unlocked some", "lower": "so {a} solves fewer of them than {b} itself"}
LOST = UNTOLD | {"higher": "so {a} lost some", "lower": "so {b} solves fewer of them than {a} itself"}
FEW_IN_STRATUM = (
    "of the {share} of problems that {sorting} never solved in {half} samples nothing can be told: too few of them, or of training "
    "seeds"
)
NO_HALVES = f"problems gained and lost: at least {LEAST_SAMPLES} samples of each problem are needed, half of which choose them"
ALONE = "told one by one, whatever chance does: {problems}"
ALL_RIGHT = "all of {k} right (pass^{k}): {b} {score_b}, {a} {score_a}; difference {difference}{end}"
RELIABLE = {"better": ": {a} is more reliable", "worse": ": {a} is less reliable"}
POWER = "this design could have seen a difference of {seen} (80 % power, by the band){halved}"
HALVED = "; four times the {units} halve it"
NO_POWER = "this design could not have seen any difference: more problems or training seeds are needed"
PLAN = "what more problems, samples or training seeds would show: {command}"
SHOWN = 3  # problems by name; k from which on "1 to 3" is shorter
MOST_KS = 8  # values of k that are named one by one


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
    numbers = list[str]()
    for one in verdicts:
        numbers += filter(None, (gain_and_loss(one), reliable(one), *unlocked(one), *alone(one), *below(one)))
    yield " ".join(f"{line[:1].upper()}{line[1:]}." for line in numbers)


def all_lines(results: Results, findings: Findings) -> list[str]:
    """Return all lines for a terminal about files of rows, notes included; files of rows have no settings."""
    return [*shown_first(results, findings), "", *results.notes]


def shown_first(results: Results, findings: Findings) -> list[str]:
    """Return the reasons why most samples failed, the verdicts, and whether an arm does more than its base at a lower
    temperature."""
    verdict_lines = lines(results.given, results.sources, findings.verdicts)
    return [*results.failed, *verdict_lines, *beside_colder(results, findings)]


def beside_colder(results: Results, findings: Findings) -> Iterator[str]:
    """Yield the lines on whether an arm does more than its base at a lower temperature, and than mixed weights; none for one
    temperature and no mixtures."""
    if any(row.why in ("colder", "weights") for row in findings.rows):
        from sage_rlvr.verdicts.colder_text import between, sharpened  # several temperatures, or mixed weights

        yield from filter(None, [sharpened(findings.rows, results), between(findings.rows, results)])


def lines(given: Sequence[GivenRows], sources: Sequence[str], verdicts: Sequence[CurveVerdict]) -> Iterator[str]:
    """Yield the lines for a terminal: the finding first, the files, scores, gain and loss over k, problems solved by only one,
    power."""
    yield from map(headline, verdicts)
    yield ""
    yield from map(read_line, given)
    for one in verdicts:
        yield ""
        yield from ([HEADING.format(**_texts(one))] if len(verdicts) > 1 else [])
        yield from filter(None, (scores(one), gain_and_loss(one), reliable(one), *unlocked(one), *alone(one)))
        yield from distinct_lines(one.a, one.b, one.distinct)
        yield from below(one)
        yield from (() if one.chance is None else [FLOOR.format(about=one.chance.words)])
        yield power(one)
    yield from plan_line(given, sources, verdicts)


def plan_line(given: Sequence[GivenRows], sources: Sequence[str], verdicts: Sequence[CurveVerdict]) -> Iterator[str]:
    """Yield the command that plans a larger design, for two arms in files of rows. sources: () for objects in memory."""
    if len(verdicts) == 1 and given and sources:
        yield PLAN.format(command=suggest("plan", "--from", *sources, *given[0].evaluation.options))


def ks_text(ks: Sequence[int], ranges: Sequence[tuple[int, int]]) -> str:
    """The k of a curve over `ks` in these ranges, in words: "k = 1 to 10, 61 to 128", "k = 1, 4, 16", "k = 900 to
    1,024, 70 values from 1,044 to 4,096", "no k".
    """
    every = next((i for i, k in enumerate(ks) if k != i + 1), len(ks))  # all k up to here
    parts = list[str]()
    for first, last in ranges:
        end = min(last, every) if every >= SHOWN else 0
        if first <= end:
            parts.append(f"{first:,}" if first == end else f"{first:,} to {end:,}")
        some = [f"{k:,}" for k in ks if max(first, end + 1) <= k <= last]
        parts += some if len(some) <= MOST_KS else [f"{len(some)} values from {some[0]} to {some[-1]}"]
    return f"k = {', '.join(parts)}" if parts else "no k"


def _at(curve: CurveComparison | None, ranges: Sequence[tuple[int, int]]) -> str:
    """Ranges of k in words; no k without a curve."""
    return ks_text(() if curve is None else curve.ks, ranges)


def _neither(verdict: CurveVerdict) -> str:
    """The k with neither gain nor loss, and the meaning of that; "" if there are none."""
    if not verdict.crossing.undecided:
        return ""
    template = WITHIN if verdict.finding == "no difference" else NOT_TOLD
    return template.format(ks=_at(verdict.curve, verdict.crossing.undecided))


def _texts(verdict: CurveVerdict) -> dict[str, Any]:
    """Values of the templates for one verdict."""
    curve, crossed = verdict.curve, verdict.crossing
    return {
        "v": verdict,
        "a": verdict.a.arm,
        "b": verdict.b.arm,
        "on": on_text(verdict),
        "gain": _at(curve, crossed.gain),
        "loss": _at(curve, crossed.loss),
        "and_lower": f" and lower at {_at(curve, crossed.loss)}" if crossed.loss else "",
        "and_gain": f" and better at {_at(curve, crossed.gain)}" if crossed.gain else "",
        "and_loss": f" and worse at {_at(curve, crossed.loss)}" if crossed.loss else "",
        "top": f"{curve.ks[-1]:,}" if curve else "",
        "one_sample": "one sample per problem" if verdict.a.sizes is verdict.b.sizes is None else "a problem with one sample",
        "about": _about(verdict),
    }


def on_text(verdict: CurveVerdict) -> str:
    """Task and temperature as a prefix of a verdict, each only if verdicts differ in it: "sums, T = 0.5: "."""
    on = listed("" if verdict.a.task == TASK else verdict.a.task, f"T = {verdict.a.temperature:g}" if verdict.heated else "")
    return f"{on}: " if on else ""


def _about(verdict: CurveVerdict) -> str:
    if verdict.curve is None or verdict.curve.over_seeds:
        which = "these" if verdict.fixed else "such"
        held = ", whose choice is left out" if verdict.fixed else ""
        seeds = many(len(verdict.a.values), "training seed")
        return f"{seeds}, {many(len(verdict.a.problems), 'problem')}; about methods on {which} problems{held}"
    samples = span(np.concatenate([verdict.a.samples, verdict.b.samples]))
    clusters = f" in {many(verdict.curve.n, 'cluster')}" if verdict.a.cluster else ""
    each = f"{samples} sample{'s' * (samples != '1')} each"
    return f"{many(len(verdict.a.problems), 'problem')}{clusters}, {each}; one run of each, so about these checkpoints"


def read_line(given: GivenRows) -> str:
    """Describe a file of rows."""
    evaluation = given.evaluation
    seeds = {table.group.seed for table in evaluation.tables if table.group.seed is not None}
    heats = sorted({table.group.temperature for table in evaluation.tables if table.group.temperature is not None})
    return READ.format(
        arms=" and ".join(arm if arm == full else f"{arm} ({full})" for arm, full in given.arms.items()),
        path=evaluation.path,
        format=evaluation.format,
        rows=many(evaluation.rows, "row"),
        problems=many(len({problem for table in evaluation.tables for problem in table.problems}), "problem"),
        n=span(np.concatenate([table.n for table in evaluation.tables])),
        seeds=f"{len(seeds)} training seeds, " if len(seeds) > 1 else "",
        heats=f"T = {', '.join(f'{t:g}' for t in heats)}" if heats else "temperature not given",
        correct=evaluation.correct,
        unchecked=UNCHECKED if hides_samples(given) else "",
    )


def hides_samples(given: GivenRows) -> bool:
    """Whether a file has only counts."""
    return all(table.right is None for table in given.evaluation.tables)


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
    """The k at which the arm gains and loses; "" without a curve, and if k = 1 is the only k, which the line of pass@1 covers."""
    curve = verdict.curve
    if curve is None or curve.ks[-1] == 1:
        return ""
    every, top = len(curve.ks) == curve.ks[-1], curve.ks[-1]  # over training seeds, and for many samples, there are only some k
    ks = f"all {top:,} values of k at once" if every else f"{_at(curve, [(1, top)])} at once"
    return GAIN_AND_LOSS.format(
        first_loss=_first_loss(verdict), level=100 * curve.level, ks=ks, neither=_neither(verdict),
        over=over_text(curve.n, curve.over), **_texts(verdict),
    )  # fmt: skip


def _first_loss(verdict: CurveVerdict) -> str:
    """The set that contains the first lost k."""
    crossed, ks = verdict.crossing, () if verdict.curve is None else verdict.curve.ks
    every = len(ks) == ks[-1] if ks else True
    low = crossed.low if every else next((k for k in ks if not any(a <= k <= b for a, b in crossed.gain)), ks[-1] + 1)
    if crossed.first_loss:
        template = FIRST_LOSS
    elif low == 1:
        template = ANY_LOSS
    else:
        template = NO_LOSS if ks and low <= ks[-1] else ALL_GAINED
    high = crossed.first_loss[1] if crossed.first_loss else 0
    return template.format(low=low, high=high, **(ALL_K if every else SOME_K))


def unlocked(verdict: CurveVerdict) -> Iterator[str]:
    """Problems that the arm gained and lost, one line each."""
    found, names = verdict.unlocked, {"a": verdict.a.arm, "b": verdict.b.arm}
    if found.gained is None or found.lost is None:
        yield NO_HALVES
        return
    yield from _never(found.gained, len(verdict.a.problems), names["b"], names["a"], GAINED, names)
    yield from _never(found.lost, len(verdict.a.problems), names["a"], names["b"], LOST, names)


def alone(verdict: CurveVerdict) -> Iterator[str]:
    """Yield the line of the problems gained and lost that are told one by one."""
    found = verdict.unlocked
    if found.gained is None or found.lost is None:
        return
    told = [f"{word} {_some(some)}" for word, some in (("gained", found.alone_gained), ("lost", found.alone_lost)) if some]
    if told:
        yield ALONE.format(problems="; ".join(told))


def reliable(verdict: CurveVerdict) -> str:
    """pass^k of both sides; "" if a problem has a single sample."""
    one, names = verdict.all_right, {"a": verdict.a.arm, "b": verdict.b.arm}
    if one is None:
        return ""
    end = RELIABLE.get(one.gap.outcome, "").format(**names)
    scores = {"score_a": score_text(one.arm), "score_b": score_text(one.control), "difference": difference_text(one.gap)}
    return ALL_RIGHT.format(k=one.k, end=end, **scores, **names)


def _never(
    strata: Strata, problems: int, sorting: str, other: str, ends: Mapping[str, str], names: Mapping[str, str]
) -> Iterator[str]:
    """The line of the problems that `sorting` never solved; none if not even one is expected."""
    first, gap = strata.strata[0], strata.strata[0].difference
    if first.high > 0 or first.share * problems < 0.5:
        return
    share = f"{100 * first.share:.{0 if first.share >= 0.01 else 1}f} %"
    about = {"share": share, "sorting": sorting, "half": strata.half}
    if not math.isfinite(gap.width):
        yield FEW_IN_STRATUM.format(**about)
        return
    yield NEVER.format(
        other=other, k=strata.k, found=f"{first.other:.3f}", again=f"{first.again:.3f}",
        difference=signed(gap.value) + bracketed(ends_text(gap)), end=ends[first.outcome].format(**names), **about,
    )  # fmt: skip


def _some(problems: Sequence[str]) -> str:
    return first_of([problem if len(problem) < 30 else f"{problem[:27]}..." for problem in problems], SHOWN)


def power(verdict: CurveVerdict) -> str:
    """The difference that could have been detected."""
    seen = ", ".join(f"{gap.mde:.3f} in pass@{k}" for k, (_, _, gap) in verdict.shown.items() if math.isfinite(gap.mde))
    units = "clusters" if verdict.a.cluster else "problems"
    if len(verdict.a.values) > 1:
        units = "training seeds" if verdict.fixed else "training seeds and problems"
    # scatter falls with the square root of the number of units; the smallest visible rate of 0/1 outcomes falls with the number
    least = 0.0 if verdict.curve is None or verdict.curve.over_seeds else least_share(verdict.curve.n)
    halved = HALVED.format(units=units) if all(gap.mde > least for _, _, gap in verdict.shown.values()) else ""
    return POWER.format(seen=seen, halved=halved) if seen else NO_POWER


# ---- `compare --fail-on`


def failures(verdicts: Sequence[CurveVerdict], rules: Sequence[str]) -> list[str]:
    """A sentence for each rule that a verdict breaks. rules: "loss" (lower at any k), "no-gain" (higher at no k), "pass@K" (lower
    at this k, by the interval at this k only)."""
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
    gap = one.a.minus(one.b, k, fixed=one.fixed)
    if gap.outcome != "worse":
        return []
    size = f"{signed(gap.difference.value)} ({ends_text(gap.difference)})"
    alone = ", by the interval at this k alone; the verdict's band over all k is wider" if (one.a.n or 0) > 1 else ""
    return [f"pass@{k} of {one.a.arm} fell: {size} against {one.b.arm}{alone}"]


# ---- distinct right answers


def distinct_lines(a: ProblemScores, b: ProblemScores, distinct: DistinctAnswers | None) -> Iterator[str]:
    """Both means and their difference at 8 and all samples, and a description of the answers."""
    if distinct is None:
        lacking = [one.arm for one in (a, b) if not has_answers(one)]
        if len(lacking) == 1:
            yield f"distinct right answers are not compared: the rows of {lacking[0]} have no answers"
        return
    if distinct.most == 0:
        yield f"distinct right answers: no right sample has an answer ({distinct.source})"
        return
    if distinct.most == 1:
        yield f"distinct right answers ({distinct.source}): no problem has more than one, so pass@k has them all"
        return
    for k, (left, right, gap) in distinct.shown.items():
        means = f"{b.arm} {score_text(right, '.2f')}, {a.arm} {score_text(left, '.2f')}"
        yield f"distinct right answers in {many(k, 'sample')}: {means}; difference {difference_text(gap, 'no interval')}"
    shares = zip(distinct.names, distinct.unnamed, strict=True)
    without = ", ".join(f"{share:.1%} of the right samples of {name}" for name, share in shares if share > 0)
    yield listed(f"answers: {distinct.source}", without and f"without an answer, and not counted: {without}", by="; ")
