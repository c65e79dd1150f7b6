"""Diversity of the samples of one problem: distinct correct answers, PCMD, answer entropy, token entropy.

    distinct            number of different answers among the correct ones of n samples
    expected distinct   sum_a [1 - C(n - n_a, k) / C(n, k)] in k of them (rarefaction: Hurlbert 1971)
    PCMD                1 - sum_a n_a (n_a - 1) / (K (K - 1)), K = sum_a n_a: two correct ones differ (arXiv 2610.11064)
    AnswerEntropy       -sum_j phat_j log phat_j over the answers of n samples (Invisible Leash, arXiv 2507.14843)
    TokenEntropy        mean over responses of mean_t H_t, H_t = -sum_v p(v) log p(v) (the same; SAGE's Eq. 12)

Answers are strings and are compared as strings: give canonical ones, or 1/2 and 0.5 count as two. None means a response without an
answer. All entropies are in nats. Functions take one problem; average over problems last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.stats.arrays import Floats, Ints
from sage_rlvr.verdicts.stats.intervals import Interval, share_interval
from sage_rlvr.verdicts.stats.passk import pass_at_k

AnswerKeys = Sequence[str | None]
BOTH_RIGHT = "problems with two correct answers"


@dataclass(frozen=True, eq=False)
class Tally:
    """Samples of one problem by answer, in order of first appearance.

    answers (m,) strings; counts (m,) samples that gave each; right (m,) correct ones among these; silent: samples whose
    answer is None; silent_right: correct ones among those.
    """

    answers: tuple[str, ...]
    counts: Ints
    right: Ints
    silent: int
    silent_right: int

    @property
    def n(self) -> int:
        """Samples in all."""
        return int(self.counts.sum()) + self.silent


def tally(answers: AnswerKeys, correct: ArrayLike) -> Tally:
    """Count the answers of one problem: answers (n,), correct (n,) bool. Raises DataError for other shapes or no sample."""
    verdicts = np.asarray(correct)
    if verdicts.shape != (len(answers),) or not len(answers) or not np.all((verdicts == 0) | (verdicts == 1)):
        raise DataError(
            f"{len(answers)} answers and verdicts of shape {verdicts.shape}: pass one true or false a sample."
        )
    counts: dict[str | None, list[int]] = {}
    for answer, right in zip(answers, verdicts.tolist(), strict=True):
        entry = counts.setdefault(answer, [0, 0])
        entry[0] += 1
        entry[1] += bool(right)
    silent, silent_right = counts.pop(None, [0, 0])
    named = np.array(list(counts.values()), dtype=np.int64).reshape(-1, 2)
    texts = tuple(answer for answer in counts if answer is not None)
    return Tally(texts, named[:, 0], named[:, 1], silent, silent_right)


def distinct_correct(answers: AnswerKeys, correct: ArrayLike) -> int:
    """The number of different answers among the correct ones of n samples. Grows with n: compare at equal n.

    In mathematics there is one right value, so this counts spellings unless answers are canonical; it is meaningful if many answers
    are right, as in Countdown, or if `answers` are complete solutions.
    """
    return int(np.sum(tally(answers, correct).right > 0))


def expected_distinct_correct(answers: AnswerKeys, correct: ArrayLike, ks: Sequence[int]) -> Floats:
    """Expected number of different correct answers among k of the n samples, (K,): unbiased for k draws from the policy.

    sum over correct answers a of pass@k(n, n_a), n_a its correct samples: Hurlbert's rarefaction (1971). k = n gives
    `distinct_correct`, k = 1 the share of correct samples with an answer. Raises DataError for k > n.
    """
    counted = tally(answers, correct)
    tries = np.asarray(ks)
    chances = np.asarray(pass_at_k(counted.n, counted.right[:, None], tries[None, :]))
    return np.asarray(chances.sum(axis=0))


def pcmd(answers: AnswerKeys, correct: ArrayLike) -> float:
    """Chance that two correct answers, drawn without replacement among n samples, differ; NaN with fewer than two of them.

    The unbiased estimate of 1 - sum_a (P(a) / P(correct))^2 at its number K of correct answers, for independent samples: a sample
    that is stored twice lowers it (`independence` finds such). It does not grow with n. A correct sample without an answer does
    not count.
    """
    return pcmd_of_counts(tally(answers, correct).right)


def pcmd_of_counts(counts: ArrayLike) -> float:
    """`pcmd` from how many correct samples gave each answer, (m,)."""
    right = np.asarray(counts, dtype=np.int64)
    total = int(right.sum())
    if total < 2:
        return math.nan
    return 1.0 - float(np.sum(right * (right - 1))) / (total * (total - 1))


def pcmd_interval(values: ArrayLike, *, level: float = 0.95) -> Interval:
    """Mean of `pcmd` (N,) over the problems that have it, their number as `n`; NaN with n = 0 if none has."""
    column = np.asarray(values, dtype=float)
    known = column[~np.isnan(column)]
    if not len(known):
        return Interval(value=math.nan, low=math.nan, high=math.nan, level=level, over=BOTH_RIGHT, n=0)
    return share_interval(known, level=level, over=BOTH_RIGHT)


def expected_distinct(n: ArrayLike, groups: Sequence[Sequence[int]], ks: Sequence[int]) -> Floats:
    """`expected_distinct_correct` of many problems at once, (N, K), from counts: groups[i] has the number of samples of each
    different correct answer of problem i, of n samples in all, () or (N,)."""
    owner = np.repeat(np.arange(len(groups)), list(map(len, groups)))
    counts = np.array([count for group in groups for count in group], dtype=np.int64)
    out = np.zeros((len(groups), len(ks)))
    if len(counts):
        samples = np.broadcast_to(np.asarray(n), len(groups))[owner]
        np.add.at(out, owner, pass_at_k(samples[:, None], counts[:, None], np.asarray(ks)[None, :]))
    return out


def answer_entropy(answers: AnswerKeys, *, miller_madow: bool = False) -> float:
    """AnswerEntropy of n samples in nats; None (an incomplete response) is a separate class.

    The plug-in value is too low by about (m - 1) / 2n for m possible answers, so compare at equal n.
    miller_madow adds (m_seen - 1) / 2n (Miller 1955), which corrects most of it if each answer was seen often.
    """
    if not len(answers):
        raise DataError("no answers: the entropy of no samples is not defined.")
    counts = np.unique([repr(answer) for answer in answers], return_counts=True)[1]  # repr: "None" is not None
    shares = counts / counts.sum()
    missing = (len(counts) - 1) / (2 * counts.sum()) if miller_madow else 0.0
    return float(-np.sum(shares * np.log(shares)) + missing)


def token_entropy(entropies: Sequence[ArrayLike]) -> float:
    """TokenEntropy of some responses: the mean over responses of the mean over their tokens of H_t (nats).

    entropies: one array (T_i,) per response, of the full next-token distribution at temperature 1, untruncated. Each
    response counts once, however long; the mean over all tokens would let long ones decide.
    """
    rows = [np.asarray(row, dtype=float).reshape(-1) for row in entropies]
    for i, row in enumerate(rows):
        if not row.size or not np.all(np.isfinite(row)) or np.any(row < 0):
            raise DataError(f"entropies[{i}] is empty, negative or not finite; pass H_t >= 0 of its counted tokens.")
    if not rows:
        raise DataError("no responses: the mean entropy of no tokens is not defined.")
    return float(np.mean([row.mean() for row in rows]))
