"""Verifiers: completion -> `Verdict`. A verifier answers every text, quickly, and never raises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Label = Literal["right", "wrong", "undecided"]

MATHEMATICS = ("math", "answers", "quantities", "pool")
"""Modules of this package that a verdict on mathematics is made of: their source is hashed on cards and in sample stores."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier says of one completion, and why in a few stable words (they are counted in metrics).

    score: the reward, where a verifier gives more than right and wrong; None for 1 and 0.
    """

    label: Label
    reason: str
    score: float | None = None

    @property
    def right(self) -> bool:
        """True only for the label "right": an undecided completion earns no reward."""
        return self.label == "right"

    @property
    def reward(self) -> float:
        """What a completion earns: `score`, else 1 where it is right and 0 where it is not, undecided included."""
        return float(self.right) if self.score is None else self.score


__all__ = ["MATHEMATICS", "Label", "Verdict"]
