"""maj@k: probability that the most frequent answer of k samples is right (self-consistency, Wang et al., arXiv 2203.11171).

    maj@k = E over the k-subsets of n samples of [ sum over winners a of r_a / number of winners ]

The winners are all answers with the most votes, so ties are split evenly, as by a fair draw among the tied. r_a is the
share of correct samples among those that gave answer a: 1 or 0 unless a verifier judged equal answers differently.
None (no answer found) is not a candidate: it uses one of the k places and never wins, and k times None scores 0.
Answers are compared as strings; give canonical ones, or 1/2 and 0.5 split their votes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.stats.arrays import Floats, Ints
from sage_rlvr.verdicts.stats.intervals import SEED
from sage_rlvr.verdicts.stats.samples.diversity import AnswerKeys, Tally, tally

DRAWS = 20_000
_EXACT_COST = 10**9  # k * k * n above which subsets are sampled: k = 1,024 of n = 1,024 is the edge


@dataclass(frozen=True, eq=False)
class Majority:
    """maj@k of one problem at ks: values (K,), their Monte-Carlo standard errors (K,), 0 if the value is exact."""

    ks: tuple[int, ...]
    values: Floats
    standard_errors: Floats

    @property
    def exact(self) -> NDArray[np.bool_]:
        """The values that are exact expectations over all subsets."""
        return np.asarray(self.standard_errors == 0)


def maj_at_k(
    answers: AnswerKeys,
    correct: ArrayLike,
    ks: Sequence[int],
    *,
    method: Literal["auto", "exact", "sample"] = "auto",
    draws: int = DRAWS,
    seed: int = SEED,
) -> Majority:
    """maj@k of one problem for every k in ks: answers (n,) strings or None, correct (n,) bool, 1 <= k <= n.

    "auto" is exact up to k * k * n = 10^9, and above it the mean over `draws` seeded subsets with its standard error.
    Raises DataError for k outside 1..n, naming it.
    """
    votes = tally(answers, correct)
    values, errors = np.zeros(len(ks)), np.zeros(len(ks))
    for j, k in enumerate(ks):
        if not 1 <= k <= votes.n:
            raise DataError(f"k = {k} of n = {votes.n} samples: maj@k needs 1 <= k <= n; draw more samples.")
        if method == "exact" or (method == "auto" and k * k * votes.n <= _EXACT_COST):
            values[j] = _expected(votes, k)
        else:
            values[j], errors[j] = _sampled(votes, k, draws, seed)
    return Majority(tuple(int(k) for k in ks), values, errors)


def _expected(votes: Tally, k: int) -> float:
    """The exact expectation.

    Drawn without replacement, the votes of the answers are independent Binomial(n_a, k/n) given that they sum to k. So
    for each winning vote w and each answer a that is ever right, count the ways in which a has w votes, t others have w
    too and the rest fewer; 1 / (t + 1) is the integral of s^t over [0, 1], which turns ties into a product over answers
    and is done exactly by Gauss-Legendre nodes s. All terms are positive: no digits are lost.
    """
    if k == votes.n:
        return float(_credit(votes.counts[None, :], votes)[0])
    rate, total = k / votes.n, 0.0
    shares = votes.right / np.maximum(votes.counts, 1)
    for wins in range(1, min(k, int(votes.counts.max(initial=0))) + 1):
        for a in np.flatnonzero((votes.right > 0) & (votes.counts >= wins)):
            others = np.delete(votes.counts, a)
            ways = _ways(others, votes.silent, wins, k - wins, rate)
            total += shares[a] * scipy.stats.binom.pmf(wins, votes.counts[a], rate) * ways
    return float(min(1.0, total / scipy.stats.binom.pmf(k, votes.n, rate)))


def _ways(others: Ints, silent: int, wins: int, left: int, rate: float) -> float:
    """Chance that the other answers (and the silent) fill `left` places with none above `wins`, each way weighted with
    1 / (1 + number of others that have `wins` votes too)."""
    bound = others[others >= wins]  # the only ones that could exceed
    free = int(others[others < wins].sum()) + silent
    nodes, weights = np.polynomial.legendre.leggauss(min(len(bound), left // wins) // 2 + 1)
    rows = np.tile(scipy.stats.binom.pmf(np.arange(left + 1), free, rate), (len(nodes), 1))
    for count in bound:
        votes = np.tile(scipy.stats.binom.pmf(np.arange(min(wins, left) + 1), count, rate), (len(nodes), 1))
        if wins <= left:
            votes[:, wins] *= (nodes + 1) / 2
        rows = _product(rows, votes)
    return float(weights @ rows[:, left] / 2)


def _product(rows: Floats, votes: Floats) -> Floats:
    """Coefficients of the products of polynomials, row by row, up to the degree of `rows`."""
    out = np.zeros_like(rows)
    for power in range(votes.shape[1]):
        out[:, power:] += rows[:, : rows.shape[1] - power] * votes[:, power : power + 1]
    return out


def _sampled(votes: Tally, k: int, draws: int, seed: int) -> tuple[float, float]:
    """Mean credit of seeded random subsets and its standard error, at least that of one odd draw."""
    rng = np.random.default_rng([seed, k])
    colors = np.append(votes.counts, votes.silent)
    drawn = rng.multivariate_hypergeometric(colors, k, size=draws, method="marginals")[:, :-1]
    credit = _credit(drawn, votes)
    spread = max(float(credit.std(ddof=1)), 1 / np.sqrt(draws))  # equal draws do not prove that all subsets are equal
    return float(credit.mean()), float(spread / np.sqrt(draws))


def _credit(drawn: Ints, votes: Tally) -> Floats:
    """Score of each subset: drawn (D, m) votes of each answer -> (D,); ties are split evenly, no votes score 0."""
    most = drawn.max(axis=1, initial=0, keepdims=True)
    winners = (drawn == most) & (most > 0)
    shares = votes.right / np.maximum(votes.counts, 1)
    return np.asarray((winners @ shares) / np.maximum(winners.sum(axis=1), 1))
