"""Distinct right answers of arms whose files have answers: what pass@k, which stops at the first right one, leaves out.

    answers_read(table, answer_in, key)  answers as a verifier reads them (`compare --verify`)
    distinct_of(a, b)               expected number of distinct right answers in k samples of two arms, and their difference;
                                    text/verdicts.py has its lines
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress

import numpy as np

from sage_rlvr.verdicts.readers import AnswerKey, CountTable
from sage_rlvr.verdicts.scores import ProblemScores
from sage_rlvr.verdicts.stats.arrays import Floats
from sage_rlvr.verdicts.stats.curves import with_problems
from sage_rlvr.verdicts.stats.intervals import Interval, mean_interval, seed_interval
from sage_rlvr.verdicts.stats.paired import PairedDifference, Reason, paired, paired_clusters, paired_seeds, unknown
from sage_rlvr.verdicts.stats.passk import powers
from sage_rlvr.verdicts.stats.samples.clusters import clustered_mean, clustered_rows
from sage_rlvr.verdicts.stats.samples.diversity import expected_distinct

SHOWN = 8
Groups = list[list[int]]
"""For each problem the number of samples of each different right answer."""


@dataclass(frozen=True, kw_only=True, eq=False)
class DistinctAnswers:
    """Expected number of distinct right answers among k samples, of an arm a and its control b.

    names: names of a and b
    curves: k -> both means, over powers of two up to the smallest n
    shown: k -> both means and their difference, at 8 and the largest k
    source: where the answers come from
    most: the largest number of distinct right answers of a problem
    unnamed: share of right samples without an answer, of a and b; these count nowhere
    """

    names: tuple[str, str]
    curves: Mapping[int, tuple[Interval, Interval]]
    shown: Mapping[int, tuple[Interval, Interval, PairedDifference]]
    source: str
    most: int
    unnamed: tuple[float, float]


def answers_read(table: CountTable, answer_in: str, key: AnswerKey) -> CountTable:
    """The table with the answers of its completions, as a verifier reads them (`key`) at the place `answer_in`."""
    if table.texts is None or table.right is None:
        return table
    answers = tuple([key(text) if text else None for text in texts] for texts in table.texts)
    return replace(table, answers=answers, read_in=answer_in)


def right_answers(table: CountTable) -> Groups | None:
    """The right answers of every problem, as the number of samples that gave each; None if the rows have no answers."""
    if table.keys:
        return [list(table.keys.get(problem, {}).values()) for problem in table.problems]
    if table.answers is None or table.right is None:
        return None
    groups = []
    for answers, hits in zip(table.answers, table.right, strict=True):
        right = (str(one) for one in compress(answers, hits) if one is not None)
        groups.append(list(Counter(right).values()))
    return groups


@dataclass(frozen=True, eq=False)
class _Side:
    """The tables of an arm, one per training seed, with their right answers."""

    tables: Sequence[CountTable]
    groups: Sequence[Groups]

    def values(self, ks: Sequence[int]) -> Floats:
        """Expected number of distinct right answers among k samples of each seed and problem, (S, N, K)."""
        pairs = zip(self.tables, self.groups, strict=True)
        return np.stack([expected_distinct(table.n, groups, ks) for table, groups in pairs])

    @property
    def most(self) -> int:
        """The most distinct right answers of a problem."""
        return max(len(group) for groups in self.groups for group in groups)

    @property
    def source(self) -> str:
        """Return a description of the answers."""
        first = self.tables[0]
        if first.keys:
            return '"keys" of the rows'
        verified = f"what the mathematics verifier reads ({first.read_in}), in one spelling, numbers as fractions"
        return verified if first.read_in else '"answer" of the rows'

    @property
    def unnamed(self) -> float:
        """Share of right samples without an answer."""
        right = sum(int(table.c.sum()) for table in self.tables)
        named = sum(count for groups in self.groups for group in groups for count in group)
        return 1 - named / right if right else 0.0


def distinct_of(a: ProblemScores, b: ProblemScores, *, fixed: bool = False) -> DistinctAnswers | None:
    """The comparison of an arm and its control; None unless the files of both have answers. fixed: on these problems."""
    one, two = _side(a), _side(b)
    if a.n is None or one is None or two is None:
        return None
    ks = powers(a.n)
    left, right = one.values(ks), two.values(ks)
    means = list(zip(_means(left, a.cluster, fixed), _means(right, b.cluster, fixed), strict=True))
    at = {k: i for i, k in enumerate(ks) if k in (SHOWN, ks[-1])}
    return DistinctAnswers(
        names=(a.arm, b.arm),
        curves=dict(zip(ks, means, strict=True)),
        shown={k: (*means[i], _compared(left[..., i], right[..., i], a.cluster, fixed)) for k, i in at.items()},
        source=one.source if one.source == two.source else f"{two.source} of {b.arm}; {one.source} of {a.arm}",
        most=max(one.most, two.most),
        unnamed=(one.unnamed, two.unnamed),
    )


def has_answers(scores: ProblemScores) -> bool:
    """Return whether the rows of an arm have answers."""
    return _side(scores) is not None


def _side(one: ProblemScores) -> _Side | None:
    groups = [group for table in one.tables if (group := right_answers(table)) is not None]
    return _Side(one.tables, groups) if one.tables and len(groups) == len(one.tables) else None


def _means(values: Floats, cluster: Sequence[str], fixed: bool) -> list[Interval]:
    """The mean at each k, over training seeds, and problems unless they are fixed, if there are several seeds."""
    if len(values) > 1:
        over = [seed_interval(column) for column in values.mean(axis=1).T]
        problems = [] if fixed else [mean_interval(column) for column in clustered_rows(values, cluster).mean(axis=0).T]
        both = over if fixed else [with_problems(one, two) for one, two in zip(over, problems, strict=True)]
        return [one.within(0.0, math.inf) for one in both]
    if cluster:
        return [clustered_mean(column, cluster, shares=False) for column in values[0].T]
    return [mean_interval(column, over="problems and their samples") for column in values[0].T]


def _compared(a: Floats, b: Floats, cluster: Sequence[str], fixed: bool) -> PairedDifference:
    """(S, N) each. If these problems are fixed, one run of the control and several of the arm give no interval: the noise of the
    control's samples, which all seeds share, is not estimated."""
    if not fixed:
        a, b = np.broadcast_arrays(a, b)
    if len(a) != len(b):
        return unknown(Reason.ONE_SEED, value=float(a.mean() - b.mean()), n=len(a), over="training seeds")
    if len(a) > 1:
        a, b = (clustered_rows(side, () if fixed else cluster) for side in (a, b))
        return paired_seeds(a, b, fixed=fixed)
    return paired_clusters(a[0], b[0], cluster) if cluster else paired(a[0], b[0])


__all__ = ["DistinctAnswers", "answers_read", "distinct_of", "has_answers", "right_answers"]
