"""Methods that train on stored right answers, with or without GRPO."""

from __future__ import annotations

from typing import Literal, Unpack

from sage_rlvr.core.advantages import Advantage, GroupCentered, GroupNormalized, PowerNormalized
from sage_rlvr.core.buffers import Buffer, Likelihood, Rehearsal, Replay
from sage_rlvr.core.buffers.answers import Draw
from sage_rlvr.core.buffers.likelihood import Law
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import FixedBudget, SequenceMean
from sage_rlvr.core.schedules import Schedule
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.errors import ConfigError
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored

RELEASED_WEIGHT = 0.1 * 15 / 16**2
"""Of Re:Dr and Re:Max: alpha = 0.1, which the authors' code multiplies by (G - 1) / G^2; G = 16 completions there."""


def _grpo_with(name: str, buffer: Buffer, clip_high: float = 0.2, **anchor: Unpack[AnchorKeys]) -> Method:
    clip = Clip(0.2, clip_high)
    return Method(name, GroupNormalized(), clip, anchor_of(**anchor), SequenceMean(), buffer=buffer)


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
    the likelihood of the right set, "base" the forward KL from the base restricted to right answers. file: answers of a file, in
    place of the base's with base=0. take: answers of each prompt in an update, drawn anew; None: all of them.
    """
    if not base and file is None:  # the buffer would also name what is no option here
        raise ConfigError(
            "rft: no answer would be stored; set base=16 (samples of the base before step 0) or file=... (.jsonl)."
        )
    part = Likelihood(
        law=law, alone=True, policy=False, base=base, base_prompts=base_prompts, file=file,
        answers=answers, take=take, prompts=prompts,
    )  # fmt: skip
    return _grpo_with("rft", part, beta=0.0)


@METHODS.register(label="SFT (oracle)", about="SFT on all correct answers (oracle)")
def sft_oracle(*, answers: int = 1024, take: int | None = 16, prompts: int = 16) -> Method:
    """L = -(1/(P L)) sum_x (1/n) sum_y log pi(y), y drawn from all right answers that the task lists: an upper bound.

    Supervised training on the answers that a policy would have to find: an oracle rather than a method. take: answers
    of each prompt in an update, redrawn each time; by default as many as a group has completions.
    """
    part = Likelihood(alone=True, policy=False, oracle=True, answers=answers, take=take, prompts=prompts)
    return _grpo_with("sft_oracle", part, beta=0.0)


@METHODS.register(about="SFT on correct answers found so far")
def expert_iteration(
    *,
    base: int = 0,
    base_prompts: int | None = None,
    answers: int = 16,
    take: int | None = None,
    prompts: int = 16,
    draw: Draw = "any",
    evict: Literal["oldest", "newest", "commonest"] = "oldest",
) -> Method:
    """L = -(1/(P L)) sum_x (1/n) sum_y log pi(y), y the distinct right answers found in rollouts so far (ExIt, STaR, ReST).

    The right answers of all rollouts are stored and trained on repeatedly, uniform over those of a prompt; draw="hard"
    prefers prompts that are rarely solved. base: additional samples per problem before step 0. take: answers per prompt
    in an update, redrawn each time; None: all.
    """
    part = Likelihood(
        alone=True, base=base, base_prompts=base_prompts, draw=draw, evict=evict, answers=answers, take=take, prompts=prompts
    )  # fmt: skip
    return _grpo_with("expert_iteration", part, beta=0.0)


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
    return _grpo_with("replay", part, **anchor)


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
    return _grpo_with("dph", part, clip_high, **anchor)


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

    The first text of each answer is kept, of the first `answers` that a prompt finds. weight: 0.1 (G - 1) / G^2 in the authors'
    code for groups of G, here at its G = 16. It draws one prompt per update, in turn; here `prompts` at random. law: "found" weighs
    each answer by how often it was found, the control: the same store with duplicates.
    """
    return _rehearsed("remax", PowerNormalized(1.0), weight, law, answers, prompts, **anchor)


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

    As `remax`, beside Dr. GRPO.
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
    """Stored answers count by their mean log-prob per token (`SequenceMean`), the policy's own term by a fixed budget."""
    part = Likelihood(weight=weight, law=law, answers=answers, evict="newest", prompts=prompts, reduction=SequenceMean())
    return Method(name, advantage, Clip(), anchor_of(**anchor), FixedBudget(), buffer=part)
