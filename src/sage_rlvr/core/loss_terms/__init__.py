"""Loss terms: what a method adds to the loss of a token beside surrogate and KL. One family a file."""

from sage_rlvr.core.loss_terms.base import LOSS_TERMS, LossTerm
from sage_rlvr.core.loss_terms.entropy import AdaptiveEntropy, EntropyBonus
from sage_rlvr.core.loss_terms.kl_cov import KlCov

__all__ = ["LOSS_TERMS", "AdaptiveEntropy", "EntropyBonus", "KlCov", "LossTerm"]
