"""Dynamic sampling: keep the groups whose rewards differ."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from sage_rlvr.core.rollout_plans.base import ROLLOUT_PLANS, RolloutPlan
from sage_rlvr.errors import ConfigError, DataError


@ROLLOUT_PLANS.register
@dataclass(frozen=True)
class DynamicSampling(RolloutPlan):
    """Keep the groups with 0 < #right < G, refill with new prompts (DAPO, arXiv 2503.14476).

    A group is kept if its raw rewards are not all equal, so that its advantages are not all 0. After `max_refills`
    refills an engine continues with the groups it has; 9 equals verl's 10 generations per step. An all-correct group
    with different lengths is dropped too, although a price on length would have given it advantages.

    A prompt fills the batch in proportion to its probability k of being kept, and a kept group has 1/k of the expected force
    of all its groups (a dropped one has advantages 0): the two cancel, so that against all groups the expected gradient
    of the reward is longer by the same 1 / mean k for every prompt, and that of a KL is weighted by k.
    """

    max_refills: int = 9

    def __post_init__(self) -> None:
        if isinstance(self.max_refills, bool) or not isinstance(self.max_refills, int) or self.max_refills < 0:
            raise ConfigError(
                f"DynamicSampling: max_refills = {self.max_refills!r}; set the number of times a step draws new "
                "prompts for dropped ones, a whole number >= 0 (0 drops without refilling)."
            )

    @property
    def equation(self) -> str:
        times = "1 time" if self.max_refills == 1 else f"{self.max_refills} times"
        drawn = (
            f"draw new prompts for the others, at most {times}" if self.max_refills else "draw nothing for the others"
        )
        return f"keep groups with rewards that differ (0 < #right < G); {drawn}"

    def keeps(self, rewards: Float[Tensor, "P G"]) -> Bool[Tensor, " P"]:
        """Return (P,) true if the rewards of a group are not all equal."""
        if rewards.dim() != 2:
            raise DataError(
                f"DynamicSampling: rewards have shape {tuple(rewards.shape)}; pass (prompts, completions per prompt)."
            )
        return rewards.amax(dim=1) != rewards.amin(dim=1)
