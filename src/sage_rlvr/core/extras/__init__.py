"""Extras: what a published method changes beside its advantage, surrogate, KL term, reduction and rollout plan.

Read base.py first (the hooks of an `Extra`). rewards/ changes the rewards of a group, loss/ adds to the loss of a
token. Every file below this folder is imported, in
alphabetical order: a new extra is one file.
"""

from typing import TYPE_CHECKING

from sage_rlvr.core.extras.base import EXTRAS, Extra, learned
from sage_rlvr.registry import gather

if TYPE_CHECKING:  # what type checkers see: one line for each file
    from sage_rlvr.core.extras.loss.entropy import AdaptiveEntropy, EntropyBonus
    from sage_rlvr.core.extras.loss.kl_cov import KlCov
    from sage_rlvr.core.extras.rewards.mara import Mara
    from sage_rlvr.core.extras.rewards.outcomes import OutcomeCounts, OutcomeRepeats
    from sage_rlvr.core.extras.rewards.overlong import OverlongShaping
    from sage_rlvr.core.extras.rewards.right_entropy import RightEntropy
    from sage_rlvr.core.extras.rewards.unlikeliness import Unlikeliness

PARTS = gather(__name__, EXTRAS)
globals().update(PARTS)

__all__ = [
    "EXTRAS", "PARTS", "AdaptiveEntropy", "EntropyBonus", "Extra", "KlCov", "Mara", "OutcomeCounts", "OutcomeRepeats",
    "OverlongShaping", "RightEntropy", "Unlikeliness", "learned",
]  # fmt: skip
