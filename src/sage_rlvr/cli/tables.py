"""Summaries as a table and sentences in a terminal, and the paper's own tables as sentences."""

from __future__ import annotations

from collections.abc import Sequence

import rich.box
import rich.markup
import rich.table
from rich.console import Console

from sage_rlvr.errors import DataError, suggest
from sage_rlvr.report import Result, SeedSummary, Summary, Table, results_table, seeds_table, summarise
from sage_rlvr.report.summary import HOLM, MANY, corrected

PAPER = "paper:"  # prefix of an arm of the paper's own tables


def print_summary(console: Console, result: Result | Summary | SeedSummary) -> None:
    """The table, the sentences, then what the design cannot show; over several seeds it is all about the methods."""
    if isinstance(result, SeedSummary):
        head = f"These methods, over {result.seeds} training seeds:"
        shown, sentences, caveats = seeds_table(result), result.sentences, result.caveats
    else:
        summary = result if isinstance(result, Summary) else summarise(result)
        head = "These checkpoints:"
        verdicts = corrected(summary)
        sentences = (*(v.sentence for v in verdicts), *(a.sentence for a in summary.against_frontier))
        shown, caveats = results_table(summary), tuple(c for c in summary.caveats if c != MANY)
        caveats += (HOLM.format(family=len(verdicts)),) if len(verdicts) > 1 else ()
    _print_table(console, shown)
    _print_lines(console, head, sentences)
    for caveat in caveats:
        console.print(f"[dim]{rich.markup.escape(caveat)}[/]", soft_wrap=True)


def _print_lines(console: Console, head: str, lines: Sequence[str]) -> None:
    console.print(head, style="bold")
    for line in lines:
        console.print(f"  {line}", markup=False, soft_wrap=True)


def _print_table(console: Console, table: Table) -> None:
    """As many columns as fit; the page has them all."""
    columns = list(zip(table.header, *table.rows, strict=True))
    widths = [max(len(line) for cell in column for line in cell.split("\n")) + 2 for column in columns]
    fitting = [i for i in range(len(columns)) if sum(widths[: i + 1]) <= console.width]
    shown = rich.table.Table(*(table.header[i] for i in fitting), box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for row in table.rows:
        shown.add_row(*(row[i] for i in fitting))
    console.print(shown)
    if len(fitting) < len(columns):
        left_out = ", ".join(" ".join(table.header[i].split()) for i in range(len(fitting), len(columns)))
        console.print(f"[dim]{rich.markup.escape(left_out)}: on the page, or in a wider terminal[/]")
    for note in table.notes:
        console.print(f"[dim]{rich.markup.escape(note)}[/]", soft_wrap=True)


def paper_lines(arms: Sequence[str]) -> list[str]:
    """`compare paper:A paper:B [...]`: the arithmetic of the paper's own tables, the first being the control."""
    from sage_rlvr.recipes import recipe
    from sage_rlvr.stats.published import (
        compare_arms,
        comparison_lines,
        find_arms,
        load_document,
        pooled_lines,
        read_tables,
    )

    others = [arm for arm in arms if not arm.startswith(PAPER)]
    if others or len(arms) < 2:
        raise DataError(
            f"{', '.join(others) or arms[0]}: paper:ARM compares with other paper:ARMs alone, two at least, as in: "
            + suggest("compare", "paper:GRPO", "paper:Branch")
        )
    document = load_document(recipe("tables.json", "paper"))
    tables = read_tables(document)
    table, found = find_arms(tables, [arm.removeprefix(PAPER) for arm in arms])
    lines: list[str] = []
    for other in found[1:]:
        compared = compare_arms(table, found[0], other)
        lines += [*comparison_lines(compared, document["problems"]), *pooled_lines(tables, compared), ""]
    return lines[:-1]
