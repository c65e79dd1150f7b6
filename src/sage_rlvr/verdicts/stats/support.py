"""Exact support (Definition 4.1 of the SAGE paper): the correct completions with probability above a threshold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.stats.arrays import Floats
from sage_rlvr.verdicts.stats.passk import check_probabilities, exact_pass_at_k


@dataclass(frozen=True, kw_only=True)
class SupportChange:
    """Correct completions (and problems) by membership in supp_eps of base and policy; Invisible Leash, 2507.14843.

    `preserved`: in both; `gained`: in the policy's only (expansion); `lost`: in the base's only (shrinkage);
    `outside`: in neither. The `*_problems` fields count a problem as supported when one correct completion at least is.
    """

    eps: float
    preserved: int
    gained: int
    lost: int
    outside: int
    preserved_problems: int
    gained_problems: int
    lost_problems: int
    outside_problems: int

    @property
    def retention(self) -> float:
        """SRR, preserved / (preserved + lost) over completions; 0 if the base supports nothing."""
        return share_of(self.preserved, self.preserved + self.lost)

    @property
    def discovery(self) -> float:
        """NDR, gained / (preserved + gained) over completions; 0 if the policy supports nothing."""
        return share_of(self.gained, self.preserved + self.gained)


def support(logps: Sequence[ArrayLike], eps: float) -> NDArray[np.int64]:
    """The number of correct completions of each problem that have probability above eps: (N,) counts.

    logps: one array of log-probabilities per problem, one entry for each of its correct completions (all of them: the
    world is enumerable). Definition 4.1: supp_eps(pi) = {correct y : pi(y | x) > eps}.
    """
    return np.array([int(np.sum(inside)) for inside in _inside(logps, eps, "logps")], dtype=np.int64)


def exact_cells(base: Sequence[ArrayLike], policy: Sequence[ArrayLike], eps: float) -> tuple[Floats, Floats]:
    """Counts of supported completions, problem by problem: (N, 4), and (N, 4) with one 1 per problem; preserved, gained,
    lost, outside. Raises DataError when the two do not list the same completions."""
    before, after = _inside(base, eps, "base"), _inside(policy, eps, "policy")
    if [len(x) for x in before] != [len(x) for x in after]:
        raise DataError("base and policy list different numbers of correct completions; score the same with both.")
    rows = [cells(old, new).sum(axis=0) for old, new in zip(before, after, strict=True)]
    any_of = ([x.any() for x in side] for side in (before, after))
    return np.array(rows).reshape(-1, 4), cells(*any_of)


def cells(old: ArrayLike, new: ArrayLike) -> Floats:
    """(N,) 0/1, or chances that are independent, of base and policy -> (N, 4): both, the policy only, the base only, neither."""
    b, p = np.asarray(old, dtype=float), np.asarray(new, dtype=float)
    return np.stack([b * p, (1 - b) * p, b * (1 - p), (1 - b) * (1 - p)], axis=1)


def support_change(base: Sequence[ArrayLike], policy: Sequence[ArrayLike], eps: float) -> SupportChange:
    """Count the correct completions that the policy preserved, gained and lost; both lists in the same order of problems and
    completions. Raises DataError when they do not list the same completions."""
    counts = np.concatenate([part.sum(axis=0) for part in exact_cells(base, policy, eps)]).astype(int).tolist()
    fields = ("preserved", "gained", "lost", "outside")
    return SupportChange(eps=eps, **dict(zip([*fields, *(f"{name}_problems" for name in fields)], counts, strict=True)))


def exact_pcmd(logps: Sequence[ArrayLike]) -> Floats:
    """Chance that two correct samples are different completions, (N,): 1 - sum p^2 / (sum p)^2; NaN if none has any probability.

    `stats.samples.diversity.pcmd` estimates it from samples. logps, and DataError, as in `support`."""
    chances = []
    for i, given in enumerate(logps):
        row = _finite_or_minus_inf(given, f"logps[{i}]")
        top = row.max(initial=-math.inf)
        if top == -math.inf:
            chances.append(math.nan)
            continue
        shares = np.exp(row - top)  # of the largest: completions of 55 tokens may all have a p whose square underflows
        chances.append(1.0 - float(np.sum((shares / shares.sum()) ** 2)))
    return np.array(chances)


def success_probability(logps: Sequence[ArrayLike]) -> Floats:
    """p of being right, (N,): the sum of the probabilities of all correct completions of each problem."""
    sums = [math.fsum(np.exp(_finite_or_minus_inf(row, f"logps[{i}]")).tolist()) for i, row in enumerate(logps)]
    return check_probabilities(sums)


def reachable(logps: Sequence[ArrayLike], k: int = 256) -> Floats:
    """Expected number of distinct correct completions among k independent samples, (N,): sum of 1 - (1 - p_y)^k."""
    rows = [_finite_or_minus_inf(row, f"logps[{i}]") for i, row in enumerate(logps)]
    return np.array([float(np.sum(exact_pass_at_k(np.exp(row), k))) if row.size else 0.0 for row in rows])


def _inside(logps: Sequence[ArrayLike], eps: float, name: str) -> list[NDArray[np.bool_]]:
    if not 0 <= eps < 1:
        raise DataError(f"eps = {eps}: a support threshold is a probability in [0, 1), for example 1/256.")
    log_eps = math.log(eps) if eps > 0 else -math.inf
    return [_finite_or_minus_inf(row, f"{name}[{i}]") > log_eps for i, row in enumerate(logps)]


def _finite_or_minus_inf(row: ArrayLike, where: str) -> Floats:
    values = np.asarray(row, dtype=float).reshape(-1)
    if np.any(np.isnan(values)) or np.any(values > 1e-6):
        raise DataError(f"{where} holds NaN or values above 0; pass log-probabilities of whole completions.")
    return np.asarray(np.minimum(values, 0.0))


def share_of(part: float, whole: float) -> float:
    """part / whole, 0 if both are 0."""
    return part / whole if whole else 0.0
