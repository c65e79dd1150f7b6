"""Reports: values of `results.page` -> one offline HTML file, Markdown and figures. No torch.

Read build.py first (`Page` writes the files from the templates), then figures.py (SVG figures), markup.py (tables and
text) and style.py.

    Page(report_of(read_results("runs/demo"))).write(Path("report.html"))
"""

from __future__ import annotations

from sage_rlvr.render.build import Page, write_summary
from sage_rlvr.results.report import report_of

__all__ = ["Page", "report_of", "write_summary"]
