"""The options of `compare` that write for other programs: --to, --github-summary, --log-to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sage_rlvr.api.compare import Comparison
    from sage_rlvr.api.trackers import TrackerRun


def check(github_summary: bool, log_to: Sequence[str]) -> list[TrackerRun]:
    """Check the options before anything is read. Returns the runs of --log-to; raises ConfigError."""
    if github_summary:
        from sage_rlvr.results.writers.markdown import summary_file

        summary_file()
    if not log_to:
        return []
    from sage_rlvr.api.trackers import targets_of

    return [target for word in log_to for target in targets_of(word)]


def send(
    comparison: Comparison, tell: Callable[[str], None], *, eee: Path | None, github_summary: bool, log_to: Sequence[str]
) -> None:
    """Write for Every Eval Ever, GitHub and trackers. tell: prints what was written; eee: the folder of --to eee."""
    results, findings = comparison.results, comparison.findings
    if eee is not None:
        from sage_rlvr.results.writers.eee import write_eee
        from sage_rlvr.runs import writing

        with writing("file of Every Eval Ever", eee, 1 << 16):
            files = write_eee(results, findings.verdicts, eee)
        for file in files:
            tell(f"eee      {file}")
    if github_summary:
        from sage_rlvr.results.writers.markdown import append_to_summary, brief_markdown

        tell(f"summary  {append_to_summary(brief_markdown(results, findings))}")
    targets = check(github_summary, log_to)
    if targets:
        from sage_rlvr.api.trackers import logged_of

        logged = logged_of(results, findings)
        for target in targets:
            target.log(logged)
            tell(f"logged   {target.tracker} {target.place}")
