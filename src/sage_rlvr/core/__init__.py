"""The arithmetic of RLVR methods on tensors. Nothing here samples, trains or reads a file.

Read in this order:
    kl.py, anchor.py      KL estimators, and the KL term of a method (reference, guide, estimator, placement, beta)
    guides/               the factor q by which SAGE multiplies the reference
    advantages/, surrogates/, reductions.py   rewards to advantages, the per-token loss, and its sum over tokens
    method.py             a `Method` names one part of each kind and computes the loss; `describe.py` prints the result
    effect.py             the expected gradient of a KL term
Optional: rollout_plans/, which completions are sampled; extras/, every other addition, with hooks of its own.
Parts that the methods of this package name are imported with it, the parts of `_LATER` at their first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sage_rlvr.core.advantages import (
    ADVANTAGES,
    PROMPT_WEIGHTS,
    Advantage,
    BetaNormalized,
    GroupCentered,
    GroupNormalized,
    GroupSignals,
    LeaveOneOut,
    PromptWeight,
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
from sage_rlvr.core.extras import EXTRAS, Extra, OverlongShaping, TokenWeight
from sage_rlvr.core.guides import GUIDES, Banded, Branch, Compose, Flat, Guide, Placebo
from sage_rlvr.core.keys import Key
from sage_rlvr.core.kl import ESTIMATORS, Estimator, k1, k2, k3, k3_is, straight_through
from sage_rlvr.core.method import (
    METHODS,
    Advantages,
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

if TYPE_CHECKING:
    from sage_rlvr.core.advantages.prompts import Focal, PlaceboPrompts, Posterior, PromptGate, PromptWeighted
    from sage_rlvr.core.extras.replay.base import Buffer
    from sage_rlvr.core.extras.source import RewardSource
    from sage_rlvr.core.guides.place import Place
    from sage_rlvr.core.guides.random import Random
    from sage_rlvr.core.guides.rarity import Rarity
    from sage_rlvr.core.guides.token import Token

_LATER = {
    **dict.fromkeys(("Focal", "PlaceboPrompts", "Posterior", "PromptGate", "PromptWeighted"), "advantages.prompts"),
    "Buffer": "extras.replay.base", "RewardSource": "extras.source",
    "Place": "guides.place", "Random": "guides.random", "Rarity": "guides.rarity", "Token": "guides.token",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a part that no method of this package names."""
    from importlib import import_module

    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)


def __dir__() -> list[str]:
    return __all__


__all__ = [
    "ADVANTAGES",
    "DIVERGENCES",
    "ESTIMATORS",
    "EXTRAS",
    "GUIDES",
    "METHODS",
    "PROMPT_WEIGHTS",
    "REDUCTIONS",
    "ROLLOUT_PLANS",
    "SCHEDULES",
    "SURROGATES",
    "Advantage",
    "Advantages",
    "Anchor",
    "Banded",
    "Batch",
    "BetaNormalized",
    "Branch",
    "Buffer",
    "Clip",
    "Compose",
    "Constant",
    "Cosine",
    "CosineCycles",
    "DynamicSampling",
    "Effect",
    "Estimator",
    "Extra",
    "FixedBudget",
    "Flat",
    "Focal",
    "GroupCentered",
    "GroupNormalized",
    "GroupSignals",
    "Guide",
    "Key",
    "LeaveOneOut",
    "Linear",
    "Method",
    "OverlongShaping",
    "Place",
    "Placebo",
    "PlaceboPrompts",
    "Posterior",
    "PromptGate",
    "PromptWeight",
    "PromptWeighted",
    "Random",
    "Rarity",
    "Reduction",
    "RewardSource",
    "RolloutPlan",
    "Schedule",
    "SequenceMean",
    "Signals",
    "State",
    "Surrogate",
    "Token",
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
