"""Extras: what a published method changes besides its advantage, surrogate, KL term, reduction and rollout plan.

Read base.py first (the hooks of an `Extra`). rewards/ changes the rewards of a group, loss/ adds to the loss of a token, tokens/
weighs the advantage of each token, source.py replaces the verifier's rewards, replay/ trains on stored answers.
`EXTRAS` has those of sage_rlvr.contrib.methods too, by name. Here are the kinds and what the methods of this package name; a
`RewardSource`, a `Buffer` and `PlaceboWeight` are imported from their modules.
"""

from sage_rlvr.core.extras.base import EXTRAS, Extra, MethodParts, learned, the_one
from sage_rlvr.core.extras.loss.entropy import EntropyBonus
from sage_rlvr.core.extras.rewards.overlong import OverlongShaping
from sage_rlvr.core.extras.tokens.base import TokenWeight, entropy_drift, weights_of

__all__ = [
    "EXTRAS", "EntropyBonus", "Extra", "MethodParts", "OverlongShaping", "TokenWeight", "entropy_drift", "learned", "the_one",
    "weights_of",
]  # fmt: skip
