"""The arithmetic of RLVR methods on tensors. Nothing here samples, trains or reads a file.

Read in this order:
    kl.py, anchor.py      KL estimators, and the KL term of a method (reference, guide, estimator, placement, beta)
    guides/               the factor q by which SAGE multiplies the reference
    advantages/, surrogates/, reductions.py   rewards to advantages, the per-token loss, and its sum over tokens
    method.py             a `Method` names one part of each kind and computes the loss; `describe.py` prints the result
    effect.py             the expected gradient of a KL term
Optional: rollout_plans/, which completions are sampled; extras/, every other addition, with hooks of its own.
"""

from sage_rlvr.core.advantages import (
    ADVANTAGES,
    Advantage,
    BetaNormalized,
    GroupCentered,
    GroupNormalized,
    LeaveOneOut,
    Seen,
)
from sage_rlvr.core.anchor import Anchor, anchor_logps, anchor_metrics, effective_gradient
from sage_rlvr.core.divergences import (
    DIVERGENCES,
    alpha_divergence,
    divergence,
    forward_kl,
    js_divergence,
    pseudo_kl,
    unnormalized_kl,
)
from sage_rlvr.core.effect import Effect, effect_of
from sage_rlvr.core.extras import EXTRAS, Buffer, Extra, OverlongShaping, RewardSource, TokenWeight
from sage_rlvr.core.guides import *
from sage_rlvr.core.guides import GUIDES, PARTS, Banded, Guide
from sage_rlvr.core.keys import Key
from sage_rlvr.core.kl import ESTIMATORS, Estimator, k1, k2, k3, k3_is, straight_through
from sage_rlvr.core.method import (
    METHODS,
    Credit,
    Method,
    advantages_of,
    credit,
    objective,
    q_clamped,
    shape,
)
from sage_rlvr.core.reductions import REDUCTIONS, FixedBudget, Reduction, SequenceMean, TokenMean
from sage_rlvr.core.reward_kl import return_to_go
from sage_rlvr.core.rollout_plans import ROLLOUT_PLANS, DynamicSampling, RolloutPlan
from sage_rlvr.core.schedules import SCHEDULES, Constant, Cosine, CosineCycles, Linear, Schedule, as_schedule
from sage_rlvr.core.signals import Batch, Signals
from sage_rlvr.core.state import State
from sage_rlvr.core.surrogates import SURROGATES, Clip, Surrogate

__all__ = [
    "ADVANTAGES",
    "DIVERGENCES",
    "ESTIMATORS",
    "EXTRAS",
    "GUIDES",
    "METHODS",
    "REDUCTIONS",
    "ROLLOUT_PLANS",
    "SCHEDULES",
    "SURROGATES",
    "Advantage",
    "Anchor",
    "Banded",
    "Batch",
    "BetaNormalized",
    "Buffer",
    "Clip",
    "Constant",
    "Cosine",
    "CosineCycles",
    "Credit",
    "DynamicSampling",
    "Effect",
    "Estimator",
    "Extra",
    "FixedBudget",
    "GroupCentered",
    "GroupNormalized",
    "Guide",
    "Key",
    "LeaveOneOut",
    "Linear",
    "Method",
    "OverlongShaping",
    "Reduction",
    "RewardSource",
    "RolloutPlan",
    "Schedule",
    "Seen",
    "SequenceMean",
    "Signals",
    "State",
    "Surrogate",
    "TokenMean",
    "TokenWeight",
    "advantages_of",
    "alpha_divergence",
    "anchor_logps",
    "anchor_metrics",
    "as_schedule",
    "credit",
    "divergence",
    "effect_of",
    "effective_gradient",
    "forward_kl",
    "js_divergence",
    "k1",
    "k2",
    "k3",
    "k3_is",
    "objective",
    "pseudo_kl",
    "q_clamped",
    "return_to_go",
    "shape",
    "straight_through",
    "unnormalized_kl",
]
__all__ += list(PARTS)
