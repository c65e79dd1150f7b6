"""Completions of a task without an answer: the place that the task reads, and the answers at other places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sage_rlvr.tasks.abilities import ReadsAnswers
from sage_rlvr.tasks.base import NO_ANSWER, Response, Task
from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.reasons import Elsewhere, elsewhere, location_in_words


def read_at(task: Task) -> str:
    """The place at which a task reads answers, in words; "" for one that reads completions in another way."""
    return location_in_words(task.reading["answer_in"], task.reading["tag"]) if isinstance(task, ReadsAnswers) else ""


def elsewhere_of(task: Task, pairs: Sequence[tuple[Any, Response]], verdicts: Sequence[Verdict]) -> Elsewhere | None:
    """`elsewhere` for the complete completions without an answer among (problem, completion), judged by the task; None for a task
    without `reading`. verdicts: those of `pairs`."""
    if not isinstance(task, ReadsAnswers):
        return None
    left = [
        (problem, text)
        for (problem, text), verdict in zip(pairs, verdicts, strict=True)
        if verdict.unanswered and isinstance(text, str) and not text.endswith(NO_ANSWER)  # truncated before its answer
    ]
    texts = [text for _, text in left]
    return elsewhere(texts, lambda indices, reading: task.verify_all([left[i] for i in indices], **reading))


__all__ = ["elsewhere_of", "read_at"]
