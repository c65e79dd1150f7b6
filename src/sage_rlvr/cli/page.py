"""`report`: one page of runs, evaluations and samples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import ConfigError


@dataclass(frozen=True)
class Report(Command):
    """Write one page of runs, evaluations and samples.

    It holds verdicts, numbers, figures, a sample browser and run cards, and opens without network. RUNS are folders of
    `demo` or `sweep`, run directories, records (.npz), sample stores, or NAME=PATH[,PATH...] of those. What was not run or
    not recorded is said on the page; nothing is made here."""

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

        from sage_rlvr.report import Page, page_of
        from sage_rlvr.results import Results
        from sage_rlvr.runs import writing

        if not self.runs or self.show < 0 or (self.k is not None and self.k < 2):
            raise ConfigError(
                f"RUNS {list(self.runs)}, --show {self.show}, --k {self.k}: name one folder, run, record or store at least; "
                "show 0 or more samples; k is 2 or more"
            )
        results = Results.read(*self.runs, split=self.split, k=self.k)
        out = self.out or Path(f"report.{self.format}")
        with results.believed(), writing("report", out.parent, 8 << 20):
            page = Page(page_of(results, title=self.title, shown=self.show))
            written = page.write(out, self.format, self.png)
        for path in written:
            session.say(f"{path}  {path.stat().st_size / 1e3:,.0f} kB")
        session.say(page.answer)
        return 0
