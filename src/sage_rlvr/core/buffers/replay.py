"""Right completions of earlier rollouts trained on again, by their ratio to the policy that wrote them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from sage_rlvr.core.buffers.answers import Representative
from sage_rlvr.core.buffers.base import BUFFERS, Buffer, PerToken, StoredAnswers
from sage_rlvr.core.surrogates import Clip, Surrogate
from sage_rlvr.errors import ConfigError

CLIP = Clip()


@BUFFERS.register
@dataclass(frozen=True, kw_only=True)
class Replay(Buffer):
    """The surrogate on stored right completions: rho = pi / pi_old of the policy that wrote them, A the advantage they had.

    An answer weighs as the share of its rollout's completions that gave it, so that one rollout's stored answers stand for all
    its right completions: their expected term is the right completions' part of the method's own at that rollout, as a later
    update of it would have, and for one token and without a clip it is unbiased: sum over right y of pi(y) A(y) grad log pi(y).
    A prompt with answers of several rollouts takes the mean over them; an answer found again has moved to the newest, and a
    rollout without a right completion leaves no trace, which is its bias. Replayed are earlier rollouts (RLEP, arXiv 2507.07451;
    ExGRPO, arXiv 2510.02245); the method's KL and token weight are not.

    surrogate: the loss on stored completions.
    """

    surrogate: Surrogate = CLIP
    representative: Representative = "newest"

    legend: ClassVar[str] = "rho = pi / pi_old and A as stored,  w(y) = share of its rollout's completions with this answer"
    fresh: ClassVar[bool] = False
    reads_advantages: ClassVar[bool] = True
    ascends: ClassVar[str] = "the right completions' part of the reward term, at the rollouts that are stored"
    prefers: ClassVar[str] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.whole_prompts()
        self.only("policy", "only rollouts of the policy have old log-probs and advantages")
        if self.surrogate.sees_batch:
            raise ConfigError(
                f"Replay: the surrogate {type(self.surrogate).__name__} compares whole groups, but only right answers "
                "are stored; use Clip, Cispo or Gspo."
            )

    @property
    def equation(self) -> str:  # type: ignore[override]
        return self.surrogate.equation

    def __call__(self, logps: PerToken, rows: StoredAnswers) -> tuple[PerToken, Float[Tensor, " R"], dict[str, float]]:
        kept, device = rows.answers, logps.device
        mask = rows.mask.to(device)
        advantages = kept.advantage[:, None].to(device)
        per_token, found = self.surrogate(logps - kept.logps.to(device), advantages, mask)
        kinds = torch.unique(torch.stack([rows.owners, kept.step], 1), dim=0)
        rollouts = torch.bincount(kinds[:, 0])
        weights = kept.share / rollouts[rows.owners]
        part = int(kept.lengths.sum()) / rows.tokens
        return per_token, weights, {name.rpartition("/")[2]: part * value for name, value in found.items()}
