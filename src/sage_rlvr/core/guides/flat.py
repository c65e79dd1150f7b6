"""q = 1 everywhere: the neutral guide. SAGE with Flat is its base method, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from sage_rlvr.core.guides.base import GUIDES, DependsOn, Guide, PerToken
from sage_rlvr.core.keys import Key
from sage_rlvr.core.signals import Signals


@GUIDES.register
@dataclass(frozen=True)
class Flat(Guide):
    """q_t = 1: the reference is unchanged."""

    name: ClassVar[str] = "flat"
    needs: ClassVar[frozenset[str]] = frozenset()
    depends_on: ClassVar[DependsOn] = "nothing"
    equation: ClassVar[str] = "1"
    q_min: ClassVar[float] = 1.0
    q_max: ClassVar[float] = 1.0

    def __call__(self, signals: Signals, step: int, total_steps: int, key: Key) -> PerToken:
        """Zeros, (B, T) float32."""
        return torch.zeros_like(signals.old_logps)
