"""pass@k: the unbiased estimator from samples, and the exact value where the probability of being right is known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sage_rlvr.errors import DataError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_ROUNDING = 1e-6  # a sum of float32 probabilities may end this far outside [0, 1]


def pass_at_k(n: ArrayLike, c: ArrayLike, k: ArrayLike) -> float | Floats:
    """Unbiased pass@k, 1 - C(n-c, k) / C(n, k) (Chen et al. 2021, arXiv 2107.03374, equation 1).

    n: samples drawn, c: correct ones among them, k: tries allowed; whole numbers, scalars or arrays that broadcast.
    The ratio is the product over j < c of 1 - k / (n - j), summed in logs: no binomial overflows and no digit is lost
    at n = 10,000. Returns a float for scalars, else an array of the broadcast shape, values in [0, 1].
    Raises DataError for k > n, c > n, k < 1, negative or fractional values, naming them and their place.
    """
    n_, c_, k_ = _whole(n, "n"), _whole(c, "c"), _whole(k, "k")
    _check_counts(*np.broadcast_arrays(n_, c_, k_))
    samples, tries = np.broadcast_arrays(n_, k_)
    pairs, which = np.unique(np.stack([samples.ravel(), tries.ravel()]), axis=1, return_inverse=True)
    tables = [_table(int(samples_), int(tries_)) for samples_, tries_ in pairs.T]
    starts = np.cumsum([0, *(len(table) for table in tables)])[:-1]
    out = np.concatenate([*tables, np.zeros(0)])[starts[which.reshape(samples.shape)] + c_]
    return float(out) if out.ndim == 0 else out


def _table(n: int, k: int) -> Floats:
    """pass@k for c = 0..n correct samples, shape (n + 1,); 1 as soon as fewer than k samples are wrong."""
    log_miss = np.cumsum(np.log1p(-k / np.arange(n, k, -1)))  # c = 1 .. n-k; at c > n-k a miss is impossible
    return np.concatenate([[0.0], -np.expm1(log_miss), np.ones(k)])


def exact_pass_at_k(p: ArrayLike, k: ArrayLike) -> float | Floats:
    """1 - (1 - p)^k for a known probability p of being right; -expm1(k log1p(-p)) keeps digits for p near 0.

    p: in [0, 1] (float32 rounding up to 1e-6 outside is clipped), k >= 1; scalars or arrays that broadcast.
    Raises DataError for NaN, p outside [0, 1] or k < 1.
    """
    probabilities, tries = check_probabilities(p), np.asarray(k, dtype=float)
    if np.any(~(tries >= 1)):
        raise DataError(f"k = {tries[~(tries >= 1)].flat[0]:g}: k counts the tries, so it starts at 1.")
    with np.errstate(divide="ignore"):
        value = -np.expm1(tries * np.log1p(-probabilities))
    return float(value) if value.ndim == 0 else value


def curve(p: ArrayLike, ks: Sequence[int]) -> Floats:
    """Exact pass@k of every problem: p (N,), ks (K,) -> (N, K). Average over axis 0 only at the very end."""
    probabilities = np.atleast_1d(np.asarray(p, dtype=float))
    return np.asarray(exact_pass_at_k(probabilities[:, None], np.asarray(ks, dtype=float)[None, :]))


def check_probabilities(p: ArrayLike, name: str = "p") -> Floats:
    """`p` as float64 in [0, 1], or a DataError that names the first value outside and its index."""
    values = np.asarray(p, dtype=float)
    bad = ~((values >= -_ROUNDING) & (values <= 1 + _ROUNDING))  # NaN is caught too
    if np.any(bad):
        place = tuple(int(i) for i in np.argwhere(bad)[0])
        where = f"{name}{list(place)}" if place else name
        value = float(values[place])
        raise DataError(f"{where} = {value} is not a probability; pass values in [0, 1], not log-probabilities.")
    return np.clip(values, 0.0, 1.0)


def _whole(value: ArrayLike, name: str) -> Ints:
    raw = np.asarray(value)
    if raw.dtype.kind in "iu":
        return raw.astype(np.int64)
    as_float = np.asarray(raw, dtype=float)
    if np.any(~np.isfinite(as_float)) or np.any(as_float != np.floor(as_float)):
        raise DataError(f"{name} must be whole numbers, got {value!r}; pass counts, not rates.")
    return as_float.astype(np.int64)


def _check_counts(n: Ints, c: Ints, k: Ints) -> None:
    rules = [
        (k < 1, "k counts the tries, so it starts at 1"),
        ((n < 0) | (c < 0), "counts cannot be negative"),
        (c > n, "there are more correct samples than samples"),
        (k > n, "pass@k cannot be estimated from fewer than k samples; draw more samples or ask for a smaller k"),
    ]
    for bad, reason in rules:
        if np.any(bad):
            place = tuple(np.argwhere(bad)[0])
            at = f" at index {[int(i) for i in place]}" if place else ""
            raise DataError(f"n = {n[place]}, c = {c[place]}, k = {k[place]}{at}: {reason}.")
