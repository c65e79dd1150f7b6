"""Counts of files of rows, brought together: the same problems in the same order, the same number of samples, the same training
seeds.

Nothing is guessed: what differs between two files raises DataError with both values and the next step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from sage_rlvr.errors import DataError
from sage_rlvr.results.distinct import answers_read
from sage_rlvr.results.measurements import SampledMeasurement
from sage_rlvr.results.metric import REFERENCE
from sage_rlvr.results.problem_fields import clusters_of, floor_of
from sage_rlvr.results.readers import Choice, CountTable
from sage_rlvr.results.row_text import first_of, many
from sage_rlvr.results.sources import GivenRows, GivenTable
from sage_rlvr.stats.passk import Bools
from sage_rlvr.stats.samples.independence import Independence, check_counts, check_pair, check_samples
from sage_rlvr.verifiers.reasons import Reasons

TASK = "these problems"
"""The task of rows without a task."""
SHOWN = 5
GRAVE = ("greedy", "same samples")
"""Kinds of findings after which pass@k is not what it seems: their sentences stand before every result."""
FEWEST_PROBLEMS, FEWEST_SAMPLES = 10, 4
"""With fewer problems of either kind, or fewer samples, all or nothing is no sign of greedy decoding."""
OWN = ("counts", "samples")
"""Formats of rows that were written for `compare`."""


def measurements_of_rows(
    given: Sequence[GivenRows], stores: Sequence[SampledMeasurement], samples: int | None, choice: Choice
) -> tuple[list[SampledMeasurement], list[str], list[str]]:
    """The measurements of all files of rows, with notes, and the notes that are read before any result. stores: those of sample
    stores, which may be compared with them; samples: use only the first this many samples of each problem; choice: how the answers
    are read, and the chance floor."""
    tables, measurements, notes = list(labeled_tables(given, stores)), list[SampledMeasurement](), list[str]()
    first: list[str] = []
    for task in dict.fromkeys(table.task for table in tables):
        here, task_stores = [table for table in tables if table.task == task], [one for one in stores if one.task == task]
        order = task_stores[0].problems if task_stores else here[0].table.problems
        _check_problems(here, order, task_stores[0].name if task_stores else here[0].name)
        _check_golds(here)
        cluster, chance = clusters_of(here, order), floor_of(here, order, choice.floor)
        repeated = _repeated_prompts(here, dict(zip(order, cluster, strict=False)))
        _check_seeds(here)
        _check_temperatures(here)
        if samples is not None:
            here = [replace(one, table=one.table.first(samples, one.name)) for one in here]
        if choice.answers_in:
            here = [replace(one, table=answers_read(one.table, choice.answers_in)) for one in here]
        checked, more, grave = independent([replace(one, table=one.table.ordered(order)) for one in here])
        fewest = min([int(one.table.n.min()) for one in checked] + [one.n for one in task_stores])
        first += grave
        notes += [*more, *repeated, *_unequal(checked, fewest), *_without_temperature(here, task_stores)]
        if cluster and len({one.temperature for one in here}) > 1:
            notes.append("Temperatures are not compared with each other: these comparisons have no clusters of problems.")
        measurements += [replace(_measurement(one, fewest), cluster=cluster, chance=chance) for one in checked]
    return measurements, list(dict.fromkeys(notes)), list(dict.fromkeys(first))


def with_fields_of_rows(store: SampledMeasurement, rows: Sequence[SampledMeasurement]) -> SampledMeasurement:
    """The measurement of a store with the clusters and, where it has none, the chance floor of files of the same task."""
    same = next((one for one in rows if one.task == store.task), None)
    return store if same is None else replace(store, cluster=same.cluster, chance=store.chance or same.chance)


def labeled_tables(given: Sequence[GivenRows], stores: Sequence[SampledMeasurement] = ()) -> Iterator[GivenTable]:
    """Every table with its arm, training seed, task and temperature. A task or temperature that one side does not name is the only
    one of the other side."""
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
                format=one.evaluation.format,
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
    reasons = Reasons(ends)
    return SampledMeasurement(
        arm=given.arm, seed=given.seed, path=given.path, task=given.task, temperature=given.temperature, problems=table.problems,
        n=n, values=table.c, sizes=None if np.all(table.n == n) else table.n, reasons=reasons,
        failed=[text for _, text in reasons.problems(limit="the length limit")], table=table,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------------------
# independent samples


def independent(here: Sequence[GivenTable]) -> tuple[list[GivenTable], list[str], list[str]]:
    """The tables with only their independent samples, and a sentence for everything that independent samples would not show; those
    after which pass@k means nothing (`GRAVE`) apart."""
    checks = [_checked(one.table) for one in here]
    masks = _samples_to_use(here, checks)
    signs: dict[str, list[tuple[str, str]]] = {}
    for one, checked in zip(here, checks, strict=True):
        for finding in checked.findings if checked else ():
            signs.setdefault(finding.kind, []).append((one.name, finding.words))
    for one in here:
        if not {"greedy", "copies"} & {kind for kind, found in signs.items() if any(name == one.name for name, _ in found)}:
            signs.setdefault("greedy", []).extend((one.name, words) for words in _all_or_none(one.table))
    notes, grave = list[str](), list[str]()
    for kind, found in signs.items():
        for (name, words), *others in [found] if found else ():
            more = f" and {many(len(others), 'other set')} of samples" if others else ""
            (grave if kind in GRAVE else notes).append(f"{name}{more}: {words}.")
    pairs = zip(masks, checks, strict=True)
    copied = sum(not np.array_equal(mask, own.kept) for mask, own in pairs if mask is not None and own is not None)
    if copied:
        notes.append(f"The same places are left out of {copied} more sets of samples of that file.")
    for other, checked in zip(here, checks, strict=True):
        if other.arm != here[0].arm:
            both = f"{here[0].name} and {other.name}"
            grave += [f"{both}: {words}." for words in _alike(here[0], other, (checks[0], checked))]
    kept = [one if mask is None else replace(one, table=one.table.only(mask)) for one, mask in zip(here, masks, strict=True)]
    return kept, notes, grave


def _all_or_none(table: CountTable) -> Iterator[str]:
    """A sentence if every problem has all of its samples right, or none, as greedy decoding gives; nothing where nearly all are
    alike, as on a saturated benchmark."""
    solved, problems = int((table.c == table.n).sum()), len(table.n)
    extremes = solved + int((table.c == 0).sum()) == problems
    if extremes and min(solved, problems - solved) >= FEWEST_PROBLEMS and table.n.min() >= FEWEST_SAMPLES:
        yield (
            f"of {solved} problems all samples are right and of the other {problems - solved} none, as greedy decoding or copies "
            "of one sample give, or problems that are all certain or out of reach; pass@k is the same at every k"
        )


def _checked(table: CountTable) -> Independence | None:
    """What the samples of one table show; None for counts, which have no order."""
    if table.right is None:
        return None
    right = [one.astype(int).tolist() for one in table.right]
    return check_samples(
        table.texts or table.answers or right, correct=right, texts=table.texts is not None, group=_group_size(table),
        cut=None if table.cut is None else [[bool(one) for one in row] for row in table.cut],
    )  # fmt: skip


def _group_size(table: CountTable) -> int | None:
    """The number of completions per request, where the rows name requests and all have the same number."""
    sizes = {size for row in table.requests or () for size in Counter(row).values()}
    return sizes.pop() if len(sizes) == 1 else None


def _alike(
    a: GivenTable, b: GivenTable, checks: tuple[Independence | None, Independence | None]
) -> Iterator[str]:
    """What two sets of samples of the same problems have in common that separate sampling would not show."""
    one, two = a.table, b.table
    for left, right in ((one.texts, two.texts), (one.answers, two.answers)):  # answers only where a side has no texts
        if left is not None and right is not None and checks[0] and checks[1]:
            yield from (finding.words for finding in check_pair(left, right, kept=(checks[0].kept, checks[1].kept)))
            return
    if np.array_equal(one.n, two.n):
        yield from (finding.words for finding in check_counts(one.n, one.c, two.c))


def _samples_to_use(here: Sequence[GivenTable], checks: Sequence[Independence | None]) -> list[Bools | None]:
    """The samples to use. Places that are copies on all problems of one set are left out of every set of the file: one program
    drew them all, and copies cannot be seen in a set whose answers are nearly all equal."""
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


def _check_problems(here: Sequence[GivenTable], order: Sequence[str], first: str) -> None:
    for other in here:
        lacking, extra = set(order) - set(other.table.problems), set(other.table.problems) - set(order)
        if not lacking and not extra:
            continue
        parts = [f"{len(lacking)} only in {first} ({_some(order, lacking)})"] if lacking else []
        parts += [f"{len(extra)} only in {other.name} ({_some(other.table.problems, extra)})"] if extra else []
        both = len(order) - len(lacking)
        raise DataError(
            f"different problems on both sides: {both} in both, {'; '.join(parts)}. Evaluate both on the same problems with the "
            "same ids, or remove the rows of the others from the files"
        )


def _repeated_prompts(here: Sequence[GivenTable], cluster: Mapping[str, str]) -> list[str]:
    """Raise DataError for a prompt under two ids, unless both are in one cluster: its problem would count twice. The logs of other
    programs cannot be changed, so there this is a note."""
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
    first = here[0]
    for other in here[1:]:
        for problem, gold in first.table.golds.items():
            if other.table.golds.get(problem, gold) != gold:
                raise DataError(
                    f"problem {problem[:60]!r} has the gold {gold[:40]!r} in {first.name} and "
                    f"{other.table.golds[problem][:40]!r} in {other.name}; the ids mean different problems: evaluate both on the "
                    "same copy of the task"
                )


def _unequal(here: Sequence[GivenTable], fewest: int) -> list[str]:
    """A note where problems or arms have different numbers of samples."""
    few, most = min(here, key=lambda one: int(one.table.n.min())), max(here, key=lambda one: int(one.table.n.max()))
    if (top := int(most.table.n.max())) == fewest:
        return []
    own = int(few.table.n.min())
    problem = few.table.problems[int(few.table.n.argmin())]
    where = f" ({few.name}, for example {problem[:40]!r})" if own == fewest else ""
    ordered = all(one.table.right is not None for one in here)
    first = f"; --samples {fewest} takes the first {fewest} of each problem" if ordered else ""
    return [
        f"Unequal numbers of samples: {fewest} for some problems{where}, {top} for others ({most.name}). All are used, and pass@k "
        f"is read up to k = {fewest}. If failed or cut completions were dropped, count them as incorrect{first}."
    ]


def _without_temperature(here: Sequence[GivenTable], stores: Sequence[SampledMeasurement]) -> list[str]:
    """A note on each file without a temperature beside files or stores with one."""
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
