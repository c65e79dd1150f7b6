"""A method composed in a recipe from named parts, without code."""

from __future__ import annotations

from typing import Unpack

from sage_rlvr.core.advantages import Advantage, GroupNormalized
from sage_rlvr.core.anchor import Anchor
from sage_rlvr.core.extras import Extra
from sage_rlvr.core.method import METHODS, Method, needs_of
from sage_rlvr.core.reductions import Reduction, SequenceMean
from sage_rlvr.core.rollout_plans import RolloutPlan
from sage_rlvr.core.surrogates import Clip, Surrogate
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored

ADVANTAGE, SURROGATE, REDUCTION = GroupNormalized(), Clip(), SequenceMean()  # GRPO's


@METHODS.register(about="parts of your choice, else GRPO's")
@anchored(beta=0.05)
def compose(
    *,
    title: str = "compose",
    advantage: Advantage = ADVANTAGE,
    surrogate: Surrogate = SURROGATE,
    reduction: Reduction = REDUCTION,
    rollout_plan: RolloutPlan | None = None,
    extras: tuple[Extra, ...] = (),
    **anchor: Unpack[AnchorKeys],
) -> Method:
    """A method from named parts, one of each kind; parts that are not named are those of GRPO.

    title: the name of the method in tables and figures. extras: any number of them, called in order. With a guide, the result is
    `sage` of this method. With beta = 0, `source` selects the reference for parts that need one.
    """
    there = anchor_of(**anchor)
    reading: tuple[Advantage | Surrogate | Extra, ...] = (advantage, surrogate, *extras)
    if there is None and any("ref_logps" in needs_of(part) for part in reading):
        there = Anchor(**anchor)  # of weight 0: it names the reference that a part reads
    return Method(title, advantage, surrogate, there, reduction, rollout_plan, extras)
