"""What an audit is made of: cases that a task names and checks with the rows that fail them.

task.audit_cases(k) -> cases (completions of which it is known what they earn) and ready checks -> Audit
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal

from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.exact import verify_exact
from sage_rlvr.verifiers.pool import LIMITS
from sage_rlvr.verifiers.reasons import Reasons, elsewhere

BAR = Fraction(99, 100)


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """A row that a check names: problem id, label, and why. Checks hold it; the audit prints it. `check_of`, `duplicates` and
    audits of tasks make it."""

    problem_id: str
    label: str
    reason: str


@dataclass(frozen=True, slots=True)
class Check:
    """One figure: `good` of `total` (an expected number in a floor). bar: whether it must reach 99 %. rows: not good. part: of the
    check before it. failed: what more than half of the answers that must be right failed by, a sentence each. `Case.checks` and
    audits of tasks make it; `AuditReport` holds it, and `sage_rlvr.contrib.audit.pages` prints it."""

    name: str
    good: float
    total: int
    rows: tuple[AuditFinding, ...] = ()
    bar: bool = False
    note: str = ""
    part: bool = False
    failed: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """good / total; 1 where there was nothing to check."""
        return self.good / self.total if self.total else 1.0

    @property
    def passed(self) -> bool:
        """At least 99 %, or without a bar."""
        return not self.bar or not self.total or Fraction(self.good) / self.total >= BAR


@dataclass(frozen=True)
class AuditReport:
    """All checks of one task, which `sage_rlvr.contrib.audit` makes, prints and writes. head: what was audited, in a line. blind:
    no right answer was known, so that only wrong ones were tried."""

    task: str
    head: str
    checks: tuple[Check, ...]
    blind: bool = field(default=False, kw_only=True)

    @property
    def passed(self) -> bool:
        """Whether every check with a bar reached it."""
        return all(check.passed for check in self.checks)


CompletionPairs = Sequence[tuple[Any, str]]
Wanted = Literal["right", "not right", "decided", "wrong"]
JudgePairs = Callable[[CompletionPairs], list[Verdict]]


@dataclass(frozen=True)
class Case:
    """Completions of which it is known what a verifier must say: one line of an audit, or one and a line for each kind. A task's
    `audit_cases` makes it; the audit judges it.

    pairs   (problem, completion); of "wrong" by kind
    wanted  right; not right; decided (right or wrong); wrong: not right, by kind below a sum
    bar     whether 99 % of them must be so
    judge   gives the verdicts, where another reading is asked for than the task's own
    location  where they read the answer, in words
    """

    name: str
    pairs: CompletionPairs | Mapping[str, CompletionPairs]
    wanted: Wanted = "right"
    bar: bool = True
    judge: JudgePairs | None = None
    location: str = ""

    def checks(self, judge: JudgePairs) -> list[Check]:
        """The lines, judged by `judge` unless the case has its own."""
        judge = self.judge or judge
        if isinstance(self.pairs, Mapping):
            kinds = {kind: _judged(pairs, judge) for kind, pairs in self.pairs.items()}
            whole = rejected("all wrong answers rejected", [pair for judged in kinds.values() for pair in judged])
            return [whole, *(rejected(kind, judged, part=True) for kind, judged in kinds.items())]
        judged = _judged(self.pairs, judge)
        check = check_of(self.name, judged, self.wanted, bar=self.bar)
        if self.wanted != "right" or check.good == check.total:
            return [check]
        reasons = Reasons.of([verdict for _, verdict in judged])
        counts = {"no answer": reasons.unanswered, "undecided": reasons.undecided}
        note = ", ".join(f"{many} {name}" for name, many in counts.items() if many)
        unanswered = [text for (_, text), (_, verdict) in zip(self.pairs, judged, strict=True) if verdict.unanswered]
        failed = reasons.problems(location=self.location, search=lambda: elsewhere(unanswered, None))
        return [replace(check, note=note, failed=tuple(f"{self.name}: {sentence}" for _, sentence in failed))]


def _judged(pairs: CompletionPairs, judge: JudgePairs) -> list[tuple[str, Verdict]]:
    return [(problem.problem_id, verdict) for (problem, _), verdict in zip(pairs, judge(pairs), strict=True)]


def check_of(name: str, judged: Sequence[tuple[str, Verdict]], wanted: Wanted, bar: bool = False) -> Check:
    """A check of (id, verdict): good are those that are as `wanted`; the others are its rows, by id, label and reason."""
    rows = tuple(AuditFinding(i, v.label, v.reason) for i, v in judged if not _as_wanted(v, wanted))
    return Check(name, len(judged) - len(rows), len(judged), rows, bar)


def _as_wanted(verdict: Verdict, wanted: Wanted) -> bool:
    if wanted == "decided":
        return verdict.label != "undecided"
    return verdict.right if wanted == "right" else not verdict.right


def duplicates(name: str, rows: Iterable[tuple[str, str, str]]) -> Check:
    """(id, text, gold) -> rows whose text stands in an earlier row too, spaces and capitals aside."""
    first: dict[str, tuple[str, str]] = {}
    findings, total = [], 0
    for problem_id, text, gold in rows:
        total += 1
        earlier = first.setdefault(" ".join(text.casefold().split()), (problem_id, gold))
        if earlier[0] != problem_id:
            same = "of the same gold" if verify_exact(gold, earlier[1]).right else "OF ANOTHER GOLD"
            findings.append(AuditFinding(problem_id, "duplicate", f"of {earlier[0]}, {same}"))
    return Check(name, total - len(findings), total, tuple(findings))


def rejected(name: str, judged: Sequence[tuple[str, Verdict]], part: bool = False) -> Check:
    """A check of (id, verdict) of wrong answers: good are those that are not right; the note counts the undecided ones.

    part: of a kind of them, which names its rows; the sum above the kinds has the bar.
    """
    check = check_of(name, judged, "wrong", bar=not part)
    open_ = sum(verdict.label == "undecided" for _, verdict in judged)
    late = sum(verdict.reason.startswith(LIMITS) for _, verdict in judged)
    note = f"{open_} of them undecided" + (f", {late} by a limit" if late else "") if open_ else ""
    rows = tuple(AuditFinding(r.problem_id, "accepted", r.reason) for r in check.rows) if part else ()
    return replace(check, note=note, rows=rows, part=part)


__all__ = [
    "BAR",
    "AuditFinding",
    "AuditReport",
    "Case",
    "Check",
    "check_of",
    "duplicates",
    "rejected"
]  # fmt: skip
