"""`compare`: evaluations of the same problems, and what differs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import ConfigError


@dataclass(frozen=True)
class Compare(Command):
    """Compare evaluations of the same problems.

    The first is the control of all others. Each is a record (.npz), a run directory, a sample store, "embedded", or
    NAME=PATH[,PATH...]; several paths are training seeds of one method, sample stores at several temperatures its frontier.
    A folder of `sweep` or `demo` compares by its own design."""

    arms: tyro.conf.Positional[tuple[str, ...]]
    split: Literal["train", "validation", "test"] | None = None
    """Which record of a run directory to take (default: that of the sweep's own problems, else test)."""
    k: int | None = None
    """Of pass@k: default 256, of sample stores with fewer samples all of them."""
    samples: int | None = None
    """Of sample stores: the first so many samples of each problem (default: all, which must be equally many)."""
    patterns: bool = False
    """Of sample stores: also compare the reasoning patterns of right samples."""
    support: bool = False
    """Also print all cells and rates of what was kept, found and lost (SRR, NDR, SDS, NSCR), with intervals."""
    out: Path | None = None
    """Also write the page and the pictures there."""

    def execute(self, session: Session) -> int:
        from sage_rlvr.api.compare import OF_STORES, comparison_of, has_stores, write_page
        from sage_rlvr.api.printed import patterns, print_results
        from sage_rlvr.results.summary import summary_of
        from sage_rlvr.runs import write_json_atomic

        if self.patterns and self.arms and not has_stores(self.arms):
            raise ConfigError(OF_STORES)
        found = comparison_of(self.arms, split=self.split, k=self.k, samples=self.samples)
        results, rows = found.results, found.comparisons
        with results.believed():
            print_results(session.out, results, rows, support=self.support)
            if self.patterns:
                session.say(*patterns(results))
            if self.out is not None:
                page, pictures = write_page(results, self.out)
                session.say(f"\npage     {page}\npictures {pictures}/*.png")
                write_json_atomic(self.out / "summary.json", summary_of(results, rows))
        return 0
