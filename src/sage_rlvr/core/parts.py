"""The base of the kinds of parts whose members are declared: an advantage, a surrogate, a guide, ...

A kind is an abstract class with the members of its parts and their defaults; `check_part` is the check of its registry.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from dataclasses import dataclass
from inspect import getattr_static, isabstract
from typing import TYPE_CHECKING, Any, ClassVar

from sage_rlvr.core.signals import check_needs
from sage_rlvr.errors import ConfigError
from sage_rlvr.members import check_inherits, check_names, names
from sage_rlvr.registry import in_snake_case

HOME = "sage_rlvr.core"


@dataclass(frozen=True, eq=False, repr=False)
class Part(ABC):  # noqa: B024 - what is abstract, a kind declares
    """What every kind inherits. A part is a frozen dataclass of its own: this one gives it no fields and no equality.

    ConfigError for a class with a public name that is near the name of a member that it lacks.
    """

    if TYPE_CHECKING:  # read-only, so that a part may give each as a class attribute, a field or a property

        @property
        def equation(self) -> str:
            """What it computes, as one line of text, which `describe` prints. Required."""

        @property
        def legend(self) -> str:
            """What the symbols of `equation` mean, as a line that `describe` prints; "" by default."""

    else:  # plain values: a field of a dataclass without a default would take a property for its default
        equation: ClassVar[str]
        legend = ""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if Part not in cls.__bases__:
            kind = next(base for base in cls.__mro__ if Part in base.__bases__)
            declaring = (base for base in cls.__mro__[1:] if issubclass(base, kind) and isabstract(base))
            check_names(cls, kind, in_snake_case(kind.__name__).replace("_", " "), *declaring)


def check_part(kind: type[Part], symbol: str, also: str = "", **required: str) -> Callable[[str, Any], object]:
    """The check of a kind's registry: the class inherits the kind, has its `equation` and all that is abstract, and known `needs`.

    symbol: what the equation is of, as messages call it. also: what a part of a kind without abstract methods has to define.
    required: other members without a default: the line that declares it.
    """
    defined = ", ".join(sorted(kind.__abstractmethods__)) or also
    lines = {"equation": f'equation: ClassVar[str] = "{symbol} as one line of text"', **required}

    def check(who: str, part: Any) -> object:
        check_inherits(who, part, kind, HOME, f"{', '.join(lines.values())} and {defined}")
        for name, line in lines.items():
            if name not in names(part, below=kind):
                printed = ", which `describe` and `show` print" if name == "equation" else ""
                raise ConfigError(f"{who}: {part.__name__} lacks {name}{printed}; declare {line}")
        if lacking := sorted(part.__abstractmethods__):
            named = next(f"{HOME}.{base.__name__}" for base in part.__mro__[1:] if isabstract(base))
            raise ConfigError(f"{who}: {part.__name__} lacks {', '.join(lacking)}; define it as {named} declares it")
        return check_needs(who, getattr_static(part, "needs", None))

    return check


def require_kind(who: str, field: str, value: object, kind: type[Part]) -> None:
    """ConfigError with the line to write for a value that is no part of that kind. field: the field that it stands in."""
    if isinstance(value, type) and issubclass(value, kind):
        raise ConfigError(f"{who}: {field} = {value.__name__} is a class; write {value.__name__}(...) for a part")
    if not isinstance(value, kind):
        check_inherits(f"{who}: {field} = {value!r:.80}", type(value), kind, HOME)
