"""Re:Max and Re:Dr: MaxRL or Dr. GRPO, and rehearsal of the policy's right answers (arXiv 2610.11064).

Paper: https://arxiv.org/abs/2610.11064. Recipe: `sage-rlvr train remax --task TASK`.
Numbers worked out by hand: tests/core/test_buffers.py.
"""

from __future__ import annotations

from typing import Unpack

from sage_rlvr.contrib.replay.rft import Law, Likelihood
from sage_rlvr.core.advantages import Advantage, GroupCentered, PowerNormalized
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import FixedBudget, SequenceMean
from sage_rlvr.core.schedules import Schedule
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored

RELEASED_WEIGHT = 0.1 * 15 / 16**2
"""Weight of Re:Dr and Re:Max: alpha = 0.1, which the authors' code multiplies by (G - 1) / G^2, with G = 16 completions."""


@METHODS.register(label="Re:Max", about="MaxRL, and its own right answers rehearsed", arxiv="2610.11064")
@anchored(beta=0.0, estimator="k1", placement="reward")
def remax(
    *,
    weight: float | Schedule = RELEASED_WEIGHT,
    law: Law = "uniform",
    answers: int = 16,
    prompts: int = 16,
    **anchor: Unpack[AnchorKeys],
) -> Method:
    """L = L_MaxRL - weight * (1/P) sum_x (1/n) sum_y (1/|y|) log pi(y), y the distinct right answers found in rollouts so far
    (arXiv 2610.11064).

    P is `prompts`, even if fewer have a stored answer. The first text of each answer is stored, for the first `answers` that a
    prompt finds. weight: 0.1 (G - 1) / G^2 in the authors' code for groups of G, here with its G = 16 for any group size; and as
    MaxRL's term is divided by max_new_tokens and this one by |y|, their ratio depends on the length limit. The authors' code draws
    one prompt per update, in turn; here `prompts` are drawn at random. law: "found" weights each answer by how often it was found,
    the control: the same store with duplicates.
    """
    return _rehearsed("remax", PowerNormalized(q=1.0), weight, law, answers, prompts, **anchor)


@METHODS.register(label="Re:Dr", about="Dr. GRPO, and its own right answers rehearsed", arxiv="2610.11064")
@anchored(beta=0.0)
def redr(
    *,
    weight: float | Schedule = RELEASED_WEIGHT,
    law: Law = "uniform",
    answers: int = 16,
    prompts: int = 16,
    **anchor: Unpack[AnchorKeys],
) -> Method:
    """L = L_DrGRPO - weight * (1/P) sum_x (1/n) sum_y (1/|y|) log pi(y), y the distinct right answers found in rollouts so far
    (arXiv 2610.11064).

    As `remax`, with Dr. GRPO.
    """
    return _rehearsed("redr", GroupCentered(), weight, law, answers, prompts, **anchor)


def _rehearsed(
    name: str,
    advantage: Advantage,
    weight: float | Schedule,
    law: Law,
    answers: int,
    prompts: int,
    **anchor: Unpack[AnchorKeys],
) -> Method:
    """Stored answers count by their mean log-prob per token (`SequenceMean`), the policy's term by a fixed budget.

    `Likelihood` is the extra that stores right answers of each rollout and adds their loss to each update.
    """
    part = Likelihood(weight=weight, law=law, answers=answers, evict="newest", prompts=prompts, reduction=SequenceMean())
    return Method(name, advantage, Clip(), anchor_of(**anchor), FixedBudget(), extras=(part,))
