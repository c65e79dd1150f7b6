"""Teachers, which give a policy guidance before it tries a problem again (Agent-RLVR, arXiv 2506.11425).

    problem, the policy's text in the failed attempt, its verdict -> guidance

A teacher may know the reference answer; its guidance must not contain it. `hint_of` checks that by a match of strings
(`Task.leaks`) and drops a hint that leaks. `TEACHERS` has those of sage_rlvr.contrib.hints by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from sage_rlvr.errors import DataError
from sage_rlvr.registry import Registry
from sage_rlvr.tasks.base import Task
from sage_rlvr.verifiers import Verdict

LONGEST = 2000  # characters of guidance


class Teacher(Protocol):
    """A writer of guidance. leak: whether it may contain the reference answer.

    responses: the policy's text in the attempt, one per turn of the policy, so one for a task without turns.
    """

    @property
    def leak(self) -> bool:
        """Whether guidance may contain the reference answer; if not, such guidance is dropped."""

    def teach(self, task: Task, problem: Any, responses: Sequence[str], verdict: Verdict) -> str:
        """The guidance after a failed attempt; "" for none."""


@runtime_checkable
class Sourced(Protocol):
    """A teacher with code or weights, whose hash is in a store's identity."""

    @property
    def sha256(self) -> str:
        """Hash of its file, or of its weights."""


TEACHERS: Registry[Any] = Registry("teacher")


def hint_of(teacher: Teacher, task: Task, problem: Any, responses: Sequence[str], verdict: Verdict) -> tuple[str, bool]:
    """A teacher's hint after a failed attempt, and whether it was dropped, leaving "", because it contains the reference answer.

    Raises DataError for a hint that is no text, or longer than `LONGEST` characters.
    """
    hint = teacher.teach(task, problem, responses, verdict)
    if not isinstance(hint, str) or len(hint) > LONGEST:
        raise DataError(
            f"teacher {type(teacher).__name__}, problem {problem.problem_id!r}: it said {str(hint)[:80]!r}; guidance is a text of "
            f"at most {LONGEST:,} characters"
        )
    hint = hint.strip()
    leaking = not teacher.leak and task.leaks(problem, hint)
    return ("", True) if leaking else (hint, False)


__all__ = ["LONGEST", "TEACHERS", "Sourced", "Teacher", "hint_of"]
