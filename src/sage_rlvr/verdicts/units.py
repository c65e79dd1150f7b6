"""The units that a difference between two arms is over, chosen once when the two are paired (`units_of`).

    OneRunEach   one run of each arm: over problems, or clusters of them, and for samples their samples; about these checkpoints
    OverSeeds    several training seeds: over training seeds, and over problems unless these are fixed; about methods

Both have gap(k), the difference with its test; curve(k), the difference over k with its band; detectable(k, curve).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sage_rlvr.verdicts.scores import ProblemScores
from sage_rlvr.verdicts.stats.arrays import Floats
from sage_rlvr.verdicts.stats.curves import (
    CurveComparison,
    detectable_in_band,
    paired_count_curve,
    paired_curve,
    seed_ks,
    seeds_curve,
)
from sage_rlvr.verdicts.stats.paired import (
    FEWEST_SEEDS,
    PairedDifference,
    control_error,
    paired,
    paired_counts,
    paired_seed_counts,
    paired_seeds,
)
from sage_rlvr.verdicts.stats.passk import powers
from sage_rlvr.verdicts.stats.samples.clusters import clustered_rows


@dataclass(frozen=True, eq=False)
class OneRunEach:
    """One run of a and one of b, exact or from samples."""

    a: ProblemScores
    b: ProblemScores

    def gap(self, k: int) -> PairedDifference:
        """pass@k of a minus b."""
        a, b = self.a, self.b
        if a.n is None:
            return paired(a.passes([k])[0, :, 0], b.passes([k])[0, :, 0])
        right_a, right_b = (side.values[0].astype(int) for side in (a, b))
        return paired_counts(a.samples[0], right_a, right_b, k, n_b=b.samples[0], cluster=a.cluster or None)

    def curve(self, k: int, ks: Sequence[int] = ()) -> CurveComparison:
        """pass@k of a minus b with a band. ks: for exact scores, by default powers of two up to k; samples have every k."""
        a, b = self.a, self.b
        if a.n is None:
            ks = ks or powers(k)
            return paired_curve(a.passes(ks)[0], b.passes(ks)[0], ks)
        right_a, right_b = (side.values[0].astype(int) for side in (a, b))
        return paired_count_curve(a.samples[0], right_a, right_b, n_b=b.samples[0], cluster=a.cluster or None)

    def detectable(self, k: int, curve: CurveComparison) -> float:
        """The difference in pass@k that the band of this curve finds with 80 % power."""
        left, right = (clustered_rows(side.passes([k])[..., 0], self.a.cluster) for side in (self.a, self.b))
        return detectable_in_band(curve, left[0], right[0])


@dataclass(frozen=True, eq=False)
class OverSeeds:
    """Several training seeds of a, and as many of b or one run of it. fixed: on these problems, over training seeds only."""

    a: ProblemScores
    b: ProblemScores
    fixed: bool

    def gap(self, k: int) -> PairedDifference:
        """pass@k of a minus b."""
        a, b = self.a, self.b
        if a.n is None:
            left, right = np.broadcast_arrays(a.passes([k])[..., 0], b.passes([k])[..., 0])
            return paired_seeds(left, right, fixed=self.fixed)
        right_a, right_b = (side.values.astype(int) for side in (a, b))
        return paired_seed_counts(a.samples, right_a, right_b, k, n_b=b.samples, fixed=self.fixed, cluster=a.cluster)

    def curve(self, k: int, ks: Sequence[int] = ()) -> CurveComparison | None:
        """pass@k of a minus b with a band, at powers of four up to k: every k costs width. None for two training seeds."""
        if len(self.a.values) < FEWEST_SEEDS:
            return None
        ks = seed_ks(k if self.a.n is None else min(k, self.a.n))
        left, right = self._rows(ks)
        shared = [self._of_control(j) for j in ks]
        found = seeds_curve(left, right, ks, fixed=self.fixed, shared=shared, sampled=self.a.n is not None)
        return replace(found, problems=len(self.a.problems))

    def detectable(self, k: int, curve: CurveComparison) -> float:
        """The difference in pass@k that the band of this curve finds with 80 % power."""
        left, right = (rows[..., 0] for rows in self._rows([k]))
        return detectable_in_band(curve, left, right, shared=self._of_control(k), sampled=self.a.n is not None)

    def _rows(self, ks: Sequence[int]) -> Sequence[Floats]:
        """pass@k of both, (S, N, K) or per cluster."""
        cluster = () if self.fixed else self.a.cluster
        return np.broadcast_arrays(*(clustered_rows(side.passes(ks), cluster) for side in (self.a, self.b)))

    def _of_control(self, k: int) -> float:
        """Standard error that the samples of b, evaluated once, give to all differences on these problems."""
        b = self.b
        once = self.fixed and b.n and len(b.values) == 1
        return control_error(b.samples, b.values.astype(int), k) if once else 0.0


Units = OneRunEach | OverSeeds


def units_of(a: ProblemScores, b: ProblemScores, *, fixed: bool = False, several: bool | None = None) -> Units:
    """The units of the differences of two arms. several: whether the results are about methods, if other arms decide that too."""
    if several is None:
        several = max(len(a.values), len(b.values)) > 1
    return OverSeeds(a, b, fixed) if several else OneRunEach(a, b)
