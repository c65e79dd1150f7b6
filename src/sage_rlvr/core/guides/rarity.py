"""Rarity: q is larger for rare completions, up to a cap, so that rare completions gain and noise does not."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch

from sage_rlvr.core.guides.base import GUIDES, Banded, DependsOn, PerToken
from sage_rlvr.core.keys import Key
from sage_rlvr.core.signals import Signals
from sage_rlvr.errors import ConfigError


@GUIDES.register(label="Rarity")
@dataclass(frozen=True)
class Rarity(Banded):
    """q_t = exp(power * min(s_t, cap - S_{<t})_+) * pi_ref(y_t)**reference_power, s_t = -log pi(y_t), S_{<t} its sum before t.

    Before the band the product over a completion is q(y) = min(1 / pi(y), e^cap)**power: every completion likelier than
    e^-cap is raised by its rarity, all rarer ones alike. With cap = log(1 / eps) the lift ends at the support of
    Definition 4.1 (arXiv 2605.18864); the default is eps = 1/256. Without the cap the rarest would be raised most, which
    is tempering, and most of what is rarest is wrong. The default band is 256**0.5 and never binds at power 0.5: surprisal
    is concentrated in a few tokens, and SAGE's 1.4 would cut those few. `reference_power` above 0 also sharpens the reference, so
    that completions are preferred that are rare for the policy and plausible to the reference. Chosen on the exact world,
    lab/pages/concepts/guides.md.

    power: exponent of the surprisal in q; 0 is no guide. cap: maximum surprisal of a completion in nats.
    reference_power: exponent of pi_ref(y_t) in q.
    """

    name: ClassVar[str] = "rarity"
    depends_on: ClassVar[DependsOn] = "token"
    power: float = 0.5
    _: KW_ONLY
    cap: float = math.log(256)
    q_min: float = 0.0625
    q_max: float = 16.0
    reference_power: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("power", "reference_power"):
            if not math.isfinite(getattr(self, field)):
                raise ConfigError(
                    f"Rarity: {field} = {getattr(self, field)!r} is not finite; 0.5 and 0 are the defaults."
                )
        if not self.cap > 0:
            raise ConfigError(f"Rarity: cap = {self.cap!r}; set nats above 0, for example 5.5, or inf for no cap.")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"ref_logps"}) if self.reference_power else frozenset()

    @property
    def equation(self) -> str:
        shaped = f" * pi_ref(y_t)^{self.reference_power:g}" if self.reference_power else ""
        lift = f"exp({self.power:g} * min(s_t, {self.cap:.4g} - S_<t)_+)"
        return f"{lift}{shaped};  s_t = -log pi_old(y_t), S_<t its sum before t"

    def raw_q(self, signals: Signals, step: int, total_steps: int, key: Key) -> PerToken:
        # where before cumsum, which would carry a NaN off the mask to every later token
        spent = torch.where(signals.mask, -signals.old_logps, 0.0).cumsum(dim=1).clamp(max=self.cap)
        log_q = self.power * spent.diff(dim=1, prepend=torch.zeros_like(spent[:, :1]))
        if self.reference_power:
            log_q = log_q + self.reference_power * signals.require("ref_logps", "Rarity")
        return torch.exp(log_q)
