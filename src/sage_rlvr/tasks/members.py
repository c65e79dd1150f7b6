"""Checks of a task's class: it inherits `Task`, no member is misspelled, and the members of an ability are all there."""

from __future__ import annotations

from typing import Any

from sage_rlvr import members
from sage_rlvr.errors import ConfigError
from sage_rlvr.tasks.abilities import ABILITIES

REQUIRED = ("name", "problems", "prompt", "verify")
NEEDS = "name: ClassVar[str], problems(split), prompt(problem) and verify(problem, completion) -> Verdict (docs/extending.md)"


def check_task(task: Any) -> None:
    """ConfigError for a task whose class `check_class` refuses; called before anything is trained, evaluated or sampled."""
    check_class(f"task {type(task).__name__}", type(task))


def check_class(who: str, kind: type) -> None:
    """ConfigError for a class that does not inherit `Task`, lacks a member of it, or has only some of the methods of an ability.

    who: its name in error messages.
    """
    from sage_rlvr.tasks.base import Task

    members.check_inherits(who, kind, Task, "sage_rlvr", NEEDS)
    own = members.names(kind, below=object)
    if lacking := [name for name in REQUIRED if name not in own or name in kind.__abstractmethods__]:
        raise ConfigError(f"{who}: {kind.__name__} lacks {', '.join(lacking)}; a task has {NEEDS}")
    for ability in ABILITIES:
        methods, wanted = members.methods_of(ability), members.names(ability, below=object)
        given = methods & (own - members.names(Task, below=object))
        if given and (rest := sorted(wanted - own)):
            raise ConfigError(
                f"{who}: {kind.__name__} has {', '.join(sorted(given))} but not {', '.join(rest)}, and they go together "
                f"(sage_rlvr.tasks.abilities.{ability.__name__}); add {', '.join(rest)}"
            )


def check_names(kind: type, base: type) -> None:
    """ConfigError for a misspelled member of a class of a task. base: `Task`."""
    members.check_names(kind, base, "task", *ABILITIES, singular=True)


__all__ = ["check_class", "check_names", "check_task"]
