"""Tasks: a problem set, a prompt format and a verifier. One task per file.

Read base.py first (the base class `Task`) and abilities.py (what a task may be beyond it), then countdown/ (the built-in task),
math.py and math_sets.py (mathematics data sets), and jsonl.py (your own rows and reward function). prompts.py and chat.py render
prompts; rows.py and datasets.py read data; teachers.py has what a teacher of hints is. `TASKS` has the tasks of
sage_rlvr.contrib.tasks too, by name.

    TASKS["countdown"] (counts={3: 1.0}, max_number=9)      a task of a recipe: task: {name: countdown, counts: {3: 1.0}, ...}
    task_named("math500", template="sage")                 a task of the command line, by one word
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal

from sage_rlvr.errors import ConfigError, short, suggest
from sage_rlvr.registry import Registry
from sage_rlvr.safe_io import understood
from sage_rlvr.tasks.abilities import Described
from sage_rlvr.tasks.base import Task, check_class
from sage_rlvr.tasks.countdown import Countdown
from sage_rlvr.tasks.countdown.chat import CountdownChat
from sage_rlvr.tasks.jsonl import jsonl
from sage_rlvr.tasks.math import SETS, MathTask
from sage_rlvr.tasks.prompts import FORMATS, AnswerIn
from sage_rlvr.tasks.rows import SUFFIXES

REMADE = f"make the record again, with {suggest('eval', 'RUN')} or by the demo or sweep that it is of"

TASKS: Registry[Any] = Registry("task", check=check_class)
TASKS.register(Countdown)
TASKS.register(CountdownChat)
TASKS.register(jsonl)
STRICT = "knights_and_knaves_strict"


@TASKS.register(name="math")
def published(
    set: Literal[tuple(SETS)],  # type: ignore[valid-type]
    *,
    prompt: Literal["sage", "boxed", "as_is"] = "boxed",
    answer_in: AnswerIn | None = None,
    tag: str | None = None,
) -> MathTask:
    """Mathematics problems with one gold answer: a published set, asked and read in a prompt format.

    answer_in, tag: where the answer is read in place of the format's own.
    """
    return MathTask(set, FORMATS[prompt].read_at(answer_in, tag))


GYM = "reasoning_gym:NAME (a generator of reasoning-gym)"


def task_named(name: str, template: str = "boxed") -> Task:
    """A task of the command line: a set of `SETS`, a name of `TASKS`, NAME:WORLD of one that has named worlds (of the bare name
    the first), repair:TURNS, reasoning_gym:NAME, or a file or Hub id of rows.

    template: the prompt format of mathematics. ConfigError for what is none of these.
    """
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
    ]  # the others need to be told what
    if name not in own:
        raise ConfigError(
            f"task {name!r}: choose one of {', '.join([*SETS, *own, STRICT, GYM])}, or give a file of rows "
            f"({', '.join(SUFFIXES)}) with a problem and an answer, or a Hub id"
        )
    made: Task = TASKS[name]()
    return made


def with_worlds(name: str | None) -> Any:
    """The registered class of that name, if it declares named worlds (`worlds`); None for every other word."""
    kind = None if name is None else TASKS.get(name)
    return kind if isinstance(kind, type) and issubclass(kind, Task) and kind.worlds else None


def known_task(name: str) -> Task | None:
    """The task of that name, which a store or a record says; None where none has it here, or it has to be told more."""
    with suppress(ConfigError, TypeError):
        return task_named(name)
    return None


def described(identity: Mapping[str, Any], task: Task | None = None, *, where: object = "a record") -> str:
    """The problems that a record says it is of, in a line: in the task's own words, else its name. task: where it is at hand, and
    the identity its own. DataError names `where` it was read where the task finds it damaged."""
    if task is not None:
        return task.described(identity) if isinstance(task, Described) else str(identity.get("name", ""))
    with understood(f"{where}: world = {short(identity)}", advice=REMADE):
        name = str(identity.get("name", ""))
        own = known_task(name)
        return own.described(identity) if isinstance(own, Described) else name


__all__ = ["TASKS", "Task", "described", "known_task", "task_named", "with_worlds"]
