"""The protocol of reward transforms: rewards of a group -> rewards, before the advantage; frozen, no gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from sage_rlvr.core.advantages.base import Groups, require_binary
from sage_rlvr.core.signals import check_needs
from sage_rlvr.registry import Registry


class RewardTransform(Protocol):
    """Rewards (P, G) and lengths in tokens (P, G) become rewards (P, G), before the advantage.

    `describe` prints its `equation`, a text; without one its name. `needs`, a frozenset, names the optional signals
    that an engine must compute for it, as an `Advantage` does; a transform that has `needs` at all, an empty set
    included, is called with a `Seen` in place of the lengths. One with a running state (core/state.py) gives the
    rewards and its new state; what a group earns depends on the state and on the group. `dead(size)`, a `Dead`, returns
    the reward of groups of `size` with nothing to compare, by default their own reward.
    """

    @property
    def __call__(self) -> Callable[..., Any]: ...


REWARD_TRANSFORMS: Registry[Any] = Registry("reward_transform", check=check_needs)


def right_of(rewards: Groups, who: str) -> Groups:
    """The rewards as float32; DataError that names the first reward other than 0 and 1."""
    values = rewards.detach().float()
    advice = "it changes the rewards of right completions, so rewards must be 0 or 1: use a verifier with right and wrong"
    require_binary(values, who, advice=advice)
    return values
