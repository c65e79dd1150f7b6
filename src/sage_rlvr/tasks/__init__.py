"""Tasks: a problem set, a prompt format and a verifier. One task per file.

Read base.py first (the base class `Task`) and abilities.py (what a task may do beyond it), then countdown/ (the built-in task),
math.py and math_sets.py (mathematics data sets), and jsonl.py (user data and reward functions). prompts.py and chat.py render
prompts; rows.py and datasets.py read data; teachers.py defines teachers of hints. `TASKS` has the tasks of
sage_rlvr.contrib.tasks too; it imports a task when its name is asked for.

    TASKS["countdown"] (counts={3: 1.0}, max_number=9)      a task of a recipe: task: {name: countdown, counts: {3: 1.0}, ...}
    task_named("math500", template="sage")                 a task of the command line, by one word
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from sage_rlvr.errors import ConfigError, short, suggest
from sage_rlvr.safe_io import understood
from sage_rlvr.tasks.abilities import Described
from sage_rlvr.tasks.base import TASKS, Task
from sage_rlvr.tasks.prompts import FORMATS
from sage_rlvr.tasks.rows import SUFFIXES

REMADE = f"make the record again, with {suggest('eval', 'RUN')} or by the demo or sweep that it is of"
STRICT = "knights_and_knaves_strict"
GYM = "reasoning_gym:NAME (a generator of reasoning-gym)"


def task_named(name: str, template: str = "boxed") -> Task:
    """Return a task of the command line: a set of `SETS`, a name of `TASKS`, NAME:WORLD for one with named worlds (by default the
    first), repair:TURNS, reasoning_gym:NAME, or a file or Hub id of rows.

    template: the prompt format of mathematics. Raises ConfigError for any other name.
    """
    from sage_rlvr.tasks.math import SETS, MathTask  # late: a run of another task needs neither them nor their verifier

    if name in SETS or name.endswith(SUFFIXES) or "/" in name:
        return MathTask(name, FORMATS[template])
    bare, _, after = name.partition(":")
    if (kind := with_worlds(bare)) is not None:
        if after and after not in kind.worlds:
            raise ConfigError(f"{name}: no such world; choose one of {', '.join(kind.worlds)}")
        world: Task = kind.worlds[after or next(iter(kind.worlds))]
        return world
    if bare == "repair":
        turns = after or "1"
        if not turns.isdecimal():
            raise ConfigError(f"{name}: repair:TURNS is a number of turns, as repair:4")
        episodes: Task = TASKS[bare](turns=int(turns))
        return episodes
    if bare == "reasoning_gym" and after:
        generated: Task = TASKS[bare](dataset=after, prompt=template)
        return generated
    if name == STRICT:
        puzzles: Task = TASKS["knights_and_knaves"](rule="strict")
        return puzzles
    own = [
        known for known in TASKS if known not in ("math", "jsonl", "reasoning_gym")
    ]  # the others need arguments
    if name not in own:
        raise ConfigError(
            f"task {name!r}: choose one of {', '.join([*SETS, *own, STRICT, GYM])}, or give a file of rows "
            f"({', '.join(SUFFIXES)}) with a problem and an answer, or a Hub id"
        )
    made: Task = TASKS[name]()
    return made


def with_worlds(name: str | None) -> Any:
    """The registered class of that name, if it declares named worlds (`worlds`); None for any other word."""
    kind = None if name is None else TASKS.get(name)
    return kind if isinstance(kind, type) and issubclass(kind, Task) and kind.worlds else None


def known_task(name: str) -> Task | None:
    """Return the task with the name from a store or record; None if it is not installed, or needs further arguments."""
    with suppress(ConfigError, TypeError):
        return task_named(name)
    return None


def described(identity: Mapping[str, Any], task: Task | None = None, *, where: object = "a record") -> str:
    """Describe the problems of a record in a line: in the task's words, or else by its name. task: if it is known, with its
    identity. Raises DataError, with the place `where` it was read, if the task finds it damaged."""
    if task is not None:
        return task.described(identity) if isinstance(task, Described) else str(identity.get("name", ""))
    with understood(f"{where}: world = {short(identity)}", advice=REMADE):
        name = str(identity.get("name", ""))
        own = known_task(name)
        return own.described(identity) if isinstance(own, Described) else name


__all__ = ["TASKS", "Task", "described", "known_task", "task_named", "with_worlds"]
