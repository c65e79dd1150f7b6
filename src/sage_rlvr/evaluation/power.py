"""Power: the smallest difference that a design could have seen."""

from __future__ import annotations

import math

from scipy import optimize, stats

from sage_rlvr.errors import DataError


def detectable(sd: float, n: int, *, power: float = 0.8, alpha: float = 0.05) -> float:
    """Smallest true mean difference that a two-sided paired t test on n units finds with probability `power`.

    sd: standard deviation of the paired differences (same unit as the answer). Solves the noncentral t power
    function, in which a rejection on the wrong side (below 1e-4 here) is left out. n < 2 gives infinity (nothing can
    be seen), sd = 0 gives 0.
    """
    if sd < 0 or math.isnan(sd) or not 0 < alpha < power < 1:
        raise DataError(f"sd = {sd}, alpha = {alpha}, power = {power}: needs sd >= 0 and 0 < alpha < power < 1.")
    if n < 2:
        return math.inf
    if sd == 0:
        return 0.0
    df = n - 1
    critical = float(stats.t.ppf(1 - alpha / 2, df))
    start = critical + float(stats.t.ppf(power, df))  # the usual sum of two quantiles: close, a little high for small n

    def missing(shift: float) -> float:
        return float(stats.nct.sf(critical, df, shift)) - power

    shift = start
    if missing(0.2 * start) < 0 < missing(2 * start):
        shift = float(optimize.brentq(missing, 0.2 * start, 2 * start, xtol=1e-6))
    return shift * sd / math.sqrt(n)
