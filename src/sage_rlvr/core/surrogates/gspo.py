"""GSPO: one ratio for the whole completion."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from sage_rlvr.core.signals import masked_mean
from sage_rlvr.core.surrogates.base import SURROGATES, PerToken, Surrogate, bounded_ratio
from sage_rlvr.errors import ConfigError


@SURROGATES.register
@dataclass(frozen=True)
class Gspo(Surrogate):
    """-min(s A, clip(s, 1 - low, 1 + high) A), s = (pi(y) / pi_old(y))^(1/|y|): GSPO (arXiv 2507.18071, Eqs. 5 to 7).

    Each token of a completion carries s, so that with the sequence_mean reduction the loss is the paper's, one term per
    completion; a completion is clipped whole. `token`: the paper's GSPO-token (Eq. 13), whose s has its value from the
    completion and its gradient from the token: needed where advantages differ from token to token. In the first update of a
    rollout s is 1 and the gradient of a completion is (1/|y|) A grad log pi(y), as GRPO's. The default bounds are the
    paper's: s is much nearer to 1 than the ratio of a token.

    low, high: the ratio of a whole completion, per token, is clamped to 1 - low and 1 + high.
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
