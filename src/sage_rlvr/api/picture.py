"""The picture of a comparison, that of its page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sage_rlvr.results.report import report_of
from sage_rlvr.runs import writing
from sage_rlvr.verdicts.findings import Findings
from sage_rlvr.verdicts.results import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sage_rlvr.render.style import Form

PICTURES: dict[str, Form] = {".svg": "svg", ".png": "png", ".pdf": "pdf"}
"""Endings of `compare --out` that write only a picture."""


def picture_of(results: Results, findings: Findings) -> Figure:
    """The picture of pass@k.

    Raises:
        DataError: If the comparison is of several tasks.
    """
    from sage_rlvr.render import Page  # matplotlib

    return Page(report_of(results, findings, brief=True)).picture()


def write_picture(results: Results, findings: Findings, out: Path) -> Path:
    """Write that picture into a file whose name ends with .svg, .png or .pdf."""
    from sage_rlvr.render.style import file_of

    data = file_of(picture_of(results, findings), PICTURES[out.suffix.lower()])
    with writing("picture", out.parent, 1 << 20):
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(data)
    return out
