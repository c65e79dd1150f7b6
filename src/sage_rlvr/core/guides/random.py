"""SAGE-Random (arXiv 2605.18864, Eq. 9): with a small probability the KL of a token is multiplied by noise around 1."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch

from sage_rlvr.core.guides.base import GUIDES, Banded, DependsOn, PerToken
from sage_rlvr.core.keys import Key
from sage_rlvr.core.schedules import CosineCycles, Schedule, as_schedule, show
from sage_rlvr.core.signals import Signals
from sage_rlvr.errors import ConfigError

PAPER_EPS, PAPER_SIGMA = CosineCycles(0.1, 0.0), CosineCycles(0.15, 0.05)


@GUIDES.register(label="Random")
@dataclass(frozen=True)
class Random(Banded):
    """q_t ~ N(1, sigma**2) with probability eps, else 1 (Eq. 9); eps in [0, 1] and sigma follow schedules.

    q does not depend on the sequence, and E[q] = 1 in a band symmetric about 1, so in the loss it only adds noise.
    """

    name: ClassVar[str] = "random"
    needs: ClassVar[frozenset[str]] = frozenset()
    depends_on: ClassVar[DependsOn] = "nothing"
    eps: float | Schedule = PAPER_EPS
    _: KW_ONLY
    sigma: float | Schedule = PAPER_SIGMA
    q_min: float = 0.6
    q_max: float = 1.4

    def __post_init__(self) -> None:
        super().__post_init__()
        for value in (self.eps, self.sigma):
            as_schedule(value)

    @property
    def equation(self) -> str:
        return f"N(1, sigma^2) with probability eps, else 1;  eps = {show(self.eps)}, sigma = {show(self.sigma)}"

    def raw_q(self, signals: Signals, step: int, total_steps: int, key: Key) -> PerToken:
        eps, sigma = (as_schedule(value)(step, total_steps) for value in (self.eps, self.sigma))
        if not 0.0 <= eps <= 1.0:
            raise ConfigError(f"Random: eps = {eps} at step {step} must be a probability; use a schedule in [0, 1].")
        where = (signals.row_ids, signals.positions)
        noise = 1.0 + sigma * key.normal(step, "random/noise", *where)
        return torch.where(key.uniform(step, "random/chosen", *where) < eps, noise, torch.ones_like(noise))
