"""Problems of the base that training kept, gained and lost (Invisible Leash, arXiv 2507.14843).

With h = "at least one right answer among k samples" of each problem, for base and policy:
    P preserved: both     E expansion: policy only     S shrinkage: base only     O out of support: neither
    SRR = P / (P + S)     NDR = E / (P + E)     NSCR = (E - S) / (P + E + S)
    SDS = 2 P E / (P^2 + 2 P E + E S), the harmonic mean of SRR and NDR
0 / 0 is 0 throughout (a convention of this package; the paper states none).

"In support" at k samples means "was seen", not "has probability above eps": a problem of p = 1/k is missed 37 times in
100, by either model, so E and S both contain noise. Hence `leash_noise_floor` (what two runs of one model would show),
`leash_sampling_error` (of one evaluation, problems fixed), `leash_intervals` (over problems), `mcnemar_p` (E against S) and
`leash_discoveries` (which single problems are more than luck). If all right completions can be listed, `leash_exact`
counts them under Definition 4.1 and `leash_expected` gives the expectations without noise; `exact_cells` and
`expected_cells` give the same problem by problem, for `rate_intervals`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.stats.arrays import Bools, Floats, Ints
from sage_rlvr.verdicts.stats.intervals import RESAMPLES, SEED, Interval
from sage_rlvr.verdicts.stats.laws import beta_ppf
from sage_rlvr.verdicts.stats.passk import exact_pass_at_k, pass_at_k
from sage_rlvr.verdicts.stats.samples.clusters import pooled_share, ratio_interval
from sage_rlvr.verdicts.stats.support import cells, exact_cells, share_of

SPLITS = 2000
_NEVER = -700.0  # log of a probability that is 0 as a float


@dataclass(frozen=True)
class LeashCounts:
    """Problems (or completions) by who reaches them; integers if seen, fractions if expected."""

    preserved: float
    expanded: float
    shrunk: float
    outside: float

    @property
    def total(self) -> float:
        """The number of problems or completions."""
        return self.preserved + self.expanded + self.shrunk + self.outside

    @property
    def srr(self) -> float:
        """Support retention rate, P / (P + S)."""
        return share_of(self.preserved, self.preserved + self.shrunk)

    @property
    def ndr(self) -> float:
        """Net discovery rate, E / (P + E)."""
        return share_of(self.expanded, self.preserved + self.expanded)

    @property
    def sds(self) -> float:
        """Support dynamic score, the harmonic mean of SRR and NDR; 0 if either is 0."""
        return share_of(2 * self.srr * self.ndr, self.srr + self.ndr)

    @property
    def nscr(self) -> float:
        """Net support change rate, (E - S) / (P + E + S); swapping the models changes its sign."""
        return share_of(self.expanded - self.shrunk, self.preserved + self.expanded + self.shrunk)

    @property
    def rates(self) -> dict[str, float]:
        """All four by name."""
        return {"SRR": self.srr, "NDR": self.ndr, "SDS": self.sds, "NSCR": self.nscr}


@dataclass(frozen=True, eq=False)
class Discoveries:
    """Problems that only one model solved, and whether luck explains it; all arrays (N,).

    p_new, p_lost: Fisher's two-sided p of the split, 1 if the other model solved the problem too
    adjusted: the chance that equal models would show, on any problem, a lone solver with a p this small (1 if both or neither
        solved it)
    new, lost: whether that chance is at most alpha
    base_below, policy_below: upper Clopper-Pearson bounds at 1 - alpha on each model's probability of solving
    """

    new: Bools
    lost: Bools
    p_new: Floats
    p_lost: Floats
    adjusted: Floats
    base_below: Floats
    policy_below: Floats


def leash_counts(base_hit: ArrayLike, policy_hit: ArrayLike) -> LeashCounts:
    """P, E, S, O of two 0/1 arrays (N,), one entry per problem; expected ones from probabilities of hitting, since the
    two models' samples are independent."""
    return LeashCounts(*_cells(base_hit, policy_hit).sum(axis=0).tolist())


def leash_at_k(n_base: ArrayLike, c_base: ArrayLike, n_policy: ArrayLike, c_policy: ArrayLike, k: int) -> LeashCounts:
    """P, E, S, O at k samples from n >= k samples with c right ones, each (N,): unbiased for the expected counts.

    A hit has the unbiased pass@k, and the two estimates are independent, so products of them are unbiased too. At
    k = n these are the plain counts of any-of-n. The rates of expected counts are not the expected rates.
    """
    return leash_counts(*_hits(n_base, c_base, n_policy, c_policy, k))


