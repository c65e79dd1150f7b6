"""Perplexity of samples under the base model, and its tails (SAGE, arXiv 2605.18864, Eq. 39 and appendix J).

    PPL_m(y | x) = exp( -(1/T) sum_t log P_m(y_t | x, y_<t) )

m is the base model for every arm's samples, T counts the tokens of the response (end token included if it was counted).
A heavy upper tail means that an arm writes text that is rare under the base. It does not mean that this is right or new:
temperature, truncation and broken text raise it too, so report the tails of correct samples and of all samples, and samples of the
base with the same settings. Intervals resample problems with all their samples; the two problems of appendix J are too few for an
interval.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.stats.arrays import Floats, Ints
from sage_rlvr.verdicts.stats.intervals import RESAMPLES, SEED, Interval
from sage_rlvr.verdicts.stats.samples.clusters import clusters, pooled_share

QUANTILES = (0.5, 0.9, 0.95, 0.99)
FEW_PROBLEMS = 10


@dataclass(frozen=True, kw_only=True)
class Tails:
    """Distribution of one arm's perplexities under the base.

    quantiles: {level: interval of that quantile}; above: {threshold: interval of the share of samples above it};
    samples, problems: how many. Intervals are over problems.
    """

    quantiles: dict[float, Interval]
    above: dict[float, Interval]
    samples: int
    problems: int

    @property
    def caution(self) -> str:
        """Return a warning about intervals from very few problems; empty from 10 problems on."""
        if self.problems >= FEW_PROBLEMS:
            return ""
        return f"{self.samples} samples, but only {self.problems} problems: the intervals are rough."


def perplexities(logps: Sequence[ArrayLike]) -> Floats:
    """Eq. (39) for each response, (M,): logps has one array (T_i,) per response, with the base log-probs (nats) of its tokens.

    A token of probability 0 gives infinity. Raises DataError for an empty response, NaN or log-probs above 0.
    """
    means = np.empty(len(logps))
    for i, row in enumerate(logps):
        values = np.asarray(row, dtype=float).reshape(-1)
        if not values.size or np.any(np.isnan(values)) or np.any(values > 1e-6):
            raise DataError(
                f"logps[{i}] is empty, or holds NaN or values above 0; pass the base's log-probs of its tokens."
            )
        means[i] = values.mean()
    return _exp(-means)


def perplexities_from_sums(sums: ArrayLike, lengths: ArrayLike) -> Floats:
    """Eq. (39) from the summed log-probs (M,) and numbers of tokens (M,) of the responses, if only these were stored."""
    total, tokens = np.asarray(sums, dtype=float), np.asarray(lengths)
    if total.shape != tokens.shape or np.any(tokens < 1) or np.any(np.isnan(total)) or np.any(total > 1e-6 * tokens):
        raise DataError(
            f"sums {total.shape}, lengths {tokens.shape}: pass one sum <= 0 and one length >= 1 a response."
        )
    return _exp(-total / tokens)


def perplexity_tails(
    values: ArrayLike,
    problems: Sequence[Hashable],
    thresholds: Sequence[float] = (),
    *,
    quantiles: Sequence[float] = QUANTILES,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Tails:
    """Quantiles of perplexities (M,) and shares above fixed thresholds; problems (M,) names the problem of each sample.

    A quantile q is the smallest value that a share q of the samples does not exceed; its interval is the percentile
    bootstrap over problems (unbounded for one problem). For thresholds taken from the base's samples use `perplexity_excess`,
    whose interval also includes the uncertainty of the threshold.
    """
    ppl, of, n = _samples(values, problems)
    totals = np.bincount(of, minlength=n)
    shares = {
        float(x): pooled_share(np.bincount(of, ppl > x, n), totals, level=level, resamples=resamples, seed=seed)
        for x in thresholds
    }
    at = _weighted_quantiles(ppl, of)
    whole = at(np.ones(n), quantiles)
    drawn = np.array([at(weights, quantiles) for weights in _weights(n, resamples, seed)])
    ends = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=0, method="inverted_cdf")
    if n == 1:
        ends = np.array([np.full(len(whole), -np.inf), np.full(len(whole), np.inf)])
    intervals = {
        float(q): Interval(value=v, low=low, high=high, level=level, over="problems", n=n)
        for q, v, low, high in zip(quantiles, whole.tolist(), *ends.tolist(), strict=True)
    }
    return Tails(quantiles=intervals, above=shares, samples=len(ppl), problems=n)


def perplexity_excess(
    policy: ArrayLike,
    policy_problems: Sequence[Hashable],
    base: ArrayLike,
    base_problems: Sequence[Hashable],
    *,
    quantile: float = 0.95,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Interval:
    """Share of the policy's samples above the base's `quantile`, minus the share of the base's samples above it.

    Both arms were sampled on the same problems; these are resampled together and the threshold is computed again in every draw. 0
    for an arm that samples like the base, at most `quantile`; above 0 is a heavier tail.
    """
    theirs, their_problem, _ = _samples(base, base_problems)
    ours, our_problem, _ = _samples(policy, policy_problems)
    if set(policy_problems) != set(base_problems):
        raise DataError("policy and base were not sampled on the same problems; keep the problems that both have.")
    number = dict(zip(base_problems, their_problem.tolist(), strict=True))
    our_problem, n = np.array([number[p] for p in policy_problems]), len(number)
    at = _weighted_quantiles(theirs, their_problem)

    def gap(weights: Floats) -> float:
        cut = float(at(weights, [quantile])[0])
        return _share_above(ours, weights[our_problem], cut) - _share_above(theirs, weights[their_problem], cut)

    drawn = [gap(weights) for weights in _weights(n, resamples, seed)]
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2]) if n > 1 else (-np.inf, np.inf)
    return Interval(value=gap(np.ones(n)), low=float(low), high=float(high), level=level, over="problems", n=n)


def _weighted_quantiles(values: Floats, of: Ints) -> Callable[[Floats, Sequence[float]], Floats]:
    """A function of (weight of each problem, quantiles), so that the values are sorted once for all draws."""
    order = np.argsort(values, kind="stable")
    ordered, owner = values[order], of[order]

    def at(weights: Floats, quantiles: Sequence[float]) -> Floats:
        reached = np.cumsum(weights[owner])
        wanted = np.asarray(quantiles) * reached[-1]
        index = np.searchsorted(reached, wanted - 1e-9 * reached[-1], side="left")
        return np.asarray(ordered[np.minimum(index, len(ordered) - 1)])

    return at


def _weights(n: int, resamples: int, seed: int) -> Iterator[Floats]:
    """Count how often each of n problems occurs in each draw with replacement."""
    rng = np.random.default_rng(seed)
    for _ in range(resamples):
        yield np.bincount(rng.integers(n, size=n), minlength=n).astype(float)


def _share_above(values: Floats, weights: Floats, cut: float) -> float:
    return float(weights[values > cut].sum() / weights.sum())


def _samples(values: ArrayLike, problems: Sequence[Hashable]) -> tuple[Floats, Ints, int]:
    ppl = np.asarray(values, dtype=float)
    if ppl.ndim != 1 or not ppl.size or len(problems) != len(ppl) or not np.all(ppl >= 1 - 1e-6):
        raise DataError(
            f"perplexities of shape {ppl.shape} and {len(problems)} problems: pass one value >= 1 and the name of its "
            "problem per sample."
        )
    return ppl, *clusters(problems)


def _exp(values: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return np.maximum(np.exp(values), 1.0)
