"""Checks of classes that inherit a base of this package (`Task`, `Advantage`, ...): the base is inherited, no member is misspelled,
and a field that overrides a member has a default.

A base declares each member once, as a property that returns the default or is abstract. A subclass may give it as a class
attribute, a field or a property.
"""

from __future__ import annotations

import inspect
from dataclasses import MISSING, Field
from difflib import get_close_matches
from functools import cached_property

from sage_rlvr.errors import ConfigError

NEAR = 0.8  # of difflib's ratio: answerkey and answer_key, takes_group_men and takes_group_mean


def check_inherits(who: str, kind: type, base: type, home: str, has: str = "") -> None:
    """Raise ConfigError with the line to write for a class that does not inherit `base`.

    Args:
        who: its name in messages.
        kind: the class.
        base: the required base.
        home: the module that exports `base`.
        has: the declarations of a subclass, in words.
    """
    if not issubclass(kind, base):
        named = f"{home}.{base.__name__}"
        raise ConfigError(
            f"{who}: {kind.__name__} does not inherit {named}; write class {kind.__name__}({named}){', with ' * bool(has)}{has}"
        )


def check_names(kind: type, base: type, what: str, *more: type, singular: bool = False) -> None:
    """Raise ConfigError for a public name that a class adds and that resembles a member that it lacks.

    A method is compared with methods and a value with values; an annotated field in the singular passes, since it is likely an
    option.

    Args:
        kind: the class.
        base: the class that declares the members.
        *more: other classes that declare some.
        what: their name in messages ("task").
        singular: True lets any value in the singular pass, as `world` next to `worlds`.
    """
    declaring = (base, *more)
    known = set[str]().union(*(names(one, below=object) for one in declaring))
    methods = set[str]().union(*map(methods_of, declaring))
    own = set[str]().union(*(_of_class(one) for one in kind.__mro__ if one not in declaring))
    lacking = known - own
    for name in sorted(names(kind, below=kind.__mro__[1]) - known):
        value = inspect.getattr_static(kind, name, None)
        is_method = callable(value) or isinstance(value, staticmethod | classmethod)
        is_option = singular or "ClassVar" not in str(vars(kind).get("__annotations__", {}).get(name, "ClassVar"))
        among = [one for one in sorted(lacking) if (one in methods) == is_method]
        if is_option and not is_method and f"{name}s" in among:
            among.remove(f"{name}s")
        if near := get_close_matches(name, among, 1, NEAR):
            article = "an" if what[0] in "aeiou" else "a"
            raise ConfigError(
                f"{what} class {kind.__name__}: {name} is no member of {article} {what}; did you mean {near[0]}? A name of your "
                f"own that is meant starts with an underscore, as _{name}"
            )


def check_fields(kind: type, what: str) -> None:
    """Raise ConfigError for a field without a plain default that overrides a property of a base.

    @dataclass would take the property for its default. what: the name of the class in messages ("task").
    """
    for name, annotation in vars(kind).get("__annotations__", {}).items():
        inherited = next((vars(base)[name] for base in kind.__mro__[1:] if name in vars(base)), None)
        default = vars(kind).get(name, MISSING)
        default = default.default if isinstance(default, Field) else default
        if isinstance(inherited, property) and default is MISSING and "ClassVar" not in str(annotation):
            raise ConfigError(
                f"{what} class {kind.__name__}: the field {name} is a member of each {what}, so it must have a default; write "
                f"{name}: {getattr(annotation, '__name__', annotation)} = value"
            )


def names(kind: type, below: type) -> set[str]:
    """Return public names that a class and its bases before `below` declare, annotations included."""
    return set[str]().union(*map(_of_class, kind.__mro__[: kind.__mro__.index(below)]))


def _of_class(kind: type) -> set[str]:
    """Return the names that the class itself declares."""
    return {name for name in (*vars(kind), *vars(kind).get("__annotations__", ())) if not name.startswith("_")}


def methods_of(kind: type) -> set[str]:
    """Return the names of a class that are methods."""
    own = ((name, inspect.getattr_static(kind, name, None)) for name in names(kind, below=object))
    return {name for name, value in own if not isinstance(value, property | cached_property) and callable(value)}
