"""Teachers: what is said to a policy before it tries a problem again (Agent-RLVR, arXiv 2506.11425).

    problem, the failed attempt's own words, its verdict -> guidance

A teacher may know the reference answer; its guidance must not hold it. `hint_of` holds it to that by a match of strings
(`sage_rlvr.tasks.base.leaks`) and drops a hint that leaks. `sage_rlvr.models.teachers` has one more, which asks a policy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sage_rlvr import plugins
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.paths import not_in
from sage_rlvr.registry import Registry
from sage_rlvr.tasks.abilities import Pointing
from sage_rlvr.tasks.base import Task, reference
from sage_rlvr.tasks.rows import sha256_of
from sage_rlvr.verifiers import Verdict

LONGEST = 2000  # characters of guidance


class Teacher(Protocol):
    """What writes guidance. leak: whether it may hold the reference answer.

    responses: the attempt's own words, one text per turn of the policy, so one of a task without turns.
    """

    @property
    def leak(self) -> bool:
        """Whether guidance may hold the reference answer; where not, such guidance is dropped."""

    def teach(self, task: Task, problem: Any, responses: Sequence[str], verdict: Verdict) -> str:
        """The guidance after a failed attempt; "" for none."""


TEACHERS: Registry[Any] = Registry("teacher")


def hint_of(teacher: Teacher, task: Task, problem: Any, responses: Sequence[str], verdict: Verdict) -> tuple[str, bool]:
    """What a teacher says after a failed attempt, and whether it was dropped, "", as it holds the reference answer.

    DataError for what is no text, or longer than `LONGEST` characters.
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


@TEACHERS.register
@dataclass(frozen=True)
class Nothing:
    """Says nothing: the control, the same problems attempted again without guidance."""

    @property
    def leak(self) -> bool:
        """It cannot."""
        return False

    def teach(self, task: Task, problem: Any, responses: Sequence[str], verdict: Verdict) -> str:
        """Nothing."""
        return ""


@TEACHERS.register
@dataclass(frozen=True)
class Rules:
    """What the attempt was and why it failed, in words, and the kind of step to try; it knows no reference answer.

    By the task's own explain(problem, responses, verdict) where it has one.
    """

    @property
    def leak(self) -> bool:
        """What an attempt said may hold the reference answer beside what is wrong."""
        return False

    def teach(self, task: Task, problem: Any, responses: Sequence[str], verdict: Verdict) -> str:
        """The task's words, else the answer and the verdict's reason."""
        return task.explain(problem, responses, verdict)


@TEACHERS.register
@dataclass(frozen=True)
class Patch:
    """Where the reference answer acts and what kind of step it takes, by the task's pointer(problem), and not the step itself.

    leak: say the reference answer too, for an upper limit of what guidance can do; off by default.
    """

    leak: bool = False

    def teach(self, task: Task, problem: Any, responses: Sequence[str], verdict: Verdict) -> str:
        """ConfigError for a task without pointer(problem)."""
        if not isinstance(task, Pointing):
            raise ConfigError(
                f"task {task.name}: {type(task).__name__} has no pointer(problem), which says where the reference answer acts and "
                "not what it is; add it to the task, or take the teacher rules"
            )
        pointer = task.pointer(problem)
        return f"{pointer}\n{reference(task, problem)}" if self.leak else pointer


@TEACHERS.register
@dataclass(frozen=True)
class Function:
    """A function of yours, FILE.py:NAME, called as NAME(problem, responses, verdict) -> text.

    It runs in this process, once for a problem, and may ask a model or a server. ConfigError where the file or the name is not
    there. leak: whether its guidance may hold the reference answer; where not, such guidance is dropped.
    """

    function: str
    leak: bool = False

    def __post_init__(self) -> None:
        _function(self.function)

    @property
    def sha256(self) -> str:
        """Of its file."""
        return sha256_of(Path(self.function.rpartition(":")[0]))

    def teach(self, task: Task, problem: Any, responses: Sequence[str], verdict: Verdict) -> str:
        """What the function says."""
        return str(_function(self.function)(problem, responses, verdict))


def _function(spec: str) -> Callable[..., Any]:
    path, _, name = spec.rpartition(":")
    if not path or not Path(path).is_file():
        there = f" in {not_in(Path(path))}" if path else ""
        raise ConfigError(f"teacher {spec!r}: there is no file {path!r}{there}; write FILE.py:FUNCTION")
    member = getattr(plugins.module_of(path), name, None)
    if not callable(member):
        raise ConfigError(f"teacher {spec!r}: {path} defines no function {name!r}")
    function: Callable[..., Any] = member
    return function


__all__ = ["LONGEST", "TEACHERS", "Function", "Nothing", "Patch", "Rules", "Teacher", "hint_of"]
