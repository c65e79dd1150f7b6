"""How well one number of the base predicts the sign and the size of the change in groups that were left out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import numpy as np
import scipy.stats
from numpy.typing import NDArray

from sage_rlvr.verdicts.stats.arrays import Floats, Ints

Mask = NDArray[np.bool_]


def fold_errors(x: Floats, y: Floats, folds: Ints) -> Floats:
    """Squared errors (P + 1, folds) of a line on each predictor x (P, S), fitted without the fold; last row: of the mean alone."""
    found = []
    for fold in np.unique(folds):
        out, kept = folds == fold, folds != fold
        middle, level = x[:, kept].mean(axis=1, keepdims=True), y[kept].mean()
        away = x[:, kept] - middle
        spread, product = (away**2).sum(axis=1), (away * (y[kept] - level)).sum(axis=1)
        slope = np.divide(product, spread, out=np.zeros_like(product), where=spread > 0)  # constant x: the mean alone
        line = ((y[out] - level - slope[:, None] * (x[:, out] - middle)) ** 2).sum(axis=1)
        found.append(np.append(line, ((y[out] - level) ** 2).sum()))
    return np.stack(found, axis=1)


def line_errors(x: Floats, y: Floats, folds: Ints) -> tuple[Floats, float]:
    """`fold_errors` over all folds: of each predictor, and of the mean alone."""
    whole = fold_errors(x, y, folds).sum(axis=1)
    return whole[:-1], float(whole[-1])


def explained(x: Floats, y: Floats, folds: Ints) -> Floats:
    """Out-of-sample R^2 (P,): 1 is perfect, 0 the mean of the others, negative worse than that."""
    line, flat = line_errors(x, y, folds)
    return np.asarray(1 - line / flat) if flat > 0 else np.zeros(len(line))  # nothing to explain


def cut(x: Floats, up: Mask) -> tuple[float, bool]:
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


def called(x: Floats, up: Mask, folds: Ints) -> Mask:
    """(P, S): whether each predictor's threshold, fitted without the setting's fold, predicts a rise."""
    found = np.zeros(x.shape, dtype=bool)
    for fold in np.unique(folds):
        out, kept = folds == fold, folds != fold
        for row, values in enumerate(x):
            threshold, rising = cut(values[kept], up[kept])
            found[row, out] = (values[out] > threshold) == rising
    return found


def balanced(calls: Mask, up: Mask) -> Floats:
    """Balanced accuracy (P,): the mean of the fractions of ups and of downs that are predicted; 0.5 is a guess."""
    right = calls == up
    present = [right[:, side] for side in (up, ~up) if side.any()]
    return np.asarray(np.mean([side.mean(axis=1) for side in present], axis=0))


def spearman(x: Floats, y: Floats) -> float:
    """Rank correlation of x, y (S,); 0 where one side is constant, for which scipy warns and returns NaN."""
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    return float(scipy.stats.spearmanr(x, y).statistic)


def block_orders(blocks: Sequence[Sequence[int]]) -> Ints:
    """Places (B!, S) of all orders of whole blocks (B, M), which keep the order inside a block; the first is the identity."""
    table = np.array(blocks)
    orders = []
    for order in permutations(range(len(table))):
        places = np.empty(table.size, dtype=np.int64)
        places[table.ravel()] = table[list(order)].ravel()
        orders.append(places)
    return np.array(orders)
