"""A flat view of a row: every text that is printed of a comparison, computed once; "" if the row has none.

The terminal, Markdown and the page arrange these texts (`results.sentences`, `results.tables`, report.md.j2). No code reads them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from sage_rlvr.verdicts.chance import BELOW
from sage_rlvr.verdicts.row import Row
from sage_rlvr.verdicts.stats.intervals import Interval
from sage_rlvr.verdicts.stats.paired import (
    DETECTABLE,
    Outcome,
    PairedDifference,
    Reason,
    signed,
)

T = TypeVar("T")
K = TypeVar("K")

BEFORE = "before correction"
ONE_EACH = "one run each"
ABOUT = {"problems": " for these checkpoints", "training seeds": " for these methods"}
ON_THESE = " on these problems"
"""Suffix for methods whose interval contains only the scatter of training seeds."""
REASONS = {
    Reason.NONE: "",
    Reason.ONE_SEED: "one training seed",
    Reason.TWO_SEEDS: "two training seeds",
    Reason.NO_SCATTER: "the same difference in every training seed; check that the runs differ",
    Reason.FEW_PROBLEMS: "too few problems",
    Reason.NO_COMMON_RANGE: "no common range of pass@1",
    Reason.RESAMPLES: "too many resamples have no common range of pass@1",
    Reason.FRONTIER_END: "too close to the end of the other's frontier for an interval",
    Reason.BEYOND: "its pass@1 lies beyond the other's frontier",
    Reason.BELOW: "its pass@1 lies below the other's frontier",
    Reason.OUTSIDE: "its KL lies outside the range of the other's betas in every training seed",
    Reason.NOT_NEAR: "no temperature gives one arm the pass@1 of the other at T = 1",
}


class End(StrEnum):
    """The printed outcome of a comparison: the only words for outcomes in the terminal, in Markdown and on the page."""

    HIGHER = "higher"
    LOWER = "lower"
    HIGHER_BEFORE = f"higher {BEFORE}"
    LOWER_BEFORE = f"lower {BEFORE}"
    NO_DIFFERENCE = "no significant difference"
    CANNOT = "cannot be told"
    IDENTICAL = "identical"


RANK = {end: i for i, end in enumerate(End)}


def end_of(outcome: Outcome, *, detected: bool) -> End:
    """The printed word for an uncorrected outcome. detected: whether the design could have detected the stated difference."""
    if outcome == "tied":
        return End.NO_DIFFERENCE if detected else End.CANNOT
    return {"better": End.HIGHER, "worse": End.LOWER, "unknown": End.CANNOT}[outcome]


def outcome(row: Row) -> End:
    """The printed outcome of a row, after correction."""
    c = row.comparison
    if c.outcome == "tied" and c.difference.width == 0 and c.difference.value == 0:
        return End.IDENTICAL
    word = end_of(c.outcome, detected=c.detects(stated(row)))
    return word if c.outcome in ("tied", "unknown") or row.holds else End(f"{word} {BEFORE}")


def stated(row: Row) -> float:
    """The difference that a design must be able to detect before its non-significant result is printed as "no significant
    difference": `DETECTABLE` for pass@k, that share of the second arm's mean for counts and KLs."""
    return DETECTABLE if row.metric.name == "pass" else DETECTABLE * abs(row.comparison.mean_b)


def firmness(row: Row) -> int:
    """0: significant after correction; 1: only before; 2: not significant; 3: not tested."""
    return {"tied": 2, "unknown": 3}.get(row.comparison.outcome, 0 if row.holds else 1)


def unread(row: Row) -> bool:
    """Whether the row has neither an outcome nor a difference."""
    return not row.comparison.known and not math.isfinite(row.comparison.difference.value)


