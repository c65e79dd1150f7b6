"""Entropy, surprisal and q by token class: the tokens that SAGE's signals select (arXiv 2605.18864, section 4.2).

    H_t = -sum_v pi(v | x, y_<t) log pi(v | x, y_<t)      entropy at the prefix (Eq. 12), nats
    s_t = -log pi(y_t | x, y_<t)                          surprisal of the sampled token, nats
    q_t                                                   the guide's factor; 1 = unchanged, q_min and q_max = clamped

The paper states that surprisal reacts to rare wording and numbers, entropy to branches of the reasoning. A table by class tests
this: means and quantiles of each signal, the share of each class among the tokens that a signal ranks highest, the rank correlation
of the two, and the places where q differs from 1. At temperature 1 the mean of s_t at a prefix is H_t, so the two correlate in any
model.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.stats.arrays import Floats, Ints
from sage_rlvr.verdicts.stats.intervals import RESAMPLES, SEED, Interval, bca, bootstrap_means, mean_interval
from sage_rlvr.verdicts.stats.samples.clusters import clusters, pooled_share, ratio_interval

Table = tuple[tuple[str, str], ...]

# (class, regex that must match the full token), the first that fits decides. Tokens are read as text, without blanks at
# both ends and the blank marks of byte-level and sentencepiece tokenizers, in lower case.
TOKEN_CLASSES: Table = (
    ("end or special", r"<\|.*\|>|</?s>|<pad>|<eos>|<bos>|<unk>|<｜.*｜>|<\w+>|</\w+>"),
    ("blank", r"|(?:\\n|[\s_])+"),
    ("number", r"[\d.,]*\d[\d.,]*"),
    ("operator", r"[-+*/=<>^±×÷·≤≥≠≈%!]+|\\(?:times|cdot|div|pm|leq?|geq?|neq?|approx|equiv|sum|prod|frac|sqrt)"),
    ("bracket", r"[][(){}]+|\\(?:left|right)?[][(){}]?|\\[][()]"),
    ("mathematics", r"\$+|\\[a-z]+|[&_|]+|[b-hj-z]|\\\\"),
    ("connective: contrast", r"however|but|wait|actually|instead|although|though|alternatively|otherwise|hmm|no|yet"),
    ("connective: consequence", r"so|therefore|thus|hence|then|since|because|consequently|implies|means|finally"),
    ("connective: opening", r"let|suppose|assume|consider|first|next|now|if|when|case|maybe|perhaps|try|note|recall"),
    ("punctuation", r"[^\w\s]+"),
    ("word", r"[^\W\d]+(?:['’][^\W\d]+)?"),
)

OTHER = "other"
MARKS = ("raised", "lowered", "clamped")
_MARKS = re.compile("^[ \\s▁ĠĊ]+|[ \\s▁ĠĊ]+$")


@dataclass(frozen=True, kw_only=True)
class TokenSpread:
    """Mean and quantiles {level: value} of one signal over the tokens of one class."""

    mean: float
    quantiles: dict[float, float]


@dataclass(frozen=True, kw_only=True)
class ClassAnatomy:
    """One class of tokens: how many, their share of all, the signals, and q.

    top_entropy, top_surprisal: share of this class among the tokens that the signal ranks in its top share (ties split
        evenly); divided by `share` it is the factor of overrepresentation
    raised, lowered: share with q above and below 1
    clamped: share at either end of the band
    correlation: Spearman's, of entropy and surprisal within the class, NaN if it is not defined
    intervals: over problems with all their tokens, by the names of these fields; for entropy, surprisal and q those of the means.
        Empty without problems

    q, raised, lowered and clamped are None without q.
    """

    name: str
    tokens: int
    share: float
    entropy: TokenSpread
    surprisal: TokenSpread
    top_entropy: float
    top_surprisal: float
    correlation: float
    q: TokenSpread | None
    raised: float | None
    lowered: float | None
    clamped: float | None
    intervals: dict[str, Interval] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Anatomy:
    """The table, most frequent class first, and the statistics of all tokens.

    correlation: Spearman's over all tokens; correlation_by_problem: mean of that within each problem, with its interval;
    raised, clamped: shares of all tokens with intervals over problems. Intervals are None without `problems`; raised and
    clamped are None without q as well.
    """

    classes: tuple[ClassAnatomy, ...]
    tokens: int
    top: float
    correlation: float
    correlation_by_problem: Interval | None
    raised: Interval | None
    clamped: Interval | None


def classify(tokens: Sequence[str], table: Table = TOKEN_CLASSES) -> list[str]:
    """The class of each token: the first row of the table that fits its text, else "other"."""
    rules = [(name, re.compile(regex, re.IGNORECASE)) for name, regex in table]
    known: dict[str, str] = {}
    for token in set(tokens):
        text = _MARKS.sub("", token)
        known[token] = next((name for name, regex in rules if regex.fullmatch(text)), OTHER)
    return [known[token] for token in tokens]


def token_anatomy(
    tokens: Sequence[str],
    entropies: ArrayLike,
    surprisals: ArrayLike,
    q: ArrayLike | None = None,
    *,
    problems: Sequence[Hashable] | None = None,
    table: Table = TOKEN_CLASSES,
    band: tuple[float, float] = (0.6, 1.4),
    top: float = 0.2,
    quantiles: Sequence[float] = (0.1, 0.5, 0.9),
    seed: int = SEED,
) -> Anatomy:
    """Signal anatomy of M counted tokens: tokens (M,) text, entropies, surprisals and q (M,), problems (M,) of each.

    `band` is the guide's (q_min, q_max), `top` the share of tokens that counts as a signal's highest. Raises DataError
    for unequal lengths, no tokens, values that are not finite, or q outside the band.
    """
    h = _signal(entropies, "entropies", len(tokens))
    s = _signal(surprisals, "surprisals", len(tokens))
    factor = None if q is None else _signal(q, "q", len(tokens))
    edge = 1e-6 * band[1]  # a float32 1.4 is not 1.4
    if factor is not None and (factor.min() < band[0] - edge or factor.max() > band[1] + edge):
        raise DataError(
            f"q runs from {factor.min():g} to {factor.max():g}, outside band = {band}; pass the guide's band."
        )
    if not 0 < top < 1:
        raise DataError(f"top = {top}: a share of the tokens between 0 and 1, for example 0.2.")
    names = np.array(classify(tokens, table))
    marks = None if factor is None else _marks(factor, band, edge)
    highest = np.stack([_highest(h, top), _highest(s, top)])
    overall = _intervals(h, s, marks, problems, seed)
    columns = _Columns(h, s, factor, marks, highest)
    of = None if problems is None else clusters(problems)
    classes = []
    for name in np.unique(names).tolist():
        classes.append(_row(name, names == name, columns, quantiles, of, seed))
    classes.sort(key=lambda row: -row.tokens)
    return Anatomy(classes=tuple(classes), tokens=len(h), top=top, correlation=_spearman(h, s), **overall)


@dataclass(frozen=True, eq=False)
class _Columns:
    """Arrays of a token's data: signals (M,), marks (3, M) of q, weight in the top share of each signal (2, M)."""

    h: Floats
    s: Floats
    q: Floats | None
    marks: Floats | None
    highest: Floats


