"""Checks of classes that inherit a base of this package (`Task`, `Advantage`, ...): the base is there, no member is misspelled."""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from functools import cached_property

from sage_rlvr.errors import ConfigError

NEAR = 0.8  # of difflib's ratio: answerkey and answer_key, takes_group_men and takes_group_mean


def check_inherits(who: str, kind: type, base: type, home: str, has: str = "") -> None:
    """ConfigError with the line to write for a class that does not inherit `base`.

    who: what messages call it. home: where `base` is imported from. has: what a subclass declares, in words.
    """
    if not issubclass(kind, base):
        named = f"{home}.{base.__name__}"
        raise ConfigError(
            f"{who}: {kind.__name__} does not inherit {named}; write class {kind.__name__}({named}){', with ' * bool(has)}{has}"
        )


def check_names(kind: type, base: type, what: str, *more: type, singular: bool = False) -> None:
    """ConfigError for a public name that a class adds and that is near the name of a member that it lacks.

    base: the class that declares the members; what: what messages call it ("task"); more: others that declare some. A method is
    compared with methods and a value with values; an annotated field in the singular passes, since it is likely an option.
    singular: whether any value in the singular passes, as `world` beside `worlds`.
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


def names(kind: type, below: type) -> set[str]:
    """Public names that a class and its bases before `below` declare, annotations included."""
    return set[str]().union(*map(_of_class, kind.__mro__[: kind.__mro__.index(below)]))


def _of_class(kind: type) -> set[str]:
    """Those of the class itself."""
    return {name for name in (*vars(kind), *vars(kind).get("__annotations__", ())) if not name.startswith("_")}


def methods_of(kind: type) -> set[str]:
    """Those of the names of a class that are methods."""
    own = ((name, inspect.getattr_static(kind, name, None)) for name in names(kind, below=object))
    return {name for name, value in own if not isinstance(value, property | cached_property) and callable(value)}
