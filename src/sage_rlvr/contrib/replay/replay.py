"""RLEP and ExGRPO: GRPO, and right completions of earlier rollouts replayed (arXiv 2507.07451).

Paper: https://arxiv.org/abs/2507.07451. Recipe: `sage-rlvr train replay --task TASK`.
Numbers worked out by hand: tests/core/test_buffers.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from sage_rlvr.core.advantages import GroupNormalized
from sage_rlvr.core.extras.base import EXTRAS
from sage_rlvr.core.extras.replay.answers import Draw, Representative
from sage_rlvr.core.extras.replay.base import Buffer, PerToken, StoredAnswers
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import SequenceMean
from sage_rlvr.core.schedules import Schedule
from sage_rlvr.core.surrogates import Clip, Surrogate
from sage_rlvr.errors import ConfigError
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored

CLIP = Clip()


@EXTRAS.register
@dataclass(frozen=True, kw_only=True)
class Replay(Buffer):
    """The surrogate on stored right completions: rho = pi / pi_old of the policy that wrote them, A the advantage they had.

    An answer's weight is the share of its rollout's completions that gave it, so that one rollout's stored answers represent all
    its right completions: their expected term is the right completions' part of the method's term at that rollout, as in a later
    update of it, and for one token and without a clip it is unbiased: sum over right y of pi(y) A(y) grad log pi(y). A prompt with
    answers of several rollouts uses the mean over them; an answer found again has moved to the newest, and a rollout without a
    right completion is not stored, which is its bias. Only earlier rollouts are replayed (RLEP, arXiv 2507.07451; ExGRPO, arXiv
    2510.02245), without the method's KL and token weight.

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
    def equation(self) -> str:
        return self.surrogate.equation

    def stored_loss(self, logps: PerToken, rows: StoredAnswers) -> tuple[PerToken, Float[Tensor, " R"], dict[str, float]]:
        """The surrogate (R, T); weights (R,): an answer's share of its rollout, over the number of rollouts of its prompt."""
        kept, device = rows.answers, logps.device
        mask = rows.mask.to(device)
        advantages = kept.advantage[:, None].to(device)
        per_token, metrics = self.surrogate(logps - kept.logps.to(device), advantages, mask)
        kinds = torch.unique(torch.stack([rows.owners, kept.step], 1), dim=0)
        rollouts = torch.bincount(kinds[:, 0])
        weights = kept.share / rollouts[rows.owners]
        part = int(kept.lengths.sum()) / rows.tokens
        return per_token, weights, {name.rpartition("/")[2]: part * value for name, value in metrics.items()}


@METHODS.register(about="GRPO, and a replay of correct answers", arxiv="2507.07451")
@anchored(beta=0.05)
def replay(
    *,
    weight: float | Schedule = 0.5,
    answers: int = 8,
    prompts: int = 16,
    draw: Draw = "hard",
    **anchor: Unpack[AnchorKeys],
) -> Method:
    """L = L_GRPO + weight * (1/(P L)) sum_x sum_y w(y) sum_t -min(rho A, clip(rho) A), y right completions of earlier rollouts.

    rho = pi / pi_old of the policy that wrote y, A its advantage then; hard prompts are preferred (RLEP, arXiv
    2507.07451; ExGRPO, arXiv 2510.02245).
    """
    part = Replay(weight=weight, answers=answers, prompts=prompts, draw=draw)
    return Method("replay", GroupNormalized(), Clip(), anchor_of(**anchor), SequenceMean(), extras=(part,))
