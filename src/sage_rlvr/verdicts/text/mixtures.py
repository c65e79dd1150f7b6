"""A mixture of policies in words."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sage_rlvr.verdicts.stats.hull import Share


def mixture_words(names: Sequence[str], best: Sequence[Share], heatless: Collection[str] = ()) -> str:
    """ "GRPO at T = 0.9", or several policies with their shares, the largest first. names: of the rivals of `best`; heatless: those
    without a temperature."""
    parts = []
    for one in sorted(best, key=lambda one: -one.weight):
        share = f"{one.weight:.0%} " if len(best) > 1 else ""
        at = "" if names[one.rival] in heatless else f" at T = {one.temperature:g}"
        parts.append(f"{share}{names[one.rival]}{at}")
    return " and ".join(parts)
