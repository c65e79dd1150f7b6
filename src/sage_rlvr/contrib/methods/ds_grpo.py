"""DS-GRPO: more entropy among right answers, less among wrong ones (arXiv 2511.19942).

Paper: https://arxiv.org/abs/2511.19942. Recipe: `sage-rlvr train ds_grpo --task TASK`.
Numbers worked out by hand: tests/core/objective/test_utilities.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Unpack

import torch

from sage_rlvr.core.advantages.base import (
    ADVANTAGES,
    Advantage,
    Groups,
    GroupSignals,
    all_equal,
    checked,
    require_binary,
    silent_of_labels,
)
from sage_rlvr.core.advantages.group import GroupNormalized
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import SequenceMean
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.errors import ConfigError
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored

EPS = 1e-6


@ADVANTAGES.register
@dataclass(frozen=True)
class DifferentialSmoothing(Advantage):
    """(r - mean) / std - right * r l + wrong * (1 - r) l, l = log pi_old(y) / |y|: DS-GRPO (arXiv 2511.19942).

    std is the population's, as the paper has it. Right completions gain if they are rare per token, wrong ones if they are likely:
    more entropy among the right, less among the wrong. The terms are added after the division and not centered again, as in the
    authors' code: as l < 0 every right completion gains and every wrong one loses, which also pushes P(right) up by the two means
    of dose * |l|. 0 in a group whose rewards are all equal, in which the authors' code still adds the terms.
    needs: "logps". DataError for rewards other than 0 and 1.

    right: weight of the mean log-prob that is subtracted for right completions. wrong: weight that is added for wrong ones.
    """

    right: float = 0.05
    wrong: float = 0.05
    dead = silent_of_labels
    needs: ClassVar[frozenset[str]] = frozenset({"logps"})
    prefers: ClassVar[str] = "the less likely per token"
    takes_group_mean: ClassVar[bool] = True
    against_kl: ClassVar[str] = GroupNormalized.against_kl

    def __post_init__(self) -> None:
        if not (0 <= self.right < math.inf and 0 <= self.wrong < math.inf):
            raise ConfigError(
                f"DifferentialSmoothing: right = {self.right!r}, wrong = {self.wrong!r}; set two finite numbers >= 0, 0.05 each "
                "in the paper."
            )

    @property
    def equation(self) -> str:
        return f"(r - mean_group r) / std_group r - {self.right:g} r l + {self.wrong:g} (1 - r) l,  l = log pi_old(y) / |y|"

    @property
    def ascends(self) -> str:
        return (
            "(1/std_group) grad E[r], with entropy among right completions and against it among wrong ones, per token, and by "
            "the means of these terms a little more of grad P(right)"
        )

    def __call__(self, rewards: Groups, seen: GroupSignals) -> Groups:
        values = checked(rewards, 2, "DifferentialSmoothing")
        require_binary(values, "DifferentialSmoothing")
        per_token = seen.policy.float() / seen.lengths.clamp(min=1)
        scaled = (values - values.mean(dim=1, keepdim=True)) / (values.std(dim=1, correction=0, keepdim=True) + EPS)
        smooth = torch.where(values == 1, -self.right * per_token, self.wrong * per_token)
        return torch.where(all_equal(values), 0.0, scaled + smooth)


@METHODS.register(label="DS-GRPO", about="spreads correct completions", arxiv="2511.19942")
@anchored(beta=0.05)
def ds_grpo(*, right: float = 0.05, wrong: float = 0.05, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = mean_i mean_t [ -min(rho A, clip(rho) A) + beta k3 ], A = GRPO's - right r l + wrong (1 - r) l, l = log pi_old(y) / |y|.

    Differential smoothing (arXiv 2511.19942): entropy among right completions, against it among wrong ones.
    """
    advantage = DifferentialSmoothing(right, wrong)
    return Method("ds_grpo", advantage, Clip(), anchor_of(**anchor), SequenceMean())
