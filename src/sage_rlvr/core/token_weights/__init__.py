"""Token weights: signals become a factor on the advantage of each token. One a file."""

from sage_rlvr.core.token_weights.base import TOKEN_WEIGHTS, TokenWeight
from sage_rlvr.core.token_weights.clip_cov import ClipCov
from sage_rlvr.core.token_weights.high_entropy import HighEntropy
from sage_rlvr.core.token_weights.shaped_entropy import ShapedEntropy
from sage_rlvr.core.token_weights.steer import Steer, entropy_drift
from sage_rlvr.core.token_weights.verl import Verl

__all__ = ["TOKEN_WEIGHTS", "ClipCov", "HighEntropy", "ShapedEntropy", "Steer", "TokenWeight", "Verl", "entropy_drift"]
