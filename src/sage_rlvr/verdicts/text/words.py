"""Words for a number, an interval, a list and a range of k."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sage_rlvr.verdicts.stats.intervals import Interval
from sage_rlvr.verdicts.stats.paired import PairedDifference, signed

FIRST_KS = 3  # k from which on "1 to 3" is shorter
MOST_KS = 8  # values of k that are named one by one

# ------------------------------------------------------------------------------------------------------------------
# lists and counts


def listed(*parts: str, by: str = ", ") -> str:
    """The parts that are not empty, as one text."""
    return by.join(filter(None, parts))


def bracketed(*parts: str) -> str:
    """ " (a; b)" of the parts that are not empty."""
    text = listed(*parts, by="; ")
    return f" ({text})" if text else ""


def first_of(names: Sequence[str], most: int) -> str:
    """The first names, and "..." if there are more."""
    return ", ".join([*names[:most], *["..."] * (len(names) > most)])


def many(n: int, noun: str) -> str:
    """ "1 run", "2 runs"."""
    return f"{n:,} {noun}{'s' * (n != 1)}"


def sentence_of(line: str) -> str:
    """A line as a sentence: "cannot be told" becomes "Cannot be told."."""
    return f"{line[:1].upper()}{line[1:]}."


def over_text(n: int, over: str) -> str:
    """The units of an interval: "60 problems and their samples", "1 problem and its samples", "1 cluster of problems"."""
    if n == 1:
        first, space, rest = over.partition(" ")
        one, rest = (first.removesuffix("s"), rest.replace("their", "its"))
        return f"1 {one}{space}{rest}".replace("training seeds", "training seed")
    return f"{n:,} {over}"


def ks_text(ks: Sequence[int], ranges: Sequence[tuple[int, int]]) -> str:
    """The k of a curve over `ks` in these ranges: "k = 1 to 10, 61 to 128", "k = 1, 4, 16", "k = 900 to 1,024, 70 values from 1,044
    to 4,096", "no k"."""
    every = next((i for i, k in enumerate(ks) if k != i + 1), len(ks))  # all k up to here
    parts = list[str]()
    for first, last in ranges:
        end = min(last, every) if every >= FIRST_KS else 0
        if first <= end:
            parts.append(f"{first:,}" if first == end else f"{first:,} to {end:,}")
        some = [f"{k:,}" for k in ks if max(first, end + 1) <= k <= last]
        parts += some if len(some) <= MOST_KS else [f"{len(some)} values from {some[0]} to {some[-1]}"]
    return f"k = {', '.join(parts)}" if parts else "no k"


# ------------------------------------------------------------------------------------------------------------------
# numbers


def small(x: float) -> str:
    """ "0.012"; a number that would round to 0 with one significant digit."""
    return f"{x:.3f}" if x >= 0.0005 else f"{x:.1g}"


def p_text(p: float) -> str:
    """ "p = 0.012", "p < 0.001"."""
    return f"p = {p:.3f}" if p >= 0.001 else "p < 0.001"


def score_text(interval: Interval, form: str = ".3f") -> str:
    """ "0.150 [0.100, 0.200]"; without an interval the value only. form: of each number."""
    return interval.bracketed(form)


def ends_text(interval: Interval) -> str:
    """ "−0.005 to +0.045"."""
    return f"{signed(interval.low)} to {signed(interval.high)}"


def interval_text(interval: Interval) -> str:
    """ "95 % interval −0.005 to +0.045 over 3 training seeds"."""
    return f"{100 * interval.level:g} % interval {ends_text(interval)} over {interval.n} {interval.over}"


def difference_text(comparison: PairedDifference, without: str = "") -> str:
    """"+0.020 (−0.005 to +0.045, p = 0.120)", and which procedure decided if interval and p disagree. without: text instead of a
    missing interval."""
    gap = comparison.difference
    if not math.isfinite(gap.width):
        return signed(gap.value) + bracketed(without)
    p = p_text(comparison.p) if math.isfinite(comparison.p) else ""
    return signed(gap.value) + bracketed(listed(ends_text(gap), p), decided(comparison))


def decided(c: PairedDifference) -> str:
    """Name which of the two procedures decided, if only one of them finds a difference; "" without a p."""
    if math.isnan(c.p) or (c.p < 1 - c.difference.level) != c.difference.contains(0.0):
        return ""
    if c.difference.contains(0.0):
        return "not significant: the interval, the wider of the two procedures, includes 0 and decides"
    return "not significant: the interval excludes 0, but p, the stricter of the two procedures, decides"


def detectable_text(mde: float, limit: float) -> str:
    """ "minimum detectable difference 0.012 (80 % power), up to 0.053 at 95 % confidence"; the limit only if it differs."""
    if not math.isfinite(mde):
        return "no difference could have been detected"
    few, most = small(mde), small(limit)
    return f"minimum detectable difference {few} (80 % power)" + (f", up to {most} at 95 % confidence" if most != few else "")
