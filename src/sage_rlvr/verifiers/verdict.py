"""`Verdict`: a verifier's result for one completion."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite  # `math` is a module of this package
from typing import Any, Literal, get_args

from sage_rlvr.errors import DataError

Label = Literal["right", "wrong", "undecided"]

UNANSWERED = frozenset(
    {
        *("no answer", "answer cut off"),  # mathematics and reasoning-gym, at the place of the answer
        *("not an expression", "not a step", "not a chain"),  # countdown, countdown_steps, word_problems: all of it is the answer
        *("no conclusion", "no line is edited"),  # knights_and_knaves, repair
    }
)
"""Reasons of "wrong" verdicts that mean: no answer at its place. A verifier or a reward from outside
uses "no answer". Stored samples contain the reason, so that they are counted alike."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verifier's result for one completion, and the reason in a few stable words. Every verifier and task returns it; rewards,
    sample stores, metrics (which count the reasons) and audits read it.

    score: the reward, if a verifier returns more than right and wrong; None for 1 and 0.
    """

    label: Label
    reason: str
    score: float | None = None

    def __post_init__(self) -> None:
        if self.label not in get_args(Label):
            raise DataError(f"Verdict({self.label!r}, ...): the label is one of {', '.join(get_args(Label))}")
        if self.score is not None and not _is_finite(self.score):
            raise DataError(f"Verdict({self.label!r}, ..., score={self.score!r:.80}): the score is a finite number, or None")

    @property
    def right(self) -> bool:
        """True only for the label "right": an undecided completion gets no reward."""
        return self.label == "right"

    @property
    def unanswered(self) -> bool:
        """Whether there was no answer at its place (`UNANSWERED`)."""
        return is_unanswered(self.label, self.reason)

    @property
    def reward(self) -> float:
        """The reward: `score`, or else 1 if right and 0 if not, including undecided."""
        return float(self.right) if self.score is None else self.score


def is_unanswered(label: str, reason: str) -> bool:
    """Whether a verdict with this label and reason means that there was no answer at its place."""
    return label == "wrong" and reason in UNANSWERED


def _is_finite(value: Any) -> bool:
    try:
        return isfinite(value)
    except (TypeError, OverflowError):
        return False


__all__ = ["UNANSWERED", "Label", "Verdict", "is_unanswered"]
