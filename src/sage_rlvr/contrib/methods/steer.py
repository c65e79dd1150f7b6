"""STEER: tokens that would move the entropy of their state most are damped (arXiv 2510.10150).

Paper: https://arxiv.org/abs/2510.10150. Recipe: `sage-rlvr train steer --task TASK`.
Numbers worked out by hand: tests/core/objective/test_token_weights.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Unpack

import torch
from torch import Tensor

from sage_rlvr.core.advantages import GroupNormalized
from sage_rlvr.core.extras.base import EXTRAS, PerToken
from sage_rlvr.core.extras.tokens.base import TokenWeight, token_advantages
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
class Steer(TokenWeight):
    """w_t = min_weight^(m_t / max m), m_t = |change of the state's entropy by one step on token t| (STEER, arXiv 2510.10150).

    p = pi_old(token), H the entropy of its state, up to one common factor:

    exact     m = |A [p (log p + H) - sum_a pi_a^2 (log pi_a + H)]|      a tabular softmax, to first order
    paper     m = |A p (1 - p) (log p + H)|                              its diagonal part only
    released  m = |A (1 - p) (log p + H)|,  w = max(min_weight, min_weight^(m / max(max m, 0.02)))     the authors' code

    The released form divides by pi_old, so that m grows for rare tokens instead of vanishing: it damps other tokens than the
    paper's form. The maximum is over the tokens of the rollout (their code: of a micro-batch). A weight never changes a sign.
    min_weight = 1 is no weight. needs: "logps", "entropies"; exact also "entropy_drift", which needs all probabilities of a state.

    min_weight: weight of the token that changes the entropy most.
    """

    form: Literal["exact", "paper", "released"] = "paper"
    min_weight: float = 0.7
    depends_on: ClassVar[str] = "batch"

    def __post_init__(self) -> None:
        if self.form not in ("exact", "paper", "released"):
            raise ConfigError(f"Steer: form = {self.form!r}; set exact, paper or released.")
        if not 0 < self.min_weight <= 1:
            raise ConfigError(
                f"Steer: min_weight = {self.min_weight!r}; set 0 < min_weight <= 1: 0.7 in the paper, 0.8 in the released runs."
            )

    @property
    def needs(self) -> frozenset[str]:
        """The signals: exact needs a sum over the vocabulary."""
        return frozenset({"advantages", "logps", "entropies"} | ({"entropy_drift"} if self.form == "exact" else set()))

    @property
    def equation(self) -> str:
        return f"{self.min_weight:g}^(m_t / max m)"

    @property
    def legend(self) -> str:
        """The definition of m_t, by `form`."""
        moved = {
            "exact": "|A [p (log p + H) - sum_a pi_a^2 (log pi_a + H)]|",
            "paper": "|A p (1 - p) (log p + H)|",
            "released": "|A (1 - p) (log p + H)|, max m at least 0.02",
        }
        return f"m_t = {moved[self.form]},  p = pi_old(token), H of its state"

    def token_weights(
        self, signals: Signals, step: int, total_steps: int, key: Key, state: PartState
    ) -> tuple[PerToken, Mapping[str, Tensor]]:
        """(B, T) in [min_weight, 1], 1 off the mask; all 1 if no token would change an entropy."""
        moved = torch.where(signals.mask, self._moved(signals).abs(), 0.0)
        largest = moved.max() if moved.numel() else moved.sum()
        if self.form == "released":
            largest = largest.clamp(min=0.02)
        if not bool(largest > 0):
            return torch.ones_like(moved), state
        return torch.exp(math.log(self.min_weight) * moved / largest), state

    def _moved(self, signals: Signals) -> PerToken:
        logps = torch.where(signals.mask, signals.old_logps.float(), 0.0).clamp(min=math.log(1e-8))
        entropies = torch.where(signals.mask, signals.require("entropies", "Steer").float(), 0.0)
        p, rise = logps.exp(), logps + entropies
        if self.form == "exact":
            drift = signals.require("entropy_drift", "Steer(form='exact')").float()
            return token_advantages(signals) * (p * rise - torch.where(signals.mask, drift, 0.0))
        return token_advantages(signals) * (1.0 - p) * rise * (p if self.form == "paper" else 1.0)


@METHODS.register(label="STEER", about="damps tokens that move entropy most", arxiv="2510.10150")
@anchored(beta=0.0)
def steer(
    *, form: Literal["exact", "paper", "released"] = "paper", min_weight: float = 0.7, **anchor: Unpack[AnchorKeys]
) -> Method:
    """L = (1/sum |y|) sum_i sum_t [ -min(rho w_t A, clip(rho) w_t A) + beta k3 ], w_t = min_weight^(m_t / max m) (arXiv
    2510.10150).

    m_t is the change of the state's entropy by a step on the token: exact, by the paper's diagonal part, or as in the released code
    (`Steer`). Clip .2/.28 and dual clip 10, as released.
    """
    weight = Steer(form, min_weight)
    clip = Clip(0.2, 0.28, 10.0)
    return Method("steer", GroupNormalized(), clip, anchor_of(**anchor), TokenMean(), extras=(weight,))
