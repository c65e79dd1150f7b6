"""Advantages: rewards of a group -> advantages, frozen callables (P, G) -> (P, G) float32 without a gradient.

Read base.py first (`Advantage` and shared helpers), then group.py (GRPO, Dr. GRPO, RLOO), beta.py (BNPO) and power.py
(MaxRL). `ADVANTAGES` has those of sage_rlvr.contrib.methods too, by name. Imported from their modules: placebo.py, the control
that permutes an advantage among correct completions, and prompts.py, which weighs prompts (prompt_weight.py has the kind).
"""

from sage_rlvr.core.advantages.base import (
    ADVANTAGES,
    Advantage,
    Groups,
    GroupSignals,
    ZeroVariance,
    sees,
    silent_of_labels,
)
from sage_rlvr.core.advantages.beta import BetaNormalized, beta_parameters
from sage_rlvr.core.advantages.group import GroupCentered, GroupNormalized, LeaveOneOut
from sage_rlvr.core.advantages.power import PowerNormalized
from sage_rlvr.core.advantages.prompt_weight import PROMPT_WEIGHTS, PromptWeight

__all__ = [
    "ADVANTAGES",
    "PROMPT_WEIGHTS",
    "Advantage",
    "BetaNormalized",
    "GroupCentered",
    "GroupNormalized",
    "GroupSignals",
    "Groups",
    "LeaveOneOut",
    "PowerNormalized",
    "PromptWeight",
    "ZeroVariance",
    "beta_parameters",
    "sees",
    "silent_of_labels",
]
