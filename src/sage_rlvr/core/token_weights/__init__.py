"""Token weights: signals of a rollout -> a factor on the advantage of each token.

Read base.py first (the protocol `TokenWeight`); placebo.py permutes the weights of another one, as a control. `TOKEN_WEIGHTS`
has those of sage_rlvr.contrib.methods too, by name.
"""

from sage_rlvr.core.token_weights.base import TOKEN_WEIGHTS, TokenWeight, entropy_drift
from sage_rlvr.core.token_weights.placebo import PlaceboWeight

__all__ = ["TOKEN_WEIGHTS", "PlaceboWeight", "TokenWeight", "entropy_drift"]
