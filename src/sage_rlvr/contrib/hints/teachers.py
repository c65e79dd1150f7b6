"""Teachers without a model: nothing, rules, the task's pointer to the step, and a user's function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sage_rlvr import plugins
from sage_rlvr.errors import ConfigError
from sage_rlvr.paths import not_in
from sage_rlvr.tasks.abilities import Pointing
from sage_rlvr.tasks.base import Task, reference
from sage_rlvr.tasks.rows import sha256_of
from sage_rlvr.tasks.teachers import TEACHERS
from sage_rlvr.verifiers import Verdict


@TEACHERS.register
@dataclass(frozen=True)
class Nothing:
    """The teacher without hints: the control, the same problems attempted again without guidance."""

    @property
    def leak(self) -> bool:
        """False."""
        return False

    def teach(self, task: Task, problem: Any, responses: Sequence[str], verdict: Verdict) -> str:
        """Return ""."""
        return ""


@TEACHERS.register
@dataclass(frozen=True)
class Rules:
    """The attempt and the reason of its failure, in words, and the kind of step to try; it knows no reference answer.

    The text is the task's explain(problem, responses, verdict) if it has one.
    """

    @property
    def leak(self) -> bool:
        """False: guidance that contains the reference answer, as an attempt's text may, is dropped."""
        return False

    def teach(self, task: Task, problem: Any, responses: Sequence[str], verdict: Verdict) -> str:
        """The task's text, or else the answer and the verdict's reason."""
        return task.explain(problem, responses, verdict)


@TEACHERS.register
@dataclass(frozen=True)
class Patch:
    """The place and kind of the reference answer's step, by the task's pointer(problem), but not the step itself.

    leak: include the reference answer, for an upper limit of what guidance can do; off by default.
    """

    leak: bool = False

    def teach(self, task: Task, problem: Any, responses: Sequence[str], verdict: Verdict) -> str:
        """Raise ConfigError for a task without pointer(problem)."""
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
    """A user's function, FILE.py:NAME, called as NAME(problem, responses, verdict) -> text.

    It runs in this process, once per problem, and may call a model or a server. Raises ConfigError if the file or the name does not
    exist. leak: whether its guidance may contain the reference answer; if not, such guidance is dropped.
    """

    function: str
    leak: bool = False

    def __post_init__(self) -> None:
        _function(self.function)

    @property
    def sha256(self) -> str:
        """Hash of its file."""
        return sha256_of(Path(self.function.rpartition(":")[0]))

    def teach(self, task: Task, problem: Any, responses: Sequence[str], verdict: Verdict) -> str:
        """The function's result."""
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


__all__ = ["Function", "Nothing", "Patch", "Rules"]
