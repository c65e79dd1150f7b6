"""Counts of files of rows, brought together: the same problems in the same order, the same number of samples, the same training
seeds.

Nothing is guessed: a difference between two files raises DataError with both values and the next step.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from sage_rlvr.errors import CUT_OFF, DataError
from sage_rlvr.verdicts.distinct import answers_read
from sage_rlvr.verdicts.measurements import SampledMeasurement
from sage_rlvr.verdicts.metric import REFERENCE
from sage_rlvr.verdicts.problem_fields import clusters_of, floor_of
from sage_rlvr.verdicts.readers import Choice, CountTable
from sage_rlvr.verdicts.readers.fields import gold_key, gold_text
from sage_rlvr.verdicts.sources import GivenRows, GivenTable
from sage_rlvr.verdicts.stats.arrays import Bools
from sage_rlvr.verdicts.stats.samples.independence import (
    Independence,
    SampleFinding,
    check_counts,
    check_multiples,
    check_pair,
    check_samples,
)
from sage_rlvr.verdicts.text.words import first_of, many

TASK = "these problems"
"""The task of rows without a task."""
SHOWN = 5
GRAVE = ("greedy", "same samples", "serial", "counts in multiples")
"""Kinds of findings after which pass@k is not what it seems: their sentences are printed before every result."""
FEWEST_PROBLEMS, FEWEST_SAMPLES = 10, 4
"""Limits below which all-or-nothing results are not reported as a sign of greedy decoding: problems of either kind, and samples."""
OWN = ("counts", "samples")
"""Formats of rows that were written for `compare`."""


def measurements_of_rows(
    given: Sequence[GivenRows], stores: Sequence[SampledMeasurement], samples: int | None, choice: Choice
) -> tuple[list[SampledMeasurement], list[str], list[str]]:
    """Return the measurements of all files of rows, notes, and notes that precede any result.

    stores: measurements of sample stores, which may be compared with them
    samples: use only the first this many samples of each problem
    choice: how the answers are read, and the chance floor"""
    tables, measurements = list(labeled_tables(given, stores)), list[SampledMeasurement]()
    notes = [note for one in given for note in one.evaluation.notes]
    first: list[str] = []
    _check_tasks(tables, stores)
    for task in dict.fromkeys(table.task for table in tables):
        # here: the tables of this task
        here, task_stores = [table for table in tables if table.task == task], [one for one in stores if one.task == task]
        order = task_stores[0].problems if task_stores else here[0].table.problems
        _check_scores(here, choice)
        here, order, unscored = _with_scores(here, order, task_stores)
        if choice.common:
            here, order, some = _in_common(here, order, task_stores)
            unscored = [*unscored, *some]
        _check_problems(here, order, task_stores[0].name if task_stores else here[0].name)
        _check_golds(here)
        _check_documents(here)
        prompts = _check_prompts(here)
        cluster, chance = clusters_of(here, order), floor_of(here, order, choice.floor)
        repeated = _repeated_prompts(here, dict(zip(order, cluster, strict=False)))
        _check_seeds(here)
        _check_temperatures(here)
        if samples is not None:
            here = [replace(one, table=one.table.first(samples, one.name)) for one in here]
        if choice.answers is not None:
            here = [replace(one, table=answers_read(one.table, *choice.answers)) for one in here]
        checked, more, grave = independent([replace(one, table=one.table.ordered(order)) for one in here])
        fewest = _fewest(checked, task_stores)
        first += grave
        notes += [*unscored, *prompts, *more, *repeated, *_unequal(checked, fewest), *_single_samples(here)]
        notes += _without_temperature(here, task_stores)
        if cluster and len({one.temperature for one in here}) > 1:
            notes.append("Temperatures are not compared with each other: these comparisons have no clusters of problems.")
        measurements += [replace(_measurement(one, fewest[one.temperature]), cluster=cluster, chance=chance) for one in checked]
    return measurements, list(dict.fromkeys(notes)), list(dict.fromkeys(first))


def with_fields_of_rows(store: SampledMeasurement, rows: Sequence[SampledMeasurement]) -> SampledMeasurement:
    """The measurement of a store with the clusters and, if it has none, the chance floor of files of the same task."""
    same = next((one for one in rows if one.task == store.task), None)
    return store if same is None else replace(store, cluster=same.cluster, chance=store.chance or same.chance)


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


def _measurement(given: GivenTable, n: int) -> SampledMeasurement:
    table, ends = given.table, Counter[tuple[str, str, bool | None]]()
    if table.right is None or table.cut is None:
        right = int(table.c.sum())
        ends = Counter({("right", "", None): right, ("wrong", "incorrect", None): int(table.n.sum()) - right})
    else:
        for hits, cut in zip(table.right, table.cut, strict=True):
            ends.update(
                ("right", "", end) if hit else ("wrong", "incorrect", end)
                for hit, end in zip(hits.tolist(), cut, strict=True)
            )
    cut_off = sum(many for (*_, end), many in ends.items() if end)
    known = sum(many for (*_, end), many in ends.items() if end is not None)
    return SampledMeasurement(
        arm=given.arm, seed=given.seed, path=given.path, task=given.task, temperature=given.temperature, problems=table.problems,
        n=n, values=table.c, sizes=None if np.all(table.n == n) else table.n, reasons=ends,
        failed=[CUT_OFF.format(cut=cut_off, ends=known, limit="the length limit")] if 2 * cut_off > known else [], table=table,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------------------
# independent samples


def independent(here: Sequence[GivenTable]) -> tuple[list[GivenTable], list[str], list[str]]:
    """The tables with only their independent samples, a sentence for every sign of dependent samples, and separately the sentences
    after which pass@k means nothing (`GRAVE`)."""
    checks = [_checked(one.table) for one in here]
    masks = _samples_to_use(here, checks)
    signs: dict[str, list[tuple[str, str]]] = {}  # kind of finding -> (name of the table, sentence)
    for one, checked in zip(here, checks, strict=True):
        for finding in checked.findings if checked else ():
            signs.setdefault(finding.kind, []).append((one.name, finding.words))
    # weaker signs, only for tables in which the checks of order found nothing that explains them
    for one in here:
        found_here = {kind for kind, found in signs.items() if any(name == one.name for name, _ in found)}
        if not {"greedy", "copies", "multiples"} & found_here:
            signs.setdefault("greedy", []).extend((one.name, words) for words in _all_texts_equal(one.table))
    for one in here:
        if not {"greedy", "copies"} & {kind for kind, found in signs.items() if any(name == one.name for name, _ in found)}:
            signs.setdefault("greedy", []).extend((one.name, words) for words in _all_or_none(one.table))
    for one, checked in zip(here, checks, strict=True):
        if checked is None or checked.kept.sum() == checked.n.sum():  # copies would explain the multiples
            for finding in check_multiples(one.table.n, one.table.c):
                signs.setdefault(finding.kind, []).append((one.name, finding.words))
    notes, grave = list[str](), list[str]()
    for kind, found in signs.items():  # one sentence per kind: the first table, and how many others
        for (name, words), *others in [found] if found else ():
            more = f" and {many(len(others), 'other set')} of samples" if others else ""
            (grave if kind in GRAVE else notes).append(f"{name}{more}: {words}.")
    pairs = zip(masks, checks, strict=True)
    copied = sum(not np.array_equal(mask, own.kept) for mask, own in pairs if mask is not None and own is not None)
    if copied:
        notes.append(f"The same places are left out of {copied} more sets of samples of that file.")
    for i, j in _pairs_to_check(here):
        both = f"{here[i].name} and {here[j].name}"
        alike = list(_alike(here[i], here[j], (checks[i], checks[j])))
        seeds = _are_seeds(here[i], here[j])
        same = next((finding for finding in alike if finding.kind == "same samples"), None)
        if seeds and same is not None:
            raise DataError(
                f"{both}: the same samples under two training seeds, on {same.evidence['problems']:,.0f} of "
                f"{many(len(here[i].table.n), 'problem')}; copies of one run are no training seeds and make intervals too short. "
                "Pass each run once"
            )
        if seeds and not alike and _equal_counts(here[i].table, here[j].table):
            grave.append(
                f"{both}: two training seeds have the same counts on every problem, too few to tell chance from a copy; if one is "
                "a copy of the other, the intervals over training seeds are too short."
            )
        for finding in alike:
            (grave if finding.kind in GRAVE else notes).append(f"{both}: {finding.words}.")
    kept = [one if mask is None else replace(one, table=one.table.only(mask)) for one, mask in zip(here, masks, strict=True)]
    return kept, notes, grave


def _pairs_to_check(here: Sequence[GivenTable]) -> Iterator[tuple[int, int]]:
    """The first table with those of other arms, training seeds of one arm with each other, and otherwise only tables with the
    same counts on every problem, which may be copies."""
    for i, one in enumerate(here):
        for j in range(i + 1, len(here)):
            other = here[j]
            equal = np.array_equal(one.table.n, other.table.n) and np.array_equal(one.table.c, other.table.c)
            if (i == 0 and other.arm != one.arm) or _are_seeds(one, other) or equal:
                yield i, j


def _are_seeds(one: GivenTable, other: GivenTable) -> bool:
    """Whether two tables are training seeds of one method."""
    return (one.arm, one.temperature) == (other.arm, other.temperature)


def _equal_counts(one: CountTable, other: CountTable) -> bool:
    """Whether the counts are the same on every problem, and not all or none on each, which equal policies may have."""
    same = np.array_equal(one.n, other.n) and np.array_equal(one.c, other.c)
    return same and bool(np.any((one.c > 0) & (one.c < one.n)))


def _all_texts_equal(table: CountTable) -> Iterator[str]:
    """A sentence if the samples of each problem are one text, with too few problems or samples for a test: copies of one sample, as
    of a file that was joined with itself, or greedy decoding."""
    if table.texts is None or len(table.n) < 2 or table.n.min() < 2:
        return
    if all(len(set(texts)) == 1 for texts in table.texts):
        yield (
            f"the samples of each of {len(table.n)} problems are one and the same text: copies of one sample, as in a file that "
            "was joined with itself, or greedy decoding; n is then 1, and pass@k at k > 1 says nothing"
        )


def _all_or_none(table: CountTable) -> Iterator[str]:
    """A sentence if every problem has all of its samples right, or none, as under greedy decoding; no sentence if nearly all
    agree, as on a saturated benchmark."""
    solved, problems = int((table.c == table.n).sum()), len(table.n)
    extremes = solved + int((table.c == 0).sum()) == problems
    if extremes and min(solved, problems - solved) >= FEWEST_PROBLEMS and table.n.min() >= FEWEST_SAMPLES:
        yield (
            f"of {solved} problems all samples are right and of the other {problems - solved} none, as greedy decoding or copies "
            "of one sample give, or problems that are all certain or out of reach; pass@k is the same at every k"
        )


def _checked(table: CountTable) -> Independence | None:
    """Check the samples of one table; None for counts, which have no order."""
    if table.right is None:
        return None
    right = [one.astype(int).tolist() for one in table.right]
    return check_samples(
        table.texts or table.answers or right, correct=right, texts=table.texts is not None, group=_group_size(table),
        cut=None if table.cut is None else [[bool(one) for one in row] for row in table.cut],
    )  # fmt: skip


def _group_size(table: CountTable) -> int | None:
    """The number of completions per request, if the rows name requests and all have the same number."""
    sizes = {size for row in table.requests or () for size in Counter(row).values()}
    return sizes.pop() if len(sizes) == 1 else None


def _alike(
    a: GivenTable, b: GivenTable, checks: tuple[Independence | None, Independence | None]
) -> Iterator[SampleFinding]:
    """Signs that two sets of samples of the same problems were not sampled separately."""
    one, two = a.table, b.table
    for left, right in ((one.texts, two.texts), (one.answers, two.answers)):  # answers only if a side has no texts
        if left is not None and right is not None and checks[0] and checks[1]:
            yield from check_pair(*_without_numbers(left, right), kept=(checks[0].kept, checks[1].kept))
            return
    if np.array_equal(one.n, two.n):
        yield from check_counts(one.n, one.c, two.c)


Texts = Sequence[list[str | None]]
NUMBER = re.compile(r"\d+")


def _without_numbers(left: Texts, right: Texts) -> tuple[Texts, Texts]:
    """The texts of both sides without a number that only identifies the sample: the first or last number, different in all
    samples of a problem and the same at the same place on both sides. Equal numbers are then not equal samples."""
    for which in (0, -1):
        one, two = ([_numbers(row, which) for row in side] for side in (left, right))
        if one == two and all(None not in row and len(set(row)) == len(row) > 1 for row in one):
            return _all_cut(left, which), _all_cut(right, which)
    return left, right


def _all_cut(side: Texts, which: int) -> Texts:
    return [[_cut(text, which) for text in row] for row in side]


def _numbers(texts: Sequence[str | None], which: int) -> list[str | None]:
    found = (NUMBER.findall(text or "") for text in texts)
    return [one[which] if one else None for one in found]


def _cut(text: str | None, which: int) -> str:
    start, end = [match.span() for match in NUMBER.finditer(text or "")][which]
    return f"{(text or '')[:start]}{(text or '')[end:]}"


def _samples_to_use(here: Sequence[GivenTable], checks: Sequence[Independence | None]) -> list[Bools | None]:
    """The samples to use. Places that are copies on all problems of one set are left out of every set of the file: one program
    sampled them all, and copies cannot be detected in a set with nearly equal answers."""
    copies: dict[tuple[Path, int], Bools] = {}
    for one, checked in zip(here, checks, strict=True):
        if checked is not None and np.all(checked.kept == checked.kept[0]):
            key = one.path, checked.kept.shape[1]
            copies[key] = copies.get(key, np.True_) & checked.kept[0]
    out: list[Bools | None] = []
    for one, checked in zip(here, checks, strict=True):
        if checked is not None:
            out.append(checked.kept & copies.get((one.path, checked.kept.shape[1]), np.True_))
        else:
            out.append(None)
    return out


# ------------------------------------------------------------------------------------------------------------------
# what has to be the same


def _check_tasks(tables: Sequence[GivenTable], stores: Sequence[SampledMeasurement]) -> None:
    """Raise DataError for several arms of which no two have a task in common."""
    arms: dict[str, dict[str, None]] = {}
    for task, arm in [*((one.task, one.arm) for one in tables), *((one.task, one.arm) for one in stores)]:
        arms.setdefault(task, {}).setdefault(arm)
    if len({arm for here in arms.values() for arm in here}) > 1 and all(len(here) == 1 for here in arms.values()):
        said = ", ".join(f"{task!r:.60} ({next(iter(here))})" for task, here in arms.items())
        raise DataError(f"no task in common: {said}; evaluate both on one task, or give the same task one name in both files")


def _check_scores(here: Sequence[GivenTable], choice: Choice) -> None:
    """Raise DataError for files that count different scores, unless `--correct` names both."""
    first = here[0]
    for other in here[1:]:
        if other.score != first.score and not choice.wanted:
            raise DataError(
                f"two scores are compared: {first.score!r} in {first.name} and {other.score!r} in {other.name}; name one that both "
                f"files have with --correct, or both if they mean the same: {_option(first.score, other.score)}"
            )


def _option(*scores: str) -> str:
    """`--correct` with these names."""
    return shlex.join(["--correct", *scores])


def _with_scores(
    here: Sequence[GivenTable], order: Sequence[str], stores: Sequence[SampledMeasurement]
) -> tuple[list[GivenTable], tuple[str, ...], list[str]]:
    """The tables and the order of problems without the problems that one side omits because of completions without a score, and a
    sentence for each table with such completions."""
    omitted = {problem for one in here for problem in one.table.omitted}
    notes = []
    for one in here:
        if one.table.unscored:
            total, problems = sum(one.table.unscored.values()), len(one.table.unscored)
            notes.append(f"{one.name}: {many(total, 'completion')} of {many(problems, 'problem')} without a score count as wrong.")
    if not omitted:
        return list(here), tuple(order), notes
    if stores:
        raise DataError("--unscored omit: not beside a sample store, whose problems are all scored; pass --unscored wrong")
    kept = tuple(problem for problem in order if problem not in omitted)
    if not kept:
        raise DataError("--unscored omit leaves no problem: every one has a completion without a score on some side")
    by = ", ".join(f"{len(one.table.omitted):,} in {one.name}" for one in here if one.table.omitted)
    notes.append(
        f"{many(len(omitted), 'problem')} left out on both sides for completions without a score ({by}); {len(kept):,} compared."
    )
    return [replace(one, table=one.table.without(omitted)) for one in here], kept, notes


def _in_common(
    here: Sequence[GivenTable], order: Sequence[str], stores: Sequence[SampledMeasurement]
) -> tuple[list[GivenTable], tuple[str, ...], list[str]]:
    """The tables and the order of problems without those that some side lacks, and a sentence on how many were left out. Raises
    DataError if none is left, and if there are stores, from which no problem can be left out."""
    if stores:
        raise DataError("--common: not beside a sample store; evaluate the problems that it lacks, or export it with samples")
    kept = set(order).intersection(*(one.table.problems for one in here))
    if not kept:
        raise DataError("--common leaves no problem: no id occurs on all sides; do both files name problems alike?")
    lost = [f"{n:,} of {len(one.table.problems):,} in {one.name}" for one in here if (n := len(set(one.table.problems) - kept))]
    made = [replace(one, table=one.table.without(set(one.table.problems) - kept)) for one in here]
    left = tuple(problem for problem in order if problem in kept)
    note = f"--common: {many(len(left), 'problem')} on all sides, which the verdict is about; left out {', '.join(lost)}."
    return made, left, [note] if lost else []


def _check_problems(here: Sequence[GivenTable], order: Sequence[str], first: str) -> None:
    for other in here:
        lacking, extra = set(order) - set(other.table.problems), set(other.table.problems) - set(order)
        if not lacking and not extra:
            continue
        parts = [f"{len(lacking)} only in {first} ({_some(order, lacking)})"] if lacking else []
        parts += [f"{len(extra)} only in {other.name} ({_some(other.table.problems, extra)})"] if extra else []
        both = len(order) - len(lacking)
        alike = f". {SEEDS}" if other.arm == here[0].arm and other.path != here[0].path else ""
        raise DataError(
            f"different problems on both sides: {both} in both, {'; '.join(parts)}. Evaluate both on the same problems with the "
            f"same ids{', or pass --common to compare those of both' if both else ''}{alike}"
        )


SEEDS = (
    "Files joined by a comma are training seeds of one method on the same problems; compare the files of several subtasks in one "
    'command for each, or write "task" into their rows'
)


def _repeated_prompts(here: Sequence[GivenTable], cluster: Mapping[str, str]) -> list[str]:
    """Raise DataError for a prompt under two ids, unless both are in one cluster: its problem would count twice. For logs of
    other programs, which cannot be changed, this is only a note."""
    for one in here:
        seen: dict[str, str] = {}
        pairs = ((seen.setdefault(prompt, problem), problem) for problem, prompt in one.table.prompts.items())
        twice = [(a, b) for a, b in pairs if a != b and not (cluster and cluster[a] == cluster[b])]
        if not twice:
            continue
        message = "the problems {!r} and {!r} have the same prompt, so one problem counts twice".format(*(x[:40] for x in twice[0]))
        if one.format in OWN:
            raise DataError(f'{one.name}: {message}; remove one of them on both sides, or give both rows the same "cluster"')
        more = f"; so do {len(twice) - 1} others" if len(twice) > 1 else ""
        return [f"{one.name}: {message}{more}."]
    return []


def _check_golds(here: Sequence[GivenTable]) -> None:
    """Raise DataError for a problem with two golds."""
    known: dict[str, tuple[str, GivenTable]] = {}
    for one in here:
        for problem, gold in one.table.golds.items():
            first, where = known.setdefault(problem, (gold, one))
            if gold_key(first) != gold_key(gold):
                raise DataError(
                    f"problem {problem[:60]!r} has the gold {first[:40]!r} in {where.name} and {gold[:40]!r} in {one.name}; the "
                    "ids mean different problems: evaluate both on the same copy of the task"
                    + f". {SEEDS}" * (one.arm == where.arm and one.path != where.path)
                )


def _check_documents(here: Sequence[GivenTable]) -> None:
    """Raise DataError if the documents of two tables show that their ids mean different problems.

    They do if a shared field differs on some problems and not on all, or if every field that distinguishes problems, except the
    gold, differs on all of them. A single such field that differs on all, such as a prompt from another template, is ignored."""
    first = next((one for one in here if one.table.documents), None)
    for one in here if first is not None else ():
        assert first is not None
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
    fields = [name for name in pairs[0][1] if all(name in a and name in b for _, a, b in pairs)]
    apart = {name: [id for id, a, b in pairs if a[name] != b[name]] for name in fields}
    for name in fields:
        if 0 < len(apart[name]) < len(pairs):
            return name, apart[name]
    telling = []
    for name in fields:
        is_gold = all(gold_text(a[name]) == golds.get(id) for id, a, _ in pairs)
        varies = len(pairs) == 1 or len({repr(a[name]) for _, a, _ in pairs}) > 1
        if varies and not is_gold:
            telling.append(name)
    if telling and all(apart[name] for name in telling):
        return telling[0], apart[telling[0]]
    return "", []


def _check_prompts(here: Sequence[GivenTable]) -> list[str]:
    """Raise DataError if the prompts of two tables show that their ids mean different problems: some are equal and others not, they
    are those of other ids, or both are of one arm. Prompts that differ for every problem may be of two templates: a note."""
    known: dict[str, tuple[str, GivenTable]] = {}
    notes = []
    for one in here:
        pairs = [(problem, prompt, *known[problem]) for problem, prompt in one.table.prompts.items() if problem in known]
        known = {problem: (prompt, one) for problem, prompt in one.table.prompts.items()} | known
        apart = [(problem, prompt, first, where) for problem, prompt, first, where in pairs if prompt != first]
        if not apart:
            continue
        problem, prompt, first, where = apart[0]
        firsts = {first for _, _, first, _ in pairs}
        said = f"problem {problem[:60]!r} has the prompt {first[:60]!r} in {where.name} and {prompt[:60]!r} in {one.name}"
        if len(apart) < len(pairs) or one.arm == where.arm or any(prompt in firsts for _, prompt, _, _ in apart):
            raise DataError(
                f"{said}, as {len(apart):,} of {len(pairs):,} problems have two prompts: the ids mean different problems. Evaluate "
                "both on the same copy of the task" + f". {SEEDS}" * (one.arm == where.arm and one.path != where.path)
            )
        notes.append(f"{said}, and so for every problem: only another template if the ids mean the same problems.")
    return notes


def _fewest(here: Sequence[GivenTable], stores: Sequence[SampledMeasurement]) -> dict[float, int]:
    """Temperature -> the fewest samples of a problem on any side: the largest k of comparisons there."""
    fewest: dict[float, int] = {}
    sizes = [(one.temperature, int(one.table.n.min())) for one in here] + [(one.temperature, one.n) for one in stores]
    for heat, n in sizes:
        fewest[heat] = min(n, fewest.get(heat, n))
    return fewest


def _unequal(here: Sequence[GivenTable], fewest: Mapping[float, int]) -> list[str]:
    """A note for each temperature at which problems or arms have different numbers of samples."""
    heats = dict.fromkeys(one.temperature for one in here)
    return [note for t in heats for note in _unequal_at([one for one in here if one.temperature == t], fewest[t])]


def _unequal_at(here: Sequence[GivenTable], fewest: int) -> list[str]:
    few, most = min(here, key=lambda one: int(one.table.n.min())), max(here, key=lambda one: int(one.table.n.max()))
    if (top := int(most.table.n.max())) == fewest:
        return []
    own = int(few.table.n.min())
    problem = few.table.problems[int(few.table.n.argmin())]
    where = f" ({few.name}, for example {problem[:40]!r})" if own == fewest else ""
    ordered = all(one.table.right is not None for one in here)
    first = f"; --samples {fewest} takes the first {fewest} of each problem" if ordered else ""
    return [
        f"Unequal numbers of samples: {fewest:,} for some problems{where}, {top:,} for others ({most.name}). All are used, and "
        f"pass@k is read up to k = {fewest:,}. If failed or cut completions were dropped, count them as incorrect{first}."
    ]


def _without_temperature(here: Sequence[GivenTable], stores: Sequence[SampledMeasurement]) -> list[str]:
    """A note for each file without a temperature if other files or stores have one."""
    without = {one.path: one.temperature for one in here if one.table.group.temperature is None}
    if all(one.path in without for one in here) and not stores:
        return []
    return [
        f'{path}: no temperature in the rows; T = {heat:g} is assumed. Write "temperature" into them to have it checked.'
        for path, heat in without.items()
    ]


def _check_seeds(here: Sequence[GivenTable]) -> None:
    """Raise DataError for a training seed that occurs twice, and for arms of several training seeds that are not the same."""
    sets: dict[tuple[str, float], list[int | None]] = {}
    for one in here:
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


def _single_samples(here: Sequence[GivenTable]) -> list[str]:
    """A note on each arm whose training seeds (a field of its rows) have one sample per problem: they may be sampling seeds."""
    seeds: dict[tuple[str, float], list[GivenTable]] = {}
    for one in here:
        if one.table.group.seed is not None and one.table.right is not None:
            seeds.setdefault((one.arm, one.temperature), []).append(one)
    notes = []
    for (arm, _), tables in seeds.items():
        if len(tables) > 1 and all(one.table.n.max() == 1 for one in tables):
            notes.append(
                f'{arm}: {len(tables)} training seeds with one sample of each problem. If "seed" is that of sampling, remove it '
                "from the rows: they are then samples of one run."
            )
    return notes


def _check_temperatures(here: Sequence[GivenTable]) -> None:
    heats: dict[str, set[float]] = {}
    for one in here:
        heats.setdefault(one.arm, set()).add(one.temperature)
    (first, own), *others = heats.items()
    for arm, temperatures in others:
        if not own & temperatures:
            raise DataError(
                f"{first} was sampled at T = {_listed(own)}, {arm} at T = {_listed(temperatures)}: temperature trades pass@1 "
                "against pass@k; sample both at the same temperature"
            )


def _listed(values: Iterable[float | None]) -> str:
    def text(value: float | None) -> str:
        return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)

    return ", ".join(sorted(map(text, values)))


def _some(order: Sequence[str], chosen: set[str]) -> str:
    shown = [repr(problem if len(problem) < 40 else f"{problem[:37]}...") for problem in order if problem in chosen]
    return first_of(shown, SHOWN)


__all__ = ["OWN", "TASK", "GivenTable", "labeled_tables", "measurements_of_rows", "with_fields_of_rows"]
