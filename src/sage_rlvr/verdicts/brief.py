"""The short text of a comparison: the verdict, one table, and the sentences that change how both are read.

`verdict_text` has the sentences and the long text. No warning of the long text is missing here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from sage_rlvr.verdicts.findings import Findings
from sage_rlvr.verdicts.results import Results
from sage_rlvr.verdicts.row_text import decided, ends_text, grouped, score_text
from sage_rlvr.verdicts.stats.paired import PairedDifference, signed
from sage_rlvr.verdicts.verdict import CurveVerdict
from sage_rlvr.verdicts.verdict_text import (
    UNCHECKED,
    below,
    beside_colder,
    headline,
    hides_samples,
    on_text,
    plan_line,
    power,
    unlocked,
)

MORE = "More: --full (all that was read and compared), --out page (the same with pictures), --out passk.svg (one picture)."
FLOOR = "chance floor"
INTERVALS = "95 % intervals"


def brief_lines(results: Results, findings: Findings) -> list[str]:
    """Return the lines for a terminal about arms that were compared by samples."""
    verdicts = findings.verdicts
    first = [*results.failed, *map(headline, verdicts), *beside_colder(results, findings)]
    return [*first, "", *tables(verdicts), "", *sentences(results, verdicts), *results.notes]


def tables(verdicts: Sequence[CurveVerdict]) -> Iterator[str]:
    """Yield one table per task and temperature: pass@k of each policy at the shown k, and the differences from the control."""
    several = grouped(verdicts, on_text)
    for number, (where, some) in enumerate(several.items()):
        yield from [""] * (number > 0)
        rows = cells_of(some)
        rows[0][0] = f"{where}{INTERVALS}"
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def cells_of(verdicts: Sequence[CurveVerdict]) -> list[list[str]]:
    """The cells of one table, header first: the control, each arm with its difference from the control, the chance floor."""
    first = verdicts[0]
    rows = [["", *(f"pass@{k}" for k in first.shown)], [first.b.arm, *(score_text(b) for _, b, _ in first.shown.values())]]
    for one in verdicts:
        rows.append([one.a.arm, *(score_text(a) for a, _, _ in one.shown.values())])
        rows.append([f"{one.a.arm} − {one.b.arm}", *(_difference(gap) for _, _, gap in one.shown.values())])
    if first.chance is not None:
        rows.append([FLOOR, *(f"{first.chance.at(k):.3f}" for k in first.shown)])
    return rows


def sentences(results: Results, verdicts: Sequence[CurveVerdict]) -> Iterator[str]:
    """Yield the problems unlocked and lost, and what changes how the table is read."""
    lines: list[str] = []
    for one in verdicts:
        plain = [*unlocked(one), *[power(one)] * (one.finding == "undecided")]
        lines += [f"{on_text(one)}{line}" if on_text(one) else f"{line[:1].upper()}{line[1:]}" for line in plain]
        lines += (f"{on_text(one)}{line}" for line in below(one))
        pair = f"{on_text(one)}{one.a.arm} − {one.b.arm}"
        lines += [f"{pair}, pass@{k}: {why}" for k, (_, _, gap) in one.shown.items() if (why := decided(gap))]
    yield from (f"{line}." for line in dict.fromkeys(lines))
    if any(one.finding == "undecided" for one in verdicts):
        yield from plan_line(results.given, results.sources, verdicts)
    if any(map(hides_samples, results.given)):
        yield f"{UNCHECKED.removeprefix('; ').capitalize()}."


def _difference(gap: PairedDifference) -> str:
    ends = f" ({ends_text(gap.difference)})" if math.isfinite(gap.difference.width) else ""
    return f"{signed(gap.difference.value)}{ends}"
