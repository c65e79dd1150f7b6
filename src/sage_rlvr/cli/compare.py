"""`compare`: evaluations of the same problems held against each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import ConfigError

if TYPE_CHECKING:
    from sage_rlvr.report import SeedSummary, Summary


@dataclass(frozen=True)
class Compare(Command):
    """Compare evaluations of the same problems.

    The first is the control of all others. Each is a record (.npz), a run directory, a sample store, or
    NAME=PATH[,PATH...]; several paths are training seeds of one method. paper:GRPO paper:Branch compares arms of the
    paper's own tables (paper:4/GRPO: of its Table 4)."""

    arms: tyro.conf.Positional[tuple[str, ...]]
    split: Literal["validation", "test"] = "test"
    """Which record of a run directory to take."""
    k: int | None = None
    """Of pass@k: default 256, of sample stores with fewer samples all of them."""
    samples: int | None = None
    """Of sample stores: the first so many samples of each problem (default: all, which must be equally many)."""
    patterns: bool = False
    """Of sample stores: also compare the reasoning patterns of right samples."""
    frontier: bool = False
    """Of sample stores: each arm's stores are one policy at different temperatures; compare pass@k at equal pass@1."""
    out: Path | None = None
    """Also write the page and the pictures there (of exact records)."""

    def execute(self, session: Session) -> int:
        from sage_rlvr.cli.records import TOP_K, compare_records, load_arms, more_lines, support_lines
        from sage_rlvr.cli.stores import compare_store_frontiers, compare_stores, is_store
        from sage_rlvr.cli.tables import PAPER, paper_lines, print_summary
        from sage_rlvr.report import summarise

        plain: Callable[[], list[str]] | None = None
        if any(arm.startswith(PAPER) for arm in self.arms):
            plain = partial(paper_lines, self.arms)
        elif any(map(is_store, self.arms)):
            plain = partial(compare_stores, self.arms, self.k, self.samples, self.patterns)
            if self.frontier:
                if self.patterns:
                    raise ConfigError(
                        "--frontier, --patterns: give one of them; patterns are compared at one temperature"
                    )
                plain = partial(compare_store_frontiers, self.arms, self.k, self.samples)
        elif self.samples is not None or self.patterns or self.frontier:
            raise ConfigError(
                "--samples, --patterns, --frontier: settings of sample stores; these arms are none, so leave them out (records "
                "evaluated with eval --frontier have their frontiers compared anyway)"
            )
        if plain is not None:
            if self.out is not None:
                raise ConfigError(f"--out {self.out}: only exact records have a page; leave it out")
            session.say("\n".join(plain()))
            return 0
        loaded = load_arms(self.arms, self.split)
        k = TOP_K if self.k is None else self.k
        result, over_seeds = compare_records(loaded, k)
        shown = summarise(result) if over_seeds is None else over_seeds
        print_summary(session.out, shown)
        session.say(*more_lines(result, over_seeds, k), *support_lines(loaded, k))
        if self.out is not None:
            write_pages(shown, self.out, session)
        return 0


def write_pages(shown: Summary | SeedSummary, folder: Path, session: Session) -> None:
    """The page and the pictures of exact records."""
    from sage_rlvr.report import Summary, write_report, write_seed_report
    from sage_rlvr.runs import writing

    with writing("report", folder, 8 << 20):
        paths = write_report(shown, folder) if isinstance(shown, Summary) else write_seed_report(shown, folder)
    session.say(f"\npage     {paths.html}\npictures {folder}/*.png")
