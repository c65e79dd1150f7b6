"""Checks of a task's class: it inherits `Task`, no member is misspelled, and the members of an ability are all there."""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from functools import cached_property
from typing import Any

from sage_rlvr.errors import ConfigError
from sage_rlvr.tasks.abilities import ABILITIES

NEAR = 0.8  # of difflib's ratio: answerkey and answer_key, max_tokens and max_new_tokens
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

    if not issubclass(kind, Task):
        raise ConfigError(
            f"{who}: {kind.__name__} does not inherit sage_rlvr.Task; write class {kind.__name__}(sage_rlvr.Task), with {NEEDS}"
        )
    own = _names(kind, below=object)
    if lacking := [name for name in REQUIRED if name not in own or name in kind.__abstractmethods__]:
        raise ConfigError(f"{who}: {kind.__name__} lacks {', '.join(lacking)}; a task has {NEEDS}")
    for ability in ABILITIES:
        methods, members = _methods(ability), _names(ability, below=object)
        given = methods & (own - _names(Task, below=object))
        if given and (rest := sorted(members - own)):
            raise ConfigError(
                f"{who}: {kind.__name__} has {', '.join(sorted(given))} but not {', '.join(rest)}, and they go together "
                f"(sage_rlvr.tasks.abilities.{ability.__name__}); add {', '.join(rest)}"
            )


def check_names(kind: type, base: type) -> None:
    """ConfigError for a public name that a class of a task adds and that is near the name of a member that it lacks.

    base: `Task`. A method is compared with methods and a value with values; a value in the singular (`kind`, `world`) passes, since
    it is likely an option of the task.
    """
    known = _names(base, below=object).union(*(_names(ability, below=object) for ability in ABILITIES))
    methods = _methods(base).union(*map(_methods, ABILITIES))
    own = _names(kind, below=base)
    lacking = known - own
    for name in sorted(_names(kind, below=kind.__mro__[1]) - known):
        value = inspect.getattr_static(kind, name, None)
        is_method = callable(value) or isinstance(value, staticmethod | classmethod)
        among = [one for one in sorted(lacking) if (one in methods) == is_method and (is_method or one != f"{name}s")]
        if near := get_close_matches(name, among, 1, NEAR):
            raise ConfigError(
                f"task class {kind.__name__}: {name} is no member of a task; did you mean {near[0]}? A name of your own that "
                f"is meant starts with an underscore, as _{name}"
            )


def _names(kind: type, below: type) -> set[str]:
    """Public names that a class and its bases before `below` declare, annotations included."""
    bases = kind.__mro__[: kind.__mro__.index(below)]
    return {name for base in bases for name in (*vars(base), *vars(base).get("__annotations__", ())) if not name.startswith("_")}


def _methods(kind: type) -> set[str]:
    """Those of the names of a class that are methods."""
    own = ((name, inspect.getattr_static(kind, name, None)) for name in _names(kind, below=object))
    return {name for name, value in own if not isinstance(value, property | cached_property) and callable(value)}


__all__ = ["check_class", "check_names", "check_task"]
