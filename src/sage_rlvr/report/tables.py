"""Tables: one header and rows of strings, for rich, Markdown and HTML alike."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sage_rlvr.report.result import Support
from sage_rlvr.report.summary import TABLE_KS, Row, SeedSummary, Summary
from sage_rlvr.stats.intervals import Interval


@dataclass(frozen=True, kw_only=True)
class Table:
    """Strings only. A cell may hold a newline (the interval stands under its number); `notes` explain the columns."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        """GitHub Markdown; newlines in cells become <br>, pipes are escaped."""
        lines = [self.header, tuple("---" if i == 0 else "---:" for i in range(len(self.header))), *self.rows]
        table = "\n".join("| " + " | ".join(_markdown_cell(cell) for cell in line) + " |" for line in lines)
        return table + "".join(f"\n\n{_markdown_cell(note)}" for note in self.notes)


def results_table(summary: Summary) -> Table:
    """Arm, pass@k with intervals, expected distinct correct completions, support, best temperature."""
    ks = list(summary.rows[0].passes)
    has_distinct = any(row.distinct for row in summary.rows)
    has_support = any(row.support for row in summary.rows)
    header = ["arm", *(f"pass@{k}" for k in ks)]
    header += [f"distinct in {summary.result.k}"] * has_distinct + ["support\nkept +gained −lost"] * has_support
    header += ["best pass@1\nat any T"]
    rows = []
    for row in summary.rows:
        cells = [row.name, *(interval_cell(row.passes[k]) for k in ks)]
        cells += [interval_cell(row.distinct, 1)] * has_distinct + [support_cell(row.support)] * has_support
        rows.append((*cells, _best_cell(row)))
    return Table(header=tuple(header), rows=tuple(rows), notes=_notes(summary, has_distinct, has_support))


def seeds_table(summary: SeedSummary) -> Table:
    """Arm, pass@k and further means over training seeds with their Student intervals."""
    first = summary.results[0]
    ks = [k for k in TABLE_KS if k in summary.ks and k <= first.k]
    ks = ks if first.k in ks else [*ks, first.k]
    columns = {f"pass@{k}": {name: passes[k] for name, passes in summary.passes.items()} for k in ks}
    if summary.distinct:
        columns[f"distinct in {first.k}"] = summary.distinct
    columns["best pass@1\nat any T"] = summary.best
    rows = []
    for arm in first.arms:
        cells = []
        for header, values in columns.items():
            digits = 1 if header.startswith("distinct") else 3
            found = values.get(arm.name)
            fixed = found is not None and arm.name in summary.fixed
            cells.append(f"{found.value:.{digits}f}\none policy" if found and fixed else interval_cell(found, digits))
        rows.append((arm.name, *cells))
    notes = (
        f"Mean over {summary.seeds} training seeds on the same {first.problems} {first.split} problems; beneath it the 95 % "
        f"interval over training seeds (Student's t, {summary.seeds - 1} degrees of freedom; it may leave the range 0 to 1).",
        "best pass@1 at any T: each seed at its own best of the sampling temperatures that were tried.",
    )
    return Table(header=("arm", *columns), rows=tuple(rows), notes=notes)


def support_table(summary: Summary) -> Table | None:
    """Support counts of Definition 4.1, or None where no arm has them."""
    rows = []
    for arm in summary.result.arms:
        s = arm.support
        if s is not None:
            counts = [s.correct, s.supported, s.preserved, s.gained, s.lost]
            rows.append((arm.name, *("–" if x is None else f"{x:,}" for x in counts)))
    if not rows:
        return None
    header = ("arm", "correct completions", "in support", "kept", "gained", "lost")
    return Table(header=header, rows=tuple(rows))


def interval_cell(interval: Interval | None, digits: int = 3) -> str:
    """The value, and its interval on a second line."""
    if interval is None:
        return "–"
    if not math.isfinite(interval.width):
        return f"{interval.value:.{digits}f}\nno interval"
    return f"{interval.value:.{digits}f}\n{interval.low:.{digits}f}–{interval.high:.{digits}f}"


def support_cell(support: Support | None) -> str:
    """Kept, gained and lost correct completions against the base; the base shows how many it supports."""
    if support is None:
        return "–"
    if support.preserved is None or support.gained is None or support.lost is None:
        return f"{support.supported:,}"
    return f"{support.preserved:,}\n+{support.gained:,} −{support.lost:,}"


def _best_cell(row: Row) -> str:
    return f"{row.best.pass1:.3f}\nT = {row.best.temperature:g} of {row.temperatures}"


def _notes(summary: Summary, has_distinct: bool, has_support: bool) -> tuple[str, ...]:
    result = summary.result
    notes = [
        f"Mean over {result.problems} {result.split} problems; beneath it the 95 % interval over problems (BCa "
        "bootstrap; Beta-Binomial below 300 problems and where fewer than 50 carry the number). "
        "Probabilities are exact sums over all correct completions: there is no sampling noise."
    ]
    if has_distinct:
        notes.append(
            f"distinct in {result.k}: expected number of different correct completions among {result.k} samples."
        )
    if has_support:
        eps = next(arm.support.eps for arm in result.arms if arm.support is not None)
        notes.append(
            f"support: correct completions with probability above {eps:.3g} (Definition 4.1), all drawn problems "
            f"together (one drawn twice counts twice), compared with {_called(result.base)}'s."
        )
    notes.append("best pass@1 at any T: over the sampling temperatures that were tried (their number is given).")
    return tuple(notes)


def _called(base: str) -> str:
    return "the base" if base == "base" else base


def _markdown_cell(cell: str) -> str:
    return cell.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", "<br>")
