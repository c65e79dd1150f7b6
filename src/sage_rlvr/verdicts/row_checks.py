"""Checks that all tables of a task can be compared, and the problems that are left out for that.

Nothing is guessed: a difference between two files raises DataError with both values and the next step.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.grouped import grouped
from sage_rlvr.verdicts.measurements import SampledMeasurement
from sage_rlvr.verdicts.readers import Choice
from sage_rlvr.verdicts.readers.fields import gold_key, gold_text
from sage_rlvr.verdicts.sources import GivenTable
from sage_rlvr.verdicts.text import notes_of_rows as note_texts
from sage_rlvr.verdicts.text.words import first_of

SHOWN = 5  # problems named in an error
OWN = ("counts", "samples")
"""Formats of rows that were written for `compare`."""
SEEDS = (
    "Files joined by a comma are training seeds of one method on the same problems; compare the files of several subtasks in one "
    'command for each, or write "task" into their rows'
)


def check_tasks(tables: Sequence[GivenTable], stores: Sequence[SampledMeasurement]) -> None:
    """Raise DataError for several arms of which no two have a task in common. tables: of all tasks."""
    both = [*((one.task, one.arm) for one in tables), *((one.task, one.arm) for one in stores)]
    arms = {task: {arm for _, arm in some} for task, some in grouped(both, lambda one: one[0]).items()}
    if len({arm for _, arm in both}) > 1 and all(len(of_task) == 1 for of_task in arms.values()):
        said = ", ".join(f"{task!r:.60} ({arm})" for task, (arm,) in arms.items())
        raise DataError(f"no task in common: {said}; evaluate both on one task, or give the same task one name in both files")


def check_scores(tables: Sequence[GivenTable], choice: Choice) -> None:
    """Raise DataError for files that count different scores, unless `--correct` names both."""
    first = tables[0]
    for other in tables[1:]:
        if other.score != first.score and not choice.wanted:
            raise DataError(
                f"two scores are compared: {first.score!r} in {first.name} and {other.score!r} in {other.name}; name one that both "
                "files have with --correct, or both if they mean the same: "
                f"{shlex.join(['--correct', first.score, other.score])}"
            )


# ------------------------------------------------------------------------------------------------------------------
# problems


def with_scores(
    tables: Sequence[GivenTable], order: Sequence[str], stores: Sequence[SampledMeasurement]
) -> tuple[list[GivenTable], tuple[str, ...], list[str]]:
    """The tables and the order of problems without the problems that one side omits because of completions without a score, and a
    sentence for each table with such completions. Raises DataError if none is left, and if there are stores."""
    omitted = {problem for one in tables for problem in one.table.omitted}
    notes = [note_texts.unscored(one) for one in tables if one.table.unscored]
    if not omitted:
        return list(tables), tuple(order), notes
    if stores:
        raise DataError("--unscored omit: not beside a sample store, whose problems are all scored; pass --unscored wrong")
    kept = tuple(problem for problem in order if problem not in omitted)
    if not kept:
        raise DataError("--unscored omit leaves no problem: every one has a completion without a score on some side")
    notes.append(note_texts.without_unscored(tables, len(omitted), len(kept)))
    return [replace(one, table=one.table.without(omitted)) for one in tables], kept, notes


def in_common(
    tables: Sequence[GivenTable], order: Sequence[str], stores: Sequence[SampledMeasurement]
) -> tuple[list[GivenTable], tuple[str, ...], list[str]]:
    """The tables and the order of problems without those that some side lacks, and a sentence on how many were left out. Raises
    DataError if none is left, and if there are stores, from which no problem can be left out."""
    if stores:
        raise DataError("--common: not beside a sample store; evaluate the problems that it lacks, or export it with samples")
    kept = set(order).intersection(*(one.table.problems for one in tables))
    if not kept:
        raise DataError("--common leaves no problem: no id occurs on all sides; do both files name problems alike?")
    left_out = [(one, n) for one in tables if (n := len(set(one.table.problems) - kept))]
    made = [replace(one, table=one.table.without(set(one.table.problems) - kept)) for one in tables]
    notes = [note_texts.in_common(len(kept), left_out)] if left_out else []
    return made, tuple(problem for problem in order if problem in kept), notes


def check_problems(tables: Sequence[GivenTable], order: Sequence[str], name: str) -> None:
    """Raise DataError for a table with other problems than those of `order`. name: of their table or store."""
    for other in tables:
        lacking, extra = set(order) - set(other.table.problems), set(other.table.problems) - set(order)
        if not lacking and not extra:
            continue
        parts = [f"{len(lacking)} only in {name} ({_some(order, lacking)})"] if lacking else []
        parts += [f"{len(extra)} only in {other.name} ({_some(other.table.problems, extra)})"] if extra else []
        both = len(order) - len(lacking)
        raise DataError(
            f"different problems on both sides: {both} in both, {'; '.join(parts)}. Evaluate both on the same problems with the "
            f"same ids{', or pass --common to compare those of both' if both else ''}{_if_seeds(tables[0], other)}"
        )


def check_golds(tables: Sequence[GivenTable]) -> None:
    """Raise DataError for a problem with two golds."""
    known: dict[str, tuple[str, GivenTable]] = {}
    for one in tables:
        for problem, gold in one.table.golds.items():
            first, where = known.setdefault(problem, (gold, one))
            if gold_key(first) != gold_key(gold):
                raise DataError(
                    f"problem {problem[:60]!r} has the gold {first[:40]!r} in {where.name} and {gold[:40]!r} in {one.name}; the "
                    f"ids mean different problems: evaluate both on the same copy of the task{_if_seeds(where, one)}"
                )


def check_documents(tables: Sequence[GivenTable]) -> None:
    """Raise DataError if the documents of two tables show that their ids mean different problems.

    They do if a shared field differs on some problems and not on all, or if every field that distinguishes problems, except the
    gold, differs on all of them. A single such field that differs on all, such as a prompt from another template, is ignored."""
    with_documents = [one for one in tables if one.table.documents]
    for one in with_documents[1:]:
        first = with_documents[0]
        pairs = [(id, first.table.documents[id], own) for id, own in one.table.documents.items() if id in first.table.documents]
        name, apart = _telling_field(pairs, first.table.golds) if pairs else ("", [])
        if apart:
            said = [repr(side.table.documents[apart[0]][name])[:60] for side in (first, one)]
            raise DataError(
                f"document {apart[0][:60]!r} has {name} = {said[0]} in {first.name} and {said[1]} in {one.name}, as "
                f"{len(apart):,} of {len(pairs):,} documents differ there: the ids mean different problems. "
                "Evaluate both on the same copy of the task"
            )


def _telling_field(
    pairs: Sequence[tuple[str, Mapping[str, object], Mapping[str, object]]], golds: Mapping[str, str]
) -> tuple[str, list[str]]:
    """The field that shows different problems under one id, and the ids; ("", []) if none does. pairs: id and both documents."""

    def distinguishes(name: str) -> bool:
        return len(pairs) == 1 or len({repr(a[name]) for _, a, _ in pairs}) > 1

    def is_gold(name: str) -> bool:
        return all(gold_text(a[name]) == golds.get(id) for id, a, _ in pairs)

    shared = [name for name in pairs[0][1] if all(name in a and name in b for _, a, b in pairs)]
    apart = {name: [id for id, a, b in pairs if a[name] != b[name]] for name in shared}
    on_some = [name for name in shared if 0 < len(apart[name]) < len(pairs)]
    distinguishing = [name for name in shared if distinguishes(name) and not is_gold(name)]
    telling = on_some or (distinguishing if all(apart[name] for name in distinguishing) else [])
    return (telling[0], apart[telling[0]]) if telling else ("", [])


# ------------------------------------------------------------------------------------------------------------------
# prompts


def check_prompts(tables: Sequence[GivenTable]) -> list[str]:
    """Raise DataError if the prompts of two tables show that their ids mean different problems: some are equal and others not, they
    are those of other ids, or both are of one arm. Prompts that differ for every problem may be of two templates: a note."""
    known: dict[str, tuple[str, GivenTable]] = {}  # problem -> its first prompt, and the table that has it
    notes = []
    for one in tables:
        pairs = [(problem, known[problem], (prompt, one)) for problem, prompt in one.table.prompts.items() if problem in known]
        known = {problem: (prompt, one) for problem, prompt in one.table.prompts.items()} | known
        apart = [(problem, first, own) for problem, first, own in pairs if own[0] != first[0]]
        if not apart:
            continue
        firsts, where = {prompt for _, (prompt, _), _ in pairs}, apart[0][1][1]
        said = note_texts.two_prompts(*apart[0])
        if len(apart) < len(pairs) or one.arm == where.arm or any(prompt in firsts for _, _, (prompt, _) in apart):
            raise DataError(
                f"{said}, as {len(apart):,} of {len(pairs):,} problems have two prompts: the ids mean different problems. Evaluate "
                f"both on the same copy of the task{_if_seeds(where, one)}"
            )
        notes.append(note_texts.other_template(said))
    return notes


def repeated_prompts(tables: Sequence[GivenTable], cluster: Mapping[str, str]) -> list[str]:
    """Raise DataError for a prompt under two ids, unless both are in one cluster: its problem would count twice. For logs of
    other programs, which cannot be changed, this is only a note."""
    for one in tables:
        seen: dict[str, str] = {}
        pairs = ((seen.setdefault(prompt, problem), problem) for problem, prompt in one.table.prompts.items())
        twice = [(a, b) for a, b in pairs if a != b and not (cluster and cluster[a] == cluster[b])]
        if twice and one.format in OWN:
            raise DataError(
                f"{one.name}: {note_texts.prompt_twice(*twice[0])}; remove one of them on both sides, or give both rows the same "
                '"cluster"'
            )
        if twice:
            return [note_texts.prompts_twice(one.name, twice)]
    return []


# ------------------------------------------------------------------------------------------------------------------
# training seeds and temperatures


def check_seeds(tables: Sequence[GivenTable]) -> None:
    """Raise DataError for a training seed that occurs twice, and for arms of several training seeds that are not the same."""
    sets: dict[tuple[str, float], list[int | None]] = {}
    for one in tables:
        seeds = sets.setdefault((one.arm, one.temperature), [])
        if one.seed in seeds:
            twice = "rows without a seed occur twice" if one.seed is None else f"training seed {one.seed} occurs twice"
            raise DataError(
                f'{one.name}: {twice}; pass each training seed once, with "seed" in its rows or as NAME=PATH,PATH'
            )
        seeds.append(one.seed)
    (first, heat), wanted = next(iter(sets.items()))
    for (arm, temperature), seeds in sets.items():
        if temperature != heat or len(wanted) == 1 or {*seeds} == {*wanted}:
            continue
        if seeds == [None]:
            raise DataError(
                f"{first}, the control, has the training seeds {_listed(wanted)}, and {arm} was evaluated once; make {arm} the "
                "control: put its rows first, or pass it first as FILE@ARM"
            )
        lacking = sorted(map(str, {*wanted} ^ {*seeds}))
        raise DataError(
            f"{first} has the training seeds {_listed(wanted)}, {arm} has {_listed(seeds)}: {', '.join(lacking)} only on one "
            "side; pass the same seeds for both, or one run of the control"
        )


def check_temperatures(tables: Sequence[GivenTable]) -> None:
    """Raise DataError for an arm that was not sampled at any temperature of the first."""
    heats = {arm: {one.temperature for one in own} for arm, own in grouped(tables, lambda one: one.arm).items()}
    (first, own), *others = heats.items()
    for arm, temperatures in others:
        if not own & temperatures:
            raise DataError(
                f"{first} was sampled at T = {_listed(own)}, {arm} at T = {_listed(temperatures)}: temperature trades pass@1 "
                "against pass@k; sample both at the same temperature"
            )


# ------------------------------------------------------------------------------------------------------------------
# parts of errors


def _if_seeds(one: GivenTable, other: GivenTable) -> str:
    """An explanation of files joined by a comma (`SEEDS`), after a full stop, if these are two files of one arm; else ""."""
    return f". {SEEDS}" if one.arm == other.arm and one.path != other.path else ""


def _listed(values: Iterable[float | None]) -> str:
    """Training seeds or temperatures, sorted as text."""
    return ", ".join(sorted(f"{x:g}" if isinstance(x, float) else "none" if x is None else str(x) for x in values))


def _some(order: Sequence[str], chosen: set[str]) -> str:
    """The first chosen problems, in this order."""
    return first_of([repr(one if len(one) < 40 else f"{one[:37]}...") for one in order if one in chosen], SHOWN)
