"""MaxRL: the logarithm of the probability of a correct answer (arXiv 2602.02710)."""

from __future__ import annotations

from typing import Unpack

from sage_rlvr.core.advantages import PowerNormalized
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import FixedBudget
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored


@METHODS.register(label="MaxRL", about="log P(correct): divides by the mean", arxiv="2602.02710")
@anchored(beta=0.0, estimator="k1", placement="reward")
def maxrl(*, q: float = 1.0, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/(B L)) sum_i sum_t -min(rho A, clip(rho) A), A = (r - mean) / mean^q: log P(right) at q = 1 (arXiv 2602.02710).

    At q = 1 it ascends log P(right) truncated at order G - 1, exactly; q = 0 is Dr. GRPO. The released scripts divide by the
    mean only, as here. Against a KL its force is up to 1/P times RLOO's: compare arms at equal raw KL, never at equal beta.
    """
    return Method("maxrl", PowerNormalized(q), Clip(), anchor_of(**anchor), FixedBudget())
