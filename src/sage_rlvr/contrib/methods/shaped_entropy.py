"""Entropy added to the advantage, up to a fraction of it (arXiv 2506.14758).

Paper: https://arxiv.org/abs/2506.14758. Recipe: `sage-rlvr train shaped_entropy --task TASK`.
Numbers worked out by hand: tests/core/objective/test_token_weights.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Unpack

import torch
from torch import Tensor

from sage_rlvr.core.advantages import GroupNormalized
from sage_rlvr.core.extras.base import EXTRAS, PerToken
from sage_rlvr.core.extras.tokens.base import TokenWeight, lifted, token_advantages
from sage_rlvr.core.keys import Key
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import TokenMean
from sage_rlvr.core.signals import Signals
from sage_rlvr.core.state import PartState
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.errors import ConfigError
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored


@EXTRAS.register
@dataclass(frozen=True)
class ShapedEntropy(TokenWeight):
    """A'_t = A_t + min(entropy_coef H_t, |A_t| / kappa), as a factor on A_t (arXiv 2506.14758, Eq. 7).

    H_t has no gradient. The sign of an advantage never flips, and A = 0 stays 0; wrong completions are punished less at
    uncertain tokens, right ones rewarded more: a one-sided pull toward uncertainty. needs: "entropies".

    entropy_coef: advantage per nat of entropy, the paper's alpha: 0.4 for rewards of +-1 with GRPO. kappa: the bonus is
    at most |A| / kappa, 2 in the paper.
    """

    entropy_coef: float = 0.4
    kappa: float = 2.0
    needs: ClassVar[frozenset[str]] = frozenset({"advantages", "entropies"})

    def __post_init__(self) -> None:
        if not 0 <= self.entropy_coef < math.inf:
            raise ConfigError(
                f"ShapedEntropy: entropy_coef = {self.entropy_coef!r}; set a finite number >= 0, 0.4 in the paper for GRPO."
            )
        if not self.kappa > 1:
            raise ConfigError(
                f"ShapedEntropy: kappa = {self.kappa!r} must be above 1, so that no advantage changes sign."
            )

    @property
    def equation(self) -> str:
        return f"1 + sign(A) min({self.entropy_coef:g} H_t / |A|, {1 / self.kappa:g})"

    def token_weights(
        self, signals: Signals, step: int, total_steps: int, key: Key, state: PartState
    ) -> tuple[PerToken, Mapping[str, Tensor]]:
        entropies = torch.where(signals.mask, signals.require("entropies", "ShapedEntropy").float(), 0.0)
        return lifted(token_advantages(signals), self.entropy_coef * entropies, self.kappa), state


@METHODS.register(label="Entropy-shaped advantage", about="entropy added to the advantage", arxiv="2506.14758")
@anchored(beta=0.0)
def shaped_entropy(*, entropy_coef: float = 0.4, kappa: float = 2.0, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/sum |y|) sum_i sum_t [ -min(rho A_t, clip(rho) A_t) + beta k3 ], A_t = A + min(entropy_coef H_t, |A| / kappa).

    Cheng et al., arXiv 2506.14758, A = GRPO's, `entropy_coef` its alpha: uncertain tokens are rewarded more and punished less.
    """
    weight = ShapedEntropy(entropy_coef, kappa)
    return Method("shaped_entropy", GroupNormalized(), Clip(), anchor_of(**anchor), TokenMean(), extras=(weight,))