@dataclass(frozen=True, kw_only=True)
class View:
    """The texts of a row.

    metric_text: the metric with the task
    name, rival: the arm and the second arm in a list of the rows with one second arm
    label: the outcome, with the reason of an unknown one
    about: checkpoints or methods
    score, rival_score: the means of both arms
    over: the units of the interval
    holm: the corrected p
    power, detectable: the detectable difference in full and in short
    decided: which of two procedures decided
    covers: the range of pass@1 of a mean
    below: the arms below chance
    mark: "below chance" if a is
    runs: "one run each" for arms with one run"""

    a: str
    b: str
    name: str
    rival: str
    metric_text: str
    outcome: End
    label: str
    about: str
    score: str
    rival_score: str
    difference: str
    interval: str
    level: str
    over: str
    p: str
    holm: str
    detectable: str
    power: str
    decided: str
    covers: str
    chance: str
    below: str
    mark: str
    left_out: str
    runs: str

    @property
    def head(self) -> str:
        """ "pass@256 on word_problems, chance 0.512"."""
        return listed(self.metric_text, self.chance)

    @property
    def column(self) -> str:
        """The head of a column, on a line each: "vs GRPO", "pass@256", "chance 0.512"."""
        return listed(f"vs {self.rival}", self.metric_text, self.chance, by="\n")

    @property
    def brief(self) -> str:
        """ " (+0.020, −0.005 to +0.045; detectable 0.033)"."""
        return bracketed(listed(self.difference, self.interval), self.detectable, self.below)

    @property
    def full(self) -> str:
        """The texts that follow the outcome in a sentence."""
        estimate = listed(self.difference and f"difference {self.difference}", listed(self.level, self.over, by=" "))
        numbers = listed(estimate, self.p, self.holm)
        return bracketed(numbers, self.power, self.decided, self.covers, self.chance, self.below, self.left_out)


def listed(*parts: str, by: str = ", ") -> str:
    """The parts that are not empty, as one text."""
    return by.join(filter(None, parts))


def rival(row: Row) -> str:
    """The second arm, in a list of the rows with one second arm; placebos share one list."""
    return "its own placebo" if row.why == "placebo" else row.b


def bracketed(*parts: str) -> str:
    """ " (a; b)" of the parts that are not empty."""
    text = listed(*parts, by="; ")
    return f" ({text})" if text else ""


