"""How well one number of the base predicts the sign and the size of the change in groups that were left out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def fold_errors(x: Floats, y: Floats, folds: Ints) -> Floats:
    """Squared errors (P + 1, folds) of a line on each predictor x (P, S), fitted without the fold; last row: of the mean alone."""
    found = []
    for fold in np.unique(folds):
        out, kept = folds == fold, folds != fold
        left, own = x[:, kept].mean(axis=1, keepdims=True), y[kept].mean()
        spread = ((x[:, kept] - left) ** 2).sum(axis=1)
        slope = np.where(
            spread > 0, ((x[:, kept] - left) * (y[kept] - own)).sum(axis=1) / np.where(spread > 0, spread, 1), 0.0
        )
        line = ((y[out] - own - slope[:, None] * (x[:, out] - left)) ** 2).sum(axis=1)
        found.append(np.append(line, ((y[out] - own) ** 2).sum()))
    return np.stack(found, axis=1)


def line_errors(x: Floats, y: Floats, folds: Ints) -> tuple[Floats, float]:
    """`fold_errors` over all folds: of each predictor, and of the mean alone."""
    whole = fold_errors(x, y, folds).sum(axis=1)
    return whole[:-1], float(whole[-1])


def explained(x: Floats, y: Floats, folds: Ints) -> Floats:
    """Out-of-sample R^2 (P,): 1 is perfect, 0 the mean of the others, negative worse than that."""
    line, flat = line_errors(x, y, folds)
    return np.asarray(1 - line / flat) if flat > 0 else np.zeros(len(line))  # nothing to explain


def cut(x: Floats, up: NDArray[np.bool_]) -> tuple[float, bool]:
    """The threshold on x (S,) of best balanced accuracy for `up`, and whether up is above it. Ties: the middle one of the best."""
    if up.all() or not up.any():
        return -np.inf, bool(up.all())  # one sign alone: predict that
    order = np.unique(x)
    at = np.concatenate([[-np.inf], (order[1:] + order[:-1]) / 2])
    above = x[None, :] > at[:, None]
    balanced = (above[:, up].mean(axis=1) + (~above[:, ~up]).mean(axis=1)) / 2
    best = max(balanced.max(), (1 - balanced).max())
    rising = bool(balanced.max() >= best - 1e-12)
    places = np.flatnonzero((balanced if rising else 1 - balanced) >= best - 1e-12)
    return float(at[places[len(places) // 2]]), rising


def called(x: Floats, up: NDArray[np.bool_], folds: Ints) -> NDArray[np.bool_]:
    """(P, S): whether each predictor's threshold, fitted without the setting's fold, predicts a rise."""
    found = np.zeros(x.shape, dtype=bool)
    for fold in np.unique(folds):
        out, kept = folds == fold, folds != fold
        for row, values in enumerate(x):
            threshold, rising = cut(values[kept], up[kept])
            found[row, out] = (values[out] > threshold) == rising
    return found


def balanced(calls: NDArray[np.bool_], up: NDArray[np.bool_]) -> Floats:
    """Balanced accuracy (P,): the mean of the fractions of ups and of downs that are predicted; 0.5 is a guess."""
    right = calls == up
    present = [right[:, side] for side in (up, ~up) if side.any()]
    return np.asarray(np.mean([side.mean(axis=1) for side in present], axis=0))


def ranks(x: Floats) -> Floats:
    """Ranks with ties averaged."""
    _, place, count = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[place]


def spearman(x: Floats, y: Floats) -> float:
    """Rank correlation; 0 where one side is constant."""
    a, b = ranks(x) - ranks(x).mean(), ranks(y) - ranks(y).mean()
    size = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum()) / size if size > 0 else 0.0


def block_orders(blocks: Sequence[Sequence[int]]) -> Ints:
    """Places (B!, S) of all orders of whole blocks (B, M), which keep the order inside a block; the first is the identity."""
    table = np.array(blocks)
    orders = []
    for order in permutations(range(len(table))):
        places = np.empty(table.size, dtype=np.int64)
        places[table.ravel()] = table[list(order)].ravel()
        orders.append(places)
    return np.array(orders)
