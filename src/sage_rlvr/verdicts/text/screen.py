"""Lines for a terminal about arms that were compared by samples: all of them, or the short text.

The short text is the verdict, one table, and the sentences that change how both are read. It has every warning of the long text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from sage_rlvr.verdicts.findings import Findings
from sage_rlvr.verdicts.grouped import grouped
from sage_rlvr.verdicts.results import Results
from sage_rlvr.verdicts.stats.paired import PairedDifference, signed
from sage_rlvr.verdicts.text.verdicts import (
    UNCHECKED,
    alone,
    below,
    distinct_lines,
    gain_and_loss,
    headline,
    hides_samples,
    on_text,
    plan_line,
    power,
    read_line,
    reliable,
    scores,
    unlocked,
)
from sage_rlvr.verdicts.text.words import bracketed, decided, ends_text, score_text, sentence_of
from sage_rlvr.verdicts.verdict import CurveVerdict

MORE = "More: --full (all that was read and compared), --out page (the same with pictures), --out passk.svg (one picture)."
INTERVALS = "95 % intervals"


def first_lines(results: Results, findings: Findings) -> list[str]:
    """The findings, and whether an arm does more than its base at a lower temperature."""
    return [*map(headline, findings.verdicts), *_beside_colder(results, findings)]


def _beside_colder(results: Results, findings: Findings) -> Iterator[str]:
    """Yield the lines on whether an arm does more than its base at a lower temperature, and than mixed weights; none for one
    temperature and no mixtures."""
    if any(row.why in ("colder", "weights") for row in findings.rows):
        from sage_rlvr.verdicts.text.colder import between, sharpened  # several temperatures, or mixed weights

        yield from filter(None, [sharpened(findings.rows, results), between(findings.rows, results)])


# ------------------------------------------------------------------------------------------------------------------
# everything


def all_lines(results: Results, findings: Findings) -> list[str]:
    """Return all lines for a terminal about files of rows, notes included; files of rows have no settings."""
    return [*shown_first(results, findings), "", *results.notes]


def shown_first(results: Results, findings: Findings) -> list[str]:
    """Return the reasons why most samples failed, the verdicts, and whether an arm does more than its base at a lower
    temperature."""
    return [*results.failed, *_verdict_lines(results, findings.verdicts), *_beside_colder(results, findings)]


def _verdict_lines(results: Results, verdicts: Sequence[CurveVerdict]) -> Iterator[str]:
    """Yield the finding first, the files, scores, gain and loss over k, problems solved by only one, power."""
    yield from map(headline, verdicts)
    yield ""
    yield from map(read_line, results.given)
    for one in verdicts:
        yield ""
        yield from [f"{on_text(one)}{one.a.arm} against {one.b.arm}:"] if len(verdicts) > 1 else []
        yield from scores(one)
        yield from filter(None, (gain_and_loss(one), reliable(one), *unlocked(one), *alone(one)))
        yield from distinct_lines(one.a, one.b, one.distinct)
        yield from below(one)
        yield from [] if one.chance is None else [f"chance floor: {one.chance.words}"]
        yield power(one)
    yield from plan_line(results.given, results.sources, verdicts)


# ------------------------------------------------------------------------------------------------------------------
# the short text


def brief_lines(results: Results, findings: Findings) -> list[str]:
    """Return the lines for a terminal about arms that were compared by samples."""
    verdicts = findings.verdicts
    first = [*results.failed, *first_lines(results, findings)]
    return [*first, "", *_tables(verdicts), "", *sentences(results, verdicts), *results.notes]


def _tables(verdicts: Sequence[CurveVerdict]) -> Iterator[str]:
    """Yield one table per task and temperature: pass@k of each policy at the shown k, and the differences from the control."""
    for number, (where, some) in enumerate(grouped(verdicts, on_text).items()):
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
        rows.append(["chance floor", *(f"{first.chance.at(k):.3f}" for k in first.shown)])
    return rows


def _difference(gap: PairedDifference) -> str:
    value = signed(gap.difference.value)
    return value + bracketed(ends_text(gap.difference)) if math.isfinite(gap.difference.width) else value


def sentences(results: Results, verdicts: Sequence[CurveVerdict]) -> Iterator[str]:
    """Yield the problems unlocked and lost, and what changes how the table is read."""
    lines: list[str] = []
    for one in verdicts:
        on, plain = on_text(one), [*unlocked(one), *[power(one)] * (one.finding == "undecided")]
        lines += [f"{on}{line}." if on else sentence_of(line) for line in plain]
        lines += [f"{on}{line}." for line in below(one)]
        for k, (_, _, gap) in one.shown.items():
            why = decided(gap)
            lines += [f"{on}{one.a.arm} − {one.b.arm}, pass@{k}: {why}."] if why else []
    yield from dict.fromkeys(lines)
    if any(one.finding == "undecided" for one in verdicts):
        yield from plan_line(results.given, results.sources, verdicts)
    if any(map(hides_samples, results.given)):
        yield sentence_of(UNCHECKED)
