"""Independent samples of files of rows: which samples of each table are used, and signs that samples depend on each other.

Counts have no order, so that only their numbers can be checked.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.grouped import grouped
from sage_rlvr.verdicts.readers import CountTable
from sage_rlvr.verdicts.sources import GivenTable
from sage_rlvr.verdicts.stats.arrays import Bools
from sage_rlvr.verdicts.stats.samples.independence import (
    Independence,
    SampleFinding,
    check_counts,
    check_multiples,
    check_pair,
    check_samples,
)
from sage_rlvr.verdicts.text import notes_of_rows as note_texts
from sage_rlvr.verdicts.text.words import many

GRAVE = ("greedy", "same samples", "serial", "counts in multiples")
"""Kinds of signs after which pass@k is not what it seems: their sentences are printed before every result."""
FEWEST_PROBLEMS, FEWEST_SAMPLES = 10, 4
"""Limits below which all-or-nothing results are not reported as a sign of greedy decoding: problems of either kind, and samples."""
Signs = list[tuple[str, SampleFinding]]
"""Signs of dependent samples, each with the name of its table, or with the names of two tables."""
Checks = Sequence[Independence | None]
"""The checks of the samples of tables; None for counts."""
Texts = Sequence[list[str | None]]
"""The texts of each problem."""
NUMBER = re.compile(r"\d+")


def independent(tables: Sequence[GivenTable]) -> tuple[list[GivenTable], list[str], list[str]]:
    """The tables with only their independent samples; a sentence for every kind of sign of dependent samples; and separately those
    after which pass@k means nothing (`GRAVE`). tables: of one task, with the same problems in the same order.

    Raises DataError for copies of one run under two training seeds."""
    checks = [_check_of(one.table) for one in tables]
    masks = _masks_of_used(tables, checks)
    notes = [*_one_by_kind(_signs_in_tables(tables, checks)), *_left_out_of_others(masks, checks)]  # (kind, sentence)
    notes += [(found.kind, note_texts.sign(names, found.words)) for names, found in _signs_between_tables(tables, checks)]
    used = [one if mask is None else replace(one, table=one.table.only(mask)) for one, mask in zip(tables, masks, strict=True)]
    return used, [text for kind, text in notes if kind not in GRAVE], [text for kind, text in notes if kind in GRAVE]


def _one_by_kind(signs: Signs) -> list[tuple[str, str]]:
    """Each kind of sign with one sentence: the first table, and the number of others."""
    by_kind = grouped(signs, lambda sign: sign[1].kind)
    return [(kind, note_texts.sign(name, first.words, len(others))) for kind, ((name, first), *others) in by_kind.items()]


def _left_out_of_others(masks: Sequence[Bools | None], checks: Checks) -> list[tuple[str, str]]:
    """The kind and the sentence on tables with fewer samples in use than were found to be independent in them."""
    pairs = [(mask, check.kept) for mask, check in zip(masks, checks, strict=True) if mask is not None and check is not None]
    tables = sum(not np.array_equal(mask, kept) for mask, kept in pairs)
    return [("copies", note_texts.left_out_of_others(tables))] if tables else []


# ------------------------------------------------------------------------------------------------------------------
# one table


def _check_of(table: CountTable) -> Independence | None:
    """The check of the samples of a table; None for counts."""
    if table.right is None:
        return None
    right = [one.astype(int).tolist() for one in table.right]
    return check_samples(
        table.texts or table.answers or right, correct=right, texts=table.texts is not None, group=_completions_per_request(table),
        cut=None if table.cut is None else [[bool(one) for one in row] for row in table.cut],
    )  # fmt: skip


def _completions_per_request(table: CountTable) -> int | None:
    """The number of completions per request, if the rows name requests and all have the same number."""
    sizes = {size for row in table.requests or () for size in Counter(row).values()}
    return sizes.pop() if len(sizes) == 1 else None


def _masks_of_used(tables: Sequence[GivenTable], checks: Checks) -> list[Bools | None]:
    """Masks of the samples to use, (N, most samples) each; None for counts. Places that are copies on all problems of one table are
    left out of every table of the file: one program sampled them all, and copies cannot be detected in a table with nearly equal
    answers."""
    places: dict[tuple[Path, int], Bools] = {}  # (file, most samples) -> places that are used, (most samples,)
    for one, check in zip(tables, checks, strict=True):
        if check is not None and np.all(check.kept == check.kept[0]):
            key = one.path, check.kept.shape[1]
            places[key] = places.get(key, np.True_) & check.kept[0]
    return [
        None if check is None else check.kept & places.get((one.path, check.kept.shape[1]), np.True_)
        for one, check in zip(tables, checks, strict=True)
    ]


def _signs_in_tables(tables: Sequence[GivenTable], checks: Checks) -> Signs:
    """Signs of dependent samples within each table: those of the checks of samples, then weaker ones that these do not explain."""
    found = [[] if check is None else list(check.findings) for check in checks]
    signs = [(one.name, sign) for one, own in zip(tables, found, strict=True) for sign in own]
    for weaker_signs, stronger in ((_one_text, ("greedy", "copies", "multiples")), (_all_or_none, ("greedy", "copies"))):
        for one, own in zip(tables, found, strict=True):
            if any(sign.kind in stronger for sign in own):
                continue
            weaker = list(weaker_signs(one.table))
            own += weaker
            signs += [(one.name, sign) for sign in weaker]
    for one, check in zip(tables, checks, strict=True):
        if check is None or check.kept.sum() == check.n.sum():  # copies would explain the multiples
            signs += [(one.name, sign) for sign in check_multiples(one.table.n, one.table.c)]
    return signs


def _one_text(table: CountTable) -> Iterator[SampleFinding]:
    """A sign if the samples of each problem are one text, with too few problems or samples for a test: copies of one sample, as
    of a file that was joined with itself, or greedy decoding."""
    if table.texts is None or len(table.n) < 2 or table.n.min() < 2:
        return
    if all(len(set(of_problem)) == 1 for of_problem in table.texts):
        yield SampleFinding(kind="greedy", words=note_texts.one_text(len(table.n)), certain=False)


def _all_or_none(table: CountTable) -> Iterator[SampleFinding]:
    """A sign if every problem has all of its samples right, or none, as under greedy decoding; no sign if nearly all agree, as on a
    saturated benchmark."""
    solved, unsolved = int((table.c == table.n).sum()), int((table.c == 0).sum())
    if solved + unsolved == len(table.n) and min(solved, unsolved) >= FEWEST_PROBLEMS and table.n.min() >= FEWEST_SAMPLES:
        yield SampleFinding(kind="greedy", words=note_texts.all_or_none(solved, unsolved), certain=False)


# ------------------------------------------------------------------------------------------------------------------
# two tables


def _signs_between_tables(tables: Sequence[GivenTable], checks: Checks) -> Iterator[tuple[str, SampleFinding]]:
    """Signs that two tables were not sampled separately. Raises DataError for copies of one run under two training seeds."""
    for i, j in _pairs_to_check(tables):
        one, other = tables[i], tables[j]
        names, signs = f"{one.name} and {other.name}", list(_signs_between(one.table, other.table, checks[i], checks[j]))
        if _are_seeds(one, other):
            _check_copied_seeds(names, signs, len(one.table.n))
            signs = signs or list(_equal_seeds(one.table, other.table))
        yield from ((names, sign) for sign in signs)


def _pairs_to_check(tables: Sequence[GivenTable]) -> Iterator[tuple[int, int]]:
    """Places of two tables: the first with those of other arms, training seeds of one arm with each other, and otherwise only
    tables with the same counts on every problem, which may be copies."""
    for (i, one), (j, other) in combinations(enumerate(tables), 2):
        if (i == 0 and other.arm != one.arm) or _are_seeds(one, other) or _have_equal_counts(one.table, other.table):
            yield i, j


def _are_seeds(one: GivenTable, other: GivenTable) -> bool:
    """Whether two tables are training seeds of one method."""
    return (one.arm, one.temperature) == (other.arm, other.temperature)


def _have_equal_counts(one: CountTable, other: CountTable) -> bool:
    return np.array_equal(one.n, other.n) and np.array_equal(one.c, other.c)


def _signs_between(
    one: CountTable, other: CountTable, check: Independence | None, other_check: Independence | None
) -> Iterator[SampleFinding]:
    """Signs that two tables of the same problems were not sampled separately: of their texts, of their answers if a side has no
    texts, or else of their counts."""
    for left, right in ((one.texts, other.texts), (one.answers, other.answers)):
        if left is not None and right is not None and check and other_check:
            yield from check_pair(*_without_numbers(left, right), kept=(check.kept, other_check.kept))
            return
    if np.array_equal(one.n, other.n):
        yield from check_counts(one.n, one.c, other.c)


def _check_copied_seeds(names: str, signs: Iterable[SampleFinding], problems: int) -> None:
    """Raise DataError for the same samples under two training seeds."""
    for sign in signs:
        if sign.kind == "same samples":
            raise DataError(
                f"{names}: the same samples under two training seeds, on {sign.evidence['problems']:,.0f} of "
                f"{many(problems, 'problem')}; copies of one run are no training seeds and make intervals too short. Pass each run "
                "once"
            )


def _equal_seeds(one: CountTable, other: CountTable) -> Iterator[SampleFinding]:
    """A sign if two training seeds have the same counts on every problem, and not all or none on each, which equal policies may
    have."""
    if _have_equal_counts(one, other) and np.any((one.c > 0) & (one.c < one.n)):
        yield SampleFinding(kind="same samples", words=note_texts.EQUAL_COUNTS, certain=False)


# ------------------------------------------------------------------------------------------------------------------
# texts without numbers that only identify the sample


def _without_numbers(left: Texts, right: Texts) -> tuple[Texts, Texts]:
    """The texts of both sides without a number that only identifies the sample: the first or last number, different in all
    samples of a problem and the same at the same place on both sides. Equal numbers are then not equal samples."""
    for place in (0, -1):
        one, other = ([_numbers(row, place) for row in side] for side in (left, right))
        if one == other and all(None not in row and len(set(row)) == len(row) > 1 for row in one):
            return _without_number(left, place), _without_number(right, place)
    return left, right


def _numbers(row: Sequence[str | None], place: int) -> list[str | None]:
    """The number at this place among the numbers of each text; None for a text without numbers."""
    return [found[place] if found else None for found in (NUMBER.findall(text or "") for text in row)]


def _without_number(side: Texts, place: int) -> Texts:
    """The texts of a side, each without the number at this place, which all have."""

    def cut(text: str) -> str:
        start, end = [match.span() for match in NUMBER.finditer(text)][place]
        return f"{text[:start]}{text[end:]}"

    return [[cut(text or "") for text in row] for row in side]
