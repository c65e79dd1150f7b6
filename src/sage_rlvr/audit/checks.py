"""What every audit is made of: checks with the rows that fail them, and the floors that guessing reaches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.exact import normalised, number, verify_exact
from sage_rlvr.verifiers.pool import LIMITS

BAR = Fraction(99, 100)


@dataclass(frozen=True, slots=True)
class Finding:
    """A row that a check names: problem id, label, and why."""

    problem_id: str
    label: str
    reason: str


@dataclass(frozen=True, slots=True)
class Check:
    """One figure: `good` of `total` (an expected number in a floor). bar: whether it must reach 99 %. rows: not good."""

    name: str
    good: float
    total: int
    rows: tuple[Finding, ...] = ()
    bar: bool = False
    note: str = ""

    @property
    def share(self) -> float:
        """good / total; 1 where there was nothing to check."""
        return self.good / self.total if self.total else 1.0

    @property
    def passed(self) -> bool:
        """At least 99 %, or without a bar."""
        return not self.bar or not self.total or Fraction(self.good, self.total) >= BAR


@dataclass(frozen=True)
class Audit:
    """All checks of one task. head: what was audited, in a line."""

    task: str
    head: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether every check with a bar reached it."""
        return all(check.passed for check in self.checks)


def check_of(
    name: str, ids: Sequence[str], verdicts: Sequence[Verdict], wanted: Callable[[Verdict], bool], **options: object
) -> Check:
    """A check of verdicts: good are those that are `wanted`, the others are its rows, named by id, label and reason.

    ids, verdicts: one each, in step (ValueError where one is longer). options: bar, note of `Check`.
    """
    rows = tuple(
        Finding(i, verdict.label, verdict.reason)
        for i, verdict in zip(ids, verdicts, strict=True)
        if not wanted(verdict)
    )
    return Check(name, len(verdicts) - len(rows), len(verdicts), rows, **options)  # type: ignore[arg-type]


def is_right(verdict: Verdict) -> bool:
    """What `check_of` wants of perfect answers; undecided is not right."""
    return verdict.right


def duplicates(name: str, rows: Iterable[tuple[str, str, str]]) -> Check:
    """(id, text, gold) -> rows whose text stands in an earlier row too, spaces and capitals aside."""
    first: dict[str, tuple[str, str]] = {}
    found, total = [], 0
    for problem_id, text, gold in rows:
        total += 1
        earlier = first.setdefault(" ".join(text.casefold().split()), (problem_id, gold))
        if earlier[0] != problem_id:
            same = "of the same gold" if verify_exact(gold, earlier[1]).right else "OF ANOTHER GOLD"
            found.append(Finding(problem_id, "duplicate", f"of {earlier[0]}, {same}"))
    return Check(name, total - len(found), total, tuple(found))


def uniform_floor(values: int, k: int) -> float:
    """1 - (1 - 1/values)^k: the chance that one of k guesses, uniform over `values` answers, is right."""
    return 1 - (1 - 1 / values) ** k


def others_floor(golds: Sequence[str], k: int) -> list[bool]:
    """For each problem: is its gold among the k most frequent golds of the other problems (ties: first come)?

    What a policy scores that knows the golds of such a set and reads no problem.
    """
    keys = [str(value) if (value := number(gold)) is not None else normalised(gold) for gold in golds]
    counts = Counter(keys)
    order = {key: place for place, key in enumerate(counts)}
    hit = []
    for key in keys:
        ahead = sum(
            n > counts[key] - 1 or (n == counts[key] - 1 and order[o] < order[key])
            for o, n in counts.items()
            if o != key
        )
        hit.append(counts[key] > 1 and ahead < k)
    return hit


def rejected(name: str, pairs: Sequence[tuple[str, Verdict]], bar: bool = False) -> Check:
    """A check of (id, verdict) of wrong answers: good are those that are not right; the note counts the undecided ones.

    The rows are named by the checks of a kind, whose names begin with two spaces, and not by their sum above them.
    """
    check = check_of(name, [i for i, _ in pairs], [v for _, v in pairs], lambda v: not v.right, bar=bar)
    open_ = sum(verdict.label == "undecided" for _, verdict in pairs)
    late = sum(verdict.reason.startswith(LIMITS) for _, verdict in pairs)
    note = f"{open_} of them undecided" + (f", {late} by a limit" if late else "") if open_ else ""
    rows = check.rows if name.startswith("  ") else ()  # the kinds below name them
    return replace(check, note=note, rows=tuple(Finding(r.problem_id, "accepted", r.reason) for r in rows))


__all__ = [
    "BAR", "Audit", "Check", "Finding", "check_of", "duplicates", "is_right", "others_floor", "rejected", "uniform_floor"
]  # fmt: skip
