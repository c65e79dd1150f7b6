"""The expected number of distinct right answers among k.

Recipe: `sage-rlvr train distinct --task TASK`.
Numbers worked out by hand: tests/core/objective/test_utilities.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Unpack

import torch
from torch import Tensor

from sage_rlvr.contrib.methods.pkpo import check_k
from sage_rlvr.core.advantages.base import (
    ADVANTAGES,
    Advantage,
    Groups,
    GroupSignals,
    ZeroVariance,
    checked,
    log_choose,
    require_binary,
)
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import FixedBudget
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored


@ADVANTAGES.register
@dataclass(frozen=True)
class DistinctRight(Advantage):
    """The unbiased gradient of the expected number of distinct right answers among k, sum_a [1 - (1 - pi(a))^k], a right.

    U_i = r_i k C(G - m_i, k-1) / C(G - 1, k-1), m_i how often the answer of i occurs in its group: the chance that none
    of k - 1 companions gives it. A_i = (U_i - mean over j != i of U_j without i in the group) / D^power; the baseline
    does not know completion i, so it costs no bias at power = 0. D = sum over right answers of 1 - C(G - m, k) / C(G,
    k), at least k/G: how many different ones k of the group contain, so that power = 1 is about grad log E[distinct@k],
    and is it for large G. k = 1 is RLOO; with one right answer it is PKPO's sloo1 with a baseline; at k = G only
    answers that occur once are rewarded. 0 in a group without a right answer; in an all-right group, nonzero by the differences of
    the answers.

    needs: "answers". Raises DataError for rewards other than 0 and 1 and for k > G.

    k: number of samples in which distinct right answers are counted, at most the group size.
    """

    k: int = 4
    power: float = 0.0
    needs: ClassVar[frozenset[str]] = frozenset({"answers"})

    def __post_init__(self) -> None:
        check_k(self.k, "DistinctRight")
        if not 0 <= self.power <= 2:
            raise ConfigError(
                f"DistinctRight: power = {self.power!r}; set 0 (distinct@k) to 1 (its logarithm), at most 2."
            )

    def dead(self, size: int) -> ZeroVariance:
        """Nonzero in an all-right group, by the differences of the answers; 0 at k = 1."""
        return ZeroVariance("compared" if self.k > 1 else 0.0, 0.0, "refused")

    @property
    def least_group(self) -> int:
        """k samples must fit into a group."""
        return self.k

    @property
    def equation(self) -> str:
        scale = "" if self.power == 0 else f" / D{f'^{self.power:g}' if self.power != 1 else ''}"
        return f"(U - mean_others U){scale},  U = r {self.k} C(G - m, {self.k - 1}) / C(G - 1, {self.k - 1})"

    prefers: ClassVar[str] = "those that are rarer in the group"

    @property
    def legend(self) -> str:
        counted = f",  D = sum over its right answers of 1 - C(G - m, {self.k}) / C(G, {self.k})" if self.power else ""
        return f"m = how often the answer of the completion occurs in its group, right{counted}"

    @property
    def ascends(self) -> str:
        inner = f"sum over right answers a of 1 - (1 - pi(a))^{self.k}: distinct right answers in {self.k}"
        return f"grad {inner}" if self.power == 0 else f"about D^-{self.power:g} grad D, D = {inner}"

    def __call__(self, rewards: Groups, seen: GroupSignals) -> Groups:
        values = checked(rewards, 2, "DistinctRight")
        require_binary(values, "DistinctRight", "PowerNormalized")
        size = values.shape[1]
        if self.k > size:
            raise DataError(
                f"DistinctRight: k = {self.k} with groups of {size}; it needs k <= {size}: lower k or raise group_size."
            )
        same = self._same(values, seen.require("answers", "DistinctRight"))
        copies = same.sum(dim=2)
        utilities = values * self._unmet(size - copies, size - 1)
        # U_j of the group without i: it has fewer copies if i gives the same answer, and one companion less
        without = values[:, None, :] * self._unmet(size - 1 - (copies[:, None, :] - same), size - 2)
        off = ~torch.eye(size, dtype=torch.bool, device=values.device)
        baseline = (without * off).sum(dim=2) / (size - 1)
        dead = values.sum(dim=1, keepdim=True) == 0
        scale = torch.where(dead, 1.0, self._mean_distinct(values, copies)) ** self.power
        return torch.where(dead, 0.0, (utilities - baseline) / scale)

    def _mean_distinct(self, values: Groups, copies: Tensor) -> Groups:
        """(P, 1) mean over the k-subsets of the group of how many different right answers they contain."""
        size = torch.full_like(copies, values.shape[1])
        missed = (log_choose(size - copies, self.k) - log_choose(size, self.k)).exp().float()
        return (values * (1.0 - missed) / copies.clamp(min=1)).sum(dim=1, keepdim=True)

    def _same(self, values: Groups, answers: Tensor) -> Tensor:
        """(P, G, G) float: j gives the answer of i, and both are right."""
        right = values == 1
        return ((answers[:, :, None] == answers[:, None, :]) & right[:, :, None] & right[:, None, :]).float()

    def _unmet(self, others: Tensor, companions: int) -> Tensor:
        """k times the chance that k - 1 of `companions` are all among `others`, float32; with too few companions, all of them."""
        few = min(self.k - 1, companions)
        return self.k * (log_choose(others, few) - log_choose(torch.full_like(others, companions), few)).exp().float()


@METHODS.register(label="Distinct@k", about="distinct correct answers in k samples")
@anchored(beta=0.0, estimator="k1", placement="reward")
def distinct(*, k: int = 4, power: float = 0.0, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/(B L)) sum_i sum_t -min(rho A, clip(rho) A), A the unbiased gradient of the distinct right answers in k samples.

    power = 1 divides by the group's estimate of that number: about its logarithm, and more for hard prompts. k at
    most the group's size; at k = G only answers that nobody else of the group gave are rewarded. Needs the task's
    `answer_key`.
    """
    return Method("distinct", DistinctRight(k, power), Clip(), anchor_of(**anchor), FixedBudget())