def leash_expected(p_base: ArrayLike, p_policy: ArrayLike, k: int) -> LeashCounts:
    """Expected P, E, S, O at k samples if the probabilities of being right (N,) are known exactly."""
    return leash_counts(exact_pass_at_k(p_base, k), exact_pass_at_k(p_policy, k))


def leash_exact(base: Sequence[ArrayLike], policy: Sequence[ArrayLike], eps: float) -> tuple[LeashCounts, LeashCounts]:
    """(over completions, over problems) under Definition 4.1 of the SAGE paper: in support is pi(y | x) > eps.

    base, policy: log-probs of all right completions of each problem, as for `exact_cells`, which counts them. Free
    of sampling noise; problems without a right completion above eps in either model are not counted.
    """
    completions, problems = (LeashCounts(*map(int, part.sum(axis=0))) for part in exact_cells(base, policy, eps))
    return completions, problems


def expected_cells(p_base: ArrayLike, p_policy: ArrayLike, k: int) -> Floats:
    """`leash_expected` problem by problem, (N, 4) chances of P, E, S, O."""
    return _cells(exact_pass_at_k(p_base, k), exact_pass_at_k(p_policy, k))


def detectable_probability(k: int, zeta: float = 0.05) -> float:
    """Return the largest p that is plausible after k misses in a row: (1 - p)^k = zeta, p = 1 - zeta^(1/k) (about -ln(zeta) /
    k)."""
    if k < 1 or not 0 < zeta < 1:
        raise DataError(f"k = {k}, zeta = {zeta}: k counts samples from 1 on, zeta is a chance between 0 and 1.")
    return float(-np.expm1(np.log(zeta) / k))


def leash_intervals(
    n_base: ArrayLike, c_base: ArrayLike, n_policy: ArrayLike, c_policy: ArrayLike, k: int,
    *, level: float = 0.95, resamples: int = RESAMPLES, seed: int = SEED,
) -> dict[str, Interval]:  # fmt: skip
    """SRR, NDR, SDS and NSCR of `leash_at_k`, each with an interval over problems (samples as they fell).

    SRR and NDR are shares (`pooled_share`: no zero width if E = 0); NSCR is a ratio, but if E (or S) is 0
    a bootstrap never sees any, so its upper end is raised by that of NDR (its lower end lowered by that of 1 - SRR); SDS
    runs from the harmonic mean of the lower ends of SRR and NDR to that of the upper ends, wider than it need be. A rate
    of 0 / 0 is left out.
    """
    chances = _cells(*_hits(n_base, c_base, n_policy, c_policy, k))
    return rate_intervals(chances, level=level, resamples=resamples, seed=seed)


def rate_intervals(
    parts: ArrayLike, *, level: float = 0.95, resamples: int = RESAMPLES, seed: int = SEED
) -> dict[str, Interval]:
    """The rates of sum(parts) and their intervals over problems: parts (N, 4), P, E, S, O of each problem, as chances of one
    problem or counts of its completions. Which interval each rate gets: `leash_intervals`."""
    p, e, s, _ = np.asarray(parts, dtype=float).T
    options: dict[str, Any] = {"level": level, "resamples": resamples, "seed": seed}
    out: dict[str, Interval] = {}
    if (p + s).sum() > 0:
        out["SRR"] = pooled_share(p, p + s, **options)
    if (p + e).sum() > 0:
        out["NDR"] = pooled_share(e, p + e, **options)
    if len(out) == 2:
        out["SDS"] = _harmonic(out["SRR"], out["NDR"])
    if (p + e + s).sum() > 0:
        net = ratio_interval(e - s, p + e + s, **options)
        any_ = p + e + s  # what could have been lost (or found) where the base (or the policy) has nothing
        unseen_e = 0.0 if e.any() else (out["NDR"] if "NDR" in out else pooled_share(e, any_, **options)).high
        unseen_s = 0.0 if s.any() else 1 - out["SRR"].low if "SRR" in out else pooled_share(s, any_, **options).high
        out["NSCR"] = replace(net, low=max(-1.0, net.low - unseen_s), high=min(1.0, net.high + unseen_e))
    return out


