"""Verdicts in few words: one sentence a control and metric, and a matrix of the same. Nothing is left out, only grouped.

Pure: `Claim`s in, `Group`s out. The full report and a sweep's summary.md both open with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from sage_rlvr.report.tables import Table
from sage_rlvr.stats.comparison import ALONE, Comparison, detectable_range, signed
from sage_rlvr.stats.frontier import NEAR

MEAN, PLACEBO, BEST, EQUAL, FRONTIER, AWAY = "mean", "placebo", "best", "equal", "frontier", "away"
BETTER, WORSE, TIED, IDENTICAL, TAKEN_ALONE, UNTOLD = WORDS = (
    "better", "worse", "tied", "identical", "only taken alone", "cannot be told",
)  # fmt: skip
IN_BRACKETS = (
    "In brackets: the difference in the metric; of a tie, the minimum detectable difference (80 % power) and "
    "its upper 95 % limit."
)
AT_EQUAL = "At equal pass@1: each policy at all its temperatures, the mean gap where both have the same pass@1."
ONLY_ALONE = "Only taken alone: the difference does not outlast Holm's correction for the number of comparisons."
NEAR_ONE = (
    "At equal pass@1 near T = 1: the mean of two readings, at the pass@1 that the one has at temperature 1 and at that of the "
    "other."
)
_SEEN = "minimum detectable "
_MIRROR = {BETTER: WORSE, WORSE: BETTER}


@dataclass(frozen=True, kw_only=True)
class Claim:
    """`a` held against `b` on `metric`: the verdict from a's side, a - b with its interval, what a tie could have hidden.

    kind: "mean" (scores as they are), "placebo" (the same, b being a's own placebo), "best" (each at the temperature of its
    best pass@1), "equal" (a as it is, b at the temperature that gives it the same pass@1), "frontier" (at equal pass@1, each at
    all its temperatures), "away" (on other problems). where: what is to be known of b; note: of this claim. corrected: whether
    Holm's correction was made.
    """

    kind: str
    a: str
    b: str
    metric: str
    verdict: str
    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    detectable: float = math.inf
    detectable_high: float = math.inf
    where: str = ""
    note: str = ""
    corrected: bool = True

    @property
    def word(self) -> str:
        """One of `WORDS`."""
        if self.value == self.low == self.high == 0:
            return IDENTICAL
        if self.verdict.endswith(ALONE):
            return TAKEN_ALONE
        return self.verdict if self.verdict in (BETTER, WORSE, TIED) else UNTOLD

    @property
    def chip(self) -> str:
        """The word of a cell, which says in which direction something holds only taken alone."""
        return self.verdict if self.word == TAKEN_ALONE else self.word

    @property
    def reason(self) -> str:
        """Why it cannot be told: "cannot be told (why)" and "cannot be told: why" -> "why"."""
        text = self.verdict.removeprefix(UNTOLD).removeprefix(":").strip()
        return text[1:-1] if text.startswith("(") else text

    def flipped(self) -> Claim:
        """The same comparison from b's side."""
        head, alone = self.verdict.removesuffix(ALONE), self.verdict.endswith(ALONE)
        return replace(
            self, a=self.b, b=self.a, verdict=_MIRROR.get(head, head) + ALONE * alone,
            value=-self.value, low=-self.high, high=-self.low,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Group:
    """One sentence: what all `claims` have in common as `head`, then (word, arms with their numbers) each.

    column: its two lines in the header of the matrix.
    """

    head: str
    lines: tuple[tuple[str, str], ...]
    claims: tuple[Claim, ...] = ()
    column: tuple[str, str] = ("", "")

    def sentence(self) -> str:
        """ "Against GRPO, pass@1: worse: no KL (-0.037); tied: ..."; of one arm alone "Against GRPO, pass@1: no KL is worse"."""
        if len(self.claims) == 1:
            return f"{self.head}: {_alone(self.claims[0])}."
        return f"{self.head}: {'; '.join(f'{word}: {text}' if word else text for word, text in self.lines)}."


def claim(
    kind: str, a: str, b: str, metric: str, found: Comparison, *, where: str = "", corrected: bool = True
) -> Claim:
    """A `Comparison` as a claim."""
    gap = found.difference
    return Claim(
        kind=kind, a=a, b=b, metric=metric, verdict=found.verdict, value=gap.value, low=gap.low, high=gap.high,
        detectable=found.detectable, detectable_high=found.detectable_high, where=where, corrected=corrected,
    )  # fmt: skip


def groups_of(claims: Iterable[Claim], *, control: str | None = None, base: str | None = None) -> tuple[Group, ...]:
    """All claims, each in one group: against the control, the placebos, other arms, the base, then at the best temperatures and
    over whole frontiers, last on other problems. A claim whose first arm is the control is turned round; inside a group the
    order is that of `claims`."""
    found: dict[tuple[int, str, str], list[Claim]] = {}
    order: dict[str, int] = {}
    for one in claims:
        one = one.flipped() if one.a == control and one.b != base else one
        order.setdefault(one.b, len(order))
        order.setdefault(one.metric, len(order))
        together = PLACEBO if one.b not in (control, base) and _is_placebo(one) else one.b
        found.setdefault((_rank(one, control, base), together, one.metric), []).append(one)
    ranked = sorted(found, key=lambda key: (key[0], order.get(key[1], 0), order[key[2]]))
    return tuple(_group(found[key]) for key in ranked)


def _is_placebo(one: Claim) -> bool:
    return one.kind == PLACEBO or (PLACEBO in one.b.lower() and PLACEBO not in one.a.lower())


def _rank(one: Claim, control: str | None, base: str | None) -> int:
    if one.kind == AWAY:
        return 12
    if one.kind == BEST:
        return 4
    place = 3 if one.b == base else 0 if one.b == control else 1 if _is_placebo(one) else 2
    return place + {FRONTIER: 5, EQUAL: 9}.get(one.kind, 0)


def _group(claims: Sequence[Claim]) -> Group:
    first, several = claims[0], len({one.b for one in claims}) > 1
    known = {one.where for one in claims}
    against = first.b + (f" ({first.where})" if first.where and len(known) == 1 else "")
    who, column = (
        (f"Each against its own {PLACEBO}", f"vs its {PLACEBO}") if several else (f"Against {against}", f"vs {first.b}")
    )
    metric = {
        EQUAL: f"{first.metric} at its temperature of equal pass@1",
        FRONTIER: f"{first.metric} at equal pass@1",
        BEST: f"best {first.metric} at any temperature",
    }.get(first.kind, first.metric)
    metric += "" if all(one.corrected for one in claims) else " (each taken alone)"
    name = (lambda one: f"{one.a} vs {one.b}") if several else (lambda one: one.a)
    return Group(head=f"{who}, {metric}", lines=_lines(claims, name), claims=tuple(claims), column=(column, metric))


def _lines(claims: Sequence[Claim], name: Callable[[Claim], str]) -> tuple[tuple[str, str], ...]:
    out = []
    for word in WORDS:
        mine = [one for one in claims if one.word == word]
        if word == UNTOLD:
            reasons = dict.fromkeys(one.reason for one in mine)
            texts = [
                ", ".join(f"{name(o)}{value_of(o)}" for o in mine if o.reason == why) + f": {why}" for why in reasons
            ]
            out += [(word, text) for text in texts]
        elif mine:
            out.append((word, ", ".join(name(one) + _told(one, i == 0) for i, one in enumerate(mine))))
    return tuple(out)


def _told(one: Claim, first: bool) -> str:
    """What stands behind an arm's name."""
    if one.word == TIED:
        seen = detectable_range(one.detectable, one.detectable_high)
        return _brackets(f"{_SEEN if first else ''}{seen}", one.note)
    if one.word == TAKEN_ALONE:
        return f" {one.verdict.removesuffix(ALONE)}{value_of(one)}"
    return _brackets(one.note) if one.word == IDENTICAL else value_of(one)


def value_of(one: Claim) -> str:
    """ " (+0.037; 2 of 3 seeds)": the difference and the note of a claim, as they stand behind an arm's name."""
    return _brackets(signed(one.value) if math.isfinite(one.value) else "", one.note)


def _brackets(*texts: str) -> str:
    inside = "; ".join(filter(None, texts))
    return f" ({inside})" if inside else ""


def _alone(one: Claim) -> str:
    if one.word == UNTOLD:
        return f"of {one.a}{value_of(one)} it cannot be told: {one.reason}"
    if one.word == TAKEN_ALONE:
        return f"{one.a} is {one.verdict.removesuffix(ALONE)}, but only taken alone{value_of(one)}"
    return f"{one.a} is {one.word}{_told(one, True)}"


def unlike(head: str, arms: Sequence[tuple[str, str]]) -> tuple[Group, ...]:
    """The arms that are missing, (name, why) each, as a group of its own; () where there are none."""
    if not arms:
        return ()
    return (Group(head=head, lines=(("", ", ".join(f"{name} ({why})" for name, why in arms)),)),)


def legend(groups: Sequence[Group]) -> str:
    """What brackets, "only taken alone" and "at equal pass@1" mean, as far as `groups` have any."""
    words = {word for group in groups for word, _ in group.lines}
    told = words - {UNTOLD, IDENTICAL, ""}
    fronts = any(one.kind == FRONTIER for group in groups for one in group.claims)
    near = any(one.metric.endswith(NEAR) for group in groups for one in group.claims)
    lines = [IN_BRACKETS] * bool(told) + [ONLY_ALONE] * (TAKEN_ALONE in words) + [NEAR_ONE] * near + [AT_EQUAL] * fronts
    return " ".join(lines)


def matrix(groups: Sequence[Group], arms: Sequence[str]) -> Table:
    """Rows: arms in this order, as far as they are compared; columns: groups. A cell: word, difference, interval."""
    columns = [group for group in groups if group.claims]
    cells: dict[tuple[str, int], list[Claim]] = {}
    for i, group in enumerate(columns):
        for one in group.claims:
            cells.setdefault((one.a, i), []).append(one)
    compared = dict.fromkeys(name for name, _ in cells)
    rows = [name for name in arms if name in compared] + [name for name in compared if name not in arms]
    return Table(
        header=("arm", *("\n".join(group.column) for group in columns)),
        rows=tuple(
            (name, *("\n".join(map(_cell, cells.get((name, i), []))) or "–" for i in range(len(columns))))
            for name in rows
        ),
        notes=("A cell: the verdict on the arm of the row, the difference, its 95 % interval. –: not compared.",),
    )


def _cell(one: Claim) -> str:
    numbers = [signed(one.value)] if math.isfinite(one.value) else []
    if math.isfinite(one.low) and math.isfinite(one.high) and one.word != IDENTICAL:
        numbers.append(f"{signed(one.low)} to\u00a0{signed(one.high)}")
    return "\n".join([one.chip, *numbers])


__all__ = ["Claim", "Group", "claim", "groups_of", "legend", "matrix", "unlike"]
