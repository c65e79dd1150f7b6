"""Scores of one arm on one task at one temperature, exact or from samples.

The scores are arrays per (arm, task, temperature) instead of a long table over k, because pass@k at every k follows from the exact
probability or the counts of a problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sage_rlvr.errors import DataError
from sage_rlvr.results.readers import CountTable
from sage_rlvr.stats.comparison import FEWEST_SEEDS, control_error
from sage_rlvr.stats.curves import CurveComparison, paired_count_curve, paired_curve, seed_ks, seeds_curve
from sage_rlvr.stats.intervals import Interval, least_seen, passk_interval, seed_interval, share_interval
from sage_rlvr.stats.passk import Floats, Ints, curve, pass_at_k, powers
from sage_rlvr.stats.samples.clusters import clustered_mean
from sage_rlvr.tasks.chance import Chance


@dataclass(frozen=True, kw_only=True, eq=False)
class ProblemScores:
    """values (S, N): one row per training seed, one column per problem; probabilities of a right completion (`n` None) or the
    number of right samples among n. sizes (S, N): the number of samples of each problem, where problems differ; n is then the
    smallest of both arms, the largest k. cluster (N,): problems that belong together, () where each is its own. tables: the rows of
    each seed, () for stores and exact scores."""

    arm: str
    task: str
    temperature: float
    seeds: tuple[int, ...]
    problems: tuple[str, ...]
    values: Floats
    n: int | None = None
    sizes: Ints | None = None
    cluster: tuple[str, ...] = ()
    tables: tuple[CountTable, ...] = ()

    @property
    def samples(self) -> Ints:
        """Samples of each seed and problem, (S, N)."""
        return np.full(self.values.shape, self.n or 0) if self.sizes is None else self.sizes

    @property
    def is_plain(self) -> bool:
        """Whether all problems have the same number of samples and each is its own cluster."""
        return self.sizes is None and not self.cluster

    def passes(self, ks: Sequence[int]) -> Floats:
        """pass@k of each seed and problem, (S, N, K); the unbiased estimate for samples."""
        if self.n is None:
            return np.stack([curve(row, list(ks)) for row in self.values])
        return np.stack([np.atleast_2d(pass_at_k(self.samples, self.values.astype(int), k)) for k in ks], axis=2)

    def interval(self, k: int, *, several: bool = False) -> Interval:
        """Mean pass@k with an interval over training seeds if there are several (or with `several`), else over problems and, for
        samples, their samples."""
        values = self.passes([k])[..., 0]
        if len(values) == 1 and not several and self.cluster:
            return clustered_mean(values[0], self.cluster, shares=True)
        if len(values) == 1 and not several:
            return (
                share_interval(values[0]) if self.n is None else passk_interval(self.samples[0], self.values[0].astype(int), k)
            )
        if self.n is None:
            return seed_interval(values.mean(axis=1))
        interval = seed_interval(values.mean(axis=1), least=least_seen(self.values.size))
        return replace(interval, low=max(0.0, interval.low), high=min(1.0, interval.high)) if len(values) > 2 else interval

    def below(self, k: int, chance: Chance) -> bool:
        """`Chance.below` of the mean pass@k."""
        return chance.below(k, float(self.passes([k]).mean()), None if self.n is None else self.interval(k).high)

    def only(self, seeds: Sequence[int]) -> ProblemScores:
        """Only these seeds, in this order; a single row for all seeds (the base) is returned unchanged."""
        if len(self.values) == 1:
            return self
        rows = [self.seeds.index(seed) for seed in seeds]
        return replace(self, seeds=tuple(seeds), values=self.values[rows], sizes=None if self.sizes is None else self.sizes[rows])

    def check_alike(self, other: ProblemScores) -> None:
        """Raise DataError unless both arms have the same problems and the same numbers of samples and training seeds."""
        if self.problems != other.problems:
            raise DataError(f"{self.arm} and {other.arm} have different problems of {self.task}; complete both evaluations first")
        if self.n != other.n:
            least = min(self.n or 0, other.n or 0)
            raise DataError(
                f"{self.task}: n = {self.n} for {self.arm}, {other.n} for {other.arm}; compare the first {least} samples of each, "
                "or add samples to the other"
            )
        if len(other.values) not in (1, len(self.values)):
            raise DataError(f"{self.arm} and {other.arm}: unequal numbers of training seeds on {self.task}; pass equally many")

    def band(self, other: ProblemScores, k: int, *, several: bool, ks: Sequence[int] = ()) -> CurveComparison | None:
        """This minus the other over k with a simultaneous band; None for two training seeds. ks: for exact scores; by default
        powers of two, for several seeds powers of four."""
        if not several and self.n is not None:
            counts = (row.values[0].astype(int) for row in (self, other))
            return paired_count_curve(self.samples[0], *counts, n_b=other.samples[0], cluster=self.cluster or None)
        if not several:
            ks = ks or powers(k)
            return paired_curve(self.passes(ks)[0], other.passes(ks)[0], ks)
        if len(self.values) < FEWEST_SEEDS:
            return None
        ks = seed_ks(k if self.n is None else min(k, self.n))
        left, right = np.broadcast_arrays(self.passes(ks), other.passes(ks))
        fixed = other.n and len(other.values) == 1
        error = [control_error(other.samples, other.values.astype(int), j) for j in ks] if fixed else 0.0
        return seeds_curve(left, right, ks, shared=error)
