"""From results to the values of a page: compare, sum up, lay out."""

from __future__ import annotations

from typing import Any

from sage_rlvr.results.details import details_of, samples
from sage_rlvr.results.details.rows import row_sets
from sage_rlvr.results.page import page_of
from sage_rlvr.results.summary import summary_of
from sage_rlvr.verdicts.findings import Findings, findings_of
from sage_rlvr.verdicts.results import Results


def report_of(
    results: Results, findings: Findings | None = None, *, title: str = "", shown: int = 16, brief: bool = False
) -> dict[str, Any]:
    """The values of a page of these results, see `page_of`. shown: samples per problem and store on the page. brief: only the
    sentences and tables of a summary."""
    findings = findings or findings_of(results)
    summary = summary_of(results, findings)
    if brief:
        return page_of(summary, title=title, brief=True)
    table = results.table.sampled()
    sets = [*samples.sample_sets(table, results.design, shown), *row_sets(table.rows, shown)]
    return page_of(details_of(results, findings, summary, sets), samples.browser_of(sets), title=title)
