"""Rollout plans: which groups of a rollout a step trains on. Frozen; an engine does the drawing (core/method.py)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sage_rlvr.core.state import PartState, State, has_state
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.registry import Registry


@runtime_checkable
class RolloutPlan(Protocol):
    """Which groups a step trains on. An engine draws `prompts_per_step` groups, keeps those that `keeps` marks, and
    refills what is missing with new prompts, at most `max_refills` times; then it goes on with what it has.

    `keeps` sees the raw rewards (P, G), before any transform (the verifier's; of a reward source its `Paid.support`), and
    returns (P,) bool, for each group by itself. One with a running state (core/state.py) has `start()`, gets its state as a second
    argument, the same for the whole step; `learned(rewards, state)` gives the next one, once per step, of all that was drawn.
    """

    @property
    def equation(self) -> str: ...

    @property
    def max_refills(self) -> int: ...

    @property
    def keeps(self) -> Callable[..., Bool[Tensor, " P"]]: ...


ROLLOUT_PLANS: Registry[type] = Registry("rollout_plan")


@ROLLOUT_PLANS.register
@dataclass(frozen=True)
class DynamicSampling:
    """Keep the groups with 0 < #right < G, refill with new prompts (DAPO, arXiv 2503.14476).

    A group is kept where its raw rewards are not all equal, so that its advantages are not all 0. After `max_refills`
    refills an engine goes on with what it has; 9 is verl's 10 generations a step. A group that is all right with
    different lengths is dropped too, although a price on length would have given it advantages.

    A prompt fills the batch in proportion to its chance k of being kept, and a kept group has 1/k of the expected force
    of all its groups (a dropped one has advantages 0): the two cancel, so that against all groups the expected gradient
    of the reward is longer by the same 1 / mean k for every prompt, and that of a KL is weighted by k.
    """

    max_refills: int = 9

    def __post_init__(self) -> None:
        if isinstance(self.max_refills, bool) or not isinstance(self.max_refills, int) or self.max_refills < 0:
            raise ConfigError(
                f"DynamicSampling: max_refills = {self.max_refills!r}; it counts how often a step draws new prompts in "
                "place of dropped ones, so give a whole number >= 0 (0 drops and does not refill)."
            )

    @property
    def equation(self) -> str:
        times = "1 time" if self.max_refills == 1 else f"{self.max_refills} times"
        drawn = (
            f"draw new prompts for the others, at most {times}" if self.max_refills else "draw nothing for the others"
        )
        return f"keep groups with rewards that differ (0 < #right < G); {drawn}"

    def keeps(self, rewards: Float[Tensor, "P G"]) -> Bool[Tensor, " P"]:
        """(P,) true where the rewards of a group are not all equal."""
        if rewards.dim() != 2:
            raise DataError(
                f"DynamicSampling: rewards have shape {tuple(rewards.shape)}; give (prompts, completions per prompt)."
            )
        return rewards.amax(dim=1) != rewards.amin(dim=1)


@ROLLOUT_PLANS.register
@dataclass(frozen=True)
class StdFilter:
    """Keep the groups whose standard deviation is at least ratio times its running mean over steps (RLPR, arXiv 2506.18254).

    The mean m is of each step's deviations, of everything drawn, before filtering: nothing of the first `skip` steps; over the
    next `collect` their plain mean, and until then all groups are kept; then m <- decay m + (1 - decay) mean. Within a step
    the bar stays where earlier steps put it. It looks at what a reward source says of the reference alone, where the released
    code looks at the whole reward, so that the format's spread keeps a prompt. A step whose mean is no number moves nothing.
    The state is m and the number of steps seen; it moves in a step that keeps no group too, or the bar would never come down.
    After `max_refills` refills an engine goes on with what it has.

    ratio: of the running mean of groups' standard deviations, below which a group is dropped.
    """

    ratio: float = 0.5
    decay: float = 0.99
    skip: int = 5
    collect: int = 5
    max_refills: int = 9

    def __post_init__(self) -> None:
        if not 0 <= self.ratio < math.inf:
            raise ConfigError(f"StdFilter: ratio = {self.ratio!r}; give a finite number >= 0: 0.5 to 1 in RLPR, 0 keeps all.")
        if not 0 <= self.decay < 1:
            raise ConfigError(f"StdFilter: decay = {self.decay!r}; give 0 <= decay < 1: 0.99 in RLPR.")
        for name, least in (("skip", 0), ("collect", 1), ("max_refills", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"StdFilter: {name} = {value!r}; give a whole number >= {least}.")

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


def kept_by(plan: RolloutPlan, rewards: Float[Tensor, "P G"], state: State) -> Bool[Tensor, " P"]:
    """The groups that a plan keeps, by its own part of `state` where it has one."""
    return plan.keeps(rewards, state["rollout"]) if has_state(plan) else plan.keeps(rewards)


def learned_by(plan: RolloutPlan | None, rewards: Float[Tensor, "P G"], state: State) -> State:
    """`state` after a step that drew `rewards`, kept or not: the same where the plan has none."""
    if plan is None or not has_state(plan):
        return state
    return {**state, "rollout": plan.learned(rewards, state["rollout"])}  # type: ignore[attr-defined]
