"""Read the parameters and annotations of a part, which are its schema, and print annotations as text.

An annotation that names a kind of part (`Guide`, `Method`, `Schedule`, ...) says where one is chosen by name.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any, Literal, Union, get_args, get_origin

from sage_rlvr.registry import HOMES

KINDS = {"".join(word.title() for word in kind.split("_")): kind for kind in HOMES}  # RolloutPlan: rollout_plan
PLACEHOLDERS = {name: types.new_class(name) for name in KINDS}  # for annotations whose module is not imported
SCALARS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    types.NoneType: "null",
}


def kind_of(hint: Any) -> str | None:
    """The kind of part that an annotation names; None for every other annotation."""
    name = getattr(hint, "__name__", "")
    own = hint is PLACEHOLDERS.get(name) or getattr(hint, "__module__", "").startswith("sage_rlvr.")
    return KINDS.get(name) if own and isinstance(hint, type) else None


@functools.cache
def parameters(part: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """name -> (annotation, default or Parameter.empty) of a dataclass or of a function with annotations."""
    hints = typing.get_type_hints(inspect.unwrap(part), localns=PLACEHOLDERS)
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    found = {n: p for n, p in inspect.signature(part).parameters.items() if p.kind not in variadic}
    hints |= {n: p.annotation for n, p in found.items() if n not in hints and p.annotation is not p.empty}
    return {name: (hints.get(name, Any), p.default) for name, p in found.items()}


def phrase(hint: Any) -> str:
    """An annotation in words, for "expected ..." and for missing keys."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(map(phrase, args))
    if origin is Literal:
        return "one of " + ", ".join(map(str, args))
    return {tuple: "a list", dict: "a mapping"}.get(origin) or SCALARS.get(hint, str(getattr(hint, "__name__", hint)))
