"""The verdict on an arm against its control: the finding in one sentence, and its numbers, a line each.

A line has no full stop and may begin with a small letter, so that a task can precede it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from sage_rlvr.errors import suggest
from sage_rlvr.verdicts.distinct import DistinctAnswers, has_answers
from sage_rlvr.verdicts.readers.rows import span
from sage_rlvr.verdicts.row_counts import TASK
from sage_rlvr.verdicts.scores import ProblemScores
from sage_rlvr.verdicts.sources import GivenRows
from sage_rlvr.verdicts.stats.curves import CurveComparison
from sage_rlvr.verdicts.stats.paired import DETECTABLE, signed
from sage_rlvr.verdicts.stats.power import least_share
from sage_rlvr.verdicts.stats.strata import LEAST_SAMPLES, Strata
from sage_rlvr.verdicts.text.words import (
    bracketed,
    difference_text,
    ends_text,
    first_of,
    ks_text,
    listed,
    many,
    over_text,
    score_text,
    sentence_of,
)
from sage_rlvr.verdicts.verdict import CurveVerdict

SHOWN = 3  # problems by name

# ------------------------------------------------------------------------------------------------------------------
# the finding


def headline(verdict: CurveVerdict) -> str:
    """The finding in one sentence."""
    if verdict.curve is None:
        return (
            f"{on_text(verdict)}Two training seeds of {verdict.a.arm} support no verdict; at least three are needed, or one run of "
            "each."
        )
    return f"{on_text(verdict)}{_finding(verdict, verdict.curve.ks[-1])} ({_about(verdict)})."


def paragraphs(verdicts: Sequence[CurveVerdict]) -> Iterator[str]:
    """The findings, and in a second paragraph their numbers."""
    yield " ".join(map(headline, verdicts))
    numbers = list[str]()
    for one in verdicts:
        numbers += filter(None, (gain_and_loss(one), reliable(one), *unlocked(one), *alone(one), *below(one)))
    yield " ".join(map(sentence_of, numbers))


def on_text(verdict: CurveVerdict) -> str:
    """Task and temperature as a prefix of a verdict, each only if verdicts differ in it: "sums, T = 0.5: "."""
    on = listed("" if verdict.a.task == TASK else verdict.a.task, f"T = {verdict.a.temperature:g}" if verdict.heated else "")
    return f"{on}: " if on else ""


def _finding(verdict: CurveVerdict, top: int) -> str:
    a, b, finding = verdict.a.arm, verdict.b.arm, verdict.finding
    if finding == "no difference":
        return f"No difference between {a} and {b}: pass@k differs by less than {DETECTABLE:g} at every k up to {top:,}"
    if top == 1 and finding == "undecided":
        return f"Inconclusive: {a} and {b} cannot be told apart in pass@1"
    if top == 1:
        higher, more = ("higher", "more") if finding == "better" else ("lower", "less")
        of_one = "one sample per problem" if verdict.a.sizes is verdict.b.sizes is None else "a problem with one sample"
        return f"{a} has a {higher} pass@1 than {b}; whether it solves {more} in several tries cannot be told from {of_one}"
    if finding == "undecided":
        return f"Inconclusive: {a} and {b} cannot be told apart at any k up to {top:,}"
    crossing = verdict.crossing
    gain, loss = ranges_text(verdict.curve, crossing.gain), ranges_text(verdict.curve, crossing.loss)
    if finding == "narrowed":
        return f"{a} narrowed what {b} solves: pass@k is lower at {loss}"
    if finding == "widened" or finding == "sharpened":
        return f"{a} {finding} what {b} solves: pass@k is higher at {gain}{f' and lower at {loss}' if crossing.loss else ''}"
    unknown = f"whether it solves {'more' if finding == 'better' else 'less'} than {b} in {top:,} tries cannot be told"
    if finding == "better":
        return f"{a} is better at {gain}{f' and worse at {loss}' if crossing.loss else ''}; {unknown}"
    return f"{a} is worse at {loss}{f' and better at {gain}' if crossing.gain else ''}; {unknown}"


def _about(verdict: CurveVerdict) -> str:
    """The scope of the claim: these methods, or these checkpoints."""
    problems = many(len(verdict.a.problems), "problem")
    if verdict.curve is None or verdict.curve.over_seeds:
        which = "these problems, whose choice is left out" if verdict.fixed else "such problems"
        return f"{many(len(verdict.a.values), 'training seed')}, {problems}; about methods on {which}"
    samples = span(np.concatenate([verdict.a.samples, verdict.b.samples]))
    clusters = f" in {many(verdict.curve.n, 'cluster')}" if verdict.a.cluster else ""
    plural = "" if samples == "1" else "s"
    return f"{problems}{clusters}, {samples} sample{plural} each; one run of each, so about these checkpoints"


def ranges_text(curve: CurveComparison | None, ranges: Sequence[tuple[int, int]]) -> str:
    """Ranges of k in words; no k without a curve."""
    return ks_text(() if curve is None else curve.ks, ranges)


# ------------------------------------------------------------------------------------------------------------------
# its numbers, a line each


def scores(verdict: CurveVerdict) -> Iterator[str]:
    """pass@k of both arms at the shown k, one line per k."""
    for k, (a, b, gap) in verdict.shown.items():
        floor = "" if verdict.chance is None else f"; chance floor {verdict.chance.at(k):.3f}"
        both = f"{verdict.b.arm} {score_text(b)}, {verdict.a.arm} {score_text(a)}"
        yield f"pass@{k}: {both}; difference {difference_text(gap)}{floor}"


def gain_and_loss(verdict: CurveVerdict) -> str:
    """The k at which the arm gains and loses; "" without a curve, and if k = 1 is the only k, which the line of pass@1 covers."""
    curve, crossing = verdict.curve, verdict.crossing
    if curve is None or curve.ks[-1] == 1:
        return ""
    every, top = len(curve.ks) == curve.ks[-1], curve.ks[-1]  # over training seeds, and for many samples, there are only some k
    ks = f"all {top:,} values of k at once" if every else f"{ranges_text(curve, [(1, top)])} at once"
    neither = ""
    if crossing.undecided:
        undecided = ranges_text(curve, crossing.undecided)
        within = f"less than {DETECTABLE:g} apart at {undecided}; "
        neither = within if verdict.finding == "no difference" else f"cannot be told at {undecided}; "
    band = f"{100 * curve.level:g} % band over {ks}, over {over_text(curve.n, curve.over)}"
    gain, loss = ranges_text(curve, crossing.gain), ranges_text(curve, crossing.loss)
    return f"gain at {gain}; loss at {loss}; {neither}{_first_loss(verdict, curve, every)} ({band})"


def _first_loss(verdict: CurveVerdict, curve: CurveComparison, every: bool) -> str:
    """The set that contains the first lost k. every: whether all k are compared; else the sentence is about the compared ones."""
    crossed, low = verdict.crossing, verdict.crossing.low
    one, none = ("k", "no k") if every else ("one of these k", "none of these k")
    if not every:
        gained = [k for k in curve.ks if any(first <= k <= last for first, last in crossed.gain)]
        low = next((k for k in curve.ks if k not in gained), curve.ks[-1] + 1)
    if crossed.first_loss:
        return f"the first lost {one} lies in [{low:,}, {crossed.first_loss[1]:,}]"
    if low == 1:
        return f"no bound on the first lost {one}"
    return f"the first lost {one}, if any, is at least {low:,}" if low <= curve.ks[-1] else f"{none} is lost"


def reliable(verdict: CurveVerdict) -> str:
    """pass^k of both sides; "" if a problem has a single sample."""
    one, a, b = verdict.all_right, verdict.a.arm, verdict.b.arm
    if one is None:
        return ""
    end = {"better": f": {a} is more reliable", "worse": f": {a} is less reliable"}.get(one.gap.outcome, "")
    both = f"{b} {score_text(one.control)}, {a} {score_text(one.arm)}"
    return f"all of {one.k} right (pass^{one.k}): {both}; difference {difference_text(one.gap)}{end}"


def unlocked(verdict: CurveVerdict) -> Iterator[str]:
    """Problems that the arm gained and lost, one line each."""
    found, a, b, problems = verdict.unlocked, verdict.a.arm, verdict.b.arm, len(verdict.a.problems)
    if found.gained is None or found.lost is None:
        yield f"problems gained and lost: at least {LEAST_SAMPLES} samples of each problem are needed, half of which choose them"
        return
    untold = {"cannot be told": "which cannot be told from 0"}
    gained = {"higher": f"so {a} unlocked some", "lower": f"so {a} solves fewer of them than {b} itself"}
    lost = {"higher": f"so {a} lost some", "lower": f"so {b} solves fewer of them than {a} itself"}
    yield from _never(found.gained, problems, b, a, untold | gained)
    yield from _never(found.lost, problems, a, b, untold | lost)


def _never(strata: Strata, problems: int, sorting: str, other: str, ends: Mapping[str, str]) -> Iterator[str]:
    """The line of the problems that `sorting` never solved; none if not even one is expected. They are chosen by one half of the
    samples and scored by the other (`strata.stratified`)."""
    first, gap = strata.strata[0], strata.strata[0].difference
    if first.high > 0 or first.share * problems < 0.5:
        return
    share = f"{100 * first.share:.{0 if first.share >= 0.01 else 1}f} %"
    chosen = f"the {share} of problems that {sorting} never solved in {strata.half} samples"
    if not math.isfinite(gap.width):
        yield f"of {chosen} nothing can be told: too few of them, or of training seeds"
        return
    difference = signed(gap.value) + bracketed(ends_text(gap))
    yield (
        f"on {chosen}, {other} has pass@{strata.k} {first.other:.3f}, {sorting} drawn again {first.again:.3f}: {difference}, "
        f"{ends[first.outcome]}"
    )


def alone(verdict: CurveVerdict) -> Iterator[str]:
    """Yield the line of the single problems that were significantly gained or lost."""
    found = verdict.unlocked
    if found.gained is None or found.lost is None:
        return
    told = [f"{word} {_some(some)}" for word, some in (("gained", found.alone_gained), ("lost", found.alone_lost)) if some]
    if told:
        yield f"told one by one, whatever chance does: {'; '.join(told)}"


def _some(problems: Sequence[str]) -> str:
    return first_of([problem if len(problem) < 30 else f"{problem[:27]}..." for problem in problems], SHOWN)


def below(verdict: CurveVerdict) -> Iterator[str]:
    """The arms below the chance floor, one line each."""
    at: dict[str, list[str]] = {}
    for k in verdict.shown:
        for arm in verdict.below(k):
            at.setdefault(arm, []).append(f"pass@{k}")
    for arm, some in at.items():
        yield (
            f"{arm} lies below the chance floor in {' and '.join(some)}: guessing scores higher, so a difference from {arm} may "
            "only be one of answers in the right form"
        )


def power(verdict: CurveVerdict) -> str:
    """The difference that could have been detected."""
    gaps = {k: gap.mde for k, (_, _, gap) in verdict.shown.items()}
    seen = ", ".join(f"{mde:.3f} in pass@{k}" for k, mde in gaps.items() if math.isfinite(mde))
    if not seen:
        return "this design could not have seen any difference: more problems or training seeds are needed"
    units = "clusters" if verdict.a.cluster else "problems"
    if len(verdict.a.values) > 1:
        units = "training seeds" if verdict.fixed else "training seeds and problems"
    # scatter falls with the square root of the number of units; the smallest visible rate of 0/1 outcomes falls with the number
    least = 0.0 if verdict.curve is None or verdict.curve.over_seeds else least_share(verdict.curve.n)
    halved = f"; four times the {units} halve it" if all(mde > least for mde in gaps.values()) else ""
    return f"this design could have seen a difference of {seen} (80 % power, by the band){halved}"


def distinct_lines(a: ProblemScores, b: ProblemScores, distinct: DistinctAnswers | None) -> Iterator[str]:
    """Distinct right answers: both means and their difference at 8 and all samples, and a description of the answers."""
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


# ------------------------------------------------------------------------------------------------------------------
# files, and the next command


UNCHECKED = "counts do not show whether the samples are independent"


def read_line(given: GivenRows) -> str:
    """Describe a file of rows."""
    evaluation, tables = given.evaluation, given.evaluation.tables
    arms = " and ".join(arm if arm == full else f"{arm} ({full})" for arm, full in given.arms.items())
    problems = many(len({problem for table in tables for problem in table.problems}), "problem")
    n = span(np.concatenate([table.n for table in tables]))
    several = {table.group.seed for table in tables if table.group.seed is not None}
    seeds = f"{len(several)} training seeds, " if len(several) > 1 else ""
    known = sorted({table.group.temperature for table in tables if table.group.temperature is not None})
    heats = f"T = {', '.join(f'{t:g}' for t in known)}" if known else "temperature not given"
    unchecked = f"; {UNCHECKED}" if hides_samples(given) else ""
    return (
        f"{arms}: {evaluation.path} ({evaluation.format}), {many(evaluation.rows, 'row')}, {problems}, n = {n}, {seeds}{heats}; "
        f"correct: {evaluation.correct}{unchecked}"
    )


def hides_samples(given: GivenRows) -> bool:
    """Whether a file has only counts."""
    return all(table.right is None for table in given.evaluation.tables)


def plan_line(given: Sequence[GivenRows], sources: Sequence[str], verdicts: Sequence[CurveVerdict]) -> Iterator[str]:
    """Yield the command that plans a larger design, for two arms in files of rows. sources: () for objects in memory."""
    if len(verdicts) == 1 and given and sources:
        command = suggest("plan", "--from", *sources, *given[0].evaluation.options)
        yield f"what more problems, samples or training seeds would show: {command}"
