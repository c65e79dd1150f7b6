"""One policy's exact evaluation: log-probs of every right completion, from which all other numbers are recomputed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Record:
    """The exact record of one policy.

    meta: name, model, world, split, seed, problem_ids (N), versions, ... as strict JSON
    logps: {temperature: [float64 log-probs of the right completions, one array per problem]}, nats, end token included
    norms: {power: (N, 2) float64 bounds on log sum_y pi(y)^power over all completions}; empty if the policy was not tempered over
        full completions
    path: the file that it was read from
    """

    meta: Mapping[str, Any]
    logps: Mapping[float, Sequence[np.ndarray]]
    norms: Mapping[float, np.ndarray] = field(default_factory=dict)
    path: Path | None = field(default=None, compare=False)

    @property
    def problems(self) -> int:
        """Number of problems."""
        return len(self.meta["problem_ids"])

    def only(self, temperatures: Collection[float] | None) -> Record:
        """The record with only these temperatures, so that policies are compared at the same ones; None selects all."""
        return replace(self, logps={t: rows for t, rows in self.logps.items() if temperatures is None or t in temperatures})
