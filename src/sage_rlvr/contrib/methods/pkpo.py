"""PKPO: the unbiased gradient of pass@k (arXiv 2505.15201).

Paper: https://arxiv.org/abs/2505.15201. Recipe: `sage-rlvr train pkpo --task TASK`.
Numbers worked out by hand: tests/core/objective/test_utilities.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Unpack

import torch
from torch import Tensor

from sage_rlvr.core.advantages.base import (
    ADVANTAGES,
    Advantage,
    Groups,
    ZeroVariance,
    checked,
    log_choose,
    require_binary,
)
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import FixedBudget
from sage_rlvr.core.schedules import Schedule, over_a_run, show
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored


def counts_of(rewards: Groups, k: int, who: str, largest: int) -> tuple[Groups, Tensor]:
    """The rewards, and the number of right ones in each group (P, 1). Raises DataError for rewards other than 0 and 1, or k
    above the largest."""
    values = checked(rewards, 2, who)
    require_binary(values, who, "PowerNormalized, which takes any reward of 0 or more")
    if k > largest:
        raise DataError(
            f"{who}: k = {k} with groups of {values.shape[1]}; it needs k <= {largest}: lower k or raise group_size."
        )
    return values, values.sum(dim=1, keepdim=True)


def check_k(k: int, who: str) -> None:
    """Raise ConfigError for a k that is not an integer of at least 1."""
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ConfigError(f"{who}: k = {k!r}; k is a number of samples: set a whole number >= 1 (4 or 8 in the papers).")


@ADVANTAGES.register(name="pass_at_k")
@dataclass(frozen=True)
class PassAtKAdvantage(Advantage):
    """PKPO (arXiv 2505.15201): the unbiased gradient of pass@k = 1 - (1 - P)^k for rewards 0 and 1.

    baseline: with sloo1 a wrong completion has A = 0, with sloo each is compared with the others' pass@k.

    sloo1  right: k C(G-c, k-1) / C(G-1, k-1), wrong: 0, c right of G: the chance that k - 1 companions all fail
    sloo   s - (k/(G-1)) (mean over the k-subsets of the others of their maximum) times G, s the raw transform

    Both times G, so that the mean over the group is the gradient. k = 1 is plain REINFORCE (sloo1) or RLOO (sloo). It saturates:
    f' = k (1 - P)^(k - 1) is below RLOO's from P = 1 - k^(-1/(k-1)) on (.37 at k = 4, .26 at 8), so pass@1 stalls if k is large.
    The paper anneals k to 1, with which it does not: k may be a schedule, rounded at each step. 0 in a group without a right one;
    if all are right, 0 too (k = 1: 1), with sloo -k/(G - 1) for each. Raises DataError for rewards other than 0 and 1, for k > G
    (sloo: k > G - 1), and for a call whose k is still a schedule (`at`).

    k: number of samples of which one must be right: an integer up to the group size, or a schedule.
    """

    k: int | Schedule = 4
    baseline: Literal["sloo1", "sloo"] = "sloo1"

    def __post_init__(self) -> None:
        if isinstance(self.k, Schedule):
            check_k(self._steps()[0], f"PassAtKAdvantage: k = {self.k!r} becomes")
        else:
            check_k(self.k, "PassAtKAdvantage")
        if self.baseline not in ("sloo1", "sloo"):
            raise ConfigError(f"PassAtKAdvantage: baseline = {self.baseline!r}; set sloo1 (the paper's choice) or sloo.")

    def at(self, step: int, total_steps: int) -> PassAtKAdvantage:
        """Return the advantage with the k of a step, the integer nearest to its schedule."""
        return replace(self, k=round(self.k(step, total_steps))) if isinstance(self.k, Schedule) else self

    def dead(self, size: int) -> ZeroVariance:
        """Value in an all-right group: 0 for sloo1 except at k = 1, and -k/(G - 1) with sloo's baseline."""
        if self.baseline == "sloo":
            return ZeroVariance("compared" if isinstance(self.k, Schedule) else -self.k / (size - 1), 0.0, "refused")
        return ZeroVariance("compared" if isinstance(self.k, Schedule) else float(self.k == 1), 0.0, "refused")

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
                f"PassAtKAdvantage: k = {show(self.k)} is a schedule; call at(step, total_steps) to get the advantage of a step."
            )
        size, k = rewards.shape[-1], self.k
        values, right = counts_of(rewards, k, "PassAtKAdvantage", size if self.baseline == "sloo1" else size - 1)
        wrong = size - right
        others = torch.full_like(right, size - 1)
        if self.baseline == "sloo1":
            others_wrong = (log_choose(wrong, k - 1) - log_choose(others, k - 1)).exp().float()
            return values * k * others_wrong
        # among k - 1 others, from a wrong one
        misses = (log_choose(wrong - 1, k - 1) - log_choose(others, k - 1)).exp().float()
        raw = torch.where(values == 1, 1.0, 1.0 - misses) * k
        fails = (log_choose(wrong - (1 - values), k) - log_choose(others, k)).exp().float()
        return raw - (1.0 - fails) * (k * size / (size - 1))


@METHODS.register(label="PKPO", about="unbiased gradient of pass@k", arxiv="2505.15201")
@anchored(beta=0.0, estimator="k1", placement="reward")
def pkpo(*, k: int | Schedule = 4, baseline: Literal["sloo1", "sloo"] = "sloo1", **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/(B L)) sum_i sum_t -min(rho A, clip(rho) A), A the unbiased gradient of pass@k (arXiv 2505.15201).

    k at most the group's size. pass@k saturates: the larger k, the lower the pass@1 at which a prompt's gradient vanishes. A
    schedule anneals k, as the paper does: {name: linear, start: 8, end: 1} ends as REINFORCE.
    """
    return Method("pkpo", PassAtKAdvantage(k, baseline), Clip(), anchor_of(**anchor), FixedBudget())
