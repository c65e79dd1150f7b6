"""The best mixture per completion: a coin for each completion decides which policy samples it.

A mixture with weights w solves problem i with probability p_i(w) = sum over policies j of w_j p_ij in one completion, and in k with
1 - (1 - p_i(w))^k. Its mean over problems and training seeds is concave in w, and pass@1 is linear, so that the best weights at
equal pass@1 are a small convex problem. It is solved over all policies at once (`best_mixture`), with a bound on the remaining
error, since pairs of policies do not always suffice (`python -m lab hull`). Weights are the same for all training seeds; runs of
different rivals are mixed seed by seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.stats.arrays import Floats
from sage_rlvr.verdicts.stats.frontier import RightCounts
from sage_rlvr.verdicts.stats.hull import TINY, AboveHull, Halves, HullMixture, best_line, shared_temperatures, shares
from sage_rlvr.verdicts.stats.intervals import SEED, least_seen
from sage_rlvr.verdicts.stats.passk import check_probabilities, curve, exact_pass_at_k, pass_at_all_k, pass_at_k

Table = Mapping[float, ArrayLike]  # temperature -> probability of a right completion, one per problem (N,)
SLACK = 1e-7  # in pass@k, at which the weights are good enough
ROUNDS = 200
NEAR = (0.25, 0.5, 0.75)  # how far from the best mixture toward each policy the interval searches
HALFWAY = (0.5,)
WAYS = 2  # random splits of the samples of policies into halves; each half chooses once


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Weights (J,), their pass@k and price; no weights give more than `height + slack`."""

    weights: Floats
    height: float
    price: float
    slack: float


def best_mixture(ps: ArrayLike, pass1: float, k: int) -> Mixture:
    """The weights of J policies with the highest pass@k and at least this pass@1.

    ps: (J, S, N) probabilities of a right completion, S training seeds and N problems. Beyond the highest pass@1 the result is the
    highest pass@k, at price 0.
    """
    table = check_probabilities(np.asarray(ps, dtype=float).reshape(-1), "ps").reshape(np.shape(ps))
    return climb(table.reshape(len(table), -1), table.mean(axis=(1, 2)), pass1, k)


def climb(cells: Floats, ones: Floats, pass1: float, k: int) -> Mixture:
    """`best_mixture` of policies with probabilities `cells` (J, M) and pass@1 `ones` (J,)."""
    weights, _, price = best_line(pass1, ones, np.array([_passk(one, k) for one in cells]))
    height = _passk(weights @ cells, k)  # at least that of the line: pass@k is concave
    active, slack = weights > 0, np.inf
    for _ in range(ROUNDS):
        slopes = k * (cells @ (1 - weights @ cells) ** (k - 1)) / cells.shape[1]
        # pass@k is concave: no weights are above its tangent, whose best weights are those of two points
        toward, top, price = best_line(pass1, ones, slopes)
        slack = max(0.0, top - float(slopes @ weights))
        if slack <= SLACK:
            break
        active |= toward > 0
        candidate = np.zeros(len(weights))
        candidate[active] = _best_of(cells[active], ones[active], weights[active], pass1, k)
        if _passk(candidate @ cells, k) <= height:  # the solver stopped short
            candidate = _on_the_way(cells, weights, toward, k)
        reached = _passk(candidate @ cells, k)
        if reached <= height:
            break
        weights, height = candidate, reached
    return Mixture(weights=weights, height=height, price=price, slack=slack)


def _passk(p: Floats, k: int) -> float:
    return float(1 - ((1 - p) ** k).mean())


