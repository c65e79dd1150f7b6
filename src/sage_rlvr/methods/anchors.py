"""The keywords of a KL term, declared once for all methods that have one, and converted into an `Anchor`."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import ParamSpec, TypedDict, Unpack

from sage_rlvr.core.anchor import Anchor, Placement
from sage_rlvr.core.divergences import Divergence
from sage_rlvr.core.kl import Estimator
from sage_rlvr.core.method import Method
from sage_rlvr.core.schedules import Schedule

P = ParamSpec("P")


class AnchorKeys(TypedDict, total=False):
    """The keywords of `Anchor`, documented there, except the guide, which `sage` sets."""

    beta: float | Schedule
    estimator: Estimator
    placement: Placement
    source: str
    refresh_every: int | None
    divergence: Divergence | None
    alpha: float | None


def anchored(**defaults: Unpack[AnchorKeys]) -> Callable[[Callable[P, Method]], Callable[P, Method]]:
    """Return a decorator: a factory with `**anchor: Unpack[AnchorKeys]` gets each keyword, with its default given here or in
    `Anchor`.
    """
    known = {field.name: field.default for field in fields(Anchor) if field.name in AnchorKeys.__annotations__}

    def with_keys(factory: Callable[P, Method]) -> Callable[P, Method]:
        @wraps(factory)
        def method(*args: P.args, **kwargs: P.kwargs) -> Method:
            return factory(*args, **{**known, **defaults, **kwargs})  # type: ignore[arg-type]

        hints = typing.get_type_hints(AnchorKeys)
        keys = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[name])
            for name, default in {**known, **defaults}.items()
        ]
        signature = inspect.signature(factory)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        method.__signature__ = signature.replace(parameters=[*own, *keys])  # type: ignore[attr-defined]
        return method

    return with_keys


def anchor_of(**anchor: Unpack[AnchorKeys]) -> Anchor | None:
    """Return the `Anchor` of these keywords; None if beta is 0 at every step.

    Combinations that `Anchor` rejects are errors with beta = 0 too, so that a setting without meaning does not wait for a beta.
    """
    made = Anchor(**anchor)
    return None if made.is_off else made
