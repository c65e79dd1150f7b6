"""The base of the kinds of parts whose members are declared: an advantage, a surrogate, a guide, ...

A kind is an abstract class with the members of its parts and their defaults; `check_part` is the check of its registry.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from inspect import getattr_static, isabstract
from typing import Any

from sage_rlvr.core.signals import check_needs
from sage_rlvr.errors import ConfigError
from sage_rlvr.members import check_fields, check_inherits, check_names, names
from sage_rlvr.registry import in_snake_case

HOME = "sage_rlvr.core"


@dataclass(frozen=True, eq=False, repr=False)
class Part(ABC):
    """Base class of every kind. A part is a frozen dataclass; this class adds no fields and no equality.

    Raises ConfigError for a class with a public name that resembles a member it lacks, and for a field without a default
    that overrides a member.
    """

    @property
    @abstractmethod
    def equation(self) -> str:
        """Formula of the part, as one line of text, which `describe` prints. Required."""

    @property
    def legend(self) -> str:
        """Meaning of the symbols of `equation`, as a line that `describe` prints; "" by default."""
        return ""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if Part not in cls.__bases__:
            kind = next(base for base in cls.__mro__ if Part in base.__bases__)
            declaring = (base for base in cls.__mro__[1:] if issubclass(base, kind) and isabstract(base))
            what = in_snake_case(kind.__name__).replace("_", " ")
            check_fields(cls, what)
            check_names(cls, kind, what, *declaring)


def check_part(kind: type[Part], symbol: str, also: str = "", **required: str) -> Callable[[str, Any], object]:
    """Return the check of a kind's registry: the class inherits the kind, defines `equation` and all abstract members, and its
    `needs` are known.

    Args:
        kind: the base class.
        symbol: symbol of the quantity in `equation`, for messages.
        also: a member that a part of a kind without abstract methods has to define.
        **required: other members without a default: the line that declares it.
    """
    lines = {"equation": f'equation: ClassVar[str] = "{symbol} as one line of text"', **required}
    defined = ", ".join(sorted(kind.__abstractmethods__ - lines.keys())) or also

    def check(who: str, part: Any) -> object:
        check_inherits(who, part, kind, HOME, f"{', '.join(lines.values())} and {defined}")
        for name, line in lines.items():
            if name not in names(part, below=kind):
                printed = ", which `describe` and `show` print" if name == "equation" else ""
                raise ConfigError(f"{who}: {part.__name__} lacks {name}{printed}; declare {line}")
        if lacking := sorted(part.__abstractmethods__ - lines.keys()):
            named = next(f"{HOME}.{base.__name__}" for base in part.__mro__[1:] if isabstract(base))
            raise ConfigError(f"{who}: {part.__name__} lacks {', '.join(lacking)}; define it as {named} declares it")
        return check_needs(who, getattr_static(part, "needs", None))

    return check


def require_kind(who: str, field: str, value: object, kind: type[Part]) -> None:
    """Raise ConfigError, with the line to write, for a value that is not a part of that kind.

    Args:
        who: the owner of the field, for messages.
        field: the field that has the value.
        value: the value.
        kind: the kind that is required.
    """
    if isinstance(value, type) and issubclass(value, kind):
        raise ConfigError(f"{who}: {field} = {value.__name__} is a class; write {value.__name__}(...) for a part")
    if not isinstance(value, kind):
        check_inherits(f"{who}: {field} = {value!r:.80}", type(value), kind, HOME)
