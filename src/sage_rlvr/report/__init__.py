"""Reports: results in; one offline HTML file, Markdown and figures out. No torch.

    build(Results.read("runs/demo")).write(Path("report.html"))
"""

from __future__ import annotations

from sage_rlvr.report.build import Page, build, write_summary

__all__ = ["Page", "build", "write_summary"]
