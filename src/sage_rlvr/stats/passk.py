"""pass@k and its relatives: unbiased estimators from samples, and exact values where the probability of being right is
known. Everything is one number per problem; the mean over problems comes last, so that it can be paired and given an
interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from sage_rlvr.errors import DataError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_ROUNDING = 1e-6  # a sum of float32 probabilities may end this far outside [0, 1]
_CHUNK = 2_000_000  # entries of a table made at a time


def powers(k: int) -> tuple[int, ...]:
    """Powers of two below k, and k."""
    return (*(2**i for i in range(k.bit_length()) if 2**i < k), k)


def pass_at_k(n: ArrayLike, c: ArrayLike, k: ArrayLike) -> float | Floats:
    """Unbiased pass@k, 1 - C(n-c, k) / C(n, k) (Chen et al. 2021, arXiv 2107.03374, equation 1).

    n: samples drawn, c: correct ones among them, k: tries allowed; whole numbers, scalars or arrays that broadcast.
    The ratio is the product over j < c of 1 - k / (n - j), summed in logs: no binomial overflows and no digit is lost
    at n = 10,000. Returns a float for scalars, else an array of the broadcast shape, values in [0, 1].
    Raises DataError for k > n, c > n, k < 1, negative or fractional values, naming them and their place.
    """
    out = _look_up(*_counts(n, c, k), lambda log_miss: -np.expm1(log_miss))
    return float(out) if out.ndim == 0 else out


def pass_hat_k(n: ArrayLike, c: ArrayLike, k: ArrayLike) -> float | Floats:
    """Unbiased pass^k, C(c, k) / C(n, k): the chance that all of k tries are right (tau-bench, arXiv 2406.12045).

    Arguments, shapes and refusals as in `pass_at_k`. Where pass@k asks "ever?", this asks "every time?": it is p^k for
    a problem of probability p, and k = 1 gives c / n in both.
    """
    n_, c_, k_ = _counts(n, c, k)
    out = _look_up(n_, n_ - c_, k_, np.exp)  # all k right is: none of the n - c wrong ones was drawn
    return float(out) if out.ndim == 0 else out


def pass_at_all_k(n: ArrayLike, c: ArrayLike) -> Floats:
    """The whole curve of every problem: n () or (N,), c (N,) -> (N, K), column j being pass@(j + 1), K the smallest n.

    Same values as `pass_at_k`, by the same ratio read the other way round: the product over i < k of 1 - c / (n - i)
    grows with k, so one cumulative sum makes a curve and problems with equal (n, c) share it. K ends at the smallest n:
    beyond it the mean would be over other problems. Memory: 8 N K bytes, twice.
    """
    table, which = curve_table(n, c)
    return table[which]


def curve_table(n: ArrayLike, c: ArrayLike) -> tuple[Floats, Ints]:
    """`pass_at_all_k` without repetition: the curves (U, K) of the U different pairs (n, c), and the row of each problem (N,)."""
    c_ = np.atleast_1d(_whole(c, "c"))
    n_ = np.broadcast_to(_whole(n, "n"), c_.shape)
    if c_.ndim != 1 or c_.size == 0:
        raise DataError(f"c has shape {c_.shape}: pass one count a problem, shape (N,) with N >= 1.")
    length = int(n_.min())
    _check_counts(n_, c_, np.full(c_.shape, max(length, 1)))
    pairs, which = np.unique(np.stack([n_, c_]), axis=1, return_inverse=True)
    table = np.empty((pairs.shape[1], length))
    step = max(1, _CHUNK // length)
    for start in range(0, len(table), step):
        table[start : start + step] = _curves(pairs[:, start : start + step], length)
    return table, which.reshape(-1)


def avg_at_n(n: ArrayLike, c: ArrayLike) -> float | Floats:
    """avg@n, c / n: the mean score of all samples, the unbiased pass@1 with the least noise. Shapes as `pass_at_k`."""
    return pass_at_k(n, c, 1)


def cover_at_tau(n: ArrayLike, c: ArrayLike, tau: ArrayLike) -> float | Floats:
    """Cover@tau of each problem, 1[c / n >= tau]; its mean over problems is the metric (arXiv 2510.08325).

    tau in (0, 1]: the share of samples that has to be right. tau <= 1/n asks for one right sample (pass@n), tau = 1 for
    all. c / n stands for p, so a problem whose p lies within about 1/sqrt(n) of tau may fall on the wrong side: give n
    with it. With p known, pass@k is the mean of Cover@tau under the density k (1 - tau)^(k-1), which for large k looks
    at tau near 0 alone: lucky guesses. Raises DataError for tau outside (0, 1] and for impossible counts.
    """
    n_, c_, _ = _counts(n, c, 1)
    share = np.asarray(tau, dtype=float)
    bad = ~((share > 0) & (share <= 1))
    if np.any(bad):
        raise DataError(f"tau = {share[bad].flat[0]:g}: a share of right samples in (0, 1]; 0 would cover everything.")
    out = np.asarray(c_ >= share * n_ - 1e-9 * n_, dtype=float)  # 3 of 10 reach 0.1 + 0.2, whatever its last bit
    return float(out) if out.ndim == 0 else out


def _look_up(n: Ints, c: Ints, k: Ints, of: Callable[[Floats], Floats]) -> Floats:
    """`of` the log of C(n-c, k) / C(n, k), of the broadcast shape; one table a pair (n, k), so the rest is reading."""
    samples, tries = np.broadcast_arrays(n, k)
    if samples.size and np.ptp(samples) == 0:  # the common case; sorting k alone is cheaper than sorting pairs
        keys, which = np.unique(k, return_inverse=True)
        pairs = [(int(samples.flat[0]), int(tries_)) for tries_ in keys]
        which = which.reshape(k.shape)
    else:
        stride = int(tries.max(initial=0)) + 1
        keys, which = np.unique(samples * stride + tries, return_inverse=True)
        pairs = [divmod(int(key), stride) for key in keys]
        which = which.reshape(samples.shape)
    tables = [of(_table(samples_, tries_)) for samples_, tries_ in pairs]
    starts = np.cumsum([0, *(len(table) for table in tables)])[:-1]
    return np.asarray(np.concatenate([*tables, np.zeros(0)])[starts[which] + c])


def _table(n: int, k: int) -> Floats:
    """log of the chance that k tries miss, for c = 0..n correct samples, shape (n + 1,)."""
    log_miss = np.cumsum(np.log1p(-k / np.arange(n, k, -1)))  # c = 1 .. n-k; at c > n-k a miss is impossible
    return np.concatenate([[0.0], log_miss, np.full(k, -np.inf)])


def _curves(pairs: Ints, length: int) -> Floats:
    """pass@1 .. pass@length for pairs (2, U) of n and c, shape (U, length); length <= n."""
    n, c = pairs
    left = (n[:, None] - np.arange(length)).astype(float)  # samples not yet drawn
    with np.errstate(divide="ignore"):
        factors = np.log1p(-np.minimum(c[:, None] / left, 1.0))  # -inf once fewer wrong samples are left than tries
    return -np.expm1(np.cumsum(factors, axis=1))


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


def sampling_variance(p: ArrayLike, n: int, k: int) -> Floats:
    """Variance of the unbiased pass@k of n samples at a known probability p of being right, exactly and of p's shape:

    sum over c of Bin(c; n, p) (pass@k(n, c) - mean)^2
    """
    shares = np.clip(np.asarray(p, dtype=float), 0.0, 1.0)
    counts = np.arange(n + 1)
    values = np.asarray(pass_at_k(n, counts, k))
    weights = scipy.stats.binom.pmf(counts[None, :], n, shares.ravel()[:, None])
    mean = weights @ values
    return np.asarray(np.maximum(weights @ values**2 - mean**2, 0.0)).reshape(shares.shape)


def curve(p: ArrayLike, ks: Sequence[int]) -> Floats:
    """Exact pass@k of every problem: p (N,), ks (K,) -> (N, K). Average over axis 0 only at the very end."""
    probabilities = np.atleast_1d(np.asarray(p, dtype=float))
    return np.asarray(exact_pass_at_k(probabilities[:, None], np.asarray(ks, dtype=float)[None, :]))


def check_probabilities(p: ArrayLike, name: str = "p") -> Floats:
    """`p` as float64 in [0, 1], or a DataError that names the first value outside and its index."""
    values = np.asarray(p, dtype=float)
    bad = ~((values >= -_ROUNDING) & (values <= 1 + _ROUNDING))  # NaN is caught too
    if np.any(bad):
        index = tuple(int(i) for i in np.argwhere(bad)[0])
        where = f"{name}{list(index)}" if index else name
        value = float(values[index])
        raise DataError(f"{where} = {value} is not a probability; pass values in [0, 1], not log-probabilities.")
    return np.clip(values, 0.0, 1.0)


def _counts(n: ArrayLike, c: ArrayLike, k: ArrayLike) -> tuple[Ints, Ints, Ints]:
    """The three as whole numbers that can mean something together; not yet broadcast."""
    n_, c_, k_ = _whole(n, "n"), _whole(c, "c"), _whole(k, "k")
    _check_counts(*np.broadcast_arrays(n_, c_, k_))
    return n_, c_, k_


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
            index = tuple(np.argwhere(bad)[0])
            at = f" at index {[int(i) for i in index]}" if index else ""
            raise DataError(f"n = {n[index]}, c = {c[index]}, k = {k[index]}{at}: {reason}.")
