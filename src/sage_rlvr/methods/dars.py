"""DARS: more completions for hard prompts, in a second stage (arXiv 2508.13755)."""

from __future__ import annotations

from typing import Literal, Unpack

from sage_rlvr.core.advantages import Advantage, GroupCentered, GroupNormalized, LeaveOneOut
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import FixedBudget
from sage_rlvr.core.rollout_plans import Baseline, Dars, UniformStages
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored


@METHODS.register(label="DARS", about="more samples for hard prompts", arxiv="2508.13755")
@anchored(beta=0.0)
def dars(
    *,
    target: Literal["equal", "hardness"] = "equal",
    max_completions: int = 32,
    form: Literal["mean", "std"] = "mean",
    spread: Literal["difficulty", "uniform"] = "difficulty",
    baseline: Baseline = "union",
    **anchor: Unpack[AnchorKeys],
) -> Method:
    """L = (1/(B L)) sum_i sum_t -min(rho A, clip(rho) A), A = r - mean, hard prompts in two stages (arXiv 2508.13755).

    The first stage is the recipe's group_size, 8 as published; max_completions: 32, with target="hardness" 64.
    form="std" divides by the group's std. spread="uniform" is the control: as many completions, independent of
    difficulty. baseline: "union" as published, whose group size depends on outcomes; "stages" and "second" take RLOO's
    advantage within a stage and are unbiased. DARS-B is this with many prompts per step, one mini-batch and two epochs,
    all of the recipe. The released scripts also have an entropy bonus of 0.001, which is not included.
    """
    plan = UniformStages if spread == "uniform" else Dars
    advantage: Advantage = GroupCentered() if baseline == "union" else LeaveOneOut()
    if form == "std":
        advantage = GroupNormalized()
    rollout = plan(max_completions, target, form, baseline)
    return Method("dars", advantage, Clip(), anchor_of(**anchor), FixedBudget(), rollout=rollout)
