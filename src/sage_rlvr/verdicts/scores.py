"""Scores of one arm on one task at one temperature, exact or from samples.

The scores are arrays per (arm, task, temperature) instead of a long table over k, because pass@k at every k follows from the exact
probability or the counts of a problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.chance import Chance
from sage_rlvr.verdicts.readers import CountTable
from sage_rlvr.verdicts.stats.arrays import Floats, Ints
from sage_rlvr.verdicts.stats.curves import with_problems
from sage_rlvr.verdicts.stats.intervals import Interval, least_seen, passk_interval, seed_interval, share_interval
from sage_rlvr.verdicts.stats.paired import control_error
from sage_rlvr.verdicts.stats.passk import curve, pass_at_k
from sage_rlvr.verdicts.stats.samples.clusters import clustered_mean

Z95 = 1.959964
"""Quantile for a normal 95 % interval."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ProblemScores:
    """Scores of one arm on one task at one temperature.

    values (S, N): one row per training seed, one column per problem: probabilities of a right completion (`n` None) or the number
        of right samples among n
    sizes (S, N): the number of samples of each problem, if problems differ; n is the smallest of all arms, and the largest k
    cluster (N,): labels of problems that belong together, () if each is independent
    tables: the rows of each seed, () for stores and exact scores"""

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
        """Return whether all problems have the same number of samples and are independent."""
        return self.sizes is None and not self.cluster

    @property
    def knows_temperature(self) -> bool:
        """Whether the temperature is that of a store or of rows, and not the assumed 1."""
        return not self.tables or any(table.group.temperature is not None for table in self.tables)

    def passes(self, ks: Sequence[int]) -> Floats:
        """pass@k of each seed and problem, (S, N, K); the unbiased estimate for samples."""
        if self.n is None:
            return np.stack([curve(row, list(ks)) for row in self.values])
        return np.stack([np.atleast_2d(pass_at_k(self.samples, self.values.astype(int), k)) for k in ks], axis=2)

    def interval(self, k: int, *, fixed: bool = False) -> Interval:
        """Mean pass@k with its interval: over problems and, for samples, their samples; for several training seeds over seeds
        and problems. fixed: over seeds only, or for a single policy over its samples only."""
        values = self.passes([k])[..., 0]
        if len(values) == 1:
            return self._over_samples(values[0], k) if fixed else self._over_problems(values[0], k)
        means, least = values.mean(axis=1), 0.0 if self.n is None else least_seen(self.values.size)
        interval = seed_interval(means, least=least)
        if not fixed:
            over = values.mean(axis=0)
            chosen = clustered_mean(over, self.cluster, shares=True) if self.cluster else share_interval(over)
            interval = with_problems(interval, chosen)
        return interval.within(0.0, 1.0)

    def _over_problems(self, values: Floats, k: int) -> Interval:
        """The interval of a single policy with these pass@k (N,), over problems."""
        if self.cluster:
            return clustered_mean(values, self.cluster, shares=True)
        return share_interval(values) if self.n is None else passk_interval(self.samples[0], self.values[0].astype(int), k)

    def _over_samples(self, values: Floats, k: int) -> Interval:
        """The interval of a single policy with these pass@k (N,) over samples, for these problems; an exact value has no error."""
        value = float(values.mean())
        half = 0.0 if self.n is None else Z95 * control_error(self.samples, self.values.astype(int), k)
        found = Interval(value=value, low=value - half, high=value + half, level=0.95, over="samples", n=self.n or 0)
        return found.within(0.0, 1.0)

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
