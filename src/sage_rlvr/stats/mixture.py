"""The best mixture per completion: a coin for each completion decides which policy draws it.

A mixture with weights w solves problem i with probability p_i(w) = sum over policies j of w_j p_ij in one completion, and in k with
1 - (1 - p_i(w))^k. Its mean over problems and training seeds is concave in w, and pass@1 is linear, so that the best weights at
equal pass@1 are a small convex problem. It is solved over all policies at once (`best_mixture`), with a bound on what is left,
since pairs of policies do not always suffice (`python -m lab hull`). Weights are the same for all training seeds; runs of different
rivals are mixed seed by seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from sage_rlvr.errors import DataError
from sage_rlvr.stats.frontier import Counts
from sage_rlvr.stats.hull import AboveHull, Place, best_line, shares
from sage_rlvr.stats.passk import check_probabilities, exact_pass_at_k, pass_at_k

Floats = NDArray[np.float64]
Table = Mapping[float, ArrayLike]  # temperature -> probability of a right completion, one per problem (N,)
SLACK = 1e-7  # in pass@k, at which the weights are good enough
ROUNDS = 200
NEAR = (0.25, 0.5, 0.75)  # how far from the best mixture toward each policy the interval looks


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
    height, active, slack = _passk(weights @ cells, k), weights > 0, np.inf  # at least that of the line: pass@k is concave
    for _ in range(ROUNDS):
        slopes = k * (cells @ (1 - weights @ cells) ** (k - 1)) / cells.shape[1]
        # pass@k is concave: no weights lie above its tangent, whose best weights are those of two points
        toward, top, price = best_line(pass1, ones, slopes)
        slack = max(0.0, top - float(slopes @ weights))
        if slack <= SLACK:
            break
        active |= toward > 0
        found = np.zeros(len(weights))
        found[active] = _best_of(cells[active], ones[active], weights[active], pass1, k)
        if _passk(found @ cells, k) <= height:  # the solver stopped short
            found = _on_the_way(cells, weights, toward, k)
        if (reached := _passk(found @ cells, k)) <= height:
            break
        weights, height = found, reached
    return Mixture(weights=weights, height=height, price=price, slack=slack)


def _passk(p: Floats, k: int) -> float:
    return float(1 - ((1 - p) ** k).mean())


def _best_of(cells: Floats, ones: Floats, start: Floats, pass1: float, k: int) -> Floats:
    """The best weights of few policies."""
    limits = [{"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like}]
    if ones.max() >= pass1:
        limits.append({"type": "ineq", "fun": lambda w: ones @ w - pass1, "jac": lambda w: ones})
    found = scipy.optimize.minimize(
        lambda w: ((1 - np.clip(w @ cells, 0, 1)) ** k).mean(),
        start,
        jac=lambda w: -k * (cells @ (1 - np.clip(w @ cells, 0, 1)) ** (k - 1)) / cells.shape[1],
        bounds=[(0, 1)] * len(start),
        constraints=limits,
        method="SLSQP",
        options={"ftol": 1e-13, "maxiter": 200},
    ).x
    weights = np.where(found > 1e-9, found, 0.0)
    weights = weights / weights.sum() if weights.sum() > 0 else start
    best = int(ones.argmax())
    if (short := pass1 - float(ones @ weights)) > 0 and ones[best] >= pass1:  # the solver's tolerance
        part = min(1.0, short / (ones[best] - float(ones @ weights)))
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
        for t in sorted(set.intersection(*(set(map(float, table)) for table in tables))) if tables else ():
            names.append((i, t))
            rows.append([np.asarray(table[t], dtype=float) for table in tables])
    sizes = {len(row) for one in rows for row in one}
    if len(sizes) > 1:
        raise DataError("the policies were evaluated on different numbers of problems; evaluate all on the same ones.")
    return names, np.array(rows)


def on_mixtures(pass1: float, rivals: Sequence[Sequence[Table]], k: int) -> Place | None:
    """The best mixture per completion with at least this pass@1. rivals: of each a table per training seed, paired in order.

    None where no rival was evaluated at one temperature in all its seeds.
    """
    names, ps = _policies(rivals)
    if not names:
        return None
    return _place(best_mixture(ps, pass1, k), names)


def _place(found: Mixture, names: Sequence[tuple[int, float]]) -> Place:
    best = shares(found.weights, names)
    return Place(best=best, height=found.height, price=found.price, slack=found.slack)


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
    near = np.concatenate([best.weights[None], *((1 - way) * best.weights + way * np.eye(len(ps)) for way in NEAR)])
    single = np.stack([ps.mean(axis=2), (1 - (1 - ps) ** k).mean(axis=2)], axis=2)
    seeds = [np.stack([near @ one.mean(axis=1), (1 - (1 - near @ one) ** k).mean(axis=1)], axis=1) for one in np.moveaxis(ps, 1, 0)]
    return AboveHull(
        place=_place(best, names),
        pass1=tuple(mine[:, 0].tolist()),
        arm=tuple(mine[:, 1].tolist()),
        ahead=mine - single,
        mixed=mine - np.stack(seeds, axis=1),
    )


# ------------------------------------------------------------------------------------------------------------------
# from samples


def mixture_pass_at_k(n: Sequence[int], right: ArrayLike, weights: ArrayLike, k: int) -> Floats:
    """Unbiased pass@k (N,) of a mixture per completion from samples of its J policies: right (J, N) among n (J,) completions each.

    Of k completions the policies draw (m_1, ..., m_J), a multinomial with these weights; policy j misses in m_j with the unbiased
    C(n - c, m_j) / C(n, m_j), and the samples of the policies are independent. One policy gives `pass_at_k`. DataError where a
    policy has fewer than k samples.
    """
    counts, w = np.atleast_2d(np.asarray(right)), np.asarray(weights, dtype=float)
    if counts.shape[0] != len(w) or len(n) != len(w) or not np.isclose(w.sum(), 1) or (w < 0).any():
        raise DataError(f"weights {w.tolist()} of {len(counts)} policies: give one of at least 0 to each, with sum 1.")
    few = [size for size, weight in zip(n, w, strict=True) if weight > 0 and size < k]
    if few:
        raise DataError(f"k = {k} with {few[0]} samples of a policy: pass@k of a mixture needs k samples of each; use a smaller k.")
    total, misses = 0.0, np.zeros((k + 1, counts.shape[1]))
    misses[0] = 1  # misses[m]: the chance that m completions of the policies so far all fail
    for size, row, weight in zip(n, counts, w, strict=True):
        if weight <= 0:
            continue
        alone = 1 - np.asarray(pass_at_k(size, row[None], np.arange(1, k + 1)[:, None]))
        own, before, total = np.concatenate([np.ones((1, len(row))), alone]), misses, total + weight
        law = _binomials(k, min(1.0, weight / total))
        misses = np.zeros_like(before)
        for m in range(k + 1):  # m of the earlier policies, the others of this one
            misses[m:] += np.diagonal(law, -m)[:, None] * own[: k + 1 - m] * before[m]
    return np.asarray(1 - misses[k])


def _binomials(k: int, share: float) -> Floats:
    """(k + 1, k + 1): row m has the probability of j among m draws."""
    m = np.arange(k + 1)
    return np.asarray(scipy.stats.binom.pmf(m[None], m[:, None], share))


def above_mixtures_of_counts(
    arm: Sequence[Mapping[float, Counts]], rivals: Sequence[Sequence[Mapping[float, Counts]]], k: int, temperature: float = 1.0
) -> AboveHull | None:
    """`above_mixtures` from samples: temperature -> (n, right ones (N,)), of the arm and of each rival a table per training seed.

    Weights are chosen at the estimated p = c / n, which favors the rivals as every choice on the same data does; pass@1 and pass@k
    of each policy and of the mixture are unbiased. Of one training seed the leads are those of the problems, so that the interval
    holds the problems and their samples.
    """
    names, estimated = _policies([[_shares(table) for table in rival] for rival in rivals])
    if not arm or not names or not all(temperature in table for table in arm):
        return None
    own = np.array([_scores(*table[temperature], k) for table in arm])  # (seeds, problems, 2)
    best = best_mixture(estimated, float(own[..., 0].mean()), k)
    drawn = [[rivals[i][seed][t] for i, t in names] for seed in range(len(arm))]
    single = np.array([[_scores(*one, k) for one in policies] for policies in drawn])  # (seeds, policies, problems, 2)
    many = [
        mixture_pass_at_k([n for n, _ in policies], [np.asarray(right) for _, right in policies], best.weights, k)
        for policies in drawn
    ]
    mixed = np.stack([np.tensordot(single[..., 0], best.weights, (1, 0)), np.array(many)], axis=2)
    alone = len(arm) == 1
    ahead = np.moveaxis(own[:, None] - single, 1, 0)  # (policies, seeds, problems, 2)
    behind = own - mixed
    return AboveHull(
        place=_place(best, names),
        pass1=tuple(own[..., 0].mean(axis=1).tolist()),
        arm=tuple(own[..., 1].mean(axis=1).tolist()),
        ahead=ahead[:, 0] if alone else ahead.mean(axis=2),
        mixed=behind if alone else behind.mean(axis=1)[None],
        over="problems" if alone else "training seeds",
    )


def _shares(table: Mapping[float, Counts]) -> dict[float, Floats]:
    return {t: np.asarray(right) / n for t, (n, right) in table.items()}


def _scores(n: int, right: ArrayLike, k: int) -> Floats:
    """Unbiased pass@1 and pass@k (N, 2)."""
    return np.stack([np.atleast_1d(np.asarray(pass_at_k(n, right, tries), dtype=float)) for tries in (1, k)], axis=1)
