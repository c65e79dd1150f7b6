"""Parts of an audit: cases that a task names and checks with the rows that fail them.

task.audit_cases(k) -> cases (completions with a known verdict) and finished checks -> Audit
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
FORMS = {
    "bare": "{}",
    r"\boxed{5}": r"\boxed{{{}}}",
    "#### 5": "#### {}",
    "The answer is 5.": "The answer is {}.",
    "<answer>5</answer>": "<answer>{}</answer>",
    "Answer: 5": "Answer: {}",
    "Final Answer: ... $5$. ...": "Final Answer: The final answer is ${}$. I hope it is correct.",
}
"""The forms in which a model writes an answer; the last is that of Minerva. Audits of rewards and preflight write golds in these
forms."""


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """A row that a check names: problem id, label, and why. Checks contain it; the audit prints it. `check_of`, `duplicates` and
    audits of tasks make it."""

    problem_id: str
    label: str
    reason: str


@dataclass(frozen=True, slots=True)
class Check:
    """One figure of an audit: `good` of `total` (an expected number in a floor).

    bar: whether it must reach 99 %
    rows: those that are not good
    part: whether it is a part of the check before it
    failed: the reasons why more than half of the answers that must be right failed, a sentence each

    `Case.checks` and audits of tasks make it; `AuditReport` contains it, and `sage_rlvr.contrib.audit.pages` prints it."""

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
        """good / total; 1 if nothing was checked."""
        return self.good / self.total if self.total else 1.0

    @property
    def passed(self) -> bool:
        """At least 99 %, or without a bar."""
        return not self.bar or not self.total or Fraction(self.good) / self.total >= BAR


@dataclass(frozen=True)
class AuditReport:
    """All checks of one task, which `sage_rlvr.contrib.audit` makes, prints and writes. head: the subject of the audit, in a
    line. blind: whether no right answer was known, so that only wrong ones were tried."""

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
    """Completions with the verdict that a verifier must return: one line of an audit, or one and a line for each kind. A task's
    `audit_cases` makes it; the audit judges it.

    pairs     (problem, completion); for "wrong" by kind
    wanted    right; not right; decided (right or wrong); wrong: not right, by kind below a sum
    bar       whether 99 % of them must be so
    judge     returns the verdicts, if answers are read at another place than the task's
    location  that place, in words
    """

    name: str
    pairs: CompletionPairs | Mapping[str, CompletionPairs]
    wanted: Wanted = "right"
    bar: bool = True
    judge: JudgePairs | None = None
    location: str = ""

    def checks(self, judge: JudgePairs) -> list[Check]:
        """The lines, judged by `judge` unless the case has another judge."""
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
    """(id, text, gold) -> rows with the text of an earlier row, ignoring spaces and capitals."""
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

    part: whether it is one kind of them, which names its rows; the sum above the kinds has the bar.
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
