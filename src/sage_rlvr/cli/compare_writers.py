"""The options of `compare` that write for other programs: --to, --github-summary, --log-to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sage_rlvr.api.compare import Comparison
    from sage_rlvr.api.trackers import TrackerRun
    from sage_rlvr.cli.compare import Compare


def check(command: Compare) -> list[TrackerRun]:
    """Check the options before anything is read. Returns the runs of --log-to; raises ConfigError."""
    if command.github_summary:
        from sage_rlvr.results.writers.markdown import summary_file

        summary_file()
    if not command.log_to:
        return []
    from sage_rlvr.api.trackers import targets_of

    return [target for word in command.log_to for target in targets_of(word)]


def send(command: Compare, tell: Callable[[str], None], comparison: Comparison) -> None:
    """Write for Every Eval Ever, GitHub and trackers. tell: prints what was written."""
    results, findings = comparison.results, comparison.findings
    if command.to is not None:
        from sage_rlvr.results.writers.eee import write_eee
        from sage_rlvr.runs import writing

        with writing("file of Every Eval Ever", command.to[1], 1 << 16):
            files = write_eee(results, findings.verdicts, command.to[1])
        for file in files:
            tell(f"eee      {file}")
    if command.github_summary:
        from sage_rlvr.results.writers.markdown import append_to_summary, brief_markdown

        tell(f"summary  {append_to_summary(brief_markdown(results, findings))}")
    targets = check(command)
    if targets:
        from sage_rlvr.api.trackers import logged_of

        logged = logged_of(results, findings)
        for target in targets:
            target.log(logged)
            tell(f"logged   {target.tracker} {target.place}")
