"""Keep the groups whose rewards differ enough, by a running threshold."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sage_rlvr.core.rollout_plans.base import ROLLOUT_PLANS, RolloutPlan
from sage_rlvr.core.state import PartState
from sage_rlvr.errors import ConfigError


@ROLLOUT_PLANS.register
@dataclass(frozen=True)
class StdFilter(RolloutPlan):
    """Keep the groups whose standard deviation is at least ratio times its running mean over steps (RLPR, arXiv 2506.18254).

    The mean m is of each step's deviations, of everything drawn, before filtering: nothing of the first `skip` steps; over the
    next `collect` their plain mean, and until then all groups are kept; then m <- decay m + (1 - decay) mean. Within a step
    the bar stays where earlier steps put it. It looks at what a reward source says of the reference only, where the released
    code looks at the whole reward, so that the format's spread keeps a prompt. A step whose mean is no number moves nothing.
    The state is m and the number of steps seen; it moves in a step that keeps no group too, or the bar would never come down.
    After `max_refills` refills an engine goes on with what it has.

    ratio: threshold for dropping a group, as a multiple of the running mean of the groups' standard deviations.
    """

    ratio: float = 0.5
    decay: float = 0.99
    skip: int = 5
    collect: int = 5
    max_refills: int = 9

    def __post_init__(self) -> None:
        if not 0 <= self.ratio < math.inf:
            raise ConfigError(f"StdFilter: ratio = {self.ratio!r}; set a finite number >= 0: 0.5 to 1 in RLPR, 0 keeps all.")
        if not 0 <= self.decay < 1:
            raise ConfigError(f"StdFilter: decay = {self.decay!r}; set 0 <= decay < 1: 0.99 in RLPR.")
        for name, least in (("skip", 0), ("collect", 1), ("max_refills", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"StdFilter: {name} = {value!r}; set a whole number >= {least}.")

    @property
    def equation(self) -> str:
        begin = f"all kept before step {self.skip + self.collect}"
        bar = f"{self.ratio:g} times its running mean over steps (decay {self.decay:g}, {begin})"
        return f"keep groups with std >= {bar}; draw new prompts for the others, at most {self.max_refills} times"

    def start(self) -> dict[str, Tensor]:
        """std_mean (), and the number of steps behind it, ()."""
        return {"std_mean": torch.zeros(()), "steps": torch.zeros((), dtype=torch.int64)}

    def keeps(self, rewards: Float[Tensor, "P G"], state: PartState) -> Bool[Tensor, " P"]:
        """(P,) true where the group's deviation reaches the bar of `state`; all of them before there is one."""
        spread = std_of(rewards)
        if int(state["steps"]) < self.skip + self.collect:
            return torch.ones_like(spread, dtype=torch.bool)
        return spread >= self.ratio * state["std_mean"].to(spread)

    def learned(self, rewards: Float[Tensor, "P G"], state: PartState) -> dict[str, Tensor]:
        """The state after a step that drew these groups."""
        mean, before, steps = std_of(rewards).mean(), state["std_mean"], int(state["steps"]) + 1
        share = 0.0 if steps <= self.skip else max(1 - self.decay, 0.0)
        if self.skip < steps <= self.skip + self.collect:
            share = 1 / (steps - self.skip)
        new = torch.lerp(before, mean.to(before), share) if bool(mean.isfinite()) else before
        return {"std_mean": new, "steps": state["steps"] + 1}


def std_of(rewards: Float[Tensor, "P G"]) -> Float[Tensor, " P"]:
    """Standard deviation of each group, over its G completions (divisor G)."""
    return rewards.detach().float().std(dim=1, correction=0)
