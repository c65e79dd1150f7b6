"""REFT: first tokens spread evenly over the policy's likeliest (arXiv 2605.28295).

Paper: https://arxiv.org/abs/2605.28295. Recipe: `sage-rlvr train reft --task TASK`.
Numbers worked out by hand: tests/training/loop/test_first_tokens.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sage_rlvr.core.advantages import GroupNormalized
from sage_rlvr.core.keys import Key
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import SequenceMean
from sage_rlvr.core.rollout_plans import ROLLOUT_PLANS
from sage_rlvr.core.rollout_plans.spread import Spread
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.errors import ConfigError
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored
from sage_rlvr.training.engines import EngineRow, Refuses, Sets, declare


@ROLLOUT_PLANS.register
@dataclass(frozen=True)
class FirstTokens(Spread):
    """A group's first tokens are split evenly over the policy's n likeliest (REFT, arXiv 2605.28295).

    Which of them get one more, if n does not divide the group, is random for each prompt and step. The rest is sampled.

    n: how many first tokens. corrected: a completion has the weight pi(y_1) over the share of its group that begins with y_1; the
        paper changes only the sampling. permuted: the control, a prompt gets the n first tokens of another prompt of the step.
    """

    n: int = 8
    corrected: bool = False
    permuted: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.n, bool) or not isinstance(self.n, int) or self.n < 1:
            raise ConfigError(f"FirstTokens: n = {self.n!r}; set how many first tokens a group is split over, a whole number >= 1.")

    @property
    def weighs(self) -> bool:
        """Whether it is corrected."""
        return self.corrected

    @property
    def couples_prompts(self) -> bool:
        """Whether tokens are those of other prompts."""
        return self.permuted

    @property
    def equation(self) -> str:
        whose = "the n likeliest of another prompt of the step" if self.permuted else "the policy's n likeliest tokens"
        counted = "corrected: times w = pi_old(y_1) / (share of the group with y_1)" if self.corrected else "not corrected: w = 1"
        return f"y_1 split evenly over {whose}, n = {self.n}, the rest sampled; {counted}"

    @property
    def note(self) -> str:
        """The expected gradient in words, for `describe`."""
        if not self.corrected:
            return (
                "the ratio does not correct that y_1 is chosen: rho = pi / pi_old takes it for sampled, so expected gradients are "
                "those of completions that begin with each of these tokens equally often, pi(y_1) among them"
            )
        return (
            "w corrects that y_1 is chosen, on the loss of the whole completion, KL included: expected gradients are those of pi "
            "within these first tokens, but for baselines, which are means over the even split"
        )

    def first(
        self, logits: Float[Tensor, "P V"], size: int, numbers: Int[Tensor, " P"], step: int, key: Key
    ) -> Int[Tensor, "P size"]:
        """The first tokens (P, size): every one of the n equally often, except for a remainder."""
        count = min(self.n, logits.shape[1])
        numbers = numbers.to(logits.device)
        likeliest = logits.topk(count, dim=1).indices
        if self.permuted:
            order = numbers.argsort(stable=True)
            taken = key.bits(step, "first_tokens/prompt", numbers, 0)[:, 0].argsort(stable=True)
            likeliest = torch.empty_like(likeliest).index_copy(0, taken, likeliest[order])
        ranks = key.bits(step, "first_tokens/rank", numbers, torch.arange(count)).argsort(dim=1)
        return likeliest.gather(1, ranks[:, torch.arange(size, device=ranks.device) % count])


declare(
    "rollout",
    FirstTokens,
    trl=Sets(words="first tokens by this package's sampler"),
    verl=Refuses("verl's rollout workers sample every token themselves"),
    also=(
        EngineRow(
            "rollout",
            "FirstTokens, corrected",
            Refuses("TRL's loss has no weight of a completion", "set corrected: false"),
            Sets(),
            lambda method: isinstance(method.rollout, FirstTokens) and method.rollout.corrected,
            "rollout.corrected",
        ),
        EngineRow(
            "rollout",
            "FirstTokens, permuted",
            Refuses("the prompts of a step are drawn by several ranks", "set permuted: false"),
            Sets(),
            lambda method: isinstance(method.rollout, FirstTokens) and method.rollout.permuted,
            "rollout.permuted",
        ),
    ),
)


@METHODS.register(label="REFT", about="first tokens spread evenly", arxiv="2605.28295")
@anchored(beta=0.05)
def reft(*, n: int = 8, corrected: bool = False, permuted: bool = False, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = mean_i mean_t w [ -min(rho A, clip(rho) A) + beta k3 ], GRPO's, y_1 split evenly over the n likeliest (arXiv 2605.28295).

    The paper changes only the sampling: w = 1, and rho treats y_1 as sampled. corrected: w = pi_old(y_1) / (share of the
    group with y_1). The paper's n was not found, 8 is ours. permuted: the control, the first tokens of another prompt of the step.
    """
    return Method("reft", GroupNormalized(), Clip(), anchor_of(**anchor), SequenceMean(), FirstTokens(n, corrected, permuted))
