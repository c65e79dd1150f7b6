"""`compare`: compare evaluations of the same problems."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import ConfigError
from sage_rlvr.progress import reporting


@dataclass(frozen=True)
class Compare(Command):
    """Compare evaluations of the same problems.

    The first policy is the control of all others. Each is a record (.npz), a run directory, a sample store, "embedded", or
    NAME=PATH[,PATH...]; several paths are training seeds of one method, or sample stores of one policy at several temperatures.
    For a folder of `sweep` or `demo`, the design in the folder defines the comparisons."""

    arms: tyro.conf.Positional[tuple[str, ...]]
    split: Literal["train", "validation", "test"] | None = None
    """The split of the evaluations (default: the sweep's split, else test)."""
    k: int | None = None
    """k of pass@k (default: 256, or the number of samples of smaller stores)."""
    samples: int | None = None
    """For sample stores: use the first N samples of each problem (default: all, which requires equal numbers)."""
    patterns: bool = False
    """For sample stores: also compare the reasoning patterns of right samples."""
    support: bool = False
    """Also print counts and rates of the support kept, gained and lost (SRR, NDR, SDS, NSCR), with intervals."""
    out: Path | None = None
    """Also write the page and the figures into this folder."""

    def execute(self, session: Session) -> int:
        from sage_rlvr.api.compare import OF_STORES, comparison_of, has_stores, write_page
        from sage_rlvr.api.printed import patterns, print_results
        from sage_rlvr.results.summary import summary_of
        from sage_rlvr.runs import write_json_atomic

        if self.patterns and self.arms and not has_stores(self.arms):
            raise ConfigError(OF_STORES)
        with reporting(session.note, f"compare: reading {', '.join(self.arms)}"):
            found = comparison_of(self.arms, split=self.split, k=self.k, samples=self.samples)
        results, rows = found.results, found.comparisons
        with results.believed(), reporting(session.note, "compare: computing intervals"):
            print_results(session.out, results, rows, support=self.support)
            if self.patterns:
                session.say(*patterns(results))
            if self.out is not None:
                page, pictures = write_page(results, self.out)
                session.say(f"\npage     {page}\nfigures  {pictures}/*.png")
                write_json_atomic(self.out / "summary.json", summary_of(results, rows))
        return 0 if rows else 2  # the last line says why nothing is compared
