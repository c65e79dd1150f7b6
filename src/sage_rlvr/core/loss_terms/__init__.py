"""Loss terms: what a method adds to the per-token loss besides the surrogate and the KL term.

Read base.py first (the protocol `LossTerm`), then entropy.py (fixed and adaptive entropy bonus) and kl_cov.py.
"""

from sage_rlvr.core.loss_terms.base import LOSS_TERMS, LossTerm
from sage_rlvr.core.loss_terms.entropy import AdaptiveEntropy, EntropyBonus
from sage_rlvr.core.loss_terms.kl_cov import KlCov

__all__ = ["LOSS_TERMS", "AdaptiveEntropy", "EntropyBonus", "KlCov", "LossTerm"]
