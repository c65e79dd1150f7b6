"""PBA: a KL to the base only at the boundary, and SFT on the base's right answers if it is mostly right (arXiv 2607.20543).

Paper: https://arxiv.org/abs/2607.20543. Recipe: `sage-rlvr train pba --task TASK`, with `base_samples`.
Numbers worked out by hand: tests/training/loop/test_base_samples.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Unpack

from sage_rlvr.contrib.replay.rft import Likelihood
from sage_rlvr.core.advantages import Advantage, GroupNormalized
from sage_rlvr.core.advantages.prompts import PlaceboPrompts, PromptGate, PromptWeighted
from sage_rlvr.core.extras.base import EXTRAS
from sage_rlvr.core.extras.replay.answers import Draw
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import SequenceMean
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.errors import ConfigError
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored


@EXTRAS.register
@dataclass(frozen=True, kw_only=True)
class Sharpen(Likelihood):
    """The likelihood of the base model's right samples, for the step's problems with a share of right ones above `base_above`.

    They are those of the recipe's `base_samples`, each distinct answer once, uniform over those of a problem.
    """

    base_above: float = 0.6
    policy: bool = False
    draw: Draw = "step"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.base_above < 1:
            raise ConfigError(f"Sharpen: base_above = {self.base_above!r} is a share of right samples; set 0 to below 1.")


@METHODS.register(label="PBA", about="KL at the base's boundary, SFT where it is right", arxiv="2607.20543")
@anchored(beta=0.05)
def pba(
    *,
    below: float = 0.1,
    k: int = 256,
    above: float = 0.4,
    sharpen: float | None = 0.6,
    sharpen_weight: float = 1.0,
    prompts: int = 16,
    permuted: bool = False,
    **anchor: Unpack[AnchorKeys],
) -> Method:
    """L = mean_i mean_t [ -min(rho A, clip(rho) A) + beta v_x k3 ] + SFT: per-problem base anchoring (arXiv 2607.20543).

    From the base model's stored samples: v_x = 1 if p < `below` and pass@k > `above`, else 0, p the share of right ones; if p >
    `sharpen` A = 0, and the base's right answers are learned instead, on at most `prompts` such problems per step; otherwise A is
    GRPO's. sharpen: null omits that, as TRL needs. pass@k from fewer than k samples is its mean under a uniform prior, which is
    above 0.4 for every problem if n < 383 and k = 256. beta, sharpen_weight: ours, not found in the paper. permuted: the control,
    the v_x of a step over other prompts of it.
    """
    gate = PromptGate(below=below, k=k, above=above, of="base")
    there = anchor_of(**anchor)
    if there is not None:
        there = replace(there, prompts=PlaceboPrompts(gate) if permuted else gate)
    advantage: Advantage = GroupNormalized()
    if sharpen is None:
        return Method("pba", advantage, Clip(), there, SequenceMean())
    advantage = PromptWeighted(advantage, PromptGate(at_most=sharpen, of="base"))
    extras = (Sharpen(base_above=sharpen, weight=sharpen_weight, prompts=prompts),)
    return Method("pba", advantage, Clip(), there, SequenceMean(), extras=extras)