def _best_of(cells: Floats, ones: Floats, start: Floats, pass1: float, k: int) -> Floats:
    """The best weights of few policies."""
    limits = [{"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like}]
    if ones.max() >= pass1:
        limits.append({"type": "ineq", "fun": lambda w: ones @ w - pass1, "jac": lambda w: ones})
    solution = scipy.optimize.minimize(
        lambda w: ((1 - np.clip(w @ cells, 0, 1)) ** k).mean(),
        start,
        jac=lambda w: -k * (cells @ (1 - np.clip(w @ cells, 0, 1)) ** (k - 1)) / cells.shape[1],
        bounds=[(0, 1)] * len(start),
        constraints=limits,
        method="SLSQP",
        options={"ftol": 1e-13, "maxiter": 200},
    ).x
    weights = np.where(solution > 1e-9, solution, 0.0)
    weights = weights / weights.sum() if weights.sum() > 0 else start
    best = int(ones.argmax())
    reached = float(ones @ weights)
    if reached < pass1 <= ones[best]:  # the solver's tolerance
        part = min(1.0, (pass1 - reached) / (ones[best] - reached))
        weights = (1 - part) * weights
        weights[best] += part
    return weights


def _on_the_way(cells: Floats, start: Floats, end: Floats, k: int) -> Floats:
    """The best weights on the line between two, by bisection of the slope."""
    low, high, way = 0.0, 1.0, (end - start) @ cells
    for _ in range(60):
        middle = (low + high) / 2
        rises = float(((1 - start @ cells - middle * way) ** (k - 1)) @ way) > 0
        low, high = (middle, high) if rises else (low, middle)
    return (1 - low) * start + low * end


def _policies(rivals: Sequence[Sequence[Table]]) -> tuple[list[tuple[int, float]], Floats]:
    """(rival, temperature) of every policy and their probabilities (J, S, N); temperatures at which all seeds were evaluated."""
    names, rows = [], []
    for i, tables in enumerate(rivals):
        for t in shared_temperatures(tables):
            names.append((i, t))
            rows.append([np.asarray(table[t], dtype=float) for table in tables])
    sizes = {len(of_seed) for row in rows for of_seed in row}
    if len(sizes) > 1:
        raise DataError("the policies were evaluated on different numbers of problems; evaluate all on the same ones.")
    return names, np.array(rows)


def on_mixtures(pass1: float, rivals: Sequence[Sequence[Table]], k: int) -> HullMixture | None:
    """The best mixture per completion with at least this pass@1. rivals: a table per training seed for each, paired in order. None
    if no rival was evaluated at one temperature in all its seeds.
    """
    names, ps = _policies(rivals)
    if not names:
        return None
    return _named_mixture(best_mixture(ps, pass1, k), names)


def _named_mixture(mixture: Mixture, names: Sequence[tuple[int, float]]) -> HullMixture:
    best = shares(mixture.weights, names)
    return HullMixture(best=best, height=mixture.height, price=mixture.price, slack=mixture.slack)


def above_mixtures(
    arm: Sequence[Table], rivals: Sequence[Sequence[Table]], k: int, temperature: float = 1.0
) -> AboveHull | None:
    """An arm at `temperature` and the mixtures per completion of rivals, for each training seed; as `above_hull`.

    arm: a table per training seed; rivals: the same of each, paired in order.
    """
    if not arm or not all(temperature in table for table in arm):
        return None
    names, ps = _policies(rivals)
    if not names:
        return None
    own = np.array([np.asarray(table[temperature], dtype=float) for table in arm])
    mine = np.stack([own.mean(axis=1), np.asarray(exact_pass_at_k(own, k)).mean(axis=1)], axis=1)
    best = best_mixture(ps, float(own.mean()), k)
    near = _near(best.weights)
    single = np.stack([ps.mean(axis=2), (1 - (1 - ps) ** k).mean(axis=2)], axis=2)
    mixed = []  # of each seed pass@1 and pass@k (M, 2)
    for of_seed in np.moveaxis(ps, 1, 0):
        passk = (1 - (1 - near @ of_seed) ** k).mean(axis=1)
        mixed.append(np.stack([near @ of_seed.mean(axis=1), passk], axis=1))
    return AboveHull(
        mixture=_named_mixture(best, names),
        pass1=tuple(mine[:, 0].tolist()),
        arm=tuple(mine[:, 1].tolist()),
        ahead=mine - single,
        mixed=mine - np.stack(mixed, axis=1),
    )


def _near(weights: Floats, ways: Sequence[float] = NEAR) -> Floats:
    """The weights (J,) and mixtures between them and each policy, (1 + J len(ways), J)."""
    policies = np.eye(len(weights))
    between = [(1 - way) * weights + way * policies for way in ways]
    return np.concatenate([weights[None], *between])


# ------------------------------------------------------------------------------------------------------------------
# from samples


def mixture_pass_at_k(n: Sequence[int], right: ArrayLike, weights: ArrayLike, k: int) -> Floats:
    """Unbiased pass@k (N,) of a mixture per completion from samples of its J policies: right (J, N) among n (J,) completions each.

    Of k completions the policies draw (m_1, ..., m_J), a multinomial with these weights; policy j misses in m_j with the unbiased
    C(n - c, m_j) / C(n, m_j), and the samples of the policies are independent. One policy gives `pass_at_k`. Raises DataError if a
    policy has fewer than k samples.
    """
    counts, w = np.atleast_2d(np.asarray(right)), np.asarray(weights, dtype=float)
    if counts.shape[0] != len(w) or len(n) != len(w) or not np.isclose(w.sum(), 1) or (w < 0).any():
        raise DataError(f"weights {w.tolist()} of {len(counts)} policies: give one of at least 0 to each, with sum 1.")
    used = [(size, row) for size, row, weight in zip(n, counts, w, strict=True) if weight > 0]
    few = [size for size, _ in used if size < k]
    if few:
        raise DataError(f"k = {k} with {few[0]} samples of a policy: pass@k of a mixture needs k samples of each; use a smaller k.")
    misses = np.stack([_misses(size, row, k) for size, row in used])
    return _mixture(misses, w[w > 0], k)


def _misses(n: int, right: ArrayLike, k: int) -> Floats:
    """(k + 1, N): unbiased probability that m = 0..k completions all fail. n = 0: right contains the probabilities (N,)."""
    values = np.atleast_1d(np.asarray(right))
    solved = pass_at_all_k(n, values)[:, :k] if n else curve(values, range(1, k + 1))
    return np.concatenate([np.ones((1, len(values))), 1 - solved.T])


def _mixed(misses: Floats, weights: Floats, k: int) -> Floats:
    """pass@k (M, N) of mixtures with weights (M, J) of policies with `misses` (J, k + 1, N)."""
    return np.stack([_mixture(misses[row > 0], row[row > 0], k) for row in weights])


def _mixture(misses: Floats, weights: Floats, k: int) -> Floats:
    """pass@k (N,) of one mixture, all weights (J,) above 0."""
    before, totals = misses[0], np.cumsum(weights)
    if len(weights) == 1:
        return np.asarray(1 - before[k])
    for own, weight, total in zip(misses[1:-1], weights[1:-1], totals[1:-1], strict=True):
        law = _binomials(k, weight / total)
        after = np.zeros_like(before)
        for m in range(k + 1):  # m completions of this policy, the others of the earlier ones; after[m]: all m fail
            after[m:] += law[m:, m, None] * own[m] * before[: k + 1 - m]
        before = after
    law = _binomials(k, weights[-1] / totals[-1])[k]  # of the last policy's completions among all k
    return np.asarray(1 - law @ (misses[-1] * before[::-1]))


def _binomials(k: int, share: float) -> Floats:
    """(k + 1, k + 1): row m has the probability of j among m draws."""
    m, p = np.arange(k + 1), min(1.0, share)
    rest = np.maximum(m[:, None] - m, 0)
    factorials = scipy.special.gammaln(m + 1.0)
    ways = factorials[:, None] - factorials - factorials[rest]
    logs = ways + scipy.special.xlogy(m, p) + scipy.special.xlog1py(rest, -p)
    return np.where(m <= m[:, None], np.exp(logs), 0.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Rival:
    """A rival (its index) at a temperature. n (S,) and right (S, N): its samples of each training seed, S = 1 if it was
    evaluated once; n = 0: probabilities instead of counts."""

    rival: int
    temperature: float
    n: tuple[int, ...]
    right: NDArray[Any]

    @property
    def is_once(self) -> bool:
        """Return whether all training seeds of the arm are compared with the same samples."""
        return len(self.n) == 1

    @property
    def p(self) -> Floats:
        """Estimated probability of a right completion (S, N)."""
        return np.asarray(self.right / np.maximum(self.n, 1)[:, None])

    def misses(self, k: int, seed: int) -> Floats:
        """`_misses` at a training seed (its index)."""
        at = 0 if self.is_once else seed
        return _misses(self.n[at], self.right[at], k)

    def halves(self, rng: np.random.Generator) -> tuple[_Rival, _Rival]:
        """Split the samples into two random halves; known probabilities are not split."""
        if not any(self.n):
            return self, self
        n, right = np.array(self.n), self.right.astype(int)
        first = rng.hypergeometric(right, n[:, None] - right, (n // 2)[:, None])
        one = replace(self, n=tuple((n // 2).tolist()), right=first)
        return one, replace(self, n=tuple((n - n // 2).tolist()), right=right - first)


def above_mixtures_of_counts(
    arm: Sequence[Mapping[float, RightCounts]],
    rivals: Sequence[Sequence[Mapping[float, RightCounts]]],
    k: int,
    temperature: float = 1.0,
    *,
    guessers: Sequence[ArrayLike] = (),
    capped: bool = False,
) -> AboveHull | None:
    """`above_mixtures` from samples: temperature -> (n, right ones (N,)).

    arm: a table per training seed
    rivals: for each the same, or one table if it was evaluated once, like a base
    guessers: further rivals, for each the probability that one guess is right (N,)
    capped: whether an arm whose pass@1 is above that of every rival is compared at the rivals' highest pass@1. It is then ahead
        only if it is ahead of every rival at the price of the last of them, and has a higher pass@k than that one: its excess of
        pass@1 may be noise, and the gap and its upper end ignore it.

    pass@1 and pass@k of policies and mixtures are unbiased. The weights at the estimated p = c / n favor the rivals, as every
    choice on the same data does. So the rivals of the gap and of the upper end are chosen by half of the samples and judged by the
    others (`Halves`), including mixtures of policies that were evaluated once; if a half has fewer than k samples, single
    policies and all samples replace them.

    For several training seeds the problems are fixed, and samples with which all seeds are compared are a shared error.
    For one training seed the leads are those of the problems, so that the interval contains the problems and their samples.
    """
    policies = _rivals(rivals, len(arm), guessers)
    if not arm or not policies or not all(temperature in table for table in arm):
        return None
    own = np.array([_scores(*table[temperature], k) for table in arm])  # (seeds, problems, 2)
    ones, weights = own[..., 0].mean(axis=1), np.eye(len(policies))
    best = _best_of_policies(policies, float(ones.mean()), k, capped)
    excess = max(0.0, float(ones.mean()) - max(float(one.p.mean()) for one in policies)) if capped else 0.0
    near = np.concatenate([weights, _near(best.weights)])
    scores = _of_mixtures(policies, near, k, len(arm))  # (mixtures, seeds, problems, 2)
    leads, single_seed = own[None] - scores, len(arm) == 1
    leads = leads[:, 0] if single_seed else leads.mean(axis=2)
    shared = np.zeros((0, 2, 2)) if single_seed else _shared_noise(policies, near, k)
    if excess:  # the last rival again, in pass@k only
        only_k = np.array([0.0, 1.0])
        leads = np.concatenate([leads, leads[len(policies)][None] * only_k])
        shared = np.concatenate([shared, shared[len(policies) : len(policies) + 1] * np.outer(only_k, only_k)])
    return AboveHull(
        mixture=_named_mixture(best, [(one.rival, one.temperature) for one in policies]),
        pass1=tuple(ones.tolist()),
        arm=tuple(own[..., 1].mean(axis=1).tolist()),
        ahead=leads[: len(policies)],
        mixed=leads[len(policies) :],
        over="problems" if single_seed else "training seeds",
        shared=shared,
        least=0.0 if single_seed else least_seen(own[..., 1].size),
        held_out=_held_out(policies, own - [excess, 0.0], k, capped),
    )


def _rivals(
    rivals: Sequence[Sequence[Mapping[float, RightCounts]]], seeds: int, guessers: Sequence[ArrayLike]
) -> list[_Rival]:
    """Every rival at every temperature at which all its seeds were evaluated, and the guessers."""
    policies = []
    for i, tables in enumerate(rivals):
        if len(tables) not in (1, seeds):
            raise DataError(f"rival {i} has {len(tables)} training seeds, the arm {seeds}; give as many, or one table.")
        for t in shared_temperatures(tables):
            n, right = zip(*(table[t] for table in tables), strict=True)
            policies.append(_Rival(rival=i, temperature=t, n=n, right=np.stack(right)))
    if policies:
        for i, shares in enumerate(guessers, len(rivals)):
            policies.append(_Rival(rival=i, temperature=1.0, n=(0,), right=np.asarray(shares, dtype=float)[None]))
    return policies


def _best_of_policies(policies: Sequence[_Rival], pass1: float, k: int, capped: bool) -> Mixture:
    seeds = max(len(one.n) for one in policies)
    ps = np.array([np.broadcast_to(one.p, (seeds, one.p.shape[1])) for one in policies])
    if capped:
        pass1 = min(pass1, float(ps.mean(axis=(1, 2)).max()))
    return best_mixture(ps, pass1, k)


def _of_mixtures(policies: Sequence[_Rival], weights: Floats, k: int, seeds: int) -> Floats:
    """Unbiased pass@1 and pass@k (M, seeds, N, 2) of mixtures with weights (M, J)."""
    by_seed = []
    for seed in range(1 if all(one.is_once for one in policies) else seeds):
        ps = np.stack([one.p[0 if one.is_once else seed] for one in policies])
        many = _mixed(np.stack([one.misses(k, seed) for one in policies]), weights, k)
        by_seed.append(np.stack([weights @ ps, many], axis=-1))
    scores = np.stack(by_seed, axis=1)
    return np.broadcast_to(scores, (len(weights), seeds, *scores.shape[2:]))


def _held_out(policies: Sequence[_Rival], own: Floats, k: int, capped: bool) -> Halves | None:
    """Policies, and mixtures of those that were evaluated once, chosen by a half of their samples; of policies with a training seed
    each by the other seeds. None if no policy was evaluated once or a half has fewer than k samples."""
    once = [one for one in policies if one.is_once]
    if not any(one.n[0] for one in once) or min(n for one in once for n in one.n if n) < 2 * k:
        return None
    rng, seeds, pass1 = np.random.default_rng(SEED), len(own), float(own[..., 0].mean())
    trained = [one for one in policies if not one.is_once]
    scores, ahead = [], []
    if trained:
        whole = _of_mixtures(trained, np.eye(len(trained)), k, seeds).mean(axis=2)
        others = (whole.sum(axis=1, keepdims=True) - whole) / (seeds - 1)
    for _ in range(WAYS):
        halves = list(zip(*(one.halves(rng) for one in once), strict=True))
        for choosing, judging in (halves, halves[::-1]):
            best = _best_of_policies(choosing, pass1, k, capped)
            near = np.concatenate([np.eye(len(once)), _near(best.weights, HALFWAY)])
            by = _of_mixtures(choosing, near, k, seeds).mean(axis=2)
            leads = own[None] - _of_mixtures(judging, near, k, seeds)
            if seeds == 1:
                leads = leads[:, 0]
                by = np.broadcast_to(by, leads.shape)
            else:
                leads = leads.mean(axis=2)
            if trained:
                by = np.concatenate([by, others])
                leads = np.concatenate([leads, own.mean(axis=1) - whole])
            scores.append(by)
            ahead.append(leads)
    shared = np.zeros((len(scores[0]), 2, 2))
    if seeds > 1:
        shared[: len(near)] = _shared_noise(once, near, k)  # the weights of one way are used for the others
    return Halves(scores=np.stack(scores), ahead=np.stack(ahead), shared=shared)


def _shared_noise(policies: Sequence[_Rival], weights: Floats, k: int) -> Floats:
    """Covariance (M, 2, 2) of mean pass@1 and pass@k of mixtures with weights (M, J), from the samples of policies that were
    evaluated once; empty without such a policy.

    Each policy's part is that of its counts at p = (c + 1/2) / (n + 1), as in `control_error`, the others at their p; the
    interaction of two policies' noise is left out. For a single policy this is exact.
    """
    sampled = [i for i, one in enumerate(policies) if one.is_once and one.n[0]]
    if not sampled:
        return np.zeros((0, 2, 2))
    ps = np.stack([one.p.mean(axis=0) for one in policies])
    for i in sampled:
        ps[i] = (policies[i].right[0] + 0.5) / (policies[i].n[0] + 1)
    covariance, m = np.zeros((len(weights), 2, 2)), np.arange(k + 1)
    for i in sampled:
        n = policies[i].n[0]
        counts = np.arange(n + 1)
        misses = _misses(n, counts, k).T  # (n + 1, k + 1)
        law = scipy.stats.binom.pmf(counts[:, None], n, ps[i])  # (n + 1, N)
        for row, weight in enumerate(weights):
            if weight[i] <= 0:
                continue
            others = (weight @ ps - weight[i] * ps[i]) / max(1 - weight[i], TINY)
            fails = (1 - np.clip(others, 0, 1)) ** (k - m)[:, None]
            many = 1 - misses @ (_binomials(k, weight[i])[k][:, None] * fails)
            both = np.stack([np.broadcast_to(weight[i] * counts[:, None] / n, many.shape), many])
            both = both - (law * both).sum(axis=1, keepdims=True)
            covariance[row] += np.einsum("cp,acp,bcp->ab", law, both, both) / ps.shape[1] ** 2
    return covariance


def _scores(n: int, right: ArrayLike, k: int) -> Floats:
    """Unbiased pass@1 and pass@k (N, 2)."""
    scores = [np.asarray(pass_at_k(n, right, tries), dtype=float) for tries in (1, k)]
    return np.stack([np.atleast_1d(score) for score in scores], axis=1)
