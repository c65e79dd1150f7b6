"""`VERIFIERS`: the verifiers that a recipe names as its reward, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar, runtime_checkable

from sage_rlvr.registry import Registry
from sage_rlvr.verifiers.exact import canonical, verify_exact
from sage_rlvr.verifiers.rewards import answered
from sage_rlvr.verifiers.verdict import Verdict

F = TypeVar("F", bound=Callable[..., Any])


@runtime_checkable
class Reading(Protocol):
    """A verifier that carries its reading: `reads` gives it one, and tasks of rows count answers by it."""

    @property
    def answer(self) -> Callable[[str], str | None]:
        """What a completion answers, in one spelling; None without an answer."""
        ...


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
    return answered(completion, {"answer_in": "boxed"})


@VERIFIERS.register(name="math")
@reads(_boxed)
def _math(completion: str, gold: str) -> Verdict:
    """By algebra: the answer in the last box equals the gold."""
    from sage_rlvr.verifiers.math import verify_math  # loads sympy, which takes a second

    return verify_math(completion, gold)


@VERIFIERS.register(name="exact")
@reads(canonical)
def _exact(completion: str, gold: str) -> Verdict:
    """By spelling and exact fractions: the whole completion is the gold."""
    return verify_exact(completion, gold)


__all__ = ["VERIFIERS", "Reading", "reads"]
