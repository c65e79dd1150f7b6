"""Rollout plans with a second stage: more completions for some prompts, depending on the rewards of the first stage.

    first stage    G completions of every prompt                           as without a plan
    second stage   e_p = extra(rewards of the first stage)_p more of prompt p, 0 for prompts that get none

An allocation is a pure function of the first stage's rewards; the engine samples. `Baseline` selects the groups over which
advantages are then computed. The size of a group depends on rewards that its mean includes, which changes the expected force:
lab/theory/averages.py has it exactly for each form.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeGuard, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sage_rlvr.core.rollout_plans.base import ROLLOUT_PLANS, Baseline, Rewards, Staged
from sage_rlvr.core.rollout_plans.dynamic_sampling import DynamicSampling
from sage_rlvr.errors import ConfigError

Outcomes = TypeVar("Outcomes", Tensor, tuple[int, ...])

_MIXED = DynamicSampling(0)
SAID = {
    "union": "A over both stages of a prompt together",
    "stages": "A within each stage of a prompt by itself",
    "second": "A within the second stage, the only one trained on",
}
_NOTE = {
    "union": (
        "the size n of a group depends on outcomes that its baseline holds, so the expected gradient is not mean size * grad E[r]. "
        "Where Dars extends groups of 8 it is off by 1.6 % at most with the mean of the others as baseline; a mean with the "
        "completion itself in it also multiplies by (n - 1) / n, up to 12 % more for a hard prompt than for an easy one. "
        "baseline='stages' is unbiased"  # the figures: lab/pages/map.md
    ),
    "stages": (
        "with LeaveOneOut the expected gradient is mean size * grad E[r] of each prompt, exactly, but for the "
        "division by what the step keeps: a second stage is an independent sample given its size"
    ),
    "second": (
        "with LeaveOneOut the expected gradient is mean size of the second stage * grad E[r] of each prompt, exactly, "
        "but for the division by what the step keeps; the first stage sets the size and is not trained on"
    ),
}


def is_staged(plan: object) -> TypeGuard[Staged]:
    """Return True if a rollout plan has a second stage."""
    return isinstance(plan, Staged)


def is_guided(plan: object) -> TypeGuard[GuidedStages]:
    """Return True if a rollout plan samples its second stage under prompts with guidance."""
    return isinstance(plan, Staged) and plan.guided


def trained_on(plan: Staged, first: Outcomes, second: Outcomes) -> list[Outcomes]:
    """Return the groups of a prompt whose advantages a step uses, from the completions of its two stages; `+` joins them."""
    return {"union": [first + second], "stages": [first, second], "second": [second]}[plan.baseline]


class Stages(Staged):
    """Base class of plans with a second stage. A group is kept if its rewards differ, as in the released code."""

    def __post_init__(self) -> None:
        who = type(self).__name__
        if (
            isinstance(self.max_completions, bool)
            or not isinstance(self.max_completions, int)
            or not 2 <= self.max_completions < ROWS_OF_A_PROMPT
        ):
            raise ConfigError(
                f"{who}: max_completions = {self.max_completions!r}; set the completions of a prompt in both stages "
                "together, a whole number >= 2 (32 as published)."
            )
        if self.baseline not in SAID:
            raise ConfigError(f"{who}: baseline = {self.baseline!r}; set union, stages or second.")

    @property
    def note(self) -> str:
        """Note on the expected gradient, for `describe`."""
        return _NOTE[self.baseline]

    def keeps(self, rewards: Rewards) -> Bool[Tensor, " P"]:
        """Return (P,) true if the rewards of a group are not all equal."""
        return _MIXED.keeps(rewards)

    def room(self, size: int) -> int:
        """Return the largest second stage after a first one of `size`. Raise ConfigError if `size` is above `max_completions`."""
        if size > self.max_completions:
            raise ConfigError(
                f"{type(self).__name__}: max_completions = {self.max_completions} completions per prompt, but the "
                f"first stage already has {size} (rollout.group_size); raise max_completions, or lower group_size."
            )
        return self.max_completions - size

    def in_stages(self, extra: Int[Tensor, " P"], room: int) -> Int[Tensor, " P"]:
        """Return second stages of two or more completions, as a baseline within the stage needs: 1 becomes 2, or 0 if 2 do not fit.
        """
        return extra if self.baseline == "union" else torch.where(extra == 1, 2 if room > 1 else 0, extra)


ROWS_OF_A_PROMPT = 1 << 20
FIRST_EXTRA_ROW = 1 << 40


def rows_of_stages(groups: Int[Tensor, " g"], size: int, first: int) -> Int[Tensor, "g size"]:
    """Return numbers of the completions of groups with `first` in the first stage and the rest in the second, (g, size).

    Member m < first of group n is row n * first + m of its step, as without stages. The j-th of a second stage is row
    2**40 + n * 2**20 + j: neither the other prompts nor the plan's sizes change it, so that two plans share their common samples.
    """
    member = torch.arange(size, device=groups.device)[None]
    later = FIRST_EXTRA_ROW + groups[:, None] * ROWS_OF_A_PROMPT + member - first
    return torch.where(member < first, groups[:, None] * first + member, later)


@ROLLOUT_PLANS.register(name="guided")
@dataclass(frozen=True)
class GuidedStages(Stages):
    """A second stage of `each` completions for prompts without a correct one, sampled under a prompt that includes guidance.

    The online form that Agent-RLVR (arXiv 2506.11425) suggests and does not run. Guidance g is the hint of the recipe's
    teacher for the prompt's first completion; the completions are trained on under the prompt x without it. Because they are
    sampled from another distribution, each has the weight w = min(pi(y|x) / pi(y|x,g), clip) in the loss, pi at sampling; clip =
    null leaves w = 1.

    max_completions: completions of a prompt, both stages together. baseline: "stages" takes A within each stage,
    "union" over both. guided: false is the control with as many completions of the same prompts, sampled without
    guidance.
    """

    each: int = 8
    max_completions: int = 32
    clip: float | None = 1.0
    baseline: Baseline = "stages"
    guided: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.each, bool) or not isinstance(self.each, int) or self.each < 2:
            raise ConfigError(
                f"GuidedStages: each = {self.each!r}; set the completions of a second stage, a whole number >= 2."
            )
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise ConfigError(
                f"GuidedStages: clip = {self.clip!r}; set the largest weight, a number > 0, or null for no weights."
            )
        if self.baseline == "second":
            raise ConfigError(
                "GuidedStages: baseline = 'second' trains on second stages only, but a prompt with a right answer has "
                "none; set stages or union."
            )

    @property
    def weighs(self) -> bool:
        """True if guided completions are weighted."""
        return self.guided and self.clip is not None

    @property
    def equation(self) -> str:
        """Text of the second stage, the weights and the baseline."""
        how = (
            "drawn under x + g, g the teacher's guidance, trained under x"
            if self.guided
            else "drawn without guidance, a control"
        )
        weight = f", times w = min(pi(y|x) / pi(y|x,g), {self.clip:g}), of others 1" if self.weighs else ""
        return (
            f"{self.each} more completions where none of the first is right, G + e <= {self.max_completions}, {how}{weight}; "
            f"{SAID[self.baseline]}; groups with rewards that differ are kept"
        )

    @property
    def note(self) -> str:
        """Note on the expected gradient, for `describe`."""
        if not self.guided:
            return super().note
        if self.clip is None:
            return (
                "w = 1: guided completions count as if sampled under x, so the second stage is biased for E[r] under "
                "x: completions that guidance makes likelier count too much"
            )
        kept = "" if self.baseline == "stages" else "; the baseline over the union also couples the stages"
        return (
            f"where no w is cut at {self.clip:g}, a second stage with LeaveOneOut has size * grad E[r] of x for its expected "
            "force, exactly; a cut puts min(pi(y|x), clip pi(y|x,g)) in place of pi(y|x), so that completions which guidance "
            f"makes less likely count too little, right and wrong ones alike{kept}"
        )

    def extra(self, rewards: Rewards) -> Int[Tensor, " P"]:
        """Return completions of the second stage, (P,): `each`, or as many as there is room for, if no reward is above 0."""
        room = self.room(rewards.shape[1])
        counts = torch.where((rewards <= 0).all(dim=1), min(self.each, room), 0)
        return self.in_stages(counts, room)

    def weights(self, unguided: Float[Tensor, " B"], drawn: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """Return w of completions from sums of log-probs over own tokens, under x and under the prompt that they were sampled from.
        """
        return torch.ones_like(unguided) if self.clip is None else (unguided - drawn).exp().clamp(max=self.clip)
