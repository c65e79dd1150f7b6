"""The fields of rows that belong to the problem and so are the same for all sides: cluster, chance, gold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.chance import Chance
from sage_rlvr.verdicts.readers import CountTable
from sage_rlvr.verdicts.readers.registry import Floor
from sage_rlvr.verdicts.sources import GivenTable

Column = Callable[[CountTable], Mapping[str, Any]]


def clusters_of(here: Sequence[GivenTable], order: Sequence[str]) -> tuple[str, ...]:
    """The cluster of every problem; () if no row has one. Raises DataError if files differ or a problem has none."""
    return tuple(_agreed(here, order, "cluster", lambda table: table.clusters))


def floor_of(here: Sequence[GivenTable], order: Sequence[str], floor: Floor) -> Chance | None:
    """The chance floor on the problems of one task: by the field "chance", by `--chance`, or by the task of `--task`."""
    own = _agreed(here, order, "chance", lambda table: table.chances)
    share = floor.shares.get(here[0].task, floor.shares.get(""))
    if own and (share is not None or floor.task):
        raise DataError(f'{here[0].name}: the rows have "chance"; omit --chance and --task, or the field')
    if own:
        return Chance("given", tuple(own))
    if share is not None:
        return Chance("given", (share,) * len(order))
    return _of_task(here, order, floor) if floor.task else None


def _of_task(here: Sequence[GivenTable], order: Sequence[str], floor: Floor) -> Chance:
    """The guesser of a task: by the ids of its problems, else by the golds in the rows."""
    if (chance := floor.of_ids(order)) is not None:
        return chance
    known = {problem for one in here for problem in one.table.golds}
    whole = known.issuperset(order)
    chance = floor.of_golds(_agreed(here, order, "gold", lambda table: table.golds)) if whole else None
    if chance is None:
        raise DataError(
            f"--task {floor.task}: the task has no problem with the id {order[0][:40]!r}, and some rows lack \"gold\"; "
            "add the golds, or pass --chance X, the probability that one guess is right"
        )
    return chance


def _agreed(here: Sequence[GivenTable], order: Sequence[str], name: str, column: Column) -> list[Any]:
    """The value of a field for every problem in this order; [] if no row has the field."""
    values: dict[str, tuple[Any, str]] = {}
    for one in here:
        for problem, value in column(one.table).items():
            first, where = values.setdefault(problem, (value, one.name))
            if first != value:
                raise DataError(
                    f"problem {problem[:60]!r} has the {name} {first!r} in {where} and {value!r} in {one.name}; give both files "
                    "the same, or remove the field from one of them"
                )
    if not values:
        return []
    if lacking := [problem for problem in order if problem not in values]:
        hint = "; a problem that belongs to no other is a cluster of its own" * (name == "cluster")
        raise DataError(
            f"{here[0].name}: {len(lacking)} of {len(order)} problems have no \"{name}\", the first is {lacking[0][:40]!r}; add "
            f"it to their rows, or remove it from all{hint}"
        )
    return [values[problem][0] for problem in order]


__all__ = ["clusters_of", "floor_of"]
