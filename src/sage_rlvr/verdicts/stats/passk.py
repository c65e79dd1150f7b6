"""pass@k and its relatives: unbiased estimators from samples, and exact values if the probability of being right is known. Every
value is per problem; the mean over problems is taken last, so that it can be paired and given an interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import scipy
from numpy.typing import ArrayLike

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.stats.arrays import Floats, Ints

_ROUNDING = 1e-6  # a sum of float32 probabilities may end this far outside [0, 1]
_CHUNK = 2_000_000  # entries of a table made at a time
EVERY = 1024
"""k up to which a curve has every k."""
_FINER = 1.02  # above EVERY, the step from one k to the next
_TABLES = 4096  # samples up to which a table of all counts is made
_SUMMED = 32  # number of factors up to which a product is summed in logs
_SERIES = 16  # m from which the Stirling series of log m! is exact to the last digit
_WINDOW = 12.0  # standard deviations of a binomial count beyond which the probability is negligible (1e-30)


def powers(k: int) -> tuple[int, ...]:
    """Powers of two below k, and k."""
    return (*(2**i for i in range(k.bit_length()) if 2**i < k), k)


def curve_ks(top: int) -> tuple[int, ...]:
    """The k of a curve up to `top`: all of them up to `EVERY`, then a grid whose steps are 2 %, and `top`.

    About 1,024 + 50 log(top / 1,024) values, so that a curve of a million samples costs as much as one of two thousand.
    """
    ks = list(range(1, min(top, EVERY) + 1))
    while ks and ks[-1] < top:
        ks.append(min(top, max(ks[-1] + 1, round(_FINER * ks[-1]))))
    return tuple(ks)


def pass_at_k(n: ArrayLike, c: ArrayLike, k: ArrayLike) -> float | Floats:
    """Unbiased pass@k, 1 - C(n-c, k) / C(n, k) (Chen et al. 2021, arXiv 2107.03374, equation 1).

    n: samples drawn, c: correct ones among them, k: tries allowed; integers, scalars or arrays that broadcast.
    The ratio is the product over j < c of 1 - k / (n - j), summed in logs or, for many samples, by Stirling's series: no binomial
    overflows, no digit is lost, and time and memory do not grow with n. Returns a float for scalars, else an array of the broadcast
    shape, values in [0, 1].
    Raises DataError for k > n, c > n, k < 1, negative or fractional values, naming them and their place.
    """
    out = _look_up(*_counts(n, c, k), lambda log_miss: -np.expm1(log_miss))
    return float(out) if out.ndim == 0 else out


def pass_hat_k(n: ArrayLike, c: ArrayLike, k: ArrayLike) -> float | Floats:
    """Unbiased pass^k, C(c, k) / C(n, k): the chance that all of k tries are right (tau-bench, arXiv 2406.12045).

    Arguments, shapes and errors as in `pass_at_k`. pass@k asks "ever?", this asks "every time?": it is p^k for
    a problem of probability p, and k = 1 gives c / n in both.
    """
    n_, c_, k_ = _counts(n, c, k)
    out = _look_up(n_, n_ - c_, k_, np.exp)  # "all k right" means that none of the n - c wrong ones was drawn
    return float(out) if out.ndim == 0 else out


def pass_at_all_k(n: ArrayLike, c: ArrayLike, most: int | None = None) -> Floats:
    """The curve of every problem: n () or (N,), c (N,) -> (N, K), column j is pass@(j + 1), K the smallest n or `most`.

    Same values as `pass_at_k`, by the same ratio with c and k exchanged: the product over i < k of 1 - c / (n - i)
    grows with k, so one cumulative sum makes a curve and problems with equal (n, c) share it. K ends at the smallest n:
    beyond it the mean would be over other problems. Memory: 8 N K bytes, twice.
    """
    table, which = curve_table(n, c, lambda top: range(1, (top if most is None else min(top, most)) + 1))
    return table[which]


def curve_table(n: ArrayLike, c: ArrayLike, ks_of: Callable[[int], Sequence[int]]) -> tuple[Floats, Ints]:
    """Curves without repetition: (U, K) for the U different pairs (n, c), and the row of each problem (N,).

    ks_of: the smallest n -> the K values of k, in order. As far as they are 1, 2, 3, ... one cumulative sum makes them.
    """
    c_ = np.atleast_1d(_whole(c, "c"))
    n_ = np.broadcast_to(_whole(n, "n"), c_.shape)
    if c_.ndim != 1 or c_.size == 0:
        raise DataError(f"c has shape {c_.shape}: pass one count a problem, shape (N,) with N >= 1.")
    top = int(n_.min())
    _check_counts(n_, c_, np.full(c_.shape, max(top, 1)))
    pairs, which = np.unique(np.stack([n_, c_]), axis=1, return_inverse=True)
    ks = np.array(ks_of(top), dtype=np.int64)
    together = int(np.sum(ks == np.arange(1, len(ks) + 1)))
    table = np.empty((pairs.shape[1], len(ks)))
    step = max(1, _CHUNK // len(ks))
    for start in range(0, len(table), step):
        some = pairs[:, start : start + step]
        table[start : start + step, :together] = _curves(some, together)
        table[start : start + step, together:] = -np.expm1(_log_miss(some[0, :, None], some[1, :, None], ks[together:]))
    return table, which.reshape(-1)


def avg_at_n(n: ArrayLike, c: ArrayLike) -> float | Floats:
    """avg@n, c / n: the mean score of all samples, the unbiased pass@1 with the least noise. Shapes as `pass_at_k`."""
    return pass_at_k(n, c, 1)


def cover_at_tau(n: ArrayLike, c: ArrayLike, tau: ArrayLike) -> float | Floats:
    """Cover@tau of each problem, 1[c / n >= tau]; its mean over problems is the metric (arXiv 2510.08325).

    tau in (0, 1]: the share of samples that has to be right. tau <= 1/n asks for one right sample (pass@n), tau = 1 for
    all. c / n estimates p, so a problem with p within about 1/sqrt(n) of tau may be on the wrong side: report n with it. With p
    known, pass@k is the mean of Cover@tau under the density k (1 - tau)^(k-1), which for large k is concentrated near tau = 0:
    lucky guesses. Raises DataError for tau outside (0, 1] and for impossible counts.
    """
    n_, c_, _ = _counts(n, c, 1)
    share = np.asarray(tau, dtype=float)
    bad = ~((share > 0) & (share <= 1))
    if np.any(bad):
        raise DataError(f"tau = {share[bad].flat[0]:g}: a share of right samples in (0, 1]; 0 would cover everything.")
    out = np.asarray(c_ >= share * n_ - 1e-9 * n_, dtype=float)  # 3 of 10 reach 0.1 + 0.2, whatever its last bit
    return float(out) if out.ndim == 0 else out


def _look_up(n: Ints, c: Ints, k: Ints, of: Callable[[Floats], Floats]) -> Floats:
    """`of` the log of C(n-c, k) / C(n, k), of the broadcast shape; one table per pair (n, k), then look-ups. No table is made for
    many samples."""
    if n.size and n.max() > _TABLES:
        return np.asarray(of(_log_miss(n, c, k)))
    samples, tries = np.broadcast_arrays(n, k)
    if samples.size and np.ptp(samples) == 0:  # the common case; sorting only k is cheaper than sorting pairs
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


def _log_miss(n: Ints, c: Ints, k: Ints) -> Floats:
    """log of C(n-c, k) / C(n, k) of the broadcast shape, in time that does not depend on n.

    c and k may be exchanged. Up to 32 factors 1 - k / (n - j) are summed. For more, with m = n - c - k and
    log x! = (x + 1/2) log x - x + log(2 pi) / 2 + s(x), the logs of large numbers cancel by hand:

        (m + 1/2) log1p(c k / (m n)) + k log1p(-c / n) + c log1p(-k / n) + s(n - c) + s(n - k) - s(m) - s(n)
    """
    samples, one, two = (x.astype(float) for x in np.broadcast_arrays(n, c, k))
    fewer, more = np.minimum(one, two), np.maximum(one, two)
    m = samples - fewer - more
    out = np.where(m < 0, -np.inf, 0.0)
    summed = (m >= 0) & (fewer <= _SUMMED)
    few, many, of = fewer[summed], more[summed], samples[summed]
    total = np.zeros(few.shape)
    for j in range(int(few.max(initial=0))):
        total += _log_left(np.where(j < few, many, 0.0), np.maximum(of - j, 1.0))
    out[summed] = total
    rest = (m >= 0) & ~summed
    few, many, of, m = fewer[rest], more[rest], samples[rest], m[rest]
    spread = np.where(m > 0, np.log1p(few * many / (np.maximum(m, 1.0) * of)), np.log(few * many / of))
    series = _stirling(of - few) + _stirling(of - many) - _stirling(m) - _stirling(of)
    out[rest] = (m + 0.5) * spread + many * _log_left(few, of) + few * _log_left(many, of) + series
    return out


def _log_left(x: Floats, n: Floats) -> Floats:
    """log(1 - x / n) of integers x < n, without a loss of digits near 0 and near 1."""
    return np.where(2 * x < n, np.log1p(-x / n), np.log((n - x) / n))


def _stirling(m: Floats) -> Floats:
    """s(m) = log m! - (m + 1/2) log m + m - log(2 pi) / 2 of integers m; for m = 0 without the logarithm."""
    safe = np.maximum(m, 1.0)
    square = 1 / safe**2
    series = (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square * (1 / 1680 - square / 1188)))) / safe
    exact = scipy.special.gammaln(m + 1) - (m + 0.5) * np.log(safe) + m - 0.5 * np.log(2 * np.pi)
    return np.where(m < _SERIES, exact, series)


def _curves(pairs: Ints, length: int) -> Floats:
    """pass@1 .. pass@length for pairs (2, U) of n and c, shape (U, length); length <= n."""
    n, c = pairs
    left = (n[:, None] - np.arange(length)).astype(float)  # samples not yet drawn
    with np.errstate(divide="ignore"):
        factors = np.log1p(-np.minimum(c[:, None] / left, 1.0))  # -inf if fewer wrong samples remain than tries
    curves: Floats = -np.expm1(np.cumsum(factors, axis=1))
    return curves


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

    For more than 4,096 samples the sum is over the counts within 12 standard deviations.
    """
    shares = np.clip(np.asarray(p, dtype=float), 0.0, 1.0)
    if n <= _TABLES:
        counts = np.arange(n + 1)
        return _variance(counts, scipy.stats.binom.pmf(counts, n, shares.ravel()[:, None]), n, k).reshape(shares.shape)
    out = np.empty(shares.size)
    for i, share in enumerate(shares.ravel().tolist()):
        reach = _WINDOW * (np.sqrt(n * share * (1 - share)) + _WINDOW)
        counts = np.arange(max(0, int(n * share - reach)), min(n, int(n * share + reach) + 1) + 1)
        out[i] = _variance(counts, scipy.stats.binom.pmf(counts, n, share)[None], n, k)[0]
    return out.reshape(shares.shape)


def _variance(counts: Ints, weights: Floats, n: int, k: int) -> Floats:
    """Variances (P,) of pass@k of counts (C,) with probabilities (P, C)."""
    values = np.asarray(pass_at_k(n, counts, k))
    mean = weights @ values
    return np.asarray(np.maximum(weights @ values**2 - mean**2, 0.0))


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
    return np.asarray(np.clip(values, 0.0, 1.0))


def _counts(n: ArrayLike, c: ArrayLike, k: ArrayLike) -> tuple[Ints, Ints, Ints]:
    """The three as consistent integers, not yet broadcast."""
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
