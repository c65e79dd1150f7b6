"""Reports: results in; one offline HTML file, Markdown and figures out. No torch.

    build(Results.read("runs/demo")).write(Path("report.html"))
"""

from __future__ import annotations

from sage_rlvr.report.page import Page, build

__all__ = ["Page", "build"]
