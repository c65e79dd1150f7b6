"""The base classes of rollout plans: which groups of a rollout a step trains on, in one stage or two.

Frozen; the engine samples.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

from jaxtyping import Bool, Float, Int
from torch import Tensor

from sage_rlvr.core.parts import HOME, Part, check_part
from sage_rlvr.core.state import PartState, State, has_state
from sage_rlvr.members import check_inherits
from sage_rlvr.registry import Registry

Baseline = Literal["union", "stages", "second"]
Rewards = Float[Tensor, "P G"]


@dataclass(frozen=True, eq=False, repr=False)
class RolloutPlan(Part):
    """Choice of the groups that a step trains on. An engine samples `prompts_per_step` groups, keeps those that `keeps` marks, and
    replaces missing ones by groups of new prompts, at most `max_refills` times; then it continues with the groups it has.

    A subclass is a frozen dataclass with `equation` and `keeps`; the rest has defaults. A member that is not a method may be a
    class attribute, a field or a property. A misspelled one raises ConfigError.
    """

    @property
    def max_refills(self) -> int:
        """Number of times that missing groups are replaced in a step; 0 by default."""
        return 0

    @property
    def couples_prompts(self) -> bool:
        """True if the completions of a prompt depend on the other prompts of the step."""
        return False

    @property
    def weighs(self) -> bool:
        """True if completions have weights w in the loss other than 1; `equation` then defines w."""
        return False

    @abstractmethod
    def keeps(self, rewards: Rewards, *state: Any, **none: Any) -> Bool[Tensor, " P"]:
        """Return which groups a step trains on, (P,) bool, each group decided by itself.

        Args:
            rewards: (P, G), before any transform; the verifier's, or `SourceRewards.support` of a reward source.
            *state: the state of a plan with `start`, the same for all of the step.
        """

    def start(self) -> dict[str, Tensor]:
        """Return the running state before the first step (core/state.py); {} = none."""
        return {}

    def learned(self, rewards: Rewards, state: PartState) -> dict[str, Tensor]:
        """Return the state after a step that sampled these groups, kept or not; unchanged by default."""
        return dict(state)


class Staged(RolloutPlan):
    """A rollout plan with a second stage: `extra` more completions of each prompt."""

    @property
    @abstractmethod
    def baseline(self) -> Baseline:
        """Groups over which advantages are computed: both stages together, each stage by itself, or only the second. Required."""

    @property
    @abstractmethod
    def max_completions(self) -> int:
        """Maximum number of completions of a prompt, both stages together. Required."""

    @property
    @abstractmethod
    def note(self) -> str:
        """Note on the expected gradient, for `describe`. Required."""

    @property
    def guided(self) -> bool:
        """True if the second stage is sampled under prompts with guidance; only in `GuidedStages`."""
        return False

    @abstractmethod
    def extra(self, rewards: Rewards) -> Int[Tensor, " P"]:
        """Return the number of second-stage completions per prompt, (P,) int64 >= 0, from raw rewards (P, G) of the first stage."""


_check_plan = check_part(RolloutPlan, "the groups that are kept")


def check_plan(who: str, part: Any) -> object:
    """Raise ConfigError for a class that is not a rollout plan, or that has a second stage and does not inherit `Staged`."""
    needs = _check_plan(who, part)
    if hasattr(part, "extra"):
        declares = "baseline, max_completions and note, since extra makes a second stage"
        check_inherits(who, part, Staged, f"{HOME}.rollout_plans", declares)
    return needs


ROLLOUT_PLANS: Registry[type] = Registry(
    "rollout_plan", check=check_plan, form="sage_rlvr.core.RolloutPlan as its base, equation and keeps(self, rewards)"
)


def kept_by(plan: RolloutPlan, rewards: Float[Tensor, "P G"], state: State) -> Bool[Tensor, " P"]:
    """Return the groups that a plan keeps, given its part of `state` if it has one."""
    return plan.keeps(rewards, state["rollout"]) if has_state(plan) else plan.keeps(rewards)


def learned_by(plan: RolloutPlan | None, rewards: Float[Tensor, "P G"], state: State) -> State:
    """Return `state` after a step that sampled `rewards`, kept or not; unchanged if the plan has no state."""
    if plan is None or not has_state(plan):
        return state
    return {**state, "rollout": plan.learned(rewards, state["rollout"])}
