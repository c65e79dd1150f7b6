"""A helper of extras that change the rewards of correct completions."""

from __future__ import annotations

from sage_rlvr.core.advantages.base import Groups, require_binary


def right_of(rewards: Groups, who: str) -> Groups:
    """Return the rewards as float32; raise DataError that names the first reward other than 0 and 1."""
    values = rewards.detach().float()
    advice = "it changes the rewards of right completions, so rewards must be 0 or 1: use a verifier with right and wrong"
    require_binary(values, who, advice=advice)
    return values
