"""Effective rank of hidden states, its growth along a response and the change of that growth.

    p_j = sigma_j / sum sigma,   ER(Z) = exp( -sum_j p_j log p_j )        Roy and Vetterli 2007 (EUSIPCO)
    m_j = ER of the first j * stride rows                                 VERL, arXiv 2509.23808
    d_j = m_j - mean(m_1 .. m_{j-1}),   ERV = mean_j d_j                  first order, "velocity"
    a_j = d_j - d_{j-1},                ERA = mean_j a_j                  second order, "acceleration"

Z (T, d): hidden states of the response tokens, centered over tokens; sigma its singular values. 1 <= ER <= min(T, d).
ER does not change with the scale of Z, with the order of its rows or under a rotation of its features. It grows with
T: compare responses of equal length, or cut them (`last`), before calling a difference one of reasoning.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.stats.arrays import Floats

STRIDE = 40  # tokens between two windows of a response, as in the released code of VERL


@dataclass(frozen=True, eq=False)
class RankPath:
    """rank: ER of the full response; path (J,): ER of its growing prefixes; velocity ERV and acceleration ERA, 0 if the
    response is too short (fewer than two or three windows)."""

    rank: float
    path: Floats
    velocity: float
    acceleration: float


def effective_rank(states: ArrayLike, *, center: bool = True) -> float:
    """ER of states (T, d), centered over tokens if `center`; 0 for equal rows or one row.

    Raises DataError for another shape, no rows, or values that are not finite.
    """
    z = _matrix(states)
    scale = float(np.abs(z).max(initial=0.0))
    if center:
        z = z - z.mean(axis=0)
    sigma = np.linalg.svd(z, compute_uv=False)
    sigma = sigma[sigma > max(z.shape) * np.finfo(float).eps * max(scale, sigma[0])]  # rounding errors are not directions
    if not sigma.size:
        return 0.0
    shares = sigma / sigma.sum()
    return float(np.exp(-np.sum(shares * np.log(shares))))


def rank_path(states: ArrayLike, *, stride: int = STRIDE, last: int | None = None, center: bool = True) -> RankPath:
    """ER, its path over prefixes of stride, 2 stride, ... rows, ERV and ERA of states (T, d) of one response.

    `last` keeps that many final rows first (512 in the released code). One singular value decomposition per window.
    """
    if stride < 2 or (last is not None and last < 1):
        raise DataError(f"stride = {stride}, last = {last}: windows need stride >= 2 rows, and last >= 1 or None.")
    z = _matrix(states)[-last if last is not None else 0 :]
    path = np.array([effective_rank(z[:end], center=center) for end in range(stride, len(z) + 1, stride)])
    velocity, acceleration = rank_dynamics(path)
    return RankPath(effective_rank(z, center=center), path, velocity, acceleration)


def rank_dynamics(path: ArrayLike) -> tuple[float, float]:
    """(ERV, ERA) of effective ranks m_1 .. m_J (J,): the means of d_j (j >= 2) and of a_j (j >= 3); 0 if there is none."""
    m = np.asarray(path, dtype=float)
    before = np.cumsum(m)[:-1] / np.arange(1, max(len(m), 1))
    d = m[1:] - before
    a = np.diff(d)
    return (float(d.mean()) if d.size else 0.0), (float(a.mean()) if a.size else 0.0)


def _matrix(states: ArrayLike) -> Floats:
    z = np.asarray(states, dtype=float)
    if z.ndim != 2 or z.size == 0 or not np.all(np.isfinite(z)):
        raise DataError(
            f"hidden states of shape {z.shape}: pass finite values (T, d) of the response's tokens, T >= 1."
        )
    return z
