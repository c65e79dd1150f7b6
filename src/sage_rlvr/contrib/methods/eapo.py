"""EAPO: right completions are credited at uncertain tokens, wrong ones blamed at certain tokens (arXiv 2609.33781).

Paper: https://arxiv.org/abs/2609.33781. Recipe: `sage-rlvr train eapo --task TASK`.
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
from sage_rlvr.core.extras.tokens.base import TokenWeight, token_advantages
from sage_rlvr.core.guides.base import batch_quantiles
from sage_rlvr.core.keys import Key
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import TokenMean
from sage_rlvr.core.signals import Signals
from sage_rlvr.core.state import PartState
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.errors import ConfigError
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored

LOW, HIGH = 0.1, 0.9  # quantiles of the rollout's entropies that become h = 0 and h = 1
LOG_4 = math.log(4.0)


@EXTRAS.register
@dataclass(frozen=True)
class Eapo(TokenWeight):
    """w_t = r_t / mean of r over the completion, r_t = exp(kappa sign(A) h_t) (EAPO, arXiv 2609.33781).

    h_t = clip((H_t - lo) / (hi - lo), 0, 1), lo and hi the 10 % and 90 % quantiles of the entropies of all counted tokens of the
    rollout (engines with several ranks call it with the tokens of all). The mean advantage of a completion stays A. On-policy, with
    fixed lo and hi, and while right completions have one mean of r and wrong ones another, the expected force at a state is
    (1 - P) w+ + P w- times that of A: P the prompt's probability of a right completion, w+ and w- the weight of right and wrong
    completions at that state. Hard prompts learn more at uncertain states, easy ones at certain states.

    kappa: logarithm of the largest ratio of two weights in a completion, log 4 in the paper. decay_steps: steps over which kappa
    falls linearly to 0 (the authors' code counts optimizer steps); null: kappa stays.
    """

    kappa: float = LOG_4
    decay_steps: int | None = None
    needs: ClassVar[frozenset[str]] = frozenset({"advantages", "entropies"})
    depends_on: ClassVar[str] = "batch"
    legend: ClassVar[str] = "h_t = clip((H_t - lo) / (hi - lo), 0, 1),  lo, hi = 10 % and 90 % quantiles of H over the rollout"

    def __post_init__(self) -> None:
        if not 0 <= self.kappa < math.inf:
            raise ConfigError(f"Eapo: kappa = {self.kappa!r}; set a finite number >= 0, log 4 = 1.386 in the paper.")
        if self.decay_steps is not None and self.decay_steps < 1:
            raise ConfigError(f"Eapo: decay_steps = {self.decay_steps!r}; set steps >= 1, or null for a constant kappa.")

    @property
    def equation(self) -> str:
        falling = "" if self.decay_steps is None else f" max(0, 1 - step/{self.decay_steps})"
        return f"r_t / mean of r over the completion, r_t = exp({self.kappa:g}{falling} sign(A) h_t)"

    def kappa_at(self, step: int) -> float:
        """kappa at a step."""
        return self.kappa if self.decay_steps is None else self.kappa * max(0.0, 1.0 - step / self.decay_steps)

    def token_weights(
        self, signals: Signals, step: int, total_steps: int, key: Key, state: PartState
    ) -> tuple[PerToken, Mapping[str, Tensor]]:
        """(B, T): r_t over its mean in the completion, which makes their mean 1; 1 off the mask."""
        mask = signals.mask
        entropies = torch.where(mask, signals.require("entropies", "Eapo").float(), 0.0)
        if not mask.any():
            return torch.ones_like(entropies), state
        low, high = batch_quantiles(entropies, mask, (LOW, HIGH), signals.total)
        # 1e-8: if hi = lo, h is 1 above it and 0 elsewhere, never 0 / 0
        uncertain = ((entropies - low) / (high - low + 1e-8)).clamp(0, 1)
        # -inf and not 0 off the mask: exp(0) would count padding in the mean
        exponents = torch.where(mask, self.kappa_at(step) * token_advantages(signals).sign() * uncertain, -torch.inf)
        # The largest exponent of a row cancels in the ratio; without it a large kappa overflows. A row without tokens is -inf,
        # and -inf - -inf is NaN: hence the clamp.
        raw = (exponents - exponents.amax(dim=1, keepdim=True).clamp(min=-3e38)).exp()
        mean = raw.sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)
        return torch.where(mask, raw / mean, 1.0), state


@METHODS.register(label="EAPO", about="credit by entropy and sign of the advantage", arxiv="2609.33781")
@anchored(beta=0.0)
def eapo(*, kappa: float = LOG_4, decay_steps: int | None = None, **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/sum |y|) sum_i sum_t [ -min(rho w_t A, clip(rho) w_t A) + beta k3 ], w_t = exp(kappa sign(A) h_t) over its mean
    (arXiv 2609.33781).

    h_t is the entropy of the state, scaled to [0, 1] by quantiles of the rollout (`Eapo`): right completions are credited at
    uncertain tokens, wrong ones blamed at certain tokens. A = GRPO's, clip .2/.28 and no KL, as released.
    """
    weight, clip = Eapo(kappa, decay_steps), Clip(0.2, 0.28)
    return Method("eapo", GroupNormalized(), clip, anchor_of(**anchor), TokenMean(), extras=(weight,))