def leash_sampling_error(
    n_base: ArrayLike, c_base: ArrayLike, n_policy: ArrayLike, c_policy: ArrayLike, k: int,
    *, splits: int = SPLITS, seed: int = SEED,
) -> dict[str, float]:  # fmt: skip
    """Standard error of P, E, S, O and the rates when each model is sampled k times per problem, problems fixed.

    Two disjoint sets of k samples of one model are independent evaluations, so half the mean squared difference between
    them, averaged over random disjoint pairs, is unbiased for the variance. Needs 2 k <= n in both models: raises
    DataError otherwise, since at k = n no second set of samples is available.
    """
    base, policy = _counts(n_base, c_base), _counts(n_policy, c_policy)
    if k < 1 or 2 * k > min(int(base.min(axis=1)[0]), int(policy.min(axis=1)[0])):
        raise DataError(f"k = {k}: the sampling error at k needs 2 k samples of every problem from both models.")
    rng, squares = np.random.default_rng(seed), np.zeros(8)
    for _ in range(splits):
        (b1, b2), (p1, p2) = _two_draws(rng, base, k), _two_draws(rng, policy, k)
        squares += (_numbers(leash_counts(b1, p1)) - _numbers(leash_counts(b2, p2))) ** 2
    names = (*("preserved", "expanded", "shrunk", "outside"), *LeashCounts(0, 0, 0, 0).rates)
    return dict(zip(names, np.sqrt(squares / (2 * splits)).tolist(), strict=True))


def leash_noise_floor(
    n_base: ArrayLike, c_base: ArrayLike, n_policy: ArrayLike, c_policy: ArrayLike, k: int
) -> LeashCounts:  # fmt: skip
    """Expected P, E, S, O if both models were one: all samples of a problem pooled (N of them, C right) and dealt anew.

    E = S = sum over problems of pass@2k(N, C) - pass@k(N, C), exactly. An E or S near this is no evidence about training.
    """
    n = np.atleast_1d(np.asarray(n_base) + np.asarray(n_policy))
    c = np.atleast_1d(np.asarray(c_base) + np.asarray(c_policy))
    once, twice = np.asarray(pass_at_k(n, c, k)), np.asarray(pass_at_k(n, c, 2 * k))
    one_side = float(np.sum(twice - once))
    return LeashCounts(float(np.sum(2 * once - twice)), one_side, one_side, float(np.sum(1 - twice)))


def mcnemar_p(expanded: int, shrunk: int) -> float:
    """Two-sided exact p that E and S have one expectation: binomial with E + S trials and chance 1/2 (McNemar 1947)."""
    if expanded < 0 or shrunk < 0 or expanded != int(expanded) or shrunk != int(shrunk):
        raise DataError(f"E = {expanded}, S = {shrunk}: the test needs whole counts; take k = n, not expected counts.")
    both = int(expanded) + int(shrunk)
    return float(scipy.stats.binomtest(int(expanded), both, 0.5).pvalue) if both else 1.0


def leash_discoveries(
    n_base: ArrayLike, c_base: ArrayLike, n_policy: ArrayLike, c_policy: ArrayLike, *, alpha: float = 0.05
) -> Discoveries:
    """Find the problems that are new (or lost): solved by only one model, and more often than luck explains. Arrays (N,).

    Between equal models the C = c_b + c_p right samples of a problem are distributed hypergeometrically; if one of them
    got none, the p is Fisher's two-sided: 1 for a single hit at equal n, 1/16 or so for five. The chance that problem i shows
    a lone solver with p <= t is then known from its pooled count only, and

        adjusted(t) = sum over all N problems of P(problem i has a lone solver with p <= t | C_i)

    bounds the chance of any such split between equal models, whatever their probabilities (Bonferroni with attainable levels,
    Westfall and Wolfinger 1997). Problems whose pooled count cannot reach t add nothing (Tarone 1990), and no term depends on
    which model has no hits, so there is no selection after the data: familywise error <= alpha. If many problems are solved by a
    few samples each, one of them needs many hits to be new.
    """
    (n_b, c_b), (n_p, c_p) = _counts(n_base, c_base), _counts(n_policy, c_policy)
    table = _lone_solver_table(n_b, n_p, c_b + c_p)
    p_new = np.where((c_b == 0) & (c_p > 0), table[:, 1], 1.0)
    p_lost = np.where((c_p == 0) & (c_b > 0), table[:, 3], 1.0)
    chances, ps = table[:, [0, 2]].ravel(), table[:, [1, 3]].ravel()
    order = np.argsort(ps, kind="stable")
    spent = np.concatenate([[0.0], np.cumsum(chances[order])])
    lone_solver = (c_b == 0) ^ (c_p == 0)
    reached = np.searchsorted(ps[order], np.minimum(p_new, p_lost) * (1 + 1e-9), side="right")
    adjusted = np.where(lone_solver, np.minimum(spent[reached], 1.0), 1.0)
    small, below_b, below_p = adjusted <= alpha, _upper(n_b, c_b, alpha), _upper(n_p, c_p, alpha)
    return Discoveries(small & (c_b == 0), small & (c_p == 0), p_new, p_lost, adjusted, below_b, below_p)


def _lone_solver_table(n_base: Ints, n_policy: Ints, hits: Ints) -> Floats:
    """(N, 4): `_lone_solvers` of each problem, computed once for problems with the same three numbers."""
    splits, of = np.unique(np.stack([n_base, n_policy, hits], axis=1), axis=0, return_inverse=True)
    return np.array([_lone_solvers(*row) for row in splits.tolist()])[of.ravel()]


