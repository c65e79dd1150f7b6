"""Verifiers with a function that reads the answer of a completion, so that completions with one answer can be counted together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar, runtime_checkable

F = TypeVar("F", bound=Callable[..., Any])


@runtime_checkable
class Reading(Protocol):
    """A verifier with a function that reads answers: `reads` adds it, and tasks of rows count answers by it."""

    @property
    def answer(self) -> Callable[[str], str | None]:
        """Function from a completion to its answer in canonical form; None without an answer."""
        ...


def reads(answer: Callable[[str], str | None]) -> Callable[[F], F]:
    """A decorator that adds such a function to a verifier."""

    def carrying(verifier: F) -> F:
        verifier.answer = answer  # type: ignore[attr-defined]
        return verifier

    return carrying


__all__ = ["Reading", "reads"]