def _row(
    name: str, inside: NDArray[np.bool_], c: _Columns, quantiles: Sequence[float], of: tuple[Ints, int] | None, seed: int
) -> ClassAnatomy:  # fmt: skip
    raised = lowered = clamped = None
    if c.marks is not None:
        raised, lowered, clamped = c.marks[:, inside].mean(axis=1).tolist()
    top_shares = c.highest[:, inside].sum(axis=1) / c.highest.sum(axis=1)
    top_h, top_s = top_shares.tolist()
    return ClassAnatomy(
        name=name,
        tokens=int(inside.sum()),
        share=float(inside.mean()),
        entropy=_spread(c.h[inside], quantiles),
        surprisal=_spread(c.s[inside], quantiles),
        top_entropy=top_h,
        top_surprisal=top_s,
        correlation=_spearman(c.h[inside], c.s[inside]),
        q=None if c.q is None else _spread(c.q[inside], quantiles),
        raised=raised,
        lowered=lowered,
        clamped=clamped,
        intervals={} if of is None else _row_intervals(inside, c, *of, seed),
    )


def _row_intervals(inside: NDArray[np.bool_], c: _Columns, of: Ints, n: int, seed: int) -> dict[str, Interval]:
    """Each number of a class with its interval over problems; the ranks of the correlation are fixed."""

    def by_problem(values: Floats) -> Floats:
        """Sums over the class's tokens of each problem."""
        return np.bincount(of[inside], values[inside], n)

    ones = np.ones(len(of))
    tokens = by_problem(ones)
    intervals = {"share": pooled_share(tokens, np.bincount(of, ones, n), seed=seed)}
    signals = {"entropy": c.h, "surprisal": c.s}
    if c.q is not None:
        signals["q"] = c.q
    for name, signal in signals.items():
        intervals[name] = ratio_interval(by_problem(signal), tokens, seed=seed)
    for name, top in zip(("top_entropy", "top_surprisal"), c.highest, strict=True):
        intervals[name] = pooled_share(by_problem(top), np.bincount(of, top, n), seed=seed)
    if c.marks is not None:
        for name, mark in zip(MARKS, c.marks, strict=True):
            intervals[name] = pooled_share(by_problem(mark), tokens, seed=seed)
    correlation = _rank_correlation(c.h[inside], c.s[inside], of[inside], seed)
    if correlation is not None:
        intervals["correlation"] = correlation
    return intervals


