"""A verdict with its answer, and the mathematics verifier on completions that another program sampled. No torch is needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sage_rlvr.evaluation.store import SampleStore
from sage_rlvr.tasks.base import NO_ANSWER
from sage_rlvr.tasks.prompts import FORMATS
from sage_rlvr.verifiers import UNANSWERED, Verdict
from sage_rlvr.verifiers.pool import shared
from sage_rlvr.verifiers.reasons import LOOKED, Elsewhere, Reasons, elsewhere
from sage_rlvr.verifiers.rewards import answered

UNJUDGED = "not judged yet"  # the reason of imported samples that came without a verdict


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict and its answer in canonical form; None without an answer. `EvalSet.verdicts` and the
    re-judging of stores make it; `SampleStore` writes it."""

    label: str
    reason: str
    answer: str | None = None


JudgeAt = Callable[[Sequence[tuple[str, str]], Mapping[str, Any]], Sequence[Verdict]]
"""(problem id, text) of samples, and a reading (answer_in, tag, closed) -> their verdicts there."""


def reasons_of(store: SampleStore, n: int | None = None) -> Reasons:
    """Reasons why samples of a store are not right, over the first n of each problem."""
    rows = store.lists(("verdict", "reason", "finish"), n=n)
    ends = [None if end is None else end == "length" for end in rows["finish"]]
    return Reasons(Counter(zip(rows["verdict"], rows["reason"], ends, strict=True)))


def elsewhere_in(store: SampleStore, n: int | None = None, judge: JudgeAt | None = None) -> Elsewhere | None:
    """Other places where complete samples without an answer have one, for at most `LOOKED` samples; None for tasks that do not look
    for an answer in the text.

    judge: returns verdicts at another place; None if no golds are available.
    """
    if judge is None and store.identity.prompt not in FORMATS:
        return None
    rows = store.lists(("problem", "text", "verdict", "reason", "finish"), n=n)
    left = [
        (problem, text)
        for problem, text, verdict, reason, finish in zip(*rows.values(), strict=True)
        if verdict == "wrong" and reason in UNANSWERED and finish != "length" and not text.endswith(NO_ANSWER)
    ]
    some = left[:: max(1, len(left) // LOOKED)][:LOOKED]  # of all problems, not only of the first

    def at(places: Sequence[int], reading: Mapping[str, Any]) -> Sequence[Verdict]:
        assert judge is not None
        return judge([some[i] for i in places], reading)

    return elsewhere([text for _, text in some], None if judge is None else at)


def problems_in(
    store: SampleStore, reasons: Reasons, n: int | None = None, *, location: str = "", judge: JudgeAt | None = None
) -> list[str]:
    """A sentence for each fraction above a half, of the first n samples of each problem; [] for an import without verdicts."""
    if {reason for _, reason, _ in reasons.counted} == {UNJUDGED}:
        return []
    problems = reasons.problems(location=location, search=lambda: elsewhere_in(store, n, judge), limit="--max-new-tokens")
    return [sentence for _, sentence in problems]


def judged_at(golds: Mapping[str, str]) -> JudgeAt:
    """Judge by the mathematics verifier, against the gold of each problem."""
    return lambda pairs, reading: shared().verify([(text, golds[problem]) for problem, text in pairs], **reading)


def judged_by(items: Sequence[tuple[str, str]], reading: Mapping[str, Any]) -> list[Judged]:
    """The mathematics verifier on (completion, gold) pairs, answers read at one place."""
    verdicts = shared().verify(list(items), **reading)
    return [Judged(v.label, v.reason, answered(text, reading)) for v, (text, _) in zip(verdicts, items, strict=True)]
