"""The power frontier: scores of the untrained base tempered over full completions, without any reward.

    pi_power(y | x) = pi(y | x)^power / Z(x, power),   Z(x, power) = sum over all completions y of pi(y | x)^power

Sampling colder token by token is not the only way to sharpen a policy. Tempering a full completion also looks ahead: a token
that leads to one likely completion beats one that leads to many unlikely ones. Power 1 is the policy itself, power infinity its
likeliest completion. It costs a search or a Markov chain to sample from, so it is no alternative at decoding time. It is a control:
scores on this frontier were in the base, and RL without new knowledge could reach them.

A `FrontierPoint` of this frontier has temperature 1 / power, so that all functions of `stats.frontier` apply to it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.stats.arrays import Floats
from sage_rlvr.verdicts.stats.frontier import FrontierPoint
from sage_rlvr.verdicts.stats.intervals import Interval, mean_interval
from sage_rlvr.verdicts.stats.passk import exact_pass_at_k
from sage_rlvr.verdicts.stats.support import reachable

POWERS = (1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0, 5.0, 7.0, 10.0, 20.0)
WIDEST = 0.005
"""Largest bound on a mean pass@1: a power with a less certain normalizer has no point on the frontier."""
MOST_UNSEEN = 0.05
"""Largest share of the tempered law on unseen completions, on average over problems."""
LEAST_ESS = 10.0
"""Least effective samples per problem, on average, for an importance-weighted mean."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Tempered:
    """One power: p (N,) of being right, mid of its bounds; bound (N,) half their distance; logps those of the right completions."""

    power: float
    p: Floats
    bound: Floats
    logps: tuple[Floats, ...]

    @property
    def known(self) -> bool:
        """Return whether the mean of p is known to `WIDEST`."""
        return float(self.bound.mean()) <= WIDEST

    def point(self, k: int) -> FrontierPoint:
        """Mean pass@1 and pass@k, at temperature 1 / power."""
        many = np.asarray(exact_pass_at_k(self.p, k))
        return FrontierPoint(temperature=1 / self.power, pass1=float(self.p.mean()), passk=float(many.mean()))

    def passk_bound(self, k: int) -> float:
        """Half the distance of the bounds on mean pass@k."""
        low, high = (np.asarray(exact_pass_at_k(np.clip(self.p + side * self.bound, 0, 1), k)) for side in (-1, 1))
        return float((high - low).mean() / 2)

    def distinct(self, k: int) -> float:
        """Expected number of distinct right completions in k samples, mean over problems."""
        return float(np.mean(reachable(self.logps, k)))


def tempered(logps: Sequence[ArrayLike], norms: Mapping[float, ArrayLike]) -> tuple[Tempered, ...]:
    """Every power of `norms`, weakest first: logps of all right completions of N problems at temperature 1, nats, and
    power -> (N, 2) bounds on log Z (`evaluation.exact`). Raises DataError if the two differ in the number of problems."""
    rows = [np.asarray(row, dtype=float).reshape(-1) for row in logps]
    return tuple(_one(rows, float(power), np.asarray(norms[power], dtype=float)) for power in sorted(norms))


def _one(rows: Sequence[Floats], power: float, norms: Floats) -> Tempered:
    if norms.shape != (len(rows), 2) or not np.all(norms[:, 0] <= norms[:, 1] + 1e-9):
        raise DataError(
            f"normalizers of shape {norms.shape} for {len(rows)} problems at power {power:g}: give (N, 2), lower and upper."
        )
    right = np.array([logsumexp(power * row) if row.size else -math.inf for row in rows])
    least = np.maximum(norms[:, 0], right)  # all completions include the right ones, listed above the floor or not
    low, high = np.exp(right - np.maximum(norms[:, 1], least)), np.exp(right - least)
    p = np.clip((low + high) / 2, 0.0, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):  # no right completion: log 0
        shift = np.where(p > 0, right - np.log(p), 0.0)
    own = tuple(np.minimum(power * row - z, 0.0) for row, z in zip(rows, shift, strict=True))
    return Tempered(power=power, p=p, bound=(high - low) / 2, logps=own)


