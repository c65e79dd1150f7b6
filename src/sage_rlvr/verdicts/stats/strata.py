"""Gains and losses by how often the base solves a problem, computed from samples that did not choose the group.

"RL solves problems that the base never solved" is usually read as follows: take the problems of which no base sample is right, and
count those that RL solves. The same samples then choose the problems and are the base's score, so the base scores 0 by choice, and
any policy beats it, even a second sample of the base. In this module one half of a side's samples puts a problem in a stratum, and
pass@k of that side is computed from the other half:

    D_s = sum_i P(A_i in s) (other_i - E[again_i | A_i in s])  /  sum_i P(A_i in s)

A_i: right samples of problem i in a random half of h of its n samples, hypergeometric given its c right ones; again_i: pass@k of
the other n - h samples; other_i: pass@k of the other side. Both sums are exact: all halves are averaged over, none is drawn. If the
other side is the same policy, D_s is 0 in expectation for every stratum, at any difficulty of the problems. `same` is pass@k of the
half that chose, the naive reading.

The intervals hold for all strata at once (Bonferroni). Over problems, or clusters of them: that of the difference of two shares,
P(A_i in s) other_i and E[again_i; A_i in s] (`OverProblems`), or if wider Student's with one degree of freedom less than problems
carry it, and at least `least_seen`; divided by the stratum's share, and wider if the share's own scatter adds to it. Over training
seeds: Student's t of the seeds' ratios; both half-widths in quadrature (`seeds_reach`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.stats.arrays import Floats, Ints
from sage_rlvr.verdicts.stats.intervals import Interval, OverProblems, carried_by, least_seen, seeds_reach
from sage_rlvr.verdicts.stats.laws import t_ppf
from sage_rlvr.verdicts.stats.paired import FEWEST_SEEDS, are_shares
from sage_rlvr.verdicts.stats.passk import pass_at_k
from sage_rlvr.verdicts.stats.samples.clusters import clustered_rows

SOLVED = (0, 2, 8)
"""Upper ends of the strata except the last: never, once or twice, up to eight times, more often, in one half."""
FEWEST = 8
"""Expected or effective problems below which a stratum has no interval."""
LEAST_SAMPLES = 4
"""Samples of a problem below which there are no halves."""


@dataclass(frozen=True)
class Stratum:
    """Problems of which a half of the sorting side's samples has between `low` and `high` right ones.

    low, high: Right samples, both included.
    share: Expected share of all problems.
    other: pass@k of the other side.
    again: pass@k of the sorting side, from the half that did not choose.
    same: pass@k of the sorting side, from the half that chose.
    difference: other less again; infinite if too few problems or training seeds are in the stratum.
    """

    low: int
    high: int
    share: float
    other: float
    again: float
    same: float
    difference: Interval

    @property
    def outcome(self) -> str:
        """The side of 0 on which the interval is: "higher", "lower", or "cannot be told" if it includes 0."""
        return "higher" if self.difference.low > 0 else "lower" if self.difference.high < 0 else "cannot be told"


@dataclass(frozen=True)
class Strata:
    """The strata of one side's problems. half: samples that choose; k: tries of pass@k."""

    half: int
    k: int
    strata: tuple[Stratum, ...]