def _rank_correlation(a: Floats, b: Floats, of: Ints, seed: int, level: float = 0.95) -> Interval | None:
    """Spearman's correlation with a BCa interval over problems: ranks fixed, their moments resampled by problem."""
    value = _spearman(a, b)
    problems, where = np.unique(of, return_inverse=True)
    if not np.isfinite(value) or len(problems) < 2:
        return None
    x, y = (scipy.stats.zscore(scipy.stats.rankdata(v)) for v in (a, b))
    powers = (np.ones_like(x), x, y, x * x, y * y, x * y)
    moments = np.stack([np.bincount(where, power) for power in powers], axis=1)
    n, sx, sy, sxx, syy, sxy = bootstrap_means(moments, resamples=RESAMPLES, seed=seed).T
    variances = (n * sxx - sx * sx) * (n * syy - sy * sy)
    scale = np.sqrt(np.maximum(variances, 0.0))
    defined = scale > 1e-12
    drawn = (n * sxy - sx * sy)[defined] / scale[defined]
    # influence of a token on a correlation of standardized values: x y - r (x^2 + y^2) / 2
    influence = x * y - value * (x * x + y * y) / 2
    away = np.bincount(where, influence) / moments[:, 0].mean()
    low, high = bca(value + away, np.clip(drawn, -1.0, 1.0), level)
    return Interval(value=value, low=low, high=high, level=level, over="problems", n=len(problems))


def _marks(q: Floats, band: tuple[float, float], edge: float) -> Floats:
    """(3, M) of 0 and 1: q above 1, below 1, at either end of the band."""
    clamped = (q >= band[1] - edge) | (q <= band[0] + edge)
    return np.stack([q > 1 + edge, q < 1 - edge, clamped]).astype(float)


def _intervals(
    h: Floats, s: Floats, marks: Floats | None, problems: Sequence[Hashable] | None, seed: int
) -> dict[str, Interval | None]:
    intervals: dict[str, Interval | None] = {"correlation_by_problem": None, "raised": None, "clamped": None}
    if problems is None:
        return intervals
    if len(problems) != len(h):
        raise DataError(f"{len(problems)} problems for {len(h)} tokens; name the problem of each token.")
    of, n = clusters(problems)
    each = [_spearman(h[of == i], s[of == i]) for i in range(n)]
    defined = [r for r in each if np.isfinite(r)]  # a problem of one token, or of equal values, has no correlation
    if defined:
        intervals["correlation_by_problem"] = mean_interval(defined, seed=seed)
    if marks is None:
        return intervals
    tokens = np.bincount(of, minlength=n)
    for name, mark in zip(MARKS, marks, strict=True):
        if name in intervals:
            intervals[name] = pooled_share(np.bincount(of, mark, n), tokens, seed=seed)
    return intervals


def _highest(values: Floats, share: float) -> Floats:
    """(M,) weight 1 for tokens in the top share, 0 for the rest; tokens tied at the edge share the rest."""
    wanted = share * len(values)
    rank = min(int(np.ceil(wanted)) - 1, len(values) - 1)
    cut = np.sort(values)[::-1][rank]
    above, tied = values > cut, values == cut
    return above + tied * (wanted - above.sum()) / tied.sum()


def _spread(values: Floats, quantiles: Sequence[float]) -> TokenSpread:
    levels = [float(level) for level in quantiles]
    at_levels = np.quantile(values, levels).tolist()
    return TokenSpread(mean=float(values.mean()), quantiles=dict(zip(levels, at_levels, strict=True)))


def _spearman(a: Floats, b: Floats) -> float:
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(scipy.stats.spearmanr(a, b).statistic)


def _signal(values: ArrayLike, name: str, n: int) -> Floats:
    array = np.asarray(values, dtype=float)
    if array.shape != (n,) or n == 0 or not np.all(np.isfinite(array)):
        raise DataError(f"{name} of shape {array.shape} for {n} tokens: pass one finite value a counted token.")
    return array
