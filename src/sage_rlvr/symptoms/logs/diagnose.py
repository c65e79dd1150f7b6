"""The story of a log in at most twelve lines: `diagnose`. The checks are in checks.py and texts.py."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from sage_rlvr.symptoms.causes import CAUSES
from sage_rlvr.symptoms.finding import Finding, SymptomReport
from sage_rlvr.symptoms.logs.checks import CHECKS
from sage_rlvr.symptoms.logs.curves import LEAST, Change, Curves
from sage_rlvr.symptoms.logs.readers import read_log
from sage_rlvr.symptoms.logs.table import LogTable
from sage_rlvr.symptoms.logs.texts import TEXT_CHECKS

LINES = 12
MOST = 3  # findings that are reported
UNSEEN = {
    "unmixed": "share of mixed groups",
    "entropy": "entropy",
    "kl": "KL to the reference",
    "gap": "sampler against scorer",
    "held_out": "a held-out score",
    "cut": "share cut at the limit",
    "grad_norm": "gradient norm",
}
ORDERED = ("reward", "entropy", "kl", "length", "cut", "unmixed", "clip", "grad_norm", "gap", "held_out", "no_answer")


@dataclass(frozen=True)
class Diagnosis:
    """A report, and the changes with their steps."""

    report: SymptomReport
    table: LogTable
    changes: tuple[Change, ...]

    @property
    def lines(self) -> list[str]:
        """The story: at most twelve lines."""
        report = self.report
        told = [line for one in report.findings[:MOST] for line in _told(one)]
        more = report.findings[MOST:]
        rest = [f"also: {', '.join(one.cause for one in more)}"] if more else []
        first = self.order
        lines = [self.table.line, *report.facts, report.verdict, *([first] if first else []), *told, *rest]
        return [*lines[: LINES - 1], f"not visible here: {report.unseen}"]

    @property
    def order(self) -> str:
        """List the changes, in the order of the steps."""
        if not self.changes:
            return ""
        return f"in order of change: {', '.join(map(str, self.changes[:5]))}"

    @property
    def step(self) -> int | None:
        """The step that a picture marks."""
        return next((one.step for one in self.report.findings if one.step is not None), None)


def diagnose(log: str | Path) -> Diagnosis:
    """Read a log and find what keeps its reward from rising.

    Args:
        log: A file or folder of any program that `logs.readers` knows.

    Raises:
        DataError: For a log that no reader knows.
    """
    return diagnosis_of(read_log(log))


def diagnosis_of(table: LogTable) -> Diagnosis:
    """The diagnosis of a log that was read."""
    curves = Curves(table)
    findings = [one for check in (*CHECKS, *TEXT_CHECKS) for one in check(curves)]
    changes = [change for name in ORDERED if (change := curves[name].change()) is not None and _matters(change)]
    changes.sort(key=lambda change: change.step)
    report = SymptomReport.of([table.line], findings, list(_facts(curves)), _unseen(table), _calm(curves))
    ordered = tuple(sorted(report.findings, key=_earliest))
    report = replace(report, findings=ordered, scant=len(curves.reward.values) < LEAST)
    return Diagnosis(report, table, tuple(changes))


def _earliest(one: Finding) -> tuple[int, float, int]:
    """Sort key: the worst first, then the one that begins first, because later ones may follow from it."""
    return one.rank[0], math.inf if one.step is None else one.step, one.rank[1]


def _matters(change: Change) -> bool:
    """Whether a level changed by a third."""
    low, high = sorted((abs(change.before), abs(change.after)))
    return high > 1e-6 and high - low > 0.33 * high


def _told(one: Finding) -> list[str]:
    when = "" if one.step is None else f", step {one.step}"
    return [f"{one.severity}: {one.cause}{when}: {one.sentence} ({one.link})", f"  next: {one.next_step}"]


def _calm(curves: Curves) -> str:
    """The verdict on a log in which no check found anything."""
    count = len(curves.reward.values)
    if not count:
        return "no reward in this log, without which little can be told"
    if count < LEAST:
        return f"too short to tell: {count} step{'s' * (count > 1)} with a reward, and {LEAST} are the least; let it run on"
    return f"nothing wrong seen in {count} steps"


def _facts(curves: Curves) -> Iterator[str]:
    """Describe the course of the reward, and remark on restarts and gaps."""
    reward = curves.reward
    if reward:
        peak, at = reward.peak, reward.steps[int(reward.smooth.argmax())]
        text = f"reward {reward.start:.3g} at the start, {reward.end:.3g} at the end, highest {peak:.3g} around step {at}"
        onset = reward.onset()
        if curves.varies and onset is not None and reward.end > reward.start:
            last = reward.steps[-1]
            text += f"; it stopped rising around step {at}" if at < last - 0.3 * (last - reward.steps[0]) else "; it still rises"
        yield text
    notes = curves.table.notes
    if notes:
        yield f"note: {'; '.join(notes)}"


def _unseen(table: LogTable) -> str:
    lacking = [words for name, words in UNSEEN.items() if not table.has(name)]
    if not table.completions:
        lacking.append("completions")
    elif not any(one.gold for one in table.completions):
        lacking.append("golds" + (' (log_extra("gold", ...) in a reward of TRL)' if table.program == "TRL" else ""))
    lacking.append("whether template, golds and reward are right (sage-rlvr preflight)")
    return ", ".join(lacking)


__all__ = ["CAUSES", "Diagnosis", "diagnose", "diagnosis_of"]
