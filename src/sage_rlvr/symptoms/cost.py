"""Checks of the cost: whether the run fits, how long a step takes."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sage_rlvr.symptoms.finding import Finding
from sage_rlvr.symptoms.first_rollout import FirstRollout


def found(first: FirstRollout) -> Iterator[Finding]:
    """All findings of the cost."""
    price = first.price
    if not price.fits:
        yield Finding(
            cause="no-memory",
            severity="cannot learn",
            sentence="a step needs more memory than is free",
            next_step=price.advice or "use smaller micro-batches, fewer new tokens or a smaller model",
            examples=(),
        )
    share = price.reward / price.sampling if price.sampling and not math.isnan(price.reward) else math.nan
    if share > 1.0 and price.reward > 10.0:
        yield Finding(
            cause="reward-slow",
            severity="warning",
            sentence=f"judging this rollout took {price.reward:.0f} s, sampling it {price.sampling:.0f} s",
            next_step="judge in a pool of processes, or make the function async",
        )


__all__ = ["found"]
