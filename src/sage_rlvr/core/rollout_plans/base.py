"""What a rollout plan is: which groups of a rollout a step trains on, in one stage or two. Frozen; the engine samples."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

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
    """Which groups a step trains on. An engine draws `prompts_per_step` groups, keeps those that `keeps` marks, and
    refills what is missing with new prompts, at most `max_refills` times; then it continues with the groups it has.

    A subclass is a frozen dataclass with `equation` and `keeps`; the rest has defaults. A member that is no method may be a class
    attribute, a field or a property. ConfigError for a misspelled one.
    """

    if TYPE_CHECKING:  # read-only, so that a part may give each as a class attribute, a field or a property

        @property
        def max_refills(self) -> int:
            """How often missing groups are drawn anew in a step; 0 by default."""

        @property
        def couples_prompts(self) -> bool:
            """Whether what a prompt gets depends on the other prompts of the step."""

    else:
        max_refills = 0
        couples_prompts = False

    @abstractmethod
    def keeps(self, rewards: Rewards, *state: Any, **none: Any) -> Bool[Tensor, " P"]:
        """Which groups a step trains on, (P,) bool, of their raw rewards (P, G), each group by itself.

        rewards: before any transform; the verifier's, or of a reward source its `SourceRewards.support`. state: that of a plan with
        `start`, the same for the whole step.
        """

    def start(self) -> dict[str, Tensor]:
        """The running state before the first step (core/state.py); {} = none."""
        return {}

    def learned(self, rewards: Rewards, state: PartState) -> dict[str, Tensor]:
        """The state after a step that drew these groups, kept or not; the same by default."""
        return dict(state)


class Staged(RolloutPlan):
    """A rollout plan with a second stage: `extra` more completions of each prompt."""

    if TYPE_CHECKING:

        @property
        def baseline(self) -> Baseline:
            """Of which groups advantages are taken: both stages together, each by itself, or the second alone. Required."""

        @property
        def max_completions(self) -> int:
            """The most completions of a prompt, both stages together. Required."""

        @property
        def note(self) -> str:
            """What the expected gradient is, for `describe`. Required."""

        @property
        def guided(self) -> bool:
            """Whether the second stage is drawn under prompts with guidance; only `GuidedStages` is."""

    else:
        baseline: ClassVar[Baseline]
        max_completions: ClassVar[int]
        note: ClassVar[str]
        guided = False

    @abstractmethod
    def extra(self, rewards: Rewards) -> Int[Tensor, " P"]:
        """Completions of the second stage for each prompt, (P,) int64, none negative, of the raw rewards (P, G) of the first."""


_check_plan = check_part(RolloutPlan, "the groups that are kept")


def check_plan(who: str, part: Any) -> object:
    """ConfigError for a class that is no rollout plan, or that has a second stage and does not inherit `Staged`."""
    needs = _check_plan(who, part)
    if hasattr(part, "extra"):
        declares = "baseline, max_completions and note, since extra makes a second stage"
        check_inherits(who, part, Staged, f"{HOME}.rollout_plans", declares)
    return needs


ROLLOUT_PLANS: Registry[type] = Registry(
    "rollout_plan", check=check_plan, form="sage_rlvr.core.RolloutPlan as its base, equation and keeps(self, rewards)"
)


def kept_by(plan: RolloutPlan, rewards: Float[Tensor, "P G"], state: State) -> Bool[Tensor, " P"]:
    """The groups that a plan keeps, by its own part of `state` where it has one."""
    return plan.keeps(rewards, state["rollout"]) if has_state(plan) else plan.keeps(rewards)


def learned_by(plan: RolloutPlan | None, rewards: Float[Tensor, "P G"], state: State) -> State:
    """`state` after a step that drew `rewards`, kept or not: the same where the plan has none."""
    if plan is None or not has_state(plan):
        return state
    return {**state, "rollout": plan.learned(rewards, state["rollout"])}
