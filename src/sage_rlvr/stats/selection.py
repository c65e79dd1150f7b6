"""Whether a choice among arms had anything to choose by: how far their means differ, beside what seeds alone would make of them.

The best of several means is above its own true mean, the more so the more alike the arms are (the winner's curse), and where they
are alike the choice is a draw. Source: Fisher's analysis of variance in randomized blocks, arms by seeds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike

from sage_rlvr.errors import DataError


@dataclass(frozen=True)
class Spread:
    """arms: standard deviation of the arms' means. seeds: the one that equal arms would have, by their seeds alone. p: the chance
    that equal arms differ as much (F test)."""

    arms: float
    seeds: float
    p: float


def spread(scores: ArrayLike) -> Spread:
    """scores: (arms, seeds), paired by seed (the same prompts), in any unit. DataError for fewer than two of either, or NaN."""
    found = np.asarray(scores, dtype=float)
    if found.ndim != 2 or min(found.shape) < 2 or not np.isfinite(found).all():
        raise DataError(f"scores of shape {found.shape}: give finite ones of at least 2 arms (rows) and 2 seeds (columns)")
    arms, seeds = found.shape
    means = found.mean(axis=1, keepdims=True)
    rest = found - means - found.mean(axis=0, keepdims=True) + found.mean()
    noise = float((rest**2).sum()) / ((arms - 1) * (seeds - 1))  # variance of one run, what a seed does to all arms taken off
    between = float(means.var(ddof=1))
    if noise == 0:
        return Spread(math.sqrt(between), 0.0, 0.0 if between > 0 else 1.0)
    p = float(scipy.stats.f.sf(seeds * between / noise, arms - 1, (arms - 1) * (seeds - 1)))
    return Spread(math.sqrt(between), math.sqrt(noise / seeds), p)
