"""Kinds of right answers before and after training, exact from the probabilities of all right completions.

Every right completion y of a problem x has a class c(y), its operators, its tree or both. With P(c | x) = sum of pi(y | x)
over the right y of class c:

    share(c)          sum_x P(c | x) / sum_x P(right | x): the share of class c among the right answers of the policy
    effective         mean over x of exp(-sum_c s_c log s_c), s_c = P(c | x) / P(right | x): Hill's number of order 1 (1973)
    reachable         mean over x of sum_c 1 - (1 - P(c | x))^k: expected different classes among k samples
    kept, lost        completions of the class in the support of Definition 4.1 (SAGE, arXiv 2605.18864), base against policy

There is no sampling noise; intervals are over problems. The caller defines the classes: this file knows no task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.stats.arrays import Floats
from sage_rlvr.verdicts.stats.intervals import Interval
from sage_rlvr.verdicts.stats.passk import exact_pass_at_k
from sage_rlvr.verdicts.stats.samples.clusters import ratio_interval

Labels = Sequence[Sequence[str]]  # per problem, the class of each right completion

_RESAMPLES = 1000


@dataclass(frozen=True, kw_only=True)
class ClassOfAnswers:
    """One class of right answers under one policy.

    completions: right ones of this class over all problems; share: of the right answers given, with its interval over
    problems; supported: completions with probability above eps; kept, gained, lost: against the base, None for the base.
    """

    name: str
    completions: int
    share: Interval
    supported: int
    kept: int | None = None
    gained: int | None = None
    lost: int | None = None


def class_masses(logps: Sequence[ArrayLike], labels: Labels) -> dict[str, Floats]:
    """P(c | x) of every class, (N,) each, classes in alphabetical order. logps: one array per problem, as `labels`."""
    flat, names, code, owner = _flat(logps, labels)
    table = np.bincount(code * len(logps) + owner, np.exp(flat), len(names) * len(logps)).reshape(len(names), -1)
    return {name: np.minimum(row, 1.0) for name, row in zip(names, table, strict=True)}


def classes_of_answers(
    logps: Sequence[ArrayLike],
    labels: Labels,
    *,
    base: Sequence[ArrayLike] | None = None,
    eps: float = 1 / 256,
    intervals: bool = True,
) -> dict[str, ClassOfAnswers]:
    """Every class with its share and its support; `base` is the base's logps of the same completions, None for the base.

    intervals: False leaves the intervals of the shares infinite, for means over training seeds, which have other intervals. Raises
        DataError if labels and completions differ in number, or if no completion has any probability.
    """
    flat, names, code, _ = _flat(logps, labels)
    masses = class_masses(logps, labels)
    total = np.asarray(sum(masses.values()))
    if not len(total) or not total.any():
        raise DataError("no right completion has any probability; classes are counted among right answers only.")

    def count(these: NDArray[np.bool_]) -> list[int]:
        counted: list[int] = np.bincount(code[these], minlength=len(names)).tolist()
        return counted

    inside = flat > np.log(eps)
    before = None if base is None else _flat(base, labels)[0] > np.log(eps)
    rows: list[list[int] | None] = [None, None, None]
    if before is not None:
        rows = [count(before & inside), count(~before & inside), count(before & ~inside)]
    everything, supported = count(np.ones(len(code), dtype=bool)), count(inside)
    return {
        name: ClassOfAnswers(
            name=name,
            completions=everything[i],
            share=_share(masses[name], total, intervals),
            supported=supported[i],
            kept=None if rows[0] is None else rows[0][i],
            gained=None if rows[1] is None else rows[1][i],
            lost=None if rows[2] is None else rows[2][i],
        )
        for i, name in enumerate(names)
    }


def effective_classes(logps: Sequence[ArrayLike], labels: Labels) -> Floats:
    """Effective number of classes among the right answers of each problem, (N,); 1 if all mass is on one class.

    NaN if no right completion of a problem has any probability.
    """
    masses = np.stack(list(class_masses(logps, labels).values()), axis=1)
    total = masses.sum(axis=1, keepdims=True)
    shares = np.divide(masses, total, out=np.zeros_like(masses), where=total > 0)
    logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    return np.where(total[:, 0] > 0, np.exp(-np.sum(shares * logs, axis=1)), np.nan)


def reachable_classes(logps: Sequence[ArrayLike], labels: Labels, k: int = 256) -> Floats:
    """Expected number of different classes among the right answers in k independent samples of each problem, (N,)."""
    masses = class_masses(logps, labels).values()
    return np.asarray(sum((np.asarray(exact_pass_at_k(mass, k)) for mass in masses), np.zeros(len(logps))))


def _share(mass: Floats, total: Floats, interval: bool) -> Interval:
    if interval:
        return ratio_interval(mass, total, resamples=_RESAMPLES)
    value = float(mass.sum() / total.sum())
    return Interval(value=value, low=-np.inf, high=np.inf, level=0.95, over="problems", n=len(mass))


def _flat(logps: Sequence[ArrayLike], labels: Labels) -> tuple[Floats, list[str], NDArray[np.int64], NDArray[np.int64]]:
    """All completions in one row: log-probs, class names, number of the class and of the problem of each."""
    rows = [np.asarray(row, dtype=float).reshape(-1) for row in logps]
    if [len(row) for row in rows] != [len(names) for names in labels]:
        raise DataError("labels and log-probs list different numbers of completions; label those that were scored.")
    names = sorted({name for row in labels for name in row})
    index = {name: i for i, name in enumerate(names)}
    code = np.array([index[name] for row in labels for name in row], dtype=np.int64)
    owner = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    return np.concatenate([*rows, np.zeros(0)]), names, code, owner
