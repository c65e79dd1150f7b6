"""Stored right answers are raised once their log-prob has fallen below a floor (floored.yaml)."""

from dataclasses import dataclass
from typing import ClassVar

import torch

import sage_rlvr
from sage_rlvr.core import Buffer
from sage_rlvr.core.extras.replay.base import StoredAnswers


@sage_rlvr.extra
@dataclass(frozen=True, kw_only=True)
class Floor(Buffer):
    """Raises the stored answers whose log-prob has fallen below a floor, and leaves the others alone."""

    least: float = -6.0
    equation: ClassVar[str] = "-log pi where log pi(y) < least"
    legend: ClassVar[str] = "w(y) = 1 / n"
    ascends: ClassVar[str] = "mean over stored y below the floor of grad log pi(y)"
    prefers: ClassVar[str] = "those below the floor"

    def stored_loss(self, logps: torch.Tensor, rows: StoredAnswers):
        low = logps.detach().sum(dim=1, keepdim=True) < self.least
        return torch.where(low, -logps, 0.0), rows.shares(torch.zeros(len(rows))), {"low": float(low.sum()) / rows.whole}
