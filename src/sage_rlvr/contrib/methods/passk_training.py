"""pass@k training: the analytic advantage of pass@k (arXiv 2508.10751).

Paper: https://arxiv.org/abs/2508.10751. Recipe: `sage-rlvr train passk_training --task TASK`.
Numbers worked out by hand: tests/core/objective/test_utilities.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Unpack

import torch

from sage_rlvr.contrib.methods.pkpo import check_k, counts_of
from sage_rlvr.core.advantages.base import (
    ADVANTAGES,
    Advantage,
    Groups,
    log_choose,
    silent_of_labels,
)
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import FixedBudget
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored


@ADVANTAGES.register
@dataclass(frozen=True)
class AnalyticPassAtK(Advantage):
    """Chen et al. (arXiv 2508.10751): every k-subset of the group is a group with its maximum as reward.

    R = 1 - C(G-c, k)/C(G, k), sigma = sqrt(R (1 - R)); right: (1 - R)/sigma; wrong: (1 - R - C(G-c-1, k-1)/C(G-1, k-1))/sigma.
    The division reweights prompts: for large G it ascends (2/k) arcsin sqrt(pass@k), as GRPO does 2 arcsin sqrt P; without it
    pass@k itself, 1/k - 1/G times. k = 1 is GRPO with the std of the population. All 0 for c = 0 and once c > G - k: every group if
    k = G. Raises DataError for rewards other than 0 and 1 and for k > G.

    k: number of samples of which one must be right, at most the group size.
    """

    k: int = 4
    dead = silent_of_labels
    takes_group_mean: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_k(self.k, "AnalyticPassAtK")

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
        values, right = counts_of(rewards, self.k, "AnalyticPassAtK", rewards.shape[-1])
        size = values.shape[1]
        wrong, all_of, others = size - right, torch.full_like(right, size), torch.full_like(right, size - 1)
        missed = (log_choose(wrong, self.k) - log_choose(all_of, self.k)).exp()
        others_wrong = (log_choose(wrong - 1, self.k - 1) - log_choose(others, self.k - 1)).exp()
        sigma = (missed * (1.0 - missed)).sqrt()
        centered = torch.where(values == 1, missed, missed - others_wrong)
        return torch.where(sigma > 0, centered / sigma.clamp(min=1e-300), 0.0).float()


@METHODS.register(label="Pass@k training", about="analytic advantage of pass@k", arxiv="2508.10751")
@anchored(beta=0.0, estimator="k1", placement="reward")
def passk_training(*, k: int = 4, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/(B L)) sum_i sum_t -min(rho A, clip(rho) A), A the analytic advantage of Chen et al. (arXiv 2508.10751).

    Every k-subset of the group is a group, divided by its sigma: for large G (2/k) arcsin sqrt(pass@k). 0 at k = G.
    """
    return Method("passk_training", AnalyticPassAtK(k), Clip(), anchor_of(**anchor), FixedBudget())
