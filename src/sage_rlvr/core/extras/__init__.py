"""Extras: what a published method changes beside its advantage, surrogate, KL term, reduction and rollout plan.

Read base.py first (the hooks of an `Extra`). rewards/ changes the rewards of a group, loss/ adds to the loss of a token, tokens/
weighs the advantage of each token, source.py replaces the verifier's rewards, replay/ trains on stored answers.
Every file below this folder is imported, in alphabetical order. `EXTRAS` has those of sage_rlvr.contrib.methods too, by name.
"""

from typing import TYPE_CHECKING

from sage_rlvr.core.extras.base import EXTRAS, Extra, MethodParts, learned, the_one
from sage_rlvr.core.extras.replay.base import Buffer
from sage_rlvr.core.extras.source import RewardSource
from sage_rlvr.core.extras.tokens.base import TokenWeight, entropy_drift, weights_of
from sage_rlvr.registry import gather

if TYPE_CHECKING:  # what type checkers see: one line for each file
    from sage_rlvr.core.extras.loss.entropy import EntropyBonus
    from sage_rlvr.core.extras.rewards.overlong import OverlongShaping
    from sage_rlvr.core.extras.tokens.placebo import PlaceboWeight

PARTS = gather(__name__, EXTRAS)
globals().update(PARTS)

__all__ = [
    "EXTRAS", "PARTS", "Buffer", "EntropyBonus", "Extra", "MethodParts", "OverlongShaping", "PlaceboWeight",
    "RewardSource", "TokenWeight", "entropy_drift", "learned", "the_one", "weights_of",
]  # fmt: skip