def largest_k(samples: int) -> int:
    """The largest k for so many samples: the largest power of two within half of the half; 0 below `LEAST_SAMPLES`."""
    return 1 << ((samples // 4).bit_length() - 1) if samples >= LEAST_SAMPLES else 0


def stratified(
    n: ArrayLike, c: ArrayLike, n_other: ArrayLike, c_other: ArrayLike, k: int | None = None, *, half: int | None = None,
    cluster: Sequence[str] = (), level: float = 0.95,
) -> Strata:  # fmt: skip
    """Compare two sides by how often one of them solves a problem; see the module.

    Args:
        n: Samples of the sorting side, (S, N): one row per training seed, one column per problem.
        c: Right ones among them, (S, N).
        n_other: Samples of the other side, (S, N). One of the sides may have a single row for all seeds of the other.
        c_other: Right ones among them, (S, N).
        k: Tries, by default `largest_k` of the fewest samples on either side.
        half: Samples that choose the stratum, by default half of the sorting side's fewest; the others are read.
        cluster: (N,) labels of problems that belong together; by default each problem is independent.
        level: Coverage of all intervals at once.

    Raises:
        DataError: The shapes differ, or the samples do not suffice for halves and k.
    """
    sides = [np.atleast_2d(np.asarray(side, dtype=np.int64)) for side in (n, c, n_other, c_other)]
    shapes = [side.shape for side in sides]
    if shapes[0] != shapes[1] or shapes[2] != shapes[3] or shapes[0][1] != shapes[2][1] or 0 in shapes[0]:
        raise DataError(f"counts of shapes {', '.join(map(str, shapes))}; pass (S, N) each, one column per problem")
    rows = len(sides[0]), len(sides[2])
    if 1 not in rows and rows[0] != rows[1]:
        raise DataError(f"{rows[0]} and {rows[1]} training seeds; pass equally many, or one row for all")
    fewest = int(sides[0].min())
    k = largest_k(min(fewest, int(sides[2].min()))) if k is None else k
    half = fewest // 2 if half is None else half
    if fewest < LEAST_SAMPLES or not 1 <= k <= min(half, fewest - half):
        raise DataError(
            f"{fewest} samples of a problem, of which {half} choose its stratum, are too few for pass@{k}; draw at least "
            f"{max(4, 2 * k)}"
        )
    passed = np.asarray(pass_at_k(sides[2], sides[3], k))
    bounds = bounds_of(half)
    weight, same, again = _in_strata(sides[0], sides[1], half, k, bounds)
    seeds = max(rows)
    passed = np.broadcast_to(passed, (seeds, passed.shape[1]))
    weight, same, again = (np.broadcast_to(x, (seeds, *x.shape[1:])) for x in (weight, same, again))
    tail = (1 - level) / (2 * len(bounds))
    found = []
    for s, (low, high) in enumerate(bounds):
        chosen = weight[..., s]
        if not chosen.sum():
            continue
        of_other, of_again, of_same = ((x.sum() / chosen.sum()) for x in (chosen * passed, again[..., s], same[..., s]))
        difference = _difference(chosen, chosen * passed, again[..., s], cluster, level, tail)
        found.append(Stratum(low, high, float(chosen.mean()), float(of_other), float(of_again), float(of_same), difference))
    return Strata(half, k, tuple(found))


def bounds_of(half: int) -> list[tuple[int, int]]:
    """Fewest and most right samples of each stratum."""
    ends = [end for end in SOLVED if end < half] + [half]
    return list(zip([0, *(end + 1 for end in ends[:-1])], ends, strict=True))


def _in_strata(n: Ints, c: Ints, half: int, k: int, bounds: Sequence[tuple[int, int]]) -> tuple[Floats, Floats, Floats]:
    """P(A in s), E[1(A in s) pass@k of the half that chose] and E[1(A in s) pass@k of the rest], (S, N, strata) each."""
    kinds, place = np.unique(np.stack([n.ravel(), c.ravel()]), axis=1, return_inverse=True)
    a = np.arange(half + 1)
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, int(n.max()) + 1)))])  # of factorials
    of_half = np.asarray(pass_at_k(half, a, k))
    table = np.zeros((3, kinds.shape[1], len(bounds)))
    for i, (samples, right) in enumerate(kinds.T.tolist()):
        first, last = max(0, half - (samples - right)), min(half, right)
        at = a[first : last + 1]
        wrong = samples - right
        log_p = (logs[right] - logs[at] - logs[right - at]) + (logs[wrong] - logs[half - at] - logs[wrong - half + at])
        p = np.exp(log_p - (logs[samples] - logs[half] - logs[samples - half]))
        rest = np.asarray(pass_at_k(samples - half, right - at, k))
        for s, (low, high) in enumerate(bounds):
            inside = (at >= low) & (at <= high)
            table[:, i, s] = p[inside].sum(), p[inside] @ of_half[at[inside]], p[inside] @ rest[inside]
    weight, same, again = (side[place.reshape(-1)].reshape(*n.shape, -1) for side in table)
    return weight, same, again


def _difference(weight: Floats, other: Floats, again: Floats, cluster: Sequence[str], level: float, tail: float) -> Interval:
    """sum of (other - again) / sum of weight, (S, N) each, with its interval."""
    seeds, share = weight.shape[0], float(weight.mean())
    value = float((other - again).mean() / share)
    chosen, left, right = (clustered_rows(x.mean(axis=0)[None], cluster)[0] for x in (weight, other, again))
    n = len(chosen)
    over = "problems and their samples" if seeds == 1 else "training seeds and problems"
    unknown = Interval(value=value, low=-math.inf, high=math.inf, level=level, over=over, n=n)
    expected = share * n  # a hundred problems of a hundredth each are one
    many = min(expected, float(chosen.sum() ** 2 / (chosen**2).sum()))
    if many < FEWEST or 1 < seeds < FEWEST_SEEDS:
        return unknown
    moments = OverProblems.of(left, right, shares=are_shares(left[None], right[None], sampled=True))
    gaps = left - right
    wider = max(1.0, float((gaps - value * chosen).std()) / float(gaps.std())) if gaps.std() > 0 else 1.0
    carriers = max(1.0, min(many, carried_by(gaps)) - 1)  # few problems may carry a stratum: as many degrees of freedom
    student = float(t_ppf(1 - tail, carriers)) * float(gaps.std(ddof=1)) / math.sqrt(n)
    least = least_seen(n * seeds, level=1 - 2 * tail)
    reaches = (max(wider * float(side), wider * student, least) / share for side in moments.reach(1 - 2 * tail))
    if seeds > 1:
        ratios = (other - again).sum(axis=1) / np.maximum(weight.sum(axis=1), 1e-300)
        scatter = float(ratios.std(ddof=1)) / math.sqrt(seeds)
        reaches = (float(seeds_reach(scatter, side, seeds, 1 - tail)) for side in reaches)
    below, above = reaches
    return Interval(value=value, low=value - below, high=value + above, level=level, over=over, n=n).within(-1.0, 1.0)


__all__ = ["Strata", "Stratum", "bounds_of", "largest_k", "stratified"]
