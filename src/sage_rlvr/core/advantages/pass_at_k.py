"""pass@k as the objective: PKPO's unbiased advantages, and the analytic advantages of Chen et al., which are biased."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from sage_rlvr.core.advantages.base import (
    ADVANTAGES,
    Advantage,
    Dead,
    Groups,
    checked,
    log_choose,
    require_binary,
    silent_of_labels,
)
from sage_rlvr.core.schedules import Schedule, over_a_run, show
from sage_rlvr.errors import ConfigError, DataError


def _counts(rewards: Groups, k: int, who: str, largest: int) -> tuple[Groups, Tensor]:
    values = checked(rewards, 2, who)
    require_binary(values, who, "PowerNormalized, which takes any reward of 0 or more")
    if k > largest:
        raise DataError(
            f"{who}: k = {k} with groups of {values.shape[1]}; it needs k <= {largest}: lower k or raise group_size."
        )
    return values, values.sum(dim=1, keepdim=True)


def _check(k: int, who: str) -> None:
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ConfigError(f"{who}: k = {k!r}; k is a number of samples: set a whole number >= 1 (4 or 8 in the papers).")


@ADVANTAGES.register
@dataclass(frozen=True)
class PassAtK(Advantage):
    """PKPO (arXiv 2505.15201): the unbiased gradient of pass@k = 1 - (1 - P)^k for rewards 0 and 1.

    baseline: with sloo1 a wrong completion earns nothing, with sloo each is held against the others' pass@k.

    sloo1  right: k C(G-c, k-1) / C(G-1, k-1), wrong: 0, c right of G: the chance that k - 1 companions all fail
    sloo   s - (k/(G-1)) (mean over the k-subsets of the others of their maximum) times G, s the raw transform

    Both times G, so that the mean over the group is the gradient. k = 1 is plain REINFORCE (sloo1) or RLOO (sloo). It saturates:
    f' = k (1 - P)^(k - 1) is below RLOO's from P = 1 - k^(-1/(k-1)) on (.37 at k = 4, .26 at 8), so pass@1 stalls where k is
    large. The paper anneals k to 1, with which it does not: k may be a schedule, rounded at each step. 0 in a group without a
    right one; where all are right, 0 too (k = 1: 1), with sloo -k/(G - 1) for each. DataError for rewards other than 0 and 1, for
    k > G (sloo: k > G - 1), and for a call whose k is still a schedule (`at`).

    k: number of samples of which one must be right: a whole number up to the group size, or a schedule.
    """

    k: int | Schedule = 4
    baseline: Literal["sloo1", "sloo"] = "sloo1"

    def __post_init__(self) -> None:
        if isinstance(self.k, Schedule):
            _check(self._steps()[0], f"PassAtK: k = {self.k!r} becomes")
        else:
            _check(self.k, "PassAtK")
        if self.baseline not in ("sloo1", "sloo"):
            raise ConfigError(f"PassAtK: baseline = {self.baseline!r}; set sloo1 (the paper's choice) or sloo.")

    def at(self, step: int, total_steps: int) -> PassAtK:
        """With the k of a step, the whole number nearest to its schedule."""
        return replace(self, k=round(self.k(step, total_steps))) if isinstance(self.k, Schedule) else self

    def dead(self, size: int) -> Dead:
        """Where all are right, 0 for sloo1 but at k = 1, and -k/(G - 1) with sloo's baseline."""
        if self.baseline == "sloo":
            return Dead("compared" if isinstance(self.k, Schedule) else -self.k / (size - 1), 0.0, "refused")
        return Dead("compared" if isinstance(self.k, Schedule) else float(self.k == 1), 0.0, "refused")

    def _steps(self) -> list[int]:
        """Every k of a run, the smallest first."""
        return sorted({round(k) for k in over_a_run(self.k)})

    @property
    def least_group(self) -> int:
        """k samples must fit into a group, and into the others of one for sloo's baseline: the largest k of the run."""
        return self._steps()[-1] + (self.baseline == "sloo")

    @property
    def _shown(self) -> tuple[object, object]:
        """k and k - 1, as numbers or as letters."""
        return ("k", "k - 1") if isinstance(self.k, Schedule) else (self.k, self.k - 1)

    @property
    def equation(self) -> str:
        k, less = self._shown
        if self.baseline == "sloo1":
            return f"r {k} C(G - c, {less}) / C(G - 1, {less}),  c = sum_group r"
        return f"G s - G ({k}/(G-1)) pass@{k} of the others"

    @property
    def legend(self) -> str:
        k, _ = self._shown
        raw = "" if self.baseline == "sloo1" else f"s = sum of max r over {k}-subsets with the completion / C(G, {k})"
        when = f"k = {show(self.k)} at the step, rounded" if isinstance(self.k, Schedule) else ""
        return ",  ".join(filter(None, (raw, when)))

    @property
    def ascends(self) -> str:
        k, _ = self._shown
        return f"grad (1 - (1 - P)^{k}), P = P(right): pass@{k}" + " with the k of the step" * isinstance(self.k, Schedule)

    def __call__(self, rewards: Groups) -> Groups:
        if isinstance(self.k, Schedule):
            raise DataError(
                f"PassAtK: k = {show(self.k)} is a schedule; call at(step, total_steps) to get the advantage of a step."
            )
        size, k = rewards.shape[-1], self.k
        values, right = _counts(rewards, k, "PassAtK", size if self.baseline == "sloo1" else size - 1)
        wrong = size - right
        others = torch.full_like(right, size - 1)
        if self.baseline == "sloo1":
            alone = (log_choose(wrong, k - 1) - log_choose(others, k - 1)).exp().float()
            return values * k * alone
        # of k - 1 others, from a wrong one
        misses = (log_choose(wrong - 1, k - 1) - log_choose(others, k - 1)).exp().float()
        raw = torch.where(values == 1, 1.0, 1.0 - misses) * k
        fails = (log_choose(wrong - (1 - values), k) - log_choose(others, k)).exp().float()
        return raw - (1.0 - fails) * (k * size / (size - 1))


