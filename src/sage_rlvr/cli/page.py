"""`report`: one page of runs, evaluations and samples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from sage_rlvr.cli.session import Command, Session


@dataclass(frozen=True)
class Report(Command):
    """Write one page of runs, evaluations and samples.

    It holds outcomes, numbers, figures, a sample browser and run cards, and opens without network. RUNS are folders of
    `demo` or `sweep`, run directories, records (.npz), sample stores, or NAME=PATH[,PATH...] of those. The page names what
    was not run or not recorded; nothing is computed for it."""

    runs: tyro.conf.Positional[tuple[str, ...]]
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """The file (default report.html or report.md here), or a folder to put it in."""
    format: Literal["html", "md"] = "html"
    """html opens without network; md has the sentences and tables."""
    png: Path | None = None
    """Also write every figure as PNG into this folder."""
    split: Literal["train", "validation", "test"] | None = None
    """Which records are compared (default: those of the sweep's own problems, else test)."""
    k: int | None = None
    """pass@1 and pass@k are compared (default: the largest that all allow, at most 256)."""
    show: int = 16
    """Samples of each problem and store on the page."""
    title: str = ""
    """Above the page."""

    def execute(self, session: Session) -> int:
        from sage_rlvr.api import report

        page = report(
            *self.runs,
            out=self.out or Path(f"report.{self.format}"),
            format=self.format,
            png=self.png,
            split=self.split,
            k=self.k,
            show=self.show,
            title=self.title,
        )
        for path in page.written:
            session.say(f"{path}  {path.stat().st_size / 1e3:,.0f} kB")
        session.say(page.answer)
        return 0
