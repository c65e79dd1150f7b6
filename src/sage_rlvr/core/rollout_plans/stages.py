"""Rollout plans with a second stage: more completions for some prompts, depending on the rewards of the first stage.

    first stage    G completions of every prompt                           as without a plan
    second stage   e_p = extra(rewards of the first stage)_p more of prompt p, 0 where the plan gives none

An allocation is a pure function of the first stage's rewards. The engine draws (core/method.py says of which groups the
advantages are then taken: `Baseline`). The size of a group depends on outcomes that its mean holds, which is no small matter:
theory/averages.py has the expected force of each form, exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, Literal, TypeGuard, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sage_rlvr.core.rollout_plans.base import ROLLOUT_PLANS, Baseline, Rewards, Staged
from sage_rlvr.core.rollout_plans.dynamic_sampling import DynamicSampling
from sage_rlvr.errors import ConfigError, DataError

Outcomes = TypeVar("Outcomes", Tensor, tuple[int, ...])

_MIXED = DynamicSampling(0)
_SAID = {
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
    """Whether a rollout plan has a second stage."""
    return isinstance(plan, Staged)


def is_guided(plan: object) -> TypeGuard[GuidedStages]:
    """Whether a rollout plan draws its second stage under prompts with guidance."""
    return isinstance(plan, Staged) and plan.guided


def trained_on(plan: Staged, first: Outcomes, second: Outcomes) -> list[Outcomes]:
    """The groups of a prompt whose advantages a step takes, of what its stages drew; `+` puts the two together."""
    return {"union": [first + second], "stages": [first, second], "second": [second]}[plan.baseline]


class _Stages(Staged):
    """What plans with a second stage share. A group is kept where its rewards differ, as in the released code."""

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
        if self.baseline not in _SAID:
            raise ConfigError(f"{who}: baseline = {self.baseline!r}; set union, stages or second.")

    @property
    def note(self) -> str:
        """What the expected gradient is, for `describe`."""
        return _NOTE[self.baseline]

    def keeps(self, rewards: Rewards) -> Bool[Tensor, " P"]:
        """(P,) true where the rewards of a group are not all equal."""
        return _MIXED.keeps(rewards)

    def room(self, size: int) -> int:
        """Completions that a second stage may have after a first one of `size`. ConfigError if that is above
        `max_completions`."""
        if size > self.max_completions:
            raise ConfigError(
                f"{type(self).__name__}: max_completions = {self.max_completions} completions per prompt, but the "
                f"first stage already has {size} (rollout.group_size); raise max_completions, or lower group_size."
            )
        return self.max_completions - size

    def in_stages(self, extra: Int[Tensor, " P"], room: int) -> Int[Tensor, " P"]:
        """A second stage with a baseline of its own has two completions at least: 1 becomes 2, or 0 where there is no room."""
        return extra if self.baseline == "union" else torch.where(extra == 1, 2 if room > 1 else 0, extra)


ROWS_OF_A_PROMPT = 1 << 20
FIRST_EXTRA_ROW = 1 << 40


def rows_of_stages(groups: Int[Tensor, " g"], size: int, first: int) -> Int[Tensor, "g size"]:
    """Numbers of the completions of groups with `first` in the first stage and the others in the second, (g, size).

    Member m < first of group n is row n * first + m of its step, as without stages. The j-th of a second stage is row
    2**40 + n * 2**20 + j: neither the other prompts nor the plan's sizes move it, so that two plans share what both draw.
    """
    member = torch.arange(size, device=groups.device)[None]
    later = FIRST_EXTRA_ROW + groups[:, None] * ROWS_OF_A_PROMPT + member - first
    return torch.where(member < first, groups[:, None] * first + member, later)


@ROLLOUT_PLANS.register
@dataclass(frozen=True)
class Dars(_Stages):
    """More completions for hard prompts, until their absolute advantages add up to those of an even one (arXiv 2508.13755).

    u: share of right ones in the first stage of G; 1/(2G) where none is. S = 2 u (1 - u), or 2 sqrt(u (1 - u)) where
    form = "std": |A| of r - mean, or of (r - mean) / std, a completion on average, S* its largest value. A prompt with
    u >= 1/2 gets nothing more; any other the smallest e with (G + e) S >= t G S*, at most `max_completions` in all:
    t = 1 for target = "equal", 2 (1 - u) for "hardness".

    0 right of 8 does not tell p = 0 from p = .1, which has it 43 % of the time: there `max_completions` decides.

    max_completions: completions of a prompt, both stages together. target: level to which hard prompts are raised.
    form: the advantage whose |A| is equalized. baseline: "union" takes A over both stages, "stages" within each,
    "second" trains on the second stage only.
    """

    max_completions: int = 32
    target: Literal["equal", "hardness"] = "equal"
    form: Literal["mean", "std"] = "mean"
    baseline: Baseline = "union"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target not in ("equal", "hardness") or self.form not in ("mean", "std"):
            raise ConfigError(
                f"{type(self).__name__}: target = {self.target!r}, form = {self.form!r}; set target to equal or "
                "hardness, and form to mean or std."
            )

    @property
    def equation(self) -> str:
        spread = "2 u (1 - u)" if self.form == "mean" else "2 sqrt(u (1 - u))"
        level = "" if self.target == "equal" else "2 (1 - u) "
        return (
            f"e more completions where u = mean r < 1/2, the smallest e with (G + e) S >= {level}G S*, G + e <= "
            f"{self.max_completions}, "
            f"S = {spread}, S* at u = 1/2; {_SAID[self.baseline]}; groups with rewards that differ are kept"
        )

    def extra(self, rewards: Rewards) -> Int[Tensor, " P"]:
        """Completions of the second stage, (P,). DataError for rewards whose mean is not in [0, 1]."""
        room = self.room(rewards.shape[1])
        found = [min(self._wanted(u, rewards.shape[1]), room) for u in _shares(rewards)]
        return self.in_stages(torch.tensor(found, dtype=torch.int64, device=rewards.device), room)

    def _wanted(self, share: Fraction, size: int) -> int:
        return _extra(share, size, self.target == "hardness", self.form == "std")


@lru_cache(maxsize=4096)
def _extra(share: Fraction, size: int, hard: bool, std: bool) -> int:
    """e of `Dars` before its bound, in exact arithmetic: the total is G t / x, or G t / sqrt(x), rounded up; x = 4 u (1 - u)."""
    share = share or Fraction(1, 2 * size)
    if share >= Fraction(1, 2):
        return 0
    spread, level = 4 * share * (1 - share), 2 * (1 - share) if hard else Fraction(1)
    if not std:
        return math.ceil(size * level / spread) - size
    return math.isqrt(math.ceil((size * level) ** 2 / spread) - 1) + 1 - size


def _shares(rewards: Rewards) -> list[Fraction]:
    """The mean reward of each group, as a fraction."""
    sums = [Fraction(one) for one in rewards.double().sum(dim=1).tolist()]
    size = rewards.shape[1]
    for place, total in enumerate(sums):
        if not 0 <= total <= size:
            raise DataError(
                f"a rollout plan with stages: the mean reward of prompt {place} is {float(total) / size:g}; it uses "
                "the fraction of right completions, so rewards must be from 0 to 1."
            )
    return [total / size for total in sums]


@ROLLOUT_PLANS.register
@dataclass(frozen=True)
class UniformStages(Dars):
    """The control of `Dars`: as many completions as that would draw in this step, spread over all prompts alike.

    What does not split evenly goes to the step's first prompts. max_completions, target, form: as in the `Dars` that it
    controls for.
    """

    couples_prompts: ClassVar[bool] = True

    @property
    def equation(self) -> str:
        return f"as many more completions as Dars would draw, the same for every prompt (Dars: {super().equation})"

    def extra(self, rewards: Rewards) -> Int[Tensor, " P"]:
        """Completions of the second stage, (P,): all equal, but for a remainder."""
        prompts, total = len(rewards), int(super().extra(rewards).sum())
        unit = 1 if self.baseline == "union" else 2
        whole, rest = divmod(total // unit, prompts)
        more = torch.arange(prompts, device=rewards.device) < rest
        return (unit * (whole + more.long())).clamp(max=self.room(rewards.shape[1]))


@ROLLOUT_PLANS.register(name="guided")
@dataclass(frozen=True)
class GuidedStages(_Stages):
    """A second stage of `each` completions for prompts without a right one, drawn under a prompt with guidance in it.

    The online form that Agent-RLVR (arXiv 2506.11425) suggests and does not run. Guidance g is the hint of the recipe's
    teacher for the prompt's first completion; the completions are trained on under the prompt x without it. Drawn from
    another law, each weighs w = min(pi(y|x) / pi(y|x,g), clip) in the loss, pi as it drew; clip = null leaves w = 1.

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
    def equation(self) -> str:
        how = (
            "drawn under x + g, g the teacher's guidance, trained under x"
            if self.guided
            else "drawn without guidance, a control"
        )
        weight = f", times w = min(pi(y|x) / pi(y|x,g), {self.clip:g})" if self.guided and self.clip is not None else ""
        return (
            f"{self.each} more completions where none of the first is right, G + e <= {self.max_completions}, {how}{weight}; "
            f"{_SAID[self.baseline]}; groups with rewards that differ are kept"
        )

    @property
    def note(self) -> str:
        """What the expected gradient is, for `describe`."""
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
            f"makes less likely count too little, right and wrong ones alike (theory/guided.py){kept}"
        )

    def extra(self, rewards: Rewards) -> Int[Tensor, " P"]:
        """Completions of the second stage, (P,): `each`, or what there is room for, where no reward is above 0."""
        room = self.room(rewards.shape[1])
        found = torch.where((rewards <= 0).all(dim=1), min(self.each, room), 0)
        return self.in_stages(found, room)

    def weights(self, asked: Float[Tensor, " B"], drawn: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """w of completions, from their log-probs under the prompt x and under the prompt that drew them, sums over own tokens."""
        return torch.ones_like(asked) if self.clip is None else (asked - drawn).exp().clamp(max=self.clip)


@ROLLOUT_PLANS.register
@dataclass(frozen=True)
class MarginalValue(_Stages):
    """A second stage of `each` completions per prompt on average, where one more raises the group's pass@n most.

    The n + 1st completion raises pass@n by p (1 - p)^n. With k right of the G of the first stage and p ~ Beta(right, wrong)
    before it, that is B(a + 1, b + n) / B(a, b) on average, a = right + k, b = wrong + G - k. It falls with n, so the
    `each` * P largest values of the step are taken; ties go to the lower n, then to the earlier prompt.

    each: completions of a second stage, per prompt on average. max_completions: completions of a prompt, both stages
    together. right, wrong: parameters of the Beta prior of p before the first stage. baseline: "union" takes A over
    both stages, "stages" within each, "second" trains on the second stage only.
    """

    each: int = 5
    max_completions: int = 32
    right: float = 1.0
    wrong: float = 1.0
    baseline: Baseline = "union"
    couples_prompts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.each, bool) or not isinstance(self.each, int) or self.each < 1:
            raise ConfigError(
                f"MarginalValue: each = {self.each!r}; set the completions of a second stage, a whole number >= 1."
            )
        if not (0 < self.right < math.inf and 0 < self.wrong < math.inf):
            raise ConfigError(
                f"MarginalValue: right = {self.right!r}, wrong = {self.wrong!r} are the parameters of a Beta law; set both > 0, 1 "
                "and 1 for a uniform p."
            )

    @property
    def equation(self) -> str:
        return (
            f"{self.each} more completions per prompt on average, G + e <= {self.max_completions}, one after the other where "
            f"E[p (1 - p)^n] is largest, n = those it has, p ~ Beta({self.right:g} + right, {self.wrong:g} + wrong); "
            f"{_SAID[self.baseline]}; groups with rewards that differ are kept"
        )

    def extra(self, rewards: Rewards) -> Int[Tensor, " P"]:
        """Completions of the second stage, (P,), `each` * P of them where there is room."""
        prompts, size = rewards.shape
        room = self.room(size)
        right = torch.tensor([float(size * share) for share in _shares(rewards)], dtype=torch.float64)
        values = self.values(right, size)  # (room, P)
        order = values.flatten().sort(descending=True, stable=True).indices[: self.each * prompts]
        found = torch.bincount(order % prompts, minlength=prompts)
        return self.in_stages(found.to(rewards.device), room)

    def values(self, right: Float[Tensor, " P"], size: int) -> Float[Tensor, "E P"]:
        """E[p (1 - p)^n] for n = size, ..., most - 1, a row each, after `right` of `size`; float64."""
        a, b = self.right + right, self.wrong + size - right
        n = torch.arange(size, self.max_completions, dtype=torch.float64)[:, None]
        logs = torch.lgamma(a + 1) + torch.lgamma(b + n) - torch.lgamma(a + b + n + 1)
        logs = logs - (torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b))
        return logs.round(decimals=9).exp()  # so that equal ones are, whatever the library's last bit
