"""Extras: what a published method changes beside its advantage, surrogate, KL term, reduction and rollout plan.

Read base.py first (the hooks of an `Extra`). rewards/ changes the rewards of a group, loss/ adds to the loss of a token.
Every file below this folder is imported, in alphabetical order. `EXTRAS` has those of sage_rlvr.contrib.methods too, by name.
"""

from typing import TYPE_CHECKING

from sage_rlvr.core.extras.base import EXTRAS, Extra, learned
from sage_rlvr.registry import gather

if TYPE_CHECKING:  # what type checkers see: one line for each file
    from sage_rlvr.core.extras.loss.entropy import EntropyBonus
    from sage_rlvr.core.extras.rewards.overlong import OverlongShaping

PARTS = gather(__name__, EXTRAS)
globals().update(PARTS)

__all__ = [
    "EXTRAS", "PARTS", "EntropyBonus", "Extra", "OverlongShaping", "learned",
]  # fmt: skip
