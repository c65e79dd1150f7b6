"""Advantages: rewards of a group -> advantages, frozen callables (P, G) -> (P, G) float32 without a gradient.

Read base.py first (`Advantage` and shared helpers), then group.py (GRPO, Dr. GRPO, RLOO), beta.py (BNPO) and power.py
(MaxRL). placebo.py is the control that permutes an advantage among correct completions. `ADVANTAGES` has those of
sage_rlvr.contrib.methods too, by name.
"""

from sage_rlvr.core.advantages.base import (
    ADVANTAGES,
    Advantage,
    Dead,
    Groups,
    Seen,
    sees,
    silent_of_labels,
)
from sage_rlvr.core.advantages.beta import BetaNormalized, beta_parameters
from sage_rlvr.core.advantages.group import GroupCentered, GroupNormalized, LeaveOneOut
from sage_rlvr.core.advantages.placebo import PlaceboRight
from sage_rlvr.core.advantages.power import PowerNormalized

__all__ = [
    "ADVANTAGES",
    "Advantage",
    "BetaNormalized",
    "Dead",
    "GroupCentered",
    "GroupNormalized",
    "Groups",
    "LeaveOneOut",
    "PlaceboRight",
    "PowerNormalized",
    "Seen",
    "beta_parameters",
    "sees",
    "silent_of_labels",
]
