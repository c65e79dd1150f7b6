"""Verifiers: completion -> `Verdict` (right, wrong or undecided, with a reason).

Read answers.py first (where the answer of a completion is), then math.py (mathematics, by kind of answer: algebra.py,
quantities.py, units.py) and countdown.py. pool.py runs a verifier in processes with time and memory limits;
rewards.py turns verdicts into rewards of TRL; sandbox.py runs unit tests of generated code; exact.py is an independent
check; versions.py has the version of each verifier. A verifier returns a verdict for every text, quickly, and never raises.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite  # `math` is a module of this package
from typing import Any, Literal, TypeVar, get_args

from sage_rlvr.errors import DataError
from sage_rlvr.registry import Registry

F = TypeVar("F", bound=Callable[..., Any])
Label = Literal["right", "wrong", "undecided"]

UNANSWERED = frozenset(
    {
        *("no answer", "answer cut off"),  # mathematics and reasoning-gym, at the place that is read
        *("not an expression", "not a step", "not a chain"),  # countdown, countdown_steps, word_problems: all of it is read
        *("no conclusion", "no line is edited"),  # knights_and_knaves, repair
    }
)
"""Reasons of "wrong" verdicts with the meaning: nothing was found where the answer is read. A verifier or a reward from outside
uses "no answer". Stored samples keep the reason, so that they are counted alike."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier says of one completion, and why in a few stable words. Every verifier and task returns it; rewards, sample
    stores, metrics (which count the reasons) and audits read it.

    score: the reward, where a verifier gives more than right and wrong; None for 1 and 0.
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
        """True only for the label "right": an undecided completion earns no reward."""
        return self.label == "right"

    @property
    def unanswered(self) -> bool:
        """Whether nothing was found where the answer is read (`UNANSWERED`)."""
        return self.label == "wrong" and self.reason in UNANSWERED

    @property
    def reward(self) -> float:
        """What a completion earns: `score`, else 1 where it is right and 0 where it is not, undecided included."""
        return float(self.right) if self.score is None else self.score


def _is_finite(value: Any) -> bool:
    try:
        return isfinite(value)
    except (TypeError, OverflowError):
        return False


VERIFIERS: Registry[Any] = Registry("verifier", remember=False)
"""Functions of (completion, gold) that give a `Verdict`, by name; loaded when they are asked. One may carry its reading, a function
`answer` of a completion: what it answers, in one spelling, or None. Two completions of one reading give the same answer."""


def reads(answer: Callable[[str], str | None]) -> Callable[[F], F]:
    """A decorator that gives a verifier its reading."""

    def carrying(verifier: F) -> F:
        verifier.answer = answer  # type: ignore[attr-defined]
        return verifier

    return carrying


def _boxed(completion: str) -> str | None:
    from sage_rlvr.verifiers.rewards import answered

    return answered(completion, {"answer_in": "boxed"})


def _canonical(completion: str) -> str | None:
    from sage_rlvr.verifiers.exact import canonical

    return canonical(completion)


@VERIFIERS.register(name="math")
@reads(_boxed)
def _math(completion: str, gold: str) -> Verdict:
    """By algebra: the answer in the last box equals the gold."""
    from sage_rlvr.verifiers.math import verify_math

    return verify_math(completion, gold)


@VERIFIERS.register(name="exact")
@reads(_canonical)
def _exact(completion: str, gold: str) -> Verdict:
    """By spelling and exact fractions: the whole completion is the gold."""
    from sage_rlvr.verifiers.exact import verify_exact

    return verify_exact(completion, gold)


__all__ = ["UNANSWERED", "VERIFIERS", "Label", "Verdict", "reads"]
