"""RFT: SFT on right samples of the base (arXiv 2308.01825).

Paper: https://arxiv.org/abs/2308.01825. Recipe: `sage-rlvr train rft --task TASK`.
Numbers worked out by hand: tests/core/test_buffers.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from sage_rlvr.core.advantages import GroupNormalized
from sage_rlvr.core.extras.base import EXTRAS
from sage_rlvr.core.extras.replay.base import Buffer, PerToken, StoredAnswers
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import SequenceMean
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.errors import ConfigError

Law = Literal["uniform", "policy", "base", "found"]


@EXTRAS.register
@dataclass(frozen=True, kw_only=True)
class Likelihood(Buffer):
    """-sum over stored y of w(y) log pi(y): w uniform over a prompt's distinct answers, by the policy, the base, or the counts of
    finds.

    law: the choice of w. "uniform": rejection-sampling fine-tuning with each answer once (arXiv 2308.01825); iterated
    on the policy's answers, expert iteration. "policy": w = pi(y) / pi(stored), without a gradient, which is the
    gradient of -log pi(stored): the likelihood of the right set. "base": w = base(y) / base(stored): the forward KL from the base
    restricted to stored answers. "found": w = how often y was found, over the sum: a store with duplicates.
    """

    law: Law = "uniform"
    equation: ClassVar[str] = "-log pi"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.law != "uniform":
            self.whole_prompts()
        if self.law == "base":
            self.only("base", "law='base' weights answers by log-probs of the base, which only samples of the base have")

    @property
    def legend(self) -> str:
        """The definition of w, by `law`."""
        law = {
            "uniform": "1 / n",
            "policy": "pi(y) / pi(stored)",
            "base": "base(y) / base(stored)",
            "found": "times found / all finds",
        }[self.law]
        return f"w(y) = {law} among those of its prompt"

    @property
    def ascends(self) -> str:
        """The objective that it raises in expectation, by `law`."""
        return {
            "uniform": "mean over stored y of grad log pi(y)",
            "policy": "grad log pi(stored)",
            "base": "-grad KL(base restricted to stored || pi)",
            "found": "mean over finds of stored y of grad log pi(y)",
        }[self.law]

    @property
    def prefers(self) -> str:
        """The answers that gain, by `law`."""
        return {
            "uniform": "the stored ones, until all are alike",
            "policy": "no preference among stored answers, so the likelier gain most",
            "base": "the stored ones, until their shares are the base's",
            "found": "the stored ones, until their shares are those among the finds",
        }[self.law]

    def control(self) -> Likelihood | None:
        """The same store, with each answer weighted by how often rollouts found it; None for another law, and for other answers."""
        has_control = self.law == "uniform" and self.policy and self.take is None
        return replace(self, law="found") if has_control else None

    def stored_loss(self, logps: PerToken, rows: StoredAnswers) -> tuple[PerToken, Float[Tensor, " R"], dict[str, float]]:
        """-log pi (R, T) of stored answers, weighted within each prompt by `law`."""
        logits = {
            "uniform": torch.zeros(len(rows)),
            "policy": logps.detach().double().sum(1).cpu(),
            "base": rows.answers.sequence_logps,
            "found": rows.answers.found.double().log(),
        }[self.law]
        return -logps, rows.shares(logits), {}


@METHODS.register(label="RFT", about="SFT on correct samples of the base", arxiv="2308.01825")
def rft(
    *,
    base: int = 16,
    base_prompts: int | None = None,
    file: str | None = None,
    law: Law = "uniform",
    answers: int = 16,
    take: int | None = None,
    prompts: int = 16,
) -> Method:
    """L = -(1/(P L)) sum_x sum_y w(y) log pi(y), y stored right answers of the base (arXiv 2308.01825): no RL at all.

    base samples of each problem before step 0, each distinct right answer once, uniform over those of a prompt. law "policy" is
    the likelihood of the right set, "base" the forward KL from the base restricted to right answers. file: answers of a file,
    instead of the base's with base=0. take: answers of each prompt in an update, redrawn each time; None: all of them.
    """
    if not base and file is None:  # the buffer would also accept names that are no options of this method
        raise ConfigError(
            "rft: no answer would be stored; set base=16 (samples of the base before step 0) or file=... (.jsonl)."
        )
    part = Likelihood(
        law=law, alone=True, policy=False, base=base, base_prompts=base_prompts, file=file,
        answers=answers, take=take, prompts=prompts,
    )  # fmt: skip
    return Method("rft", GroupNormalized(), Clip(), None, SequenceMean(), extras=(part,))