def power_frontier(
    logps: Sequence[ArrayLike], norms: Mapping[float, ArrayLike], k: int = 256
) -> tuple[FrontierPoint, ...]:
    """Points of the powers that are known to `WIDEST`, sharpest first as `frontier` has its coldest; temperature is 1 / power."""
    return tuple(one.point(k) for one in reversed(tempered(logps, norms)) if one.known)


def power_table(logps: Sequence[ArrayLike], norms: Mapping[float, ArrayLike]) -> dict[float, Floats]:
    """The probabilities (N,) used by `power_frontier`, at temperature 1 / power."""
    return {1 / one.power: one.p for one in tempered(logps, norms) if one.known}


@dataclass(frozen=True, kw_only=True)
class Reweighted:
    """pass@1 of a policy tempered over full completions, from its samples: `pass1` is None if there is a `reason`.

    ess: mean effective number of samples per problem, (sum w)^2 / sum w^2. unseen: mean over problems of the share of the tempered
        law on completions that were not drawn, at most; `pass1` may be off by as much, in addition to its interval.
    """

    power: float
    pass1: Interval | None
    ess: float
    unseen: float
    reason: str = ""


def reweighted(
    logps: Sequence[ArrayLike],
    right: Sequence[ArrayLike],
    names: Sequence[Collection[Hashable]],
    power: float,
    *,
    level: float = 0.95,
) -> Reweighted:
    """Estimate pass@1 of a tempered policy if completions cannot be listed: samples of pi at temperature 1, weighted by
    pi(y)^(power - 1), problem by problem.

    logps, right, names: N arrays (n,), log-probability of each full sample in nats, whether it is right, and its identity.
    The estimate is sum w r / sum w. Its effective sample size cannot validate it: that is largest if the likely
    completions were all missed. So the share that was not drawn is bounded: with s completions seen once among n, those never seen
    have about s / n of pi (Good and Turing), and one of more than -ln(0.05) / n stays unseen in only one case of 20. Under the
    tempered law they have at most (s + 1) / n * (-ln(0.05) / n)^(power - 1) against mean(w). There is no estimate if that is above
    `MOST_UNSEEN`, or the effective sample size below `LEAST_ESS`, on average. pass@k is not estimated: it needs p itself.
    """
    if not len(logps) == len(right) == len(names) or not len(logps):
        raise DataError(
            f"{len(logps)}, {len(right)} and {len(names)} problems: give log-probs, verdicts and names of the same ones."
        )
    values, sizes, missing = [], [], []
    for i, (row, marks, labels) in enumerate(zip(logps, right, names, strict=True)):
        own, hits = np.asarray(row, dtype=float), np.asarray(marks, dtype=float)
        if not own.shape == hits.shape == (len(labels),) or not own.size or not np.all(np.isfinite(own)):
            raise DataError(
                f"problem {i}: {own.shape} log-probs, {hits.shape} verdicts, {len(labels)} names; give finite ones, one per sample."
            )
        n, top = len(own), float(own.max())
        w = np.exp((power - 1) * (own - top))
        values.append(float(np.sum(w * hits) / np.sum(w)))
        sizes.append(float(np.sum(w) ** 2 / np.sum(w**2)))
        once = sum(count == 1 for count in Counter(labels).values())
        rest = min(1.0, (once + 1) / n) * math.exp(min((power - 1) * (math.log(-math.log(0.05) / n) - top), 700.0))
        missing.append(rest / (rest + float(w.mean())))
    ess, unseen = float(np.mean(sizes)), float(np.mean(missing))
    reason = ""
    if ess < LEAST_ESS:
        reason = f"not available: {ess:.1f} effective samples per problem, at least {LEAST_ESS:g} are needed; add samples"
    elif unseen > MOST_UNSEEN:
        reason = (
            f"not available: unsampled completions may have {unseen:.0%} of the mass, at most {MOST_UNSEEN:.0%} is "
            "allowed; add samples"
        )
    pass1 = None if reason else mean_interval(values, level=level, over="problems and their samples")
    return Reweighted(power=power, pass1=pass1, ess=ess, unseen=unseen, reason=reason)


__all__ = [
    "LEAST_ESS",
    "MOST_UNSEEN",
    "POWERS",
    "WIDEST",
    "Reweighted",
    "Tempered",
    "power_frontier",
    "power_table",
    "reweighted",
    "tempered",
]
