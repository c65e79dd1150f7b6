"""The form of a completion, right or wrong: its beginning and its features. A task with forms is `Formed` (`abilities.py`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Form:
    """family: the beginning of the completion's answer, such as "3 +" of an expression; None for a text without one.
    marks: those of the task's `answer_marks` that it has. `Formed.answer_form` makes it; reports of samples count it."""

    family: str | None
    marks: frozenset[str] = frozenset()


__all__ = ["Form"]
