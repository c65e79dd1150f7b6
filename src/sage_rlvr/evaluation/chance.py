"""The chance floor of an evaluation: as stored; for stores without one and for files of rows, computed if the task can make its
problems from their ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from sage_rlvr.errors import SageError
from sage_rlvr.tasks import known_task
from sage_rlvr.tasks.abilities import Generated, HasGolds, Recoverable
from sage_rlvr.tasks.base import Task
from sage_rlvr.tasks.chance import chance_of, chance_of_golds
from sage_rlvr.tasks.math import MathTask
from sage_rlvr.verdicts.chance import KEY, Chance, chance_of_tree
from sage_rlvr.verdicts.readers.registry import Floor
from sage_rlvr.verdicts.record import Record


def chance_of_record(record: Record) -> Chance | None:
    """The floor on the problems of a record; None if neither the record nor its task has one."""
    meta = record.meta
    if KEY in meta:
        return chance_of_tree(meta[KEY])
    right = list(map(len, next(iter(record.logps.values()))))
    return chance_of_task(known_task(str(meta.get("world", {}).get("name", ""))), list(map(str, meta["problem_ids"])), right)


def chance_of_store(facts: Mapping[str, Any], problems: Sequence[str]) -> Chance | None:
    """The floor on the problems of a store. facts: of the store; problems: their ids."""
    return chance_of_tree(facts[KEY]) if KEY in facts else chance_of_task(known_task(str(facts["identity"]["task"])), problems)


def chance_of_task(task: Task | None, ids: Sequence[str], right: Sequence[int] | None = None) -> Chance | None:
    """The floor of a task; None for a task that is unknown, or cannot make problems of these ids."""
    with suppress(SageError, KeyError, ValueError):  # rows that are not on this machine, ids of another world
        if isinstance(task, MathTask) and task.integers is not None:  # the contest's range, whether or not the rows are available
            return chance_of(task, [None] * len(ids))
        if isinstance(task, Recoverable):
            return chance_of(task, [task.problem_of(one.partition(" #")[0]) for one in ids], right)
        if task is not None and not isinstance(task, Generated):
            rows = {problem.problem_id: problem for problem in task.problems("test")}
            return chance_of(task, [rows[one.partition(" #")[0]] for one in ids])
    return None


def floor_of_task(name: str, task: Task) -> Floor:
    """The chance floor of files of rows, from the guesser of a task named `name`."""

    def of_golds(golds: Sequence[str]) -> Chance | None:
        return chance_of_golds(golds) if isinstance(task, HasGolds) else None

    return Floor(task=name, of_ids=lambda ids: chance_of_task(task, ids), of_golds=of_golds)


__all__ = ["chance_of_record", "chance_of_store", "chance_of_task", "floor_of_task"]
