"""Print comparisons in a terminal: the evaluation settings, a table, every comparison as a sentence, the answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sage_rlvr.evaluation.sample_report import excess_lines
from sage_rlvr.evaluation.store import SampleStore
from sage_rlvr.results import tables
from sage_rlvr.results.page.scores import top_columns
from sage_rlvr.results.patterns import pattern_lines
from sage_rlvr.results.summary import summary_of
from sage_rlvr.safe_io import understood
from sage_rlvr.tasks import REMADE, described
from sage_rlvr.verdicts.chance import UNKNOWN
from sage_rlvr.verdicts.design import BASE
from sage_rlvr.verdicts.metric import FEW, REFERENCE
from sage_rlvr.verdicts.results import Results
from sage_rlvr.verdicts.text import rows as row_texts
from sage_rlvr.verdicts.text.details import chance_lines, chance_mark, detail_lines, score_lines, steps_lines
from sage_rlvr.verdicts.text.limits import caveats
from sage_rlvr.verdicts.text.screen import MORE, all_lines, brief_lines, shown_first

if TYPE_CHECKING:
    from rich.console import Console

    from sage_rlvr.results.tables import Table
    from sage_rlvr.verdicts.findings import Findings
    from sage_rlvr.verdicts.record import Record
    from sage_rlvr.verdicts.sources import Store


def print_results(
    console: Console,
    results: Results,
    findings: Findings,
    *,
    details: bool = True,
    support: bool = False,
) -> None:
    """Print why most samples failed, the evaluations of the arms, a table, every comparison in a sentence, details, the answer."""
    rows, verdicts = findings.rows, findings.verdicts
    if results.of_files and not support:
        _say(console, *all_lines(results, findings))
        return
    _say(console, *(shown_first(results, findings) if results.sampled_only else results.failed))
    if results.sampled_only:
        _say(console, "")
    _say(console, *setting_lines(results), *row_texts.starts(results.starts))
    if results.records or results.stored:
        print_table(console, tables.scores(summary_of(results, findings)))
    _say(console, *score_lines(results))
    for group in row_texts.groups(rows):
        in_full = details or group[0].family == "primary"
        _say(console, *(f"  {text}" for text in (row_texts.sentences if in_full else row_texts.lines)(group)))
    if details and not results.stored:
        _say(console, *detail_lines(results, rows, support=support), *_excess(results))
    notes = [*results.notes, *chance_lines(results), row_texts.families(rows), *row_texts.cautions(rows), *caveats(results)]
    for text in filter(None, notes):
        console.print(text, style="dim", soft_wrap=True)
    if not results.sampled_only:
        _say(console, "", row_texts.answer(rows, results, verdicts))


def print_brief(console: Console, results: Results, findings: Findings, *, more: str = MORE) -> None:
    """Print the answer, one table, and every warning of `print_results`. more: the last line, "" for none."""
    rows = findings.rows
    if results.sampled_only:
        _say(console, *brief_lines(results, findings))
    else:
        _say(console, *results.failed, row_texts.answer(rows, results, findings.verdicts), "")
        print_table(console, top_columns(tables.scores(summary_of(results, findings)), results.k))
        _say(console, *score_lines(results), *results.notes)
    if not results.of_files:
        unknown = [line for line in chance_lines(results) if UNKNOWN in line]
        _say(console, *steps_lines(results.runs), *unknown, *row_texts.cautions(rows), *caveats(results))
    _say(console, *filter(None, [more]))


def ending(results: Results, findings: Findings) -> list[str]:
    """The last lines of a demo in a terminal: the answer, then a line for the base and for each arm, at temperature 1."""
    policies = results.table.policies()
    main = [key for key in policies if key[1] == ""] or list(policies)
    order = [BASE, *results.design.names]
    arms = [key for key in main if key[2] == REFERENCE]
    arms.sort(key=lambda key: order.index(key[0]) if key[0] in order else len(order))
    width = max((len(arm) for arm, _, _ in arms), default=0)
    lines = [*results.failed, row_texts.paragraphs(findings.rows, results, findings.verdicts)[0]]
    for arm, task, temperature in arms:
        scores = policies[arm, task, temperature].scores()
        if scores is not None:
            top = min(results.k, scores.n or results.k)
            cells = [f"pass@{k} {tables.in_line(scores.interval(k))}" for k in sorted({k for k in (1, FEW, top) if k <= top})]
            mark = chance_mark(scores, top, results.chances.get(task))
            lines.append(f"  {arm:<{width}}  {'  '.join(cells)}{mark}")
    return lines


def setting_lines(results: Results) -> list[str]:
    """Task, problems and sampling of the exact records."""
    return [setting_line(record) for record in [*results.records.values()][:1]]


def setting_line(record: Record) -> str:
    """World, problems and draw of a record. Raises DataError with its file if its facts lack one, or its world is damaged."""
    meta, where = record.meta, record.path or record.meta["name"]
    with understood(where, advice=REMADE):
        world, split = meta["world"], meta["split"]
    return f"{described(world, where=where)}; {record.problems} {split} problems (sampling {meta.get('sampling')}), exact"


def _excess(results: Results) -> list[str]:
    """Lines on perplexities whose upper tail is heavier than the control's, of single stores scored under one base."""
    return [line for pair in _store_pairs(results) for line in excess_lines(*pair, results.samples)]


def patterns(results: Results) -> list[str]:
    """Reasoning patterns of right samples, each arm's store against the control's."""
    lines = [line for pair in _store_pairs(results) for line in pattern_lines(*pair, results.samples)]
    return lines or ["--patterns: patterns are compared only between arms with a single training run."]


def _store_pairs(results: Results) -> Iterator[tuple[str, SampleStore, str, SampleStore]]:
    """Each arm's store against the control's, if both have exactly one for a task and temperature."""
    by_setting: dict[tuple[str, float], dict[str, list[Store]]] = {}
    for row in results.table.sampled().rows:
        if row.store is not None:
            by_setting.setdefault((row.task, row.temperature), {}).setdefault(row.arm, []).append(row.store)
    for arms in by_setting.values():
        (control, of_control), *others = arms.items()
        for name, stores in others:
            if len(stores) == len(of_control) == 1:
                with SampleStore.open(stores[0].path) as one, SampleStore.open(of_control[0].path) as two:
                    yield name, one, control, two


def print_table(console: Console, table: Table) -> None:
    """Print as many columns as fit; the page has them all."""
    import rich.box  # only for tables
    import rich.table

    shown, left_out = table.fitting(console.width)
    made = rich.table.Table(*shown.header, box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for row in shown.rows:
        made.add_row(*row)
    console.print(made)
    if left_out:
        console.print(f"{', '.join(left_out)}: see the page, or use a wider terminal", style="dim")


def _say(console: Console, *parts: object) -> None:
    for part in parts:
        console.print(part, soft_wrap=True)
