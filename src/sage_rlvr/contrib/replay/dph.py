"""DPH-RL: the forward KL on right samples of the base (arXiv 2509.07430).

Paper: https://arxiv.org/abs/2509.07430. Recipe: `sage-rlvr train dph --task TASK`.
Numbers worked out by hand: tests/core/test_buffers.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Unpack

from jaxtyping import Float
from torch import Tensor

from sage_rlvr.core.advantages import GroupNormalized
from sage_rlvr.core.extras.base import EXTRAS
from sage_rlvr.core.extras.replay.base import Buffer, PerToken, StoredAnswers
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import SequenceMean
from sage_rlvr.core.schedules import Schedule
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored

LARGEST_LOG_RATIO = 20.0


@EXTRAS.register
@dataclass(frozen=True, kw_only=True)
class Rehearsal(Buffer):
    """u - 1 - log u, u = pi / base per token, on the base's right answers (DPH-RL, arXiv 2509.07430), log u clamped to +-20.

    Drawn from the base, its mean is KL(base || pi) and its gradient that of the KL. On right answers only it pulls each of their
    tokens to the base's probability: it neither raises P(right) above the base's nor lets it fall. Likelihood(law="base") is the
    same without u - 1, and raises it. Stored answers of a prompt have the weights base(y) / base(stored).
    """

    policy: bool = False
    base: int = 8

    equation: ClassVar[str] = "u - 1 - log u"
    legend: ClassVar[str] = "u = pi / base of a token,  w(y) = base(y) / base(stored) among those of its prompt"
    ascends: ClassVar[str] = "sum over stored y of w(y) sum_t (1 - u_t) grad log pi_t: -grad KL(base || pi) if all is stored"
    prefers: ClassVar[str] = "the stored ones, up to the base's probability of each token"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.whole_prompts()
        self.only("base", "it needs per-token log-probs of the base, which only samples of the base have")

    def stored_loss(self, logps: PerToken, rows: StoredAnswers) -> tuple[PerToken, Float[Tensor, " R"], dict[str, float]]:
        log_u = (logps - rows.answers.logps.to(logps.device)).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
        weights = rows.shares(rows.answers.sequence_logps)
        per_token = log_u.expm1() - log_u
        return per_token, weights, {"kl": float((per_token.detach().sum(1).cpu() * weights).sum()) / rows.requested_prompts}


@METHODS.register(label="DPH", about="forward KL on samples of the base", arxiv="2509.07430")
@anchored(beta=0.0)
def dph(
    *,
    weight: float | Schedule = 0.02,
    base: int = 8,
    base_prompts: int | None = None,
    answers: int = 8,
    prompts: int = 16,
    clip_high: float = 0.28,
    **anchor: Unpack[AnchorKeys],
) -> Method:
    """L = L_GRPO + weight * (1/(P L)) sum_x sum_y w(y) sum_t [u - 1 - log u], u = pi / base on the base's right answers.

    DPH-RL's forward KL (arXiv 2509.07430), clip-high 0.28 and weight from their code, with every distinct right answer
    of `base` samples. Their split, rehearsing `prompts` that the base nearly always solves and training on the others,
    is not included.
    """
    part = Rehearsal(weight=weight, base=base, base_prompts=base_prompts, answers=answers, prompts=prompts)
    return Method("dph", GroupNormalized(), Clip(0.2, clip_high), anchor_of(**anchor), SequenceMean(), extras=(part,))
