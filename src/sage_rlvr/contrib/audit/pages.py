"""Audits and verdicts as text: for a terminal, as a Markdown page, for a file of completions. Ids and reasons only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from sage_rlvr.escaping import escaped
from sage_rlvr.progress import Counting
from sage_rlvr.tasks.checks import AuditFinding, AuditReport, Check
from sage_rlvr.tasks.datasets import completions
from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.pool import shared
from sage_rlvr.verifiers.reasons import Elsewhere, Reasons, elsewhere, location_in_words

NOT_PASSED = "NOT PASSED: a check is below 99 %; fix what the listed rows show, in the rows or in the reward or verifier"
BLIND = (
    "no check failed, which says little: no right answer is known, so only texts that should earn nothing were tried. Give the "
    "rows a column of golds, or read samples yourself"
)


def lines_of(report: AuditReport, listed: int = 50) -> list[str]:
    """The audit for a terminal: why most answers of a check failed; a line per check, and below it the ids and reasons of at
    most `listed` rows."""
    lines = [*(sentence for check in report.checks for sentence in check.failed), f"{report.task}: {report.head}"]
    for check in report.checks:
        name, count = "  " * check.part + check.name, _count(check)
        note = f"  ({check.note})" if check.note else ""
        mark = _mark(check, "  ok", "  BELOW 99 %")
        lines.append(f"  {name:<58} {count:>6}/{check.total:<5} {100 * check.share:6.2f} %{mark}{note}")
        rows = _shown(check)
        lines += [f"      {row.problem_id}: {row.label}, {row.reason}" for row in rows[:listed]]
        if len(rows) > listed:
            lines.append(f"      and {len(check.rows) - listed} more")
    return [*lines, NOT_PASSED if not report.passed else BLIND if report.blind else "passed"]


def _mark(check: Check, passed: str, below: str) -> str:
    """One of the two words for a check with a bar, "" for one without."""
    if not check.bar:
        return ""
    return passed if check.passed else below


def _count(check: Check) -> str:
    return f"{check.good:.0f}" if float(check.good).is_integer() else f"{check.good:.1f}"


def _shown(check: Check) -> tuple[AuditFinding, ...]:
    """The rows of a check; one line for all of them if no row is good and all are equal."""
    alike = {(row.label, row.reason) for row in check.rows}
    if check.good == 0 and len(check.rows) == check.total > 1 and len(alike) == 1:
        return (replace(check.rows[0], problem_id="every row"),)
    return check.rows


def page_of(reports: Sequence[AuditReport], command: str) -> str:
    """The audits as a Markdown page: a table of figures per task, then every row that a check names, ids and reasons only."""
    lines = [
        "# Audits of the verifiers", "",
        f"Made by `{command}`. A check with a bar must reach 99 %. Rows are named by their ids; rows that are not named are "
        "good in every check. What the checks are stands in [tasks.md](tasks.md). Worked solutions, which some checks read, come "
        "with the files of the Hub; a folder in `SAGE_RLVR_DATA` need not have them, and those checks then count fewer rows.", "",
    ]  # fmt: skip
    for one in reports:
        lines += section_of(one)
    return "\n".join(lines).rstrip() + "\n"


def section_of(one: AuditReport) -> list[str]:
    """The lines of a Markdown page about one audit: its head, its checks, and the rows that the checks name."""
    lines = [f"## {escaped(one.task)}", ""]
    for check in one.checks:
        for sentence in check.failed:
            lines += [f"> {escaped(sentence)}", ""]
    verdict = "Not passed" if not one.passed else "Passed, without any right answer" if one.blind else "Passed"
    lines += [f"{escaped(one.head)}. **{verdict}.**", "", "| check | | share | bar | |", "|---|---|---|---|---|"]
    lines += [*map(_row, one.checks), ""]
    named = [(row.problem_id, check.name, row.label, row.reason) for check in one.checks for row in _shown(check)]
    if named:
        lines += ["| row | check | verdict | reason |", "|---|---|---|---|"]
        lines += [f"| {' | '.join(map(escaped, cells))} |" for cells in named]
        lines.append("")
    return lines


def _row(check: Check) -> str:
    bar = _mark(check, "reached", "**missed**")
    name = "- " * check.part + escaped(check.name)
    return f"| {name} | {_count(check)} of {check.total} | {100 * check.share:.2f} % | {bar} | {escaped(check.note)} |"


def write_page(reports: Sequence[AuditReport], path: Path, command: str) -> None:
    """`page_of` into a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page_of(reports, command), encoding="utf-8")


def verify_lines(path: Path, reading: Mapping[str, Any], counting: Counting | None = None, batch: int = 2048) -> list[str]:
    """Lines on a file of rows with completion (or response) and gold: why most completions failed, which columns were read, a line
    for each row (id, label, reason), and a count.

    The gold is where `sage_rlvr.tasks.datasets` looks for it. Raises DataError with file, line and column of a missing value.
    reading: answer_in, tag, thinking and in_thinking of `verify_math`.
    counting(total): a context whose value gets the number of rows that were judged since its last call.
    """
    rows, taken = completions(path)
    verdicts: list[Verdict] = []
    with nullcontext(lambda n: None) if counting is None else counting(len(rows)) as advance:
        for start in range(0, len(rows), batch):
            verdicts += shared().verify([row[1:] for row in rows[start : start + batch]], **reading)
            advance(len(verdicts) - start)
    counts, reasons = Counter(verdict.label for verdict in verdicts), Reasons.of(verdicts)
    judged = [f"{row[0]}\t{verdict.label}\t{verdict.reason}" for row, verdict in zip(rows, verdicts, strict=True)]
    left = [row[1:] for row, verdict in zip(rows, verdicts, strict=True) if verdict.unanswered]

    def search() -> Elsewhere | None:
        return elsewhere([text for text, _ in left], lambda at, other: shared().verify([left[i] for i in at], **other))

    location = location_in_words(reading["answer_in"], reading["tag"])
    failed = [sentence for _, sentence in reasons.problems(location=location, search=search)]
    none = f" ({reasons.unanswered} without an answer)" if reasons.unanswered else ""
    count = f"{counts['right']} right, {counts['wrong']} wrong{none}, {counts['undecided']} undecided"
    return [*failed, taken, *judged, count]


__all__ = ["lines_of", "page_of", "section_of", "verify_lines", "write_page"]
