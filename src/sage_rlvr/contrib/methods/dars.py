"""DARS: more completions for hard prompts, in a second stage (arXiv 2508.13755).

Paper: https://arxiv.org/abs/2508.13755. Recipe: `sage-rlvr train dars --task TASK`.
Numbers worked out by hand: tests/core/test_stages.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, Literal, Unpack

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sage_rlvr.core.advantages import Advantage, GroupCentered, GroupNormalized, LeaveOneOut
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import FixedBudget
from sage_rlvr.core.rollout_plans.base import ROLLOUT_PLANS, Baseline, Rewards
from sage_rlvr.core.rollout_plans.stages import SAID, Stages
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored


@ROLLOUT_PLANS.register
@dataclass(frozen=True)
class Dars(Stages):
    """More completions for hard prompts, until their absolute advantages add up to those of an even one (arXiv 2508.13755).

    u: share of right ones in the first stage of G; 1/(2G) if none is. S = 2 u (1 - u), or 2 sqrt(u (1 - u)) if form = "std": |A| of
        r - mean, or of (r - mean) / std, a completion on average, S* its largest value. A prompt with
    u >= 1/2 gets nothing more; any other the smallest e with (G + e) S >= t G S*, at most `max_completions` in all:
    t = 1 for target = "equal", 2 (1 - u) for "hardness".

    0 right of 8 does not distinguish p = 0 from p = .1, which gives it 43 % of the time: then `max_completions` decides.

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
        """The number of additional completions per prompt."""
        spread = "2 u (1 - u)" if self.form == "mean" else "2 sqrt(u (1 - u))"
        level = "" if self.target == "equal" else "2 (1 - u) "
        return (
            f"e more completions where u = mean r < 1/2, the smallest e with (G + e) S >= {level}G S*, G + e <= "
            f"{self.max_completions}, "
            f"S = {spread}, S* at u = 1/2; {SAID[self.baseline]}; groups with rewards that differ are kept"
        )

    def extra(self, rewards: Rewards) -> Int[Tensor, " P"]:
        """Completions of the second stage, (P,). Raises DataError for rewards whose mean is not in [0, 1]."""
        room = self.room(rewards.shape[1])
        counts = [min(self._wanted(u, rewards.shape[1]), room) for u in _shares(rewards)]
        return self.in_stages(torch.tensor(counts, dtype=torch.int64, device=rewards.device), room)

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
    for index, total in enumerate(sums):
        if not 0 <= total <= size:
            raise DataError(
                f"a rollout plan with stages: the mean reward of prompt {index} is {float(total) / size:g}; it uses "
                "the fraction of right completions, so rewards must be from 0 to 1."
            )
    return [total / size for total in sums]


@ROLLOUT_PLANS.register
@dataclass(frozen=True)
class UniformStages(Dars):
    """The control of `Dars`: as many completions as that would draw in this step, spread over all prompts alike.

    The remainder of an uneven split goes to the step's first prompts. max_completions, target, form: as in the `Dars` that it
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


@ROLLOUT_PLANS.register
@dataclass(frozen=True)
class MarginalValue(Stages):
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
            f"{SAID[self.baseline]}; groups with rewards that differ are kept"
        )

    def extra(self, rewards: Rewards) -> Int[Tensor, " P"]:
        """Completions of the second stage, (P,), `each` * P of them if there is room."""
        prompts, size = rewards.shape
        room = self.room(size)
        right = torch.tensor([float(size * share) for share in _shares(rewards)], dtype=torch.float64)
        values = self.values(right, size)  # (room, P)
        order = values.flatten().sort(descending=True, stable=True).indices[: self.each * prompts]
        counts = torch.bincount(order % prompts, minlength=prompts)
        return self.in_stages(counts.to(rewards.device), room)

    def values(self, right: Float[Tensor, " P"], size: int) -> Float[Tensor, "E P"]:
        """E[p (1 - p)^n] for n = size, ..., most - 1, a row for each, after `right` of `size`; float64."""
        a, b = self.right + right, self.wrong + size - right
        n = torch.arange(size, self.max_completions, dtype=torch.float64)[:, None]
        logs = torch.lgamma(a + 1) + torch.lgamma(b + n) - torch.lgamma(a + b + n + 1)
        logs = logs - (torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b))
        return logs.round(decimals=9).exp()  # so that equal ones are equal, independent of the library's last bit


@METHODS.register(label="DARS", about="more samples for hard prompts", arxiv="2508.13755")
@anchored(beta=0.0)
def dars(
    *,
    target: Literal["equal", "hardness"] = "equal",
    max_completions: int = 32,
    form: Literal["mean", "std"] = "mean",
    spread: Literal["difficulty", "uniform"] = "difficulty",
    baseline: Baseline = "union",
    **anchor: Unpack[AnchorKeys],
) -> Method:
    """L = (1/(B L)) sum_i sum_t -min(rho A, clip(rho) A), A = r - mean, hard prompts in two stages (arXiv 2508.13755).

    The first stage is the recipe's group_size, 8 as published; max_completions: 32, with target="hardness" 64.
    form="std" divides by the group's std. spread="uniform" is the control: as many completions, independent of
    difficulty. baseline: "union" as published, whose group size depends on outcomes; "stages" and "second" take RLOO's
    advantage within a stage and are unbiased. DARS-B is this with many prompts per step, one mini-batch and two epochs,
    all of the recipe. The released scripts also have an entropy bonus of 0.001, which is not included.
    """
    plan = UniformStages if spread == "uniform" else Dars
    advantage: Advantage = GroupCentered() if baseline == "union" else LeaveOneOut()
    if form == "std":
        advantage = GroupNormalized()
    rollout = plan(max_completions, target, form, baseline)
    return Method("dars", advantage, Clip(), anchor_of(**anchor), FixedBudget(), rollout=rollout)
