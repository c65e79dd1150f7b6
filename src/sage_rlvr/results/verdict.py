"""The verdict on arms that were compared by samples: which k each gains and loses, problems solved by one only, and what could be
seen.

    verdicts(results, rows)   one `CurveVerdict` per arm, task and temperature, against the control
    headline(verdict)      the finding in one sentence            lines(...)      about ten lines for a terminal
    failures(...)          what `compare --fail-on` reports       tree(...)       strict JSON, docs/reference/verdict.schema.json
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from sage_rlvr.errors import ConfigError, suggest
from sage_rlvr.results.comparisons import counted
from sage_rlvr.results.distinct import DistinctAnswers, distinct_lines, distinct_of, distinct_tree
from sage_rlvr.results.given import TASK
from sage_rlvr.results.metric import Metric
from sage_rlvr.results.pairs import pair_on
from sage_rlvr.results.read import Results
from sage_rlvr.results.row import Row
from sage_rlvr.results.scores import Scores
from sage_rlvr.results.sources import GivenRows
from sage_rlvr.results.stored import plain
from sage_rlvr.stats.comparison import DETECTABLE, Comparison, p_text, signed
from sage_rlvr.stats.curves import Crossing, CurveComparison, crossing
from sage_rlvr.stats.intervals import Interval
from sage_rlvr.stats.leash import leash_at_k, leash_discoveries, leash_noise_floor, lone_solver_p
from sage_rlvr.tasks.chance import Chance

FORMAT = 1
SHOWN = (1, 8)
CurveFinding = Literal["widened", "sharpened", "narrowed", "better", "worse", "no difference", "undecided"]
"""widened: higher at the largest k. sharpened: higher at a smaller k and lower at the largest. narrowed: lower at the largest k and
higher nowhere. better, worse: higher or lower at some k, undecided at the largest. no difference: the band lies within 0.05 of 0 at
every k. undecided: none of these."""


@dataclass(frozen=True, kw_only=True)
class SolvedByOne:
    """Problems by who solves them in all samples, means over training seeds. chance: how many only one of two equal models would
    solve. p_gained, p_lost: the probability that equal models show at least as many; certain_gained, certain_lost: problems for
    which chance is excluded one by one; all NaN or empty for several training seeds."""

    k: int
    kept: float
    gained: float
    lost: float
    neither: float
    chance: float = math.nan
    p_gained: float = math.nan
    p_lost: float = math.nan
    certain_gained: tuple[str, ...] = ()
    certain_lost: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class CurveVerdict:
    """One arm against the control. curve: the difference over k with its simultaneous band, None for two training seeds. crossing:
    where over k the arm gains and loses; nowhere without a curve. shown: k -> both scores and their difference at this k. chance:
    the chance floor of the problems; distinct: distinct right answers; both None where they are not known."""

    a: Scores
    b: Scores
    curve: CurveComparison | None
    crossing: Crossing
    shown: Mapping[int, tuple[Interval, Interval, Comparison]]
    solved: SolvedByOne
    chance: Chance | None = None
    distinct: DistinctAnswers | None = None

    def below(self, k: int) -> list[str]:
        """The arms below the chance floor at k, the control first."""
        return [one.arm for one in (self.b, self.a) if self.chance is not None and one.below(k, self.chance)]

    @property
    def finding(self) -> CurveFinding:
        """The finding as a word."""
        if self.curve is None:
            return "undecided"
        top, gain, loss = self.curve.ks[-1], self.crossing.gain, self.crossing.loss
        if gain and gain[-1][1] == top:
            return "widened"
        if loss and loss[-1][1] == top:
            return "sharpened" if gain else "narrowed"
        if gain or loss:
            return "better" if gain else "worse"
        within = np.all(np.maximum(np.abs(self.curve.low), np.abs(self.curve.high)) <= DETECTABLE)
        return "no difference" if within and not self.curve.reason else "undecided"


def verdicts(results: Results, rows: Sequence[Row]) -> list[CurveVerdict]:
    """Every arm against the control, on every task and temperature at which both have samples. rows: the comparisons, of which
    those of pass@1 and the largest k are read."""
    sampled, design, found = results.table.sampled(), results.design, []
    for task, temperature in sorted({(task, t) for _, task, t in sampled.policies()}, key=lambda key: (key[0], -key[1])):
        here = sampled.where(task=task, temperature=temperature)
        arms = list(here.by_arm())
        control = str(design.control) if design.control in arms else arms[0]
        for arm in arms:
            both = None if arm == control else pair_on(design, arm, control, "control", here).sides(temperature)
            if both is not None:
                found.append(replace(_verdict(*both, results.k, rows), chance=results.chances.get(task)))
    return found


def _verdict(a: Scores, b: Scores, k: int, rows: Sequence[Row]) -> CurveVerdict:
    a.check_alike(b)
    several, top = max(len(a.values), len(b.values)) > 1, min(k, a.n or 1)
    ks = [*(k for k in SHOWN if k < top), top]
    place = a.arm, b.arm, a.task, Metric(temperature=a.temperature)
    known = {
        row.metric.k: row.comparison for row in rows if (row.a, row.b, row.task, replace(row.metric, k=None)) == place
    }
    shown = {k: (a.interval(k), b.interval(k), known[k] if k in known else counted(a, b, k)) for k in ks}
    curve = a.band(b, top, several=several)
    crossed = Crossing(gain=(), loss=(), undecided=(), first_loss=None) if curve is None else crossing(curve)
    return CurveVerdict(
        a=a, b=b, curve=curve, crossing=crossed, shown=shown, solved=_solved(a, b), distinct=distinct_of(a, b)
    )


def _solved(a: Scores, b: Scores) -> SolvedByOne:
    n = a.n or 1
    left, right, left_n, right_n = np.broadcast_arrays(a.values.astype(int), b.values.astype(int), a.samples, b.samples)
    rows = [leash_at_k(*counts, n) for counts in zip(right_n, right, left_n, left, strict=True)]
    names = {"kept": "preserved", "gained": "expanded", "lost": "shrunk", "neither": "outside"}
    means = {ours: float(np.mean([getattr(row, name) for row in rows])) for ours, name in names.items()}
    if len(rows) > 1:
        return SolvedByOne(k=n, **means)
    counts = (right_n[0], right[0], left_n[0], left[0])
    found, (gained, lost) = leash_discoveries(*counts), lone_solver_p(*counts)
    new, gone = (
        [p for p, hit in zip(a.problems, hits.tolist(), strict=True) if hit] for hits in (found.new, found.lost)
    )
    return SolvedByOne(
        k=n, **means, chance=leash_noise_floor(*counts, n).expanded, p_gained=gained, p_lost=lost, certain_gained=tuple(new),
        certain_lost=tuple(gone),
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------------------
# words


def headline(found: CurveVerdict) -> str:
    """The finding in one sentence."""
    a, b, gain, loss = found.a.arm, found.b.arm, ranges(found.crossing.gain), ranges(found.crossing.loss)
    on = "" if found.a.task == TASK else f"{found.a.task}: "
    if found.curve is None:
        return f"{on}Two training seeds of {a} support no verdict; at least three are needed, or one run of each."
    top = found.curve.ks[-1]
    sentences: dict[CurveFinding, str] = {
        "widened": f"{a} widened what {b} solves: pass@k is higher at k = {gain}{f' and lower at k = {loss}' * bool(loss)}",
        "sharpened": f"{a} sharpened what {b} solves: pass@k is higher at k = {gain} and lower at k = {loss}",
        "narrowed": f"{a} narrowed what {b} solves: pass@k is lower at k = {loss} and higher at no k",
        "better": f"{a} is better at k = {gain}{f' and worse at k = {loss}' * bool(loss)}; whether it solves more than {b} in "
        f"{top} tries cannot be told",
        "worse": f"{a} is worse at k = {loss}; whether it solves less than {b} in {top} tries cannot be told",
        "no difference": f"No difference between {a} and {b}: pass@k differs by less than {DETECTABLE:g} at every k up to {top}",
        "undecided": f"No difference between {a} and {b} can be told at any k up to {top}",
    }
    return f"{on}{sentences[found.finding]} ({_over(found)})."


def paragraphs(found: Sequence[CurveVerdict]) -> Iterator[str]:
    """The findings, and in a second paragraph their numbers."""
    yield " ".join(map(headline, found))
    yield " ".join(
        f"{line[:1].upper()}{line[1:]}."
        for one in found
        for line in (*_gain_and_loss(one), _solved_line(one), *_below(one))
    )


def _over(found: CurveVerdict) -> str:
    if found.curve is None or found.curve.over == "training seeds":
        return f"{len(found.a.values)} training seeds"
    sizes = np.concatenate([found.a.samples, found.b.samples])
    many = f"{sizes.min()}" if sizes.min() == sizes.max() else f"{sizes.min()} to {sizes.max()}"
    groups = f" in {found.curve.n:,} clusters" * bool(found.a.cluster)
    return f"{len(found.a.problems):,} problems{groups}, {many} samples each; one run of each, so about these checkpoints"


def ranges(found: Sequence[tuple[int, int]]) -> str:
    """ "1 to 10, 61 to 128"."""
    return ", ".join(f"{first}" if first == last else f"{first} to {last}" for first, last in found)


def lines(given: Sequence[GivenRows], sources: Sequence[str], found: Sequence[CurveVerdict]) -> Iterator[str]:
    """What a terminal shows: the finding first, what was read, scores, gain and loss over k, problems solved by one only, power."""
    yield from (headline(one) for one in found)
    yield ""
    yield from read_lines(given)
    for one in found:
        yield ""
        yield from _scores(one)
        yield from _gain_and_loss(one)
        yield _solved_line(one)
        yield from distinct_lines(one.a, one.b, one.distinct)
        yield from _below(one)
        if one.chance is not None:
            yield f"chance floor: {one.chance.words}"
        yield _power(one)
    if len(found) == 1 and given:
        words = ("--from", *sources, *given[0].evaluation.options)
        yield f"what more problems, samples or training seeds would show: {suggest('plan', *words)}"


def read_lines(given: Sequence[GivenRows]) -> Iterator[str]:
    """What was read of every file of rows."""
    for one in given:
        found = one.evaluation
        n = np.concatenate([table.n for table in found.tables])
        problems = {problem for table in found.tables for problem in table.problems}
        arms = list(dict.fromkeys(one.arm_of(table) for table in found.tables))
        seeds = sorted({table.group.seed for table in found.tables if table.group.seed is not None})
        heats = sorted({table.group.temperature for table in found.tables if table.group.temperature is not None})
        samples = f"n = {n.min()}" if n.min() == n.max() else f"n = {n.min()} to {n.max()}"
        more = f", {len(seeds)} training seeds" * (len(seeds) > 1)
        more += f", T = {', '.join(f'{t:g}' for t in heats)}" if heats else ", temperature not given"
        yield (
            f"{' and '.join(arms)}: {found.path} ({found.format}), {found.rows:,} rows, {len(problems):,} problems, "
            f"{samples}{more}; "
            f"correct: {found.correct}"
        )


def _scores(found: CurveVerdict) -> Iterator[str]:
    for k, (a, b, gap) in found.shown.items():
        known = f", {p_text(gap.p)}" if math.isfinite(gap.p) else ""
        ends = (
            f" ({signed(gap.difference.low)} to {signed(gap.difference.high)}{known})"
            if math.isfinite(gap.difference.width)
            else ""
        )
        floor = "" if found.chance is None else f"; chance floor {found.chance.at(k):.3f}"
        yield (
            f"pass@{k}: {found.b.arm} {_ends(b)}, {found.a.arm} {_ends(a)}; difference {signed(gap.difference.value)}{ends}{floor}"
        )


def _ends(i: Interval) -> str:
    return f"{i.value:.3f}" + (f" [{i.low:.3f}, {i.high:.3f}]" if math.isfinite(i.width) else "")


def _gain_and_loss(found: CurveVerdict) -> Iterator[str]:
    curve = found.curve
    if curve is None:
        return
    crossed = found.crossing
    parts = (("gain", crossed.gain), ("loss", crossed.loss), ("cannot be told", crossed.undecided))
    shown = "; ".join(f"{name} at k = {ranges(ks)}" for name, ks in parts if ks)
    start = crossed.gain[0][1] + 1 if crossed.gain and crossed.gain[0][0] == 1 else 1
    first = f"the first lost k, if any, is at least {start}" if start <= curve.ks[-1] else "no k is lost"
    if crossed.first_loss:
        first = f"the first lost k lies in [{crossed.first_loss[0]}, {crossed.first_loss[1]}]"
    many = f"all {len(curve.ks)} values of k at once" if len(curve.ks) > 1 else "this k"
    yield f"{shown}; {first} ({100 * curve.level:g} % band over {many}, over {curve.n:,} {curve.over})"


def _solved_line(found: CurveVerdict) -> str:
    one, a, b = found.solved, found.a.arm, found.b.arm
    means = ", means over training seeds" * (len(found.a.values) > 1)
    head = f"solved in {one.k} samples{means}: kept {one.kept:,.4g}"
    if not math.isfinite(one.chance):
        return (
            f"{head}, gained {one.gained:,.4g} (only {a}), lost {one.lost:,.4g} (only {b}), neither {one.neither:,.4g}"
        )
    gained = f"gained {one.gained:,.0f} (only {a}; chance: {p_text(one.p_gained)}{_certain(one.certain_gained)})"
    lost = f"lost {one.lost:,.0f} (only {b}; chance: {p_text(one.p_lost)}{_certain(one.certain_lost)})"
    return f"{head}, {gained}, {lost}, neither {one.neither:,.0f}; two equal models would show about {one.chance:,.2g} of each"


def _certain(problems: Sequence[str]) -> str:
    shown = ", ".join(problem if len(problem) < 30 else f"{problem[:27]}..." for problem in problems[:3])
    return (
        f", {len(problems)} of them more than chance alone: {shown}{', ...' * (len(problems) > 3)}" if problems else ""
    )


def _below(found: CurveVerdict) -> Iterator[str]:
    """The arms below the chance floor."""
    below: dict[str, list[str]] = {}
    for k in found.shown:
        for arm in found.below(k):
            below.setdefault(arm, []).append(f"pass@{k}")
    for arm, scores in below.items():
        yield (
            f"{arm} lies below the chance floor in {' and '.join(scores)}: guessing scores higher, so a difference from {arm} may "
            "only be one of answers in the right form"
        )


def _power(found: CurveVerdict) -> str:
    seen = [f"{gap.mde:.3f} in pass@{k}" for k, (_, _, gap) in found.shown.items() if math.isfinite(gap.mde)]
    if not seen:
        return "this design could not have seen any difference: more problems or training seeds are needed"
    more = "training seeds" if len(found.a.values) > 1 else "clusters" if found.a.cluster else "problems"
    return f"this design could have seen a difference of {', '.join(seen)} (80 % power); four times the {more} halve it"


# ------------------------------------------------------------------------------------------------------------------
# continuous integration


def failures(found: Sequence[CurveVerdict], rules: Sequence[str]) -> list[str]:
    """A sentence for each rule that a verdict breaks. rules: "loss" (lower at any k), "no-gain" (higher at no k), "pass@K" (lower
    at this k, by the interval at this k alone)."""
    out = []
    for rule in rules:
        match = re.fullmatch(r"pass@(\d+)", rule)
        if match is None and rule not in ("loss", "no-gain"):
            raise ConfigError(f"--fail-on {rule!r}: choose loss, no-gain or pass@K, for example pass@8")
        for one in found:
            if match is not None:
                out += _fell(one, int(match[1]))
            elif rule == "loss" and one.crossing.loss:
                out.append(f"{one.a.arm} is lower than {one.b.arm} at k = {ranges(one.crossing.loss)}")
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
    ends = f"{signed(gap.difference.low)} to {signed(gap.difference.high)}"
    return [f"pass@{k} of {one.a.arm} fell: {signed(gap.difference.value)} ({ends}) against {one.b.arm}"]


def tree(
    found: Iterable[CurveVerdict], given: Sequence[GivenRows], notes: Sequence[str], failed: Sequence[str] = ()
) -> dict[str, Any]:
    """The verdicts as strict JSON, by docs/reference/verdict.schema.json. given, notes: of the results."""
    read = [
        {
            "path": str(one.evaluation.path), "format": one.evaluation.format, "correct": one.evaluation.correct,
            "rows": one.evaluation.rows, "arms": list(dict.fromkeys(one.arm_of(t) for t in one.evaluation.tables)),
        }
        for one in given
    ]  # fmt: skip
    made = {
        "format": FORMAT,
        "read": read,
        "verdicts": list(map(_tree, found)),
        "notes": list(notes),
        "failed": list(failed),
    }
    return dict(plain(made))


def _tree(one: CurveVerdict) -> dict[str, Any]:
    curve = one.curve
    over_k = None
    if curve is not None:
        over_k = {
            name: getattr(curve, name) for name in ("ks", "difference", "low", "high", "outcomes", "level", "over", "n")
        }
    scores = {
        str(k): {
            "control": asdict(b),
            "arm": asdict(a),
            "difference": asdict(gap.difference),
            "p": gap.p,
            "detectable": gap.mde,
            "chance": None if one.chance is None else one.chance.at(k),
            "below_chance": one.below(k),
        }
        for k, (a, b, gap) in one.shown.items()
    }
    return {
        "arm": one.a.arm, "control": one.b.arm, "task": one.a.task, "temperature": one.a.temperature,
        "problems": len(one.a.problems), "n": one.a.n, "seeds": list(one.a.seeds), "finding": one.finding,
        "sentence": headline(one), "gain": one.crossing.gain, "loss": one.crossing.loss, "undecided": one.crossing.undecided,
        "first_loss": one.crossing.first_loss, "pass": scores, "over_k": over_k, "solved": asdict(one.solved),
        "clusters": len(set(one.a.cluster)) or None, "chance": None if one.chance is None else one.chance.words,
        "distinct": distinct_tree(one.distinct),
    }  # fmt: skip