def grouped(things: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """key -> the things with this key, in order."""
    groups: dict[K, list[T]] = {}
    for thing in things:
        groups.setdefault(key(thing), []).append(thing)
    return groups


def first_of(names: Sequence[str], most: int) -> str:
    """The first names, and "..." if there are more."""
    return ", ".join([*names[:most], *["..."] * (len(names) > most)])


def many(n: int, noun: str) -> str:
    """ "1 run", "2 runs"."""
    return f"{n:,} {noun}{'s' * (n != 1)}"


def over_text(n: int, over: str) -> str:
    """The units of an interval: "60 problems and their samples", "1 problem and its samples", "1 cluster of problems"."""
    if n == 1:
        first, space, rest = over.partition(" ")
        one, rest = (first.removesuffix("s"), rest.replace("their", "its"))
        return f"1 {one}{space}{rest}".replace("training seeds", "training seed")
    return f"{n:,} {over}"


def ends_text(interval: Interval) -> str:
    """ "−0.005 to +0.045"."""
    return f"{signed(interval.low)} to {signed(interval.high)}"


def interval_text(interval: Interval) -> str:
    """ "95 % interval −0.005 to +0.045 over 3 training seeds"."""
    return f"{100 * interval.level:g} % interval {ends_text(interval)} over {interval.n} {interval.over}"


def score_text(interval: Interval, form: str = ".3f") -> str:
    """ "0.150 [0.100, 0.200]"; without an interval the value only. form: of each number."""
    return interval.bracketed(form)


def difference_text(comparison: PairedDifference, without: str = "") -> str:
    """"+0.020 (−0.005 to +0.045, p = 0.120)", and which procedure decided if interval and p disagree. without: text instead of a
    missing interval."""
    gap = comparison.difference
    if not math.isfinite(gap.width):
        return signed(gap.value) + bracketed(without)
    p = p_text(comparison.p) if math.isfinite(comparison.p) else ""
    return signed(gap.value) + bracketed(listed(ends_text(gap), p), decided(comparison))


def p_text(p: float) -> str:
    """ "p = 0.012", "p < 0.001"."""
    return f"p = {p:.3f}" if p >= 0.001 else "p < 0.001"


def detectable_text(mde: float, limit: float) -> str:
    """ "minimum detectable difference 0.012 (80 % power), up to 0.053 at 95 % confidence"; the limit only if it differs."""
    if not math.isfinite(mde):
        return "no difference could have been detected"
    few, most = _small(mde), _small(limit)
    return f"minimum detectable difference {few} (80 % power)" + (f", up to {most} at 95 % confidence" if most != few else "")


def view(row: Row) -> View:
    """The texts of a row."""
    c, gap, reason = row.comparison, row.comparison.difference, REASONS[row.comparison.reason]
    # an interval over two training seeds covers impossible values
    interval = ends_text(gap) if c.known and 0 < gap.width < math.inf else ""
    word = outcome(row)
    tied = c.outcome == "tied" and word != End.IDENTICAL
    return View(
        a=row.a,
        b=row.b,
        name=f"{row.a} vs {row.b}" if row.why == "placebo" else row.a,
        rival=rival(row),
        metric_text=f"{row.metric} on {row.task}" if row.task else str(row.metric),
        outcome=word,
        label=f"{word} ({reason})" if reason else word,
        about=_about(c) if c.known else "",
        score=f"{c.mean_a:.3f}",
        rival_score=f"{c.mean_b:.3f}",
        difference=signed(gap.value) if math.isfinite(gap.value) else "",
        interval=interval,
        level=f"{100 * gap.level:g} % interval {interval}" if interval else "",
        over=_over(c) if c.known else "",
        p=p_text(c.p) if math.isfinite(c.p) else "",
        holm=_holm(row) if math.isfinite(row.adjusted) and row.family_size > 1 else "",
        detectable=f"detectable {_small(c.mde)}" if tied and math.isfinite(c.mde) else "",
        power=detectable_text(c.mde, c.mde_limit) if tied else "",
        decided=decided(c) if tied else "",
        covers=f"mean over the common range of pass@1, {row.covers[0]:.3f} to {row.covers[1]:.3f}" if row.covers else "",
        chance="" if row.chance is None else f"chance {row.chance:.3f}",
        below=f"{' and '.join(row.below_chance)} {BELOW}" if row.below_chance else "",
        mark=BELOW if row.below[0] else "",
        left_out=_left_out(row) if row.left_out else "",
        runs=ONE_EACH if c.over == "problems" and c.known else "",
    )


def _about(c: PairedDifference) -> str:
    return f"{ABOUT[c.over]}{ON_THESE if c.fixed and not c.problems else ''}"


def _over(c: PairedDifference) -> str:
    if c.over == "training seeds" and not c.fixed:
        return f"over {c.difference.n} training seeds and {many(c.problems or 0, 'problem')}"
    held = f" on these {c.problems} problems" if c.fixed and c.problems else ""
    return f"over {c.difference.n} {c.difference.over}{held}"


def _holm(row: Row) -> str:
    return f"Holm's {p_text(row.adjusted)} among {many(row.family_size, f'{row.family} comparison')}"


def _small(x: float) -> str:
    return f"{x:.3f}" if x >= 0.0005 else f"{x:.1g}"


def decided(c: PairedDifference) -> str:
    """Name which of the two procedures decided, if only one of them finds a difference; "" without a p."""
    if math.isnan(c.p) or (c.p < 1 - c.difference.level) != c.difference.contains(0.0):
        return ""
    if c.difference.contains(0.0):
        return "not significant: the interval, the wider of the two procedures, includes 0 and decides"
    return "not significant: the interval excludes 0, but p, the stricter of the two procedures, decides"


def _left_out(row: Row) -> str:
    why = f"whose {row.metric.matched} is not within the range of these betas" if row.metric.matched else "without a value"
    return f"left out: {many(row.left_out, 'training seed')} {why}"
