"""Counts of files of rows, brought together: the same problems in the same order, only independent samples, the same training
seeds.

    row_checks.py          what has to be the same, and the problems that are left out
    row_independence.py    which samples are used, and signs that samples depend on each other
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from sage_rlvr.errors import CUT_OFF
from sage_rlvr.verdicts import row_checks
from sage_rlvr.verdicts.distinct import answers_read
from sage_rlvr.verdicts.grouped import grouped
from sage_rlvr.verdicts.measurements import SampledMeasurement
from sage_rlvr.verdicts.metric import REFERENCE
from sage_rlvr.verdicts.problem_fields import clusters_of, floor_of
from sage_rlvr.verdicts.readers import Choice
from sage_rlvr.verdicts.row_independence import independent
from sage_rlvr.verdicts.sources import GivenRows, GivenTable
from sage_rlvr.verdicts.text import notes_of_rows as note_texts

TASK = "these problems"
"""The task of rows without a task."""


def measurements_of_rows(
    given: Sequence[GivenRows], stores: Sequence[SampledMeasurement], samples: int | None, choice: Choice
) -> tuple[list[SampledMeasurement], list[str], list[str]]:
    """Return the measurements of all files of rows, notes, and notes that precede any result.

    stores: measurements of sample stores, which may be compared with them
    samples: use only the first this many samples of each problem
    choice: how the answers are read, and the chance floor"""
    tables, measurements = list(labeled_tables(given, stores)), list[SampledMeasurement]()
    notes, grave = [note for one in given for note in one.evaluation.notes], list[str]()
    row_checks.check_tasks(tables, stores)
    for task, of_task in grouped(tables, lambda table: table.task).items():
        measured, more, more_grave = _measured(of_task, [one for one in stores if one.task == task], samples, choice)
        measurements, notes, grave = [*measurements, *measured], [*notes, *more], [*grave, *more_grave]
    return measurements, list(dict.fromkeys(notes)), list(dict.fromkeys(grave))


def labeled_tables(given: Sequence[GivenRows], stores: Sequence[SampledMeasurement] = ()) -> Iterator[GivenTable]:
    """Every table with its arm, training seed, task and temperature. A table without a task or a temperature gets the only
    one that other tables and stores name, or if they name none or several, `TASK` and temperature 1."""
    groups = [table.group for one in given for table in one.evaluation.tables]
    tasks = {group.task for group in groups if group.task} | {one.task for one in stores}
    heats = {group.temperature for group in groups if group.temperature is not None} | {one.temperature for one in stores}
    task = next(iter(tasks)) if len(tasks) == 1 else TASK
    heat = next(iter(heats)) if len(heats) == 1 else REFERENCE
    for one in given:
        for table in one.evaluation.tables:
            group = table.group
            yield GivenTable(
                arm=one.arm_of(table), seed=one.index if group.seed is None else group.seed, task=group.task or task,
                temperature=heat if group.temperature is None else group.temperature, path=one.evaluation.path, table=table,
                format=one.evaluation.format, score=one.evaluation.score,
            )  # fmt: skip


# ------------------------------------------------------------------------------------------------------------------
# one task


def _measured(
    tables: Sequence[GivenTable], stores: Sequence[SampledMeasurement], samples: int | None, choice: Choice
) -> tuple[list[SampledMeasurement], list[str], list[str]]:
    """The measurements, notes and notes that precede any result, as of `measurements_of_rows`, of one task."""
    same, order, left_out = _on_same_problems(tables, stores, choice)
    templates = row_checks.check_prompts(same)
    cluster, chance = clusters_of(same, order), floor_of(same, order, choice.floor)
    repeated = row_checks.repeated_prompts(same, dict(zip(order, cluster, strict=False)))
    row_checks.check_seeds(same)
    row_checks.check_temperatures(same)
    if samples is not None:
        same = [replace(one, table=one.table.first(samples, one.name)) for one in same]
    if choice.answers is not None:
        same = [replace(one, table=answers_read(one.table, *choice.answers)) for one in same]
    used, dependent, grave = independent([replace(one, table=one.table.ordered(order)) for one in same])
    fewest = _fewest(used, stores)
    notes = [*left_out, *templates, *dependent, *repeated, *_unequal(used, fewest), *_single_samples(same)]
    notes += _without_temperature(same, stores)
    if cluster and len({one.temperature for one in same}) > 1:
        notes.append(note_texts.NO_CLUSTERS)
    measured = [replace(_measurement(one, fewest[one.temperature]), cluster=cluster, chance=chance) for one in used]
    return measured, notes, grave


def _on_same_problems(
    tables: Sequence[GivenTable], stores: Sequence[SampledMeasurement], choice: Choice
) -> tuple[Sequence[GivenTable], Sequence[str], list[str]]:
    """The tables with the problems that all have, the order of these problems, and notes on those that are left out. Raises
    DataError for tables of different scores, problems, golds or documents."""
    row_checks.check_scores(tables, choice)
    order = stores[0].problems if stores else tables[0].table.problems
    same, order, notes = row_checks.with_scores(tables, order, stores)
    if choice.common:
        same, order, more = row_checks.in_common(same, order, stores)
        notes += more
    row_checks.check_problems(same, order, stores[0].name if stores else same[0].name)
    row_checks.check_golds(same)
    row_checks.check_documents(same)
    return same, order, notes


def _measurement(given: GivenTable, n: int) -> SampledMeasurement:
    """The measurement of a table. n: the largest k of its comparisons."""
    table, ends = given.table, Counter[tuple[str, str, bool | None]]()  # (verdict, reason, whether it was cut) -> samples
    if table.right is None or table.cut is None:
        right = int(table.c.sum())
        ends.update({("right", "", None): right, ("wrong", "incorrect", None): int(table.n.sum()) - right})
    else:
        for hits, cut in zip(table.right, table.cut, strict=True):
            verdicts = (("right", "") if hit else ("wrong", "incorrect") for hit in hits.tolist())
            ends.update((*verdict, end) for verdict, end in zip(verdicts, cut, strict=True))
    cut_off = sum(count for (*_, end), count in ends.items() if end)
    known = sum(count for (*_, end), count in ends.items() if end is not None)
    return SampledMeasurement(
        arm=given.arm, seed=given.seed, path=given.path, task=given.task, temperature=given.temperature, problems=table.problems,
        n=n, values=table.c, sizes=None if np.all(table.n == n) else table.n, reasons=ends,
        failed=[CUT_OFF.format(cut=cut_off, ends=known, limit="the length limit")] if 2 * cut_off > known else [], table=table,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------------------
# numbers of samples, and notes on them


def _fewest(tables: Sequence[GivenTable], stores: Sequence[SampledMeasurement]) -> dict[float, int]:
    """Temperature -> the fewest samples of a problem on any side: the largest k of comparisons there."""
    sizes = [(one.temperature, int(one.table.n.min())) for one in tables] + [(one.temperature, one.n) for one in stores]
    return {heat: min(n for _, n in some) for heat, some in grouped(sizes, lambda size: size[0]).items()}


def _unequal(tables: Sequence[GivenTable], fewest: Mapping[float, int]) -> list[str]:
    """A note for each temperature at which problems or arms have different numbers of samples."""
    notes = []
    for heat, at in grouped(tables, lambda one: one.temperature).items():
        few, largest = min(at, key=lambda one: int(one.table.n.min())), max(at, key=lambda one: int(one.table.n.max()))
        if (most := int(largest.table.n.max())) > fewest[heat]:
            example = (few, few.table.problems[int(few.table.n.argmin())]) if few.table.n.min() == fewest[heat] else None
            in_order = all(one.table.right is not None for one in at)
            notes.append(note_texts.unequal_sizes(fewest[heat], example, most, largest, in_order))
    return notes


def _single_samples(tables: Sequence[GivenTable]) -> list[str]:
    """A note on each arm whose training seeds (a field of its rows) have one sample per problem: they may be sampling seeds."""
    with_seeds = [one for one in tables if one.table.group.seed is not None and one.table.right is not None]
    arms = grouped(with_seeds, lambda one: (one.arm, one.temperature)).items()
    return [
        note_texts.single_samples(arm, len(own))
        for (arm, _), own in arms
        if len(own) > 1 and all(one.table.n.max() == 1 for one in own)
    ]


def _without_temperature(tables: Sequence[GivenTable], stores: Sequence[SampledMeasurement]) -> list[str]:
    """A note for each file without a temperature if other files or stores have one."""
    without = {one.path: one.temperature for one in tables if one.table.group.temperature is None}
    if all(one.path in without for one in tables) and not stores:
        return []
    return [note_texts.no_temperature(path, assumed) for path, assumed in without.items()]
