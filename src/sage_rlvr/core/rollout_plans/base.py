"""The protocol of rollout plans: which groups of a rollout a step trains on. Frozen; the engine samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from jaxtyping import Bool, Float
from torch import Tensor

from sage_rlvr.core.signals import check_equation
from sage_rlvr.core.state import State, has_state
from sage_rlvr.registry import Registry


@runtime_checkable
class RolloutPlan(Protocol):
    """Which groups a step trains on. An engine draws `prompts_per_step` groups, keeps those that `keeps` marks, and
    refills what is missing with new prompts, at most `max_refills` times; then it continues with the groups it has.

    `keeps` sees the raw rewards (P, G), before any transform (the verifier's; of a reward source its `Paid.support`), and
    returns (P,) bool, for each group by itself. One with a running state (core/state.py) has `start()`, gets its state as a second
    argument, the same for the whole step; `learned(rewards, state)` gives the next one, once per step, of all that was drawn.
    """

    @property
    def equation(self) -> str:
        """Which groups are kept, as one line of text."""

    @property
    def max_refills(self) -> int:
        """How often missing groups are drawn anew in a step."""

    @property
    def keeps(self) -> Callable[..., Bool[Tensor, " P"]]:
        """Which groups of raw rewards (P, G) a step trains on, (P,) bool."""


ROLLOUT_PLANS: Registry[type] = Registry("rollout_plan", check=check_equation("the groups that are kept"))


def kept_by(plan: RolloutPlan, rewards: Float[Tensor, "P G"], state: State) -> Bool[Tensor, " P"]:
    """The groups that a plan keeps, by its own part of `state` where it has one."""
    return plan.keeps(rewards, state["rollout"]) if has_state(plan) else plan.keeps(rewards)


def learned_by(plan: RolloutPlan | None, rewards: Float[Tensor, "P G"], state: State) -> State:
    """`state` after a step that drew `rewards`, kept or not: the same where the plan has none."""
    if plan is None or not has_state(plan):
        return state
    return {**state, "rollout": plan.learned(rewards, state["rollout"])}  # type: ignore[attr-defined]
