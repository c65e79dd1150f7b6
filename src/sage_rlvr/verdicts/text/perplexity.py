"""Perplexities of samples of two policies under their base, in words."""

from __future__ import annotations

from sage_rlvr.verdicts.stats.intervals import Interval


def excess_words(excess: Interval, a: str, b: str, *, task: str, base: str, quantile: float) -> str:
    """The share of a's samples above a quantile of b's perplexities, beyond b's own share there."""
    return (
        f"{task}: samples with a higher perplexity under {base} than {quantile:.0%} of {b}'s own: {a} has {excess.value:+.3f} more "
        f"of them (95 % interval {excess.low:+.3f} to {excess.high:+.3f} over {excess.n} problems)."
    )
