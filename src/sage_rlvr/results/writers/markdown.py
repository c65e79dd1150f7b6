"""A comparison in GitHub's Markdown: the verdict, one table, and the sentences that change how both are read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from sage_rlvr.errors import ConfigError
from sage_rlvr.escaping import escaped
from sage_rlvr.results.page.scores import top_columns
from sage_rlvr.results.summary import summary_of
from sage_rlvr.results.tables import Table, scores
from sage_rlvr.verdicts.findings import Findings
from sage_rlvr.verdicts.grouped import grouped
from sage_rlvr.verdicts.results import Results
from sage_rlvr.verdicts.text import rows as row_texts
from sage_rlvr.verdicts.text.screen import INTERVALS, cells_of, first_lines, sentences
from sage_rlvr.verdicts.text.verdicts import on_text

VARIABLE = "GITHUB_STEP_SUMMARY"


def brief_markdown(results: Results, findings: Findings) -> str:
    """The short text of a comparison as Markdown."""
    verdicts = findings.verdicts
    if verdicts:
        first = first_lines(results, findings)
        tables = [_table(cells_of(some), where.removesuffix(": ")) for where, some in grouped(verdicts, on_text).items()]
        rest = [*sentences(results, verdicts), *results.notes]
    else:
        first = row_texts.paragraphs(findings.rows, results)
        tables = [top_columns(scores(summary_of(results, findings)), results.k).markdown()]
        rest = [*results.notes, *row_texts.cautions(findings.rows)]
    warned = [f"> **{escaped(text)}**" for text in results.failed]
    said = [f"**{escaped(text)}**" for text in first if text]
    return "\n\n".join([*warned, *said, *tables, "\n".join(f"- {escaped(text)}" for text in rest)]).rstrip() + "\n"


def summary_file() -> Path:
    """The summary of the running step of GitHub Actions.

    Raises:
        ConfigError: Outside of a step, where the variable is not set.
    """
    path = os.environ.get(VARIABLE, "")
    if not path:
        raise ConfigError(
            f"--github-summary: ${VARIABLE} is not set; GitHub Actions sets it in every step. Elsewhere name a file yourself: "
            f"{VARIABLE}=summary.md sage-rlvr compare ... --github-summary"
        )
    return Path(path)


def append_to_summary(text: str) -> Path:
    """Append to the summary of the running step. Returns its file. Raises ConfigError if it cannot be written."""
    path = summary_file()
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{text}\n")
    except OSError as error:
        problem = f"{path} (${VARIABLE}) cannot be written: {error.strerror}; name another file"
        raise ConfigError(f"--github-summary: {problem}") from error
    return path


def _table(rows: Sequence[Sequence[str]], where: str) -> str:
    header = (f"{where}, {INTERVALS}" if where else INTERVALS, *rows[0][1:])
    return Table(header=header, rows=tuple(map(tuple, rows[1:]))).markdown()
