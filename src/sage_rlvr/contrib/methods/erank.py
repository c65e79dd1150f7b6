"""ERank (VERL): completions whose hidden states spread more than before get a higher advantage (arXiv 2509.23808).

Paper: https://arxiv.org/abs/2509.23808. Recipe: `sage-rlvr train erank --task TASK`.
Numbers worked out by hand: tests/core/objective/test_token_weights.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Unpack

import torch
from torch import Tensor

from sage_rlvr.core.advantages import GroupNormalized
from sage_rlvr.core.extras.base import EXTRAS, PerToken
from sage_rlvr.core.extras.tokens.base import TokenWeight, lifted, token_advantages
from sage_rlvr.core.keys import Key
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.ranks import ranks_of
from sage_rlvr.core.reductions import SequenceMean
from sage_rlvr.core.signals import Signals
from sage_rlvr.core.state import PartState
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.errors import ConfigError
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored

INDICATORS = ("rank", "velocity", "acceleration")


@EXTRAS.register
@dataclass(frozen=True)
class ERank(TokenWeight):
    """A' = A + min(max(Phi, 0), |A| / kappa), Phi = scale [ g tanh(dev rank) + (1 - g) tanh(dev velocity) ] (arXiv 2509.23808).

    rank, velocity and acceleration are those of the effective rank of the completion's last hidden states (`core.ranks`);
    dev X = clamp((X - mu) / |mu|, -5, 5), mu the running mean of earlier rollouts, 0 at first; g = sigmoid(gain dev acceleration).
    It is added at every token, as in the paper: the released script adds its bonus to the reward that it has switched off, so that
    the bonus is 0 at every step and it trains plain GRPO, which is scale = 0 here. The rank grows with the length, so Phi does.

    scale: scale of the bonus, in units of advantage. kappa: the bonus is at most |A| / kappa. stride, last: tokens per
    window, and the number of last tokens of a completion that are used. whole_rank: the rank is over the full completion, and
    `last` cuts velocity and acceleration only, as in the released code. share: weight of a rollout in the running means.

    scale = 0 only measures, without weights: the running means are metrics, of the last rollout only with share = 1. Cost: the
    eigenvalues of one matrix of at most min(tokens, width) per window and completion. needs: "hidden".
    """

    scale: float = 1.0
    kappa: float = 2.0
    gain: float = 2.0
    share: float = 0.3
    stride: int = 40
    last: int = 512
    whole_rank: bool = False
    needs: ClassVar[frozenset[str]] = frozenset({"advantages", "hidden"})
    depends_on: ClassVar[str] = "batch"
    legend: ClassVar[str] = "Phi = g tanh(dev rank) + (1 - g) tanh(dev velocity),  g = sigmoid(gain dev acceleration)"

    def __post_init__(self) -> None:
        if not (0 <= self.scale < math.inf and math.isfinite(self.gain) and 0 < self.share <= 1 and self.kappa > 1):
            raise ConfigError(
                f"ERank: scale = {self.scale!r}, gain = {self.gain!r}, share = {self.share!r}, kappa = {self.kappa!r}; "
                "set scale >= 0, a finite gain, 0 < share <= 1 and kappa > 1; 1, 2, 0.3 and 2 as released."
            )
        if any(isinstance(n, bool) or not isinstance(n, int) or n < 2 for n in (self.stride, self.last)):
            raise ConfigError(
                f"ERank: stride = {self.stride!r}, last = {self.last!r} count tokens; set whole numbers >= 2: 40 and 512 as "
                "released."
            )

    @property
    def equation(self) -> str:
        return f"1 + sign(A) min({self.scale:g} max(Phi, 0) / |A|, {1 / self.kappa:g})"

    def start(self) -> dict[str, Tensor]:
        """The running means, float64."""
        return {name: torch.zeros((), dtype=torch.float64) for name in INDICATORS}

    def token_weights(
        self, signals: Signals, step: int, total_steps: int, key: Key, state: PartState
    ) -> tuple[PerToken, Mapping[str, Tensor]]:
        """A' / A of each row, (B, T), and the running means including this rollout."""
        hidden, length = signals.require("hidden", "ERank"), signals.mask.shape[1]
        indicators = ranks_of(hidden, signals.mask, self.stride, self.last)
        if self.whole_rank and self.last < length:
            # A stride beyond the longest completion leaves only one window, the full completion.
            indicators = replace(indicators, rank=ranks_of(hidden, signals.mask, length + 1, length).rank)
        dev = {name: _deviation(getattr(indicators, name), state[name]) for name in INDICATORS}
        gate = torch.sigmoid(self.gain * dev["acceleration"])
        phi = self.scale * (gate * dev["rank"].tanh() + (1 - gate) * dev["velocity"].tanh())
        means = {name: torch.lerp(state[name], getattr(indicators, name).mean(), self.share) for name in INDICATORS}
        return lifted(token_advantages(signals), phi.clamp(min=0).float()[:, None], self.kappa), means


def _deviation(values: Tensor, mean: Tensor) -> Tensor:
    return ((values - mean) / (mean.abs() + 1e-8)).clamp(-5, 5)


@METHODS.register(label="ERank", about="effective rank of hidden states (VERL)", arxiv="2509.23808")
@anchored(beta=0.0)
def erank(
    *,
    scale: float = 1.0,
    kappa: float = 2.0,
    gain: float = 2.0,
    share: float = 0.3,
    stride: int = 40,
    last: int = 512,
    whole_rank: bool = False,
    **anchor: Unpack[AnchorKeys],
) -> Method:
    """L = mean_i mean_t [ -min(rho A', clip(rho) A') + beta k3 ], A' = A + min(scale max(Phi, 0), |A| / kappa).

    VERL (arXiv 2509.23808). A = GRPO's. Phi compares the effective rank of a completion's last hidden states, and how
    it grows, with running means of earlier rollouts, which are part of the checkpoint (`ERank`). scale = 0 is GRPO and
    only measures: that is what the released script trains, because its bonus is the difference of two rewards that are equal in it.
    stride: tokens per window, 40 as released; a completion with fewer than two windows has no velocity.
    whole_rank: the rank is over the full completion, as released, and velocity and acceleration over its last 512
    tokens.
    """
    weight = ERank(scale, kappa, gain, share, stride, last, whole_rank)
    return Method("erank", GroupNormalized(), Clip(), anchor_of(**anchor), SequenceMean(), extras=(weight,))
