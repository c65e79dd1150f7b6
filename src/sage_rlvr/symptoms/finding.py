"""A finding, and a report of findings as text, as JSON and as an exit code."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sage_rlvr.symptoms.causes import CAUSES, PAGE, RANK
from sage_rlvr.tasks.base import NO_ANSWER

Severity = Literal["cannot learn", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("cannot learn", "warning", "note")
EXIT = {"cannot learn": 3, "warning": 1, "note": 0}
SHOWN = 3  # examples
LONGEST = 160  # characters of an example


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that keeps a reward from rising.

    cause      a key of `CAUSES`
    severity   "cannot learn", "warning" or "note"
    sentence   the observation
    next_step  the recommended action
    evidence   numbers for the sentence, by name
    examples   short texts
    step       the step of a log at which it begins
    """

    cause: str
    severity: Severity
    sentence: str
    next_step: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    examples: tuple[str, ...] = ()
    step: int | None = None

    def __post_init__(self) -> None:
        if self.cause not in CAUSES:
            raise ValueError(f"cause {self.cause!r}: give it a line in symptoms/causes.py and a heading in {PAGE}")

    @property
    def rank(self) -> tuple[int, int]:
        """Worst first, and upstream first among equals."""
        return SEVERITIES.index(self.severity), RANK[self.cause]

    @property
    def link(self) -> str:
        """The heading of the cause."""
        return f"{PAGE}#{self.cause}"

    def lines(self) -> Iterator[str]:
        """The finding in words."""
        yield f"{self.severity.upper() if self.severity == 'cannot learn' else self.severity}: {self.cause} ({self.link})"
        yield f"  {self.sentence}"
        if self.evidence:
            yield f"  seen: {', '.join(f'{name} {shown(value)}' for name, value in self.evidence.items())}"
        for text in self.examples[:SHOWN]:
            yield f"  such as {shortened(text)}"
        yield f"  next: {self.next_step}"

    def tree(self) -> dict[str, Any]:
        """Strict JSON."""
        step = {} if self.step is None else {"step": self.step}
        return {
            "cause": self.cause,
            "severity": self.severity,
            **step,
            "sentence": self.sentence,
            "evidence": {name: plain(value) for name, value in self.evidence.items()},
            "examples": [shortened(text) for text in self.examples[:SHOWN]],
            "next": self.next_step,
            "link": self.link,
        }


@dataclass(frozen=True, kw_only=True)
class SymptomReport:
    """The findings of a run, worst first. head: the subject, in lines; facts: numbers that a healthy run has too, in lines;
    unseen: checks that were not possible; calm: the verdict without a finding; scant: whether there is too little to judge."""

    head: tuple[str, ...]
    findings: tuple[Finding, ...]
    facts: tuple[str, ...] = ()
    unseen: str = ""
    calm: str = "nothing wrong seen"
    scant: bool = False

    @classmethod
    def of(
        cls,
        head: Sequence[str],
        findings: Iterable[Finding],
        facts: Sequence[str] = (),
        unseen: str = "",
        calm: str = "nothing wrong seen",
    ) -> SymptomReport:
        """Sort the findings, one of each cause: its worst."""
        first: dict[str, Finding] = {}
        for one in sorted(findings, key=lambda one: one.rank):
            first.setdefault(one.cause, one)
        return cls(head=tuple(head), findings=tuple(first.values()), facts=tuple(facts), unseen=unseen, calm=calm)

    @property
    def exit_code(self) -> int:
        """0 for nothing but notes, 1 for a warning or too little to judge, 3 for a run that cannot learn."""
        return max((EXIT[one.severity] for one in self.findings), default=0) or int(self.scant)

    @property
    def first(self) -> str | None:
        """The cause that is named first; None without a warning or worse."""
        return next((one.cause for one in self.findings if one.severity != "note"), None)

    @property
    def verdict(self) -> str:
        """The result in a line."""
        worse = [one for one in self.findings if one.severity != "note"]
        if not worse:
            return self.calm
        more = f"; {len(worse) - 1} more below" if len(worse) > 1 else ""
        kind = "this run cannot learn" if worse[0].severity == "cannot learn" else "look at this first"
        return f"{kind}: {CAUSES[worse[0].cause]} ({worse[0].cause}){more}"

    def lines(self) -> list[str]:
        """The report as text."""
        body = [line for one in self.findings for line in one.lines()]
        unseen = [f"not visible here: {self.unseen}"] if self.unseen else []
        return [*self.head, *self.facts, self.verdict, *body, *unseen]

    def tree(self) -> dict[str, Any]:
        """Strict JSON."""
        return {
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "head": list(self.head),
            "facts": list(self.facts),
            "findings": [one.tree() for one in self.findings],
            "not_visible": self.unseen,
        }

    def __str__(self) -> str:
        return "\n".join(self.lines())


def raised(findings: Iterable[Finding], causes: Iterable[str]) -> list[Finding]:
    """The findings with these causes raised to "cannot learn": nothing is learned, and they explain it."""
    known = set(causes)
    worse = [replace(one, severity="cannot learn") if one.cause in known and one.severity == "warning" else one for one in findings]
    return worse


def shown(value: Any) -> str:
    """A number of the evidence in a few characters."""
    if isinstance(value, float):
        return f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def shortened(text: str) -> str:
    """A text in quotes, its middle left out if it is long, without the mark of a truncated completion."""
    text = repr(text.removesuffix(NO_ANSWER))
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"


def plain(value: Any) -> Any:
    """A value in strict JSON."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | bool | None) else str(value)


__all__ = ["Finding", "Severity", "SymptomReport", "raised", "shortened", "shown"]
