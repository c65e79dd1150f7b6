"""Quantiles and tail probabilities of the distributions that intervals use, from scipy.special.

`scipy.stats` has the same functions under the names in the comments, but takes a second to import, which would slow every
`compare`.
"""

from __future__ import annotations

from typing import Any

from scipy import special

norm_ppf, norm_cdf = special.ndtri, special.ndtr  # stats.norm


def t_ppf(q: Any, df: Any) -> Any:
    """Quantile of Student's t with `df` degrees of freedom (stats.t.ppf); NaN without any."""
    return special.stdtrit(df, q)


def t_sf(x: Any, df: Any) -> Any:
    """P(T > x) (stats.t.sf)."""
    return special.stdtr(df, -x)


def beta_ppf(q: Any, a: Any, b: Any) -> Any:
    """Quantile of Beta(a, b), a, b > 0 (stats.beta.ppf)."""
    return special.betaincinv(a, b, q)


def gamma_ppf(q: Any, shape: Any) -> Any:
    """Quantile of Gamma(shape, 1) (stats.gamma.ppf)."""
    return special.gammaincinv(shape, q)


def chi2_ppf(q: Any, df: Any) -> Any:
    """Quantile of chi squared (stats.chi2.ppf)."""
    return 2 * special.gammaincinv(df / 2, q)


def f_sf(x: Any, first: Any, second: Any) -> Any:
    """P(F > x) of Fisher's F with `first` and `second` degrees of freedom (stats.f.sf)."""
    return special.fdtrc(first, second, x)
