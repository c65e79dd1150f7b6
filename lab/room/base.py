"""What a base's draws show before training: per-problem facts, their means, and the predictors made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from sage_rlvr.verdicts.stats.arrays import Floats, Ints
from sage_rlvr.verdicts.stats.laws import beta_ppf

GRID = (np.arange(64) + 0.5) / 64  # quantiles at which a beta law is read
COLDER = 0.5  # the temperature of the tempered base


def facts(draws: Ints) -> dict[str, Floats]:
    """Facts (..., N) of each problem from independent draws (..., N, K) of keys, 0 for wrong."""
    k = draws.shape[-1]
    right = draws > 0
    c = right.sum(axis=-1)
    alike = (draws[..., :, None] == draws[..., None, :]).sum(axis=-1)  # how many draws equal this one, itself too
    return {
        "right": c / k,
        "solved": (c > 0).astype(float),
        "mixed": ((c > 0) & (c < k)).astype(float),
        "square": c * (c - 1) / (k * (k - 1)),  # unbiased for p^2
        "entropy": -np.log(alike / k).mean(axis=-1),
        "distinct": (right / alike).sum(axis=-1),
        "right pairs": c * (c - 1) / 2,
        "equal pairs": (right * (alike - 1)).sum(axis=-1) / 2,
    }


def correlation(means: Mapping[str, Floats]) -> Floats:
    """The correlation of two draws of a problem: 0 if all problems have the same p, 1 if p is 0 or 1. 0 where nothing is right."""
    p, square = means["right"], means["square"]
    spread = np.where((p > 0) & (p < 1), p * (1 - p), 1.0)
    return np.clip((square - p**2) / spread, 0.0, 1.0)


def probabilities(means: Mapping[str, Floats]) -> Floats:
    """(S, 64): quantiles of the beta law with the mean and the correlation of each row's problems."""
    p, rho = np.clip(means["right"], 1e-6, 1 - 1e-6), np.clip(correlation(means), 0.01, 0.95)
    size = (1 / rho - 1)[:, None]
    return np.asarray(beta_ppf(GRID[None, :], p[:, None] * size, (1 - p)[:, None] * size))


def tempered(p: Floats, temperature: float = COLDER) -> Floats:
    """Success probability of a base whose logit of being right is divided by the temperature."""
    up, down = p ** (1 / temperature), (1 - p) ** (1 / temperature)
    return np.asarray(up / (up + down))


def won_by_tempering(means: Mapping[str, Floats], k: int) -> Floats:
    """The change of pass@k from T = 1 to the colder one, under the beta law."""
    p = probabilities(means)
    return np.asarray(((1 - p) ** k - (1 - tempered(p)) ** k).mean(axis=1))


def ratio(part: Floats, whole: Floats) -> Floats:
    """part / whole, 0 where whole is 0."""
    return np.where(whole > 0, part / np.where(whole > 0, whole, 1.0), 0.0)


Predictor = Callable[[Mapping[str, Floats], int], Floats]
PREDICTORS: dict[str, Predictor] = {
    "pass@1": lambda m, k: m["right"],
    "pass@K (1 - room)": lambda m, k: m["solved"],
    "pass@K - pass@1": lambda m, k: m["solved"] - m["right"],
    "problems with 0 < p < 1": lambda m, k: m["mixed"],
    "variance of the reward, p (1 - p)": lambda m, k: m["right"] - m["square"],
    "correlation of two draws of a problem": lambda m, k: correlation(m),
    "entropy of answers, wrong ones as one": lambda m, k: m["entropy"],
    "distinct right answers in K": lambda m, k: m["distinct"],
    "two right answers differ (PCMD)": lambda m, k: ratio(m["right pairs"] - m["equal pairs"], m["right pairs"]),
    "pass@1 won by T = 0.5": lambda m, k: won_by_tempering(m, 1),
    "pass@K changed by T = 0.5": lambda m, k: won_by_tempering(m, k),
}
ROOM = "pass@K (1 - room)"


def predictors(means: Mapping[str, Floats], k: int) -> Floats:
    """(predictors, S)."""
    return np.stack([of(means, k) for of in PREDICTORS.values()])
