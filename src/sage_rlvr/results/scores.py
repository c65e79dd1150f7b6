"""Scores of one arm on one task at one temperature, exact or from samples, behind one accessor.

Arrays per (arm, task, temperature) instead of a long table: pass@k at every k follows from the exact probability of a problem, or
from its counts, so that a table over k would hold each number many times; and no library of tables is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sage_rlvr.evaluation.record import Record
from sage_rlvr.stats.frontier import FrontierPoint, distinct_frontier, frontier
from sage_rlvr.stats.intervals import Interval, least_seen, passk_interval, seed_interval, share_interval
from sage_rlvr.stats.passk import curve, pass_at_k
from sage_rlvr.stats.support import reachable, success_probability

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
    """values (S, N): a row per training seed, a column per problem; probabilities of being right (`n` None), or right ones among n
    samples."""

    arm: str
    task: str
    temperature: float
    seeds: tuple[int, ...]
    problems: tuple[str, ...]
    values: Floats
    n: int | None = None

    def passes(self, ks: Sequence[int]) -> Floats:
        """pass@k of each seed and problem, (S, N, K); of samples the unbiased estimate."""
        if self.n is None:
            return np.stack([curve(row, list(ks)) for row in self.values])
        return np.stack([np.atleast_2d(pass_at_k(self.n, self.values.astype(int), k)) for k in ks], axis=2)

    def interval(self, k: int, *, several: bool = False) -> Interval:
        """Mean pass@k: over training seeds where there are several (or `several`, of one policy among such), else over problems
        and, of samples, their samples."""
        values = self.passes([k])[..., 0]
        if len(values) == 1 and not several:
            return (
                share_interval(values[0]) if self.n is None else passk_interval(self.n, self.values[0].astype(int), k)
            )
        if self.n is None:
            return seed_interval(values.mean(axis=1))
        found = seed_interval(values.mean(axis=1), least=least_seen(self.values.size))
        return replace(found, low=max(0.0, found.low), high=min(1.0, found.high)) if len(values) > 2 else found

    def only(self, seeds: Sequence[int]) -> Scores:
        """These seeds, in this order; one row that stands for all seeds (the base) stays as it is."""
        if len(self.values) == 1:
            return self
        rows = [self.seeds.index(seed) for seed in seeds]
        return replace(self, seeds=tuple(seeds), values=self.values[rows])


@dataclass(frozen=True, eq=False)
class Exact:
    """An exact record with what is read off it at `k` samples, made when it is asked for."""

    record: Record
    k: int

    @cached_property
    def p(self) -> Mapping[float, Floats]:
        """Temperature -> probability of being right, (N,)."""
        return {t: success_probability(rows) for t, rows in self.record.logps.items()}

    @cached_property
    def points(self) -> tuple[FrontierPoint, ...]:
        """Its temperature frontier."""
        return frontier(self.p, self.k)

    @cached_property
    def distinct(self) -> Mapping[float, float]:
        """Temperature -> `reach` at its own k."""
        return {t: self.reach(self.k, t) for t in self.record.logps}

    def reach(self, k: int, temperature: float = 1.0) -> float:
        """Expected number of distinct right completions in k samples, mean over problems."""
        return float(np.mean(reachable(self.record.logps[temperature], k)))

    def line(self, name: str, k: int) -> tuple[FrontierPoint, ...]:
        """The frontier of a metric: "distinct" at its own k, or pass@k at any."""
        return self.distinct_frontier if name == "distinct" else self.points if k == self.k else frontier(self.p, k)

    @cached_property
    def distinct_frontier(self) -> tuple[FrontierPoint, ...]:
        """The frontier with distinct right completions in the place of pass@k."""
        return distinct_frontier(self.points, self.distinct)
