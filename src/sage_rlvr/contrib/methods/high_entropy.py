"""The 80/20 rule: only tokens of high entropy are trained on (arXiv 2506.01939).

Paper: https://arxiv.org/abs/2506.01939. Recipe: `sage-rlvr train high_entropy --task TASK`.
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
from sage_rlvr.core.extras.tokens.base import TokenWeight
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
class HighEntropy(TokenWeight):
    """w_t = 1 at the `share` of the rollout's tokens with the highest entropy, else 0 (arXiv 2506.01939, Eq. 6).

    The reduction's divisor is the number of all tokens, as in the paper: the authors' code divides by the selected ones, which is
    1/share times this loss. The threshold is that of the full rollout, not of a micro-batch; all tokens at it are selected. A KL in
    the loss still acts at every token. needs: "entropies".

    share: fraction of counted tokens that are trained on.
    """

    share: float = 0.2
    needs: ClassVar[frozenset[str]] = frozenset({"entropies"})
    depends_on: ClassVar[str] = "batch"

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigError(
                f"HighEntropy: share = {self.share!r} is a fraction of tokens; set 0 < share <= 1, 0.2 in the paper."
            )

    @property
    def equation(self) -> str:
        return f"1 at the {self.share:.0%} of tokens with the highest entropy, else 0"

    def token_weights(
        self, signals: Signals, step: int, total_steps: int, key: Key, state: PartState
    ) -> tuple[PerToken, Mapping[str, Tensor]]:
        """(B, T) of 0 and 1: 1 at the `share` of all counted tokens with the highest entropy."""
        entropies = signals.require("entropies", "HighEntropy").float()
        counted = entropies[signals.mask]
        if not len(counted):
            return torch.zeros_like(entropies), state
        least = counted.topk(math.ceil(self.share * len(counted))).values[-1]
        return (signals.mask & (entropies >= least)).float(), state


@METHODS.register(label="High-entropy tokens", about="trains the most uncertain tokens", arxiv="2506.01939")
@anchored(beta=0.0)
def high_entropy(*, share: float = 0.2, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/sum |y|) sum_i sum_t [ -min(rho w_t A, clip(rho) w_t A) + beta k3 ], w_t = 1 at high entropy (arXiv 2506.01939).

    Only the `share` of the rollout's tokens with the highest entropy is trained on; the divisor is the number of all tokens.
    """
    weight = HighEntropy(share)
    clip = Clip(0.2, 0.28, 10.0)
    return Method("high_entropy", GroupNormalized(), clip, anchor_of(**anchor), TokenMean(), extras=(weight,))
