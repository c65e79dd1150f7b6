"""`VERIFIERS`: verifiers that a recipe names as its reward, by name."""

from __future__ import annotations

from typing import Any

from sage_rlvr.registry import Registry
from sage_rlvr.verifiers import Verdict, reads
from sage_rlvr.verifiers.exact import canonical, verify_exact
from sage_rlvr.verifiers.rewards import answered

VERIFIERS: Registry[Any] = Registry("verifier", remember=False)
"""Functions of (completion, gold) that return a `Verdict`, by name; loaded when they are used. One may have an attribute
`answer`, a function from a completion to its answer in canonical form, or None. Two completions with one result have the same
answer."""


def _boxed(completion: str) -> str | None:
    return answered(completion, {"answer_in": "boxed"})


@VERIFIERS.register(name="math")
@reads(_boxed)
def _math(completion: str, gold: str) -> Verdict:
    """Judge by algebra: the answer in the last box equals the gold."""
    from sage_rlvr.verifiers.math import verify_math  # loads sympy, which takes a second

    return verify_math(completion, gold)


@VERIFIERS.register(name="exact")
@reads(canonical)
def _exact(completion: str, gold: str) -> Verdict:
    """Judge by text and exact fractions: the full completion is the gold."""
    return verify_exact(completion, gold)


__all__ = ["VERIFIERS"]
