"""Reports: values of `results.page` in; one offline HTML file, Markdown and figures out. No torch.

    Page(page_of(Results.read("runs/demo"))).write(Path("report.html"))
"""

from __future__ import annotations

from sage_rlvr.render.build import Page, write_summary
from sage_rlvr.results.page import page_of

__all__ = ["Page", "page_of", "write_summary"]
