"""`report`: write a page of runs, evaluations and samples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from sage_rlvr.cli.session import Command, Session
from sage_rlvr.progress import reporting


@dataclass(frozen=True)
class Report(Command):
    """Write one page of runs, evaluations and samples.

    The page has outcomes, numbers, figures, a sample browser and run cards, and opens without network. RUNS are folders of
    `demo` or `sweep`, run directories, records (.npz), sample stores, or NAME=PATH[,PATH...] of those. The page lists
    missing runs and metrics; the command only reads stored results."""

    runs: tyro.conf.Positional[tuple[str, ...]]
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """The output file or folder (default: report.html or report.md in the current folder); summary.json is written beside it."""
    format: Literal["html", "md"] = "html"
    """html opens without network; md has the sentences and tables."""
    png: Path | None = None
    """Also write every figure as PNG into this folder."""
    split: Literal["train", "validation", "test"] | None = None
    """The split of the evaluations (default: the sweep's split, else test)."""
    k: int | None = None
    """k of pass@k (default: the largest k that all evaluations allow, at most 256)."""
    show: int = 16
    """Number of samples per problem and store on the page."""
    title: str = ""
    """The title of the page."""

    def execute(self, session: Session) -> int:
        """Write the page and print its files and its answer. Returns 0; raises DataError for inputs that cannot be read."""
        from sage_rlvr.api.report import report

        with reporting(session.note, f"report: reading {', '.join(self.runs)}, comparing, drawing figures"):
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
