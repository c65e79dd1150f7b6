"""Unlikeliness: unlikely right completions get a higher reward (arXiv 2506.02355).

Paper: https://arxiv.org/abs/2506.02355. Recipe: `sage-rlvr train unlikeliness --task TASK`.
Numbers worked out by hand: tests/core/objective/test_reward_transforms.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Unpack

from sage_rlvr.core.advantages import GroupNormalized
from sage_rlvr.core.advantages.base import Groups, GroupSignals, ZeroVariance
from sage_rlvr.core.extras.base import EXTRAS, Extra
from sage_rlvr.core.extras.rewards.base import right_of
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import SequenceMean
from sage_rlvr.core.state import PartState
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.errors import ConfigError
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored


@EXTRAS.register
@dataclass(frozen=True)
class Unlikeliness(Extra):
    """r = R (1 - weight * rank / G), rank by log pi_old(y) from 0, the least likely of the group (arXiv 2506.02355).

    A long completion is unlikely as a whole, so on completions of different lengths this rank mostly follows the length. per_token
    ranks by log pi_old(y) / |y| instead, as the authors' code does. Completions of equal log-probability share the mean of their
    ranks (the authors' code breaks ties by place in the batch).
    needs: "logps". DataError for rewards other than 0 and 1.

    weight: the fraction of its reward that the likeliest right completion of a group loses. per_token: rank by the mean
    over tokens instead of the sum.
    """

    weight: float = 0.25
    per_token: bool = False
    prefers: ClassVar[str] = "the less likely, by rank"
    needs: ClassVar[frozenset[str]] = frozenset({"logps"})

    def __post_init__(self) -> None:
        if not 0 <= self.weight <= 1:
            raise ConfigError(f"Unlikeliness: weight = {self.weight!r}; set 0 to 1, the paper's is 0.25.")

    @property
    def equation(self) -> str:
        ranked = "log pi_old(y) / |y|" if self.per_token else "log pi_old(y)"
        return f"R (1 - {self.weight:g} rank({ranked}) / G)"

    def dead(self, size: int) -> ZeroVariance:
        """Nonzero in an all-right group, by the ranks."""
        return ZeroVariance("compared" if self.weight else 1.0, 0.0, "refused")

    def after_rewards(self, rewards: Groups, seen: GroupSignals, state: PartState) -> Groups:
        """Rewards (P, G), each right one reduced by its rank among the log-probs of its group; equal ones share a rank."""
        right, logps = right_of(rewards, "Unlikeliness"), seen.policy.float()
        if self.per_token:
            logps = logps / seen.lengths.clamp(min=1)
        below = (logps[:, None, :] < logps[:, :, None]).sum(dim=2)
        tied = (logps[:, None, :] == logps[:, :, None]).sum(dim=2) - 1
        return right * (1.0 - self.weight * (below + tied / 2) / right.shape[1])


@METHODS.register(label="Unlikeliness", about="unlikely correct answers earn more", arxiv="2506.02355")
@anchored(beta=0.05)
def unlikeliness(*, weight: float = 0.25, per_token: bool = False, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = mean_i mean_t [ -min(rho A, clip(rho) A) + beta k3 ], A = GRPO's of r = R (1 - weight * rank / G) (arXiv 2506.02355).

    rank by log pi_old(y), the likeliest of the group last: unlikely right completions get a higher reward. per_token: rank by
    log pi_old(y) / |y|, as the authors' code does, so that length does not decide.
    """
    extras = (Unlikeliness(weight, per_token),)
    return Method("unlikeliness", GroupNormalized(), Clip(), anchor_of(**anchor), SequenceMean(), extras=extras)
