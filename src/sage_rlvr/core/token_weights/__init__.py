"""Token weights: signals become a factor on the advantage of each token. One a file."""

from sage_rlvr.core.token_weights.base import TOKEN_WEIGHTS, TokenWeight
from sage_rlvr.core.token_weights.clip_cov import ClipCov
from sage_rlvr.core.token_weights.erank import ERank
from sage_rlvr.core.token_weights.high_entropy import HighEntropy
from sage_rlvr.core.token_weights.shaped_entropy import ShapedEntropy
from sage_rlvr.core.token_weights.steer import Steer, entropy_drift

__all__ = ["TOKEN_WEIGHTS", "ClipCov", "ERank", "HighEntropy", "ShapedEntropy", "Steer", "TokenWeight", "entropy_drift"]
