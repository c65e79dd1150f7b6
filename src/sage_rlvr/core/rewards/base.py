"""What every reward transform is: rewards of a group become rewards, before the advantage; frozen, no gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from jaxtyping import Float
from torch import Tensor

from sage_rlvr.core.signals import check_needs
from sage_rlvr.errors import DataError
from sage_rlvr.registry import Registry

Groups = Float[Tensor, "P G"]


class RewardTransform(Protocol):
    """Rewards (P, G) and lengths in tokens (P, G) become rewards (P, G), before the advantage.

    `describe` prints its `equation`, a text; without one its name. `needs`, a frozenset, names the optional signals
    that an engine must compute for it, as an `Advantage` does; a transform that has `needs` at all, an empty set included,
    is called with a `Seen` in the place of the lengths. One with a running state (core/state.py) gives the rewards and its new
    state; what a group earns depends on the state and on the group. `dead(size)`, a `Dead`, says what groups of `size` are paid
    that have nothing to compare; without one that is their own reward.
    """

    @property
    def __call__(self) -> Callable[..., Any]: ...


REWARD_TRANSFORMS: Registry[Any] = Registry("reward_transform", check=check_needs)


def right_of(rewards: Groups, who: str) -> Groups:
    """The rewards as float32; DataError that names the first which is neither 0 nor 1."""
    values = rewards.detach().float()
    wrong = ((values != 0) & (values != 1)).nonzero()
    if len(wrong):
        prompt, member = wrong[0].tolist()
        raise DataError(
            f"{who}: the reward of prompt {prompt}, completion {member} is {float(values[prompt, member]):g}; it changes what "
            "right completions are paid, so rewards must be 0 or 1: use a verifier that says right or wrong."
        )
    return values


def mean_where(values: Groups, chosen: Groups) -> Groups:
    """(P, 1) mean of the values where `chosen` is 1; 0 where it is nowhere."""
    return (values * chosen).sum(dim=1, keepdim=True) / chosen.sum(dim=1, keepdim=True).clamp(min=1)