@ADVANTAGES.register
@dataclass(frozen=True)
class AnalyticPassAtK(Advantage):
    """Chen et al. (arXiv 2508.10751): every k-subset of the group is a group of its own, with its maximum as reward.

    R = 1 - C(G-c, k)/C(G, k), sigma = sqrt(R (1 - R)); right: (1 - R)/sigma; wrong: (1 - R - C(G-c-1, k-1)/C(G-1, k-1))/sigma.
    The division weighs prompts anew: for large G it ascends (2/k) arcsin sqrt(pass@k), as GRPO does 2 arcsin sqrt P; without it
    pass@k itself, 1/k - 1/G times. k = 1 is GRPO with the std of the population. All 0 for c = 0 and once c > G - k: every
    group where k = G. DataError for rewards other than 0 and 1 and for k > G.

    k: number of samples of which one must be right, at most the group size.
    """

    k: int = 4
    dead = silent_of_labels
    takes_group_mean: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check(self.k, "AnalyticPassAtK")

    @property
    def least_group(self) -> int:
        """k samples must fit into a group."""
        return self.k

    @property
    def equation(self) -> str:
        return f"(mean of max r over {self.k}-subsets with the completion - R) / sqrt(R (1 - R)),  R = pass@{self.k} of the group"

    @property
    def ascends(self) -> str:
        return (
            f"(1/sigma) (1/{self.k} - 1/G) grad pass@{self.k}, each group by its own sigma = sqrt(R (1 - R)): for large G, "
            f"grad (2/{self.k}) arcsin sqrt(pass@{self.k}), pass@{self.k} = 1 - (1 - P(right))^{self.k}"
        )

    def __call__(self, rewards: Groups) -> Groups:
        values, right = _counts(rewards, self.k, "AnalyticPassAtK", rewards.shape[-1])
        size = values.shape[1]
        wrong, all_of, others = size - right, torch.full_like(right, size), torch.full_like(right, size - 1)
        missed = (log_choose(wrong, self.k) - log_choose(all_of, self.k)).exp()
        alone = (log_choose(wrong - 1, self.k - 1) - log_choose(others, self.k - 1)).exp()
        sigma = (missed * (1.0 - missed)).sqrt()
        found = torch.where(values == 1, missed, missed - alone)
        return torch.where(sigma > 0, found / sigma.clamp(min=1e-300), 0.0).float()