@lru_cache(maxsize=1 << 16)
def _lone_solvers(n_base: int, n_policy: int, hits: int) -> tuple[float, float, float, float]:
    """(chance, p) of all hits being the policy's, then of all being the base's, if the models are equal: hypergeometric, p
    two-sided (every split at most as likely, Fisher). (0, 1) if there are no hits, or more than one model has samples."""
    if hits == 0:
        return 0.0, 1.0, 0.0, 1.0
    least = max(0, hits - n_base)
    ends = _log_dealt(np.array([least, min(hits, n_policy)]), n_base, n_policy, hits)
    if np.all(ends < _NEVER):  # for very many hits, whose law would have as many terms
        return 0.0, float(hits > n_policy), 0.0, float(hits > n_base)
    pmf = _dealt(np.arange(least, min(hits, n_policy) + 1), n_base, n_policy, hits)

    def side(chance: float) -> tuple[float, float]:
        return chance, min(1.0, float(pmf[pmf <= chance * (1 + 1e-7)].sum()))

    new = side(float(pmf[-1])) if hits <= n_policy else (0.0, 1.0)
    lost = side(float(pmf[0])) if hits <= n_base else (0.0, 1.0)
    return *new, *lost


def _dealt(hits: Ints, n_base: int, n_policy: int, total: int) -> Floats:
    """Probability that the policy has this many of the `total` right samples: hypergeometric. scipy.stats has the law too, but
    takes a second to import."""
    return np.exp(_log_dealt(hits, n_base, n_policy, total))


def _log_dealt(hits: Ints, n_base: int, n_policy: int, total: int) -> Floats:
    """Log of `_dealt`."""
    log = scipy.special.gammaln

    def ways(n: ArrayLike, k: ArrayLike) -> Floats:  # log of n over k
        return np.asarray(log(np.add(n, 1)) - log(np.add(k, 1)) - log(np.subtract(n, k) + 1))

    return ways(n_policy, hits) + ways(n_base, total - hits) - ways(n_base + n_policy, total)


def _upper(n: Ints, c: Ints, alpha: float) -> Floats:
    return np.where(c == n, 1.0, beta_ppf(1 - alpha, c + 1.0, np.maximum(n - c, 1)))


def _cells(base_hit: ArrayLike, policy_hit: ArrayLike) -> Floats:
    """(N, 4): probability of P, E, S, O of each problem."""
    b, p = np.asarray(base_hit, dtype=float), np.asarray(policy_hit, dtype=float)
    if b.shape != p.shape or b.ndim != 1 or b.size == 0 or not np.all((b >= 0) & (b <= 1) & (p >= 0) & (p <= 1)):
        raise DataError(
            f"hits of shapes {b.shape} and {p.shape}: pass one 0/1 (or chance) a problem, the same problems."
        )
    return cells(b, p)


def _hits(
    n_base: ArrayLike, c_base: ArrayLike, n_policy: ArrayLike, c_policy: ArrayLike, k: int
) -> tuple[Floats, Floats]:
    base, policy = _counts(n_base, c_base), _counts(n_policy, c_policy)
    return np.asarray(pass_at_k(base[0], base[1], k)), np.asarray(pass_at_k(policy[0], policy[1], k))


def _counts(n: ArrayLike, c: ArrayLike) -> Ints:
    """(2, N): samples and right ones of each problem."""
    right = np.atleast_1d(np.asarray(c))
    pass_at_k(n, right, 1)  # refuses impossible counts
    return np.stack(np.broadcast_arrays(np.asarray(n), right)).astype(np.int64)


def _two_draws(rng: np.random.Generator, counts: Ints, k: int) -> tuple[Bools, Bools]:
    """Return whether each of two disjoint random sets of k of the n samples contains a right one, for every problem."""
    n, c = counts
    first = rng.hypergeometric(c, n - c, k)
    second = rng.hypergeometric(c - first, n - k - (c - first), k)
    return first > 0, second > 0


def _numbers(counts: LeashCounts) -> Floats:
    four = [counts.preserved, counts.expanded, counts.shrunk, counts.outside]
    return np.array([*four, *counts.rates.values()])


def _harmonic(a: Interval, b: Interval) -> Interval:
    value, low, high = (
        share_of(2 * x * y, x + y) if np.isfinite(x + y) else x
        for x, y in ((a.value, b.value), (a.low, b.low), (a.high, b.high))
    )
    return Interval(value=value, low=low, high=high, level=a.level, over=a.over, n=min(a.n, b.n))
