"""The arithmetic of RLVR methods on tensors: parts, the methods made of them, and nothing that trains or samples."""

from sage_rlvr.core.advantages import ADVANTAGES, Advantage, GroupCentred, GroupNormalised, LeaveOneOut
from sage_rlvr.core.anchor import Anchor, anchor_logps, anchor_metrics, effective_gradient
from sage_rlvr.core.guides import GUIDES, Branch, Compose, Flat, Guide, Placebo, Random, Token
from sage_rlvr.core.keys import Key
from sage_rlvr.core.kl import ESTIMATORS, Estimator, k1, k2, k3, k3_is, straight_through
from sage_rlvr.core.method import Method, advantages_of, objective, shape
from sage_rlvr.core.reductions import REDUCTIONS, FixedBudget, Reduction, SequenceMean, TokenMean
from sage_rlvr.core.schedules import SCHEDULES, Constant, Cosine, CosineCycles, Linear, Schedule, as_schedule
from sage_rlvr.core.signals import Batch, Signals
from sage_rlvr.core.surrogates import SURROGATES, Clip, Surrogate

__all__ = [
    "ADVANTAGES",
    "ESTIMATORS",
    "GUIDES",
    "REDUCTIONS",
    "SCHEDULES",
    "SURROGATES",
    "Advantage",
    "Anchor",
    "Batch",
    "Branch",
    "Clip",
    "Compose",
    "Constant",
    "Cosine",
    "CosineCycles",
    "Estimator",
    "FixedBudget",
    "Flat",
    "GroupCentred",
    "GroupNormalised",
    "Guide",
    "Key",
    "LeaveOneOut",
    "Linear",
    "Method",
    "Placebo",
    "Random",
    "Reduction",
    "Schedule",
    "SequenceMean",
    "Signals",
    "Surrogate",
    "Token",
    "TokenMean",
    "advantages_of",
    "anchor_logps",
    "anchor_metrics",
    "as_schedule",
    "effective_gradient",
    "k1",
    "k2",
    "k3",
    "k3_is",
    "objective",
    "shape",
    "straight_through",
]
