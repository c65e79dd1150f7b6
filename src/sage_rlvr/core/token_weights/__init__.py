"""Token weights: signals of a rollout -> a factor on the advantage of each token.

Read base.py first (the protocol `TokenWeight`). Each other file is the weight of a paper: high_entropy.py,
clip_cov.py, shaped_entropy.py, steer.py, eapo.py, erank.py; placebo.py permutes the weights of another one, as a control.
"""

from sage_rlvr.core.token_weights.base import TOKEN_WEIGHTS, TokenWeight
from sage_rlvr.core.token_weights.clip_cov import ClipCov
from sage_rlvr.core.token_weights.eapo import Eapo
from sage_rlvr.core.token_weights.erank import ERank
from sage_rlvr.core.token_weights.high_entropy import HighEntropy
from sage_rlvr.core.token_weights.placebo import PlaceboWeight
from sage_rlvr.core.token_weights.shaped_entropy import ShapedEntropy
from sage_rlvr.core.token_weights.steer import Steer, entropy_drift

__all__ = [
    "TOKEN_WEIGHTS", "ClipCov", "ERank", "Eapo", "HighEntropy", "PlaceboWeight", "ShapedEntropy", "Steer", "TokenWeight",
    "entropy_drift",
]  # fmt: skip
