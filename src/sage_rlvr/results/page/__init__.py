"""The values of a report page: scores over k, training curves, kinds of answers, samples.

Read values.py first (`page_of` builds the page from results, findings and summary); scores.py, training.py, answers.py and
samples.py each compute one section. `sage_rlvr.render` draws them.
"""

from __future__ import annotations

from typing import Any

from sage_rlvr.results.findings import findings_of
from sage_rlvr.results.page.values import page_of
from sage_rlvr.results.read import Results
from sage_rlvr.results.summary import summary_of


def report_of(results: Results, *, title: str = "", shown: int = 16, brief: bool = False) -> dict[str, Any]:
    """Compare, sum up, lay out: the values of a page of these results, see `page_of`."""
    findings = findings_of(results)
    return page_of(results, findings, summary_of(results, findings), title=title, shown=shown, brief=brief)


__all__ = ["page_of", "report_of"]
