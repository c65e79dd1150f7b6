"""GSPO: one ratio for the full completion (arXiv 2507.18071).

Paper: https://arxiv.org/abs/2507.18071. Recipe: `sage-rlvr train gspo --task TASK`.
Numbers worked out by hand: tests/core/objective/test_surrogates_of_papers.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

import torch
from jaxtyping import Bool
from torch import Tensor

from sage_rlvr.core.advantages import GroupNormalized
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import SequenceMean
from sage_rlvr.core.signals import masked_mean
from sage_rlvr.core.surrogates.base import SURROGATES, PerToken, Surrogate, bounded_ratio
from sage_rlvr.errors import ConfigError
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored
from sage_rlvr.training.engines import NOT_COMPARED, OF_VERL, EngineRow, Refuses, Sets, declare, kl_in_loss, of


@SURROGATES.register
@dataclass(frozen=True)
class Gspo(Surrogate):
    """-min(s A, clip(s, 1 - low, 1 + high) A), s = (pi(y) / pi_old(y))^(1/|y|): GSPO (arXiv 2507.18071, Eqs. 5 to 7).

    Each token of a completion carries s, so that with the sequence_mean reduction the loss is the paper's, one term per completion;
    a completion is clipped as a whole. `token`: the paper's GSPO-token (Eq. 13), whose s has its value from the completion and its
    gradient from the token: needed if advantages differ from token to token. In the first update of a rollout s is 1 and the
    gradient of a completion is (1/|y|) A grad log pi(y), as GRPO's. The default bounds are the paper's: s is much nearer to 1 than
    the ratio of a token.

    low, high: the ratio of a full completion, per token, is clamped to 1 - low and 1 + high.
    """

    low: float = 3e-4
    high: float = 4e-4
    token: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.low <= 1:
            raise ConfigError(f"Gspo: low = {self.low!r} must be in [0, 1]; the paper's is 3e-4.")
        if not self.high >= 0:
            raise ConfigError(f"Gspo: high = {self.high!r} must be >= 0; the paper's is 4e-4.")

    @property
    def equation(self) -> str:
        return f"-min(s A, clip(s, {1 - self.low:g}, {1 + self.high:g}) A)"

    @property
    def legend(self) -> str:
        tail = ", with the gradient of the token only" if self.token else ""
        return f"s = (pi(y) / pi_old(y))^(1/|y|), of the whole completion{tail}"

    def __call__(
        self, log_ratios: PerToken, advantages: Tensor, mask: Bool[Tensor, "B T"]
    ) -> tuple[PerToken, dict[str, float]]:
        mean = (log_ratios * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)
        if self.token:
            mean = mean.detach() + log_ratios - log_ratios.detach()
        ratios, stats = bounded_ratio(mean.expand_as(log_ratios), mask)
        lowest, highest = 1.0 - self.low, 1.0 + self.high
        loss = -torch.minimum(ratios * advantages, ratios.clamp(lowest, highest) * advantages)
        held = ((ratios < lowest) & (advantages < 0)) | ((ratios > highest) & (advantages > 0))
        return loss, {"surrogate/clipped_frac": masked_mean(held, mask), **stats}


def token_form(method: Method) -> bool:
    """Return whether the method is GSPO-token, whose gradient differs per token."""
    return type(method.surrogate) is Gspo and method.surrogate.token


def gspo_over_tokens(method: Method) -> bool:
    """Return whether the method has Gspo under a mean that is not over completions."""
    return type(method.surrogate) is Gspo and type(method.reduction) is not SequenceMean


def gspo_with_ratio(method: Method) -> bool:
    """Return whether the method has Gspo and k3 times the importance ratio."""
    return type(method.surrogate) is Gspo and kl_in_loss("k3_is")(method)


declare(
    "surrogate",
    Gspo,
    trl=Sets(
        {
            "epsilon": of("surrogate.low"),
            "epsilon_high": of("surrogate.high"),
            "delta": None,
            "importance_sampling_level": "sequence",
        }
    ),
    verl=Refuses(NOT_COMPARED.format("verl's loss_mode gspo has the gradient of Gspo(token=True)"), OF_VERL.format("gspo")),
    also=(
        EngineRow(
            "surrogate",
            "Gspo(token=True)",
            Refuses("TRL's ratio of a completion has its gradient from all tokens", "set token = false"),
            Sets(),
            token_form,
            "surrogate.token",
        ),
        EngineRow(
            "surrogate",
            "Gspo with another mean than sequence_mean",
            Refuses(NOT_COMPARED.format("TRL computes Gspo under any mean"), "use sequence_mean"),
            Sets(),
            gspo_over_tokens,
            "reduction",
        ),
        EngineRow(
            "surrogate",
            "Gspo with k3_is",
            Refuses("with Gspo TRL multiplies the KL of a token by the ratio of the whole completion", "use k3"),
            Sets(),
            gspo_with_ratio,
            "anchor.estimator",
        ),
    ),
)


@METHODS.register(label="GSPO", about="one ratio per completion", arxiv="2507.18071")
@anchored(beta=0.0)
def gspo(*, low: float = 3e-4, high: float = 4e-4, token: bool = False, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = mean_i [ -min(s A, clip(s, 1 - low, 1 + high) A) + beta k3 ], s = (pi(y)/pi_old(y))^(1/|y|) (arXiv 2507.18071).

    One ratio for the completion, which is clipped as a whole. It differs from GRPO only after the first update of a rollout.
    """
    return Method("gspo", GroupNormalized(), Gspo(low, high, token), anchor_of(**anchor), SequenceMean())
