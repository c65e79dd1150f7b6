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


def check_names(kind: type, base: type, what: str, *more: type) -> None:
    """ConfigError for a public name that a class adds and that is near the name of a member that it lacks.

    base: the class that declares the members; what: what messages call it ("task"); more: others that declare some. A method is
    compared with methods and a value with values; a value in the singular (`kind`, `world`) passes: it is likely an option.
    """
    declaring = (base, *more)
    known = set[str]().union(*(names(one, below=object) for one in declaring))
    methods = set[str]().union(*map(methods_of, declaring))
    lacking = known - names(kind, below=base)
    for name in sorted(names(kind, below=kind.__mro__[1]) - known):
        value = inspect.getattr_static(kind, name, None)
        is_method = callable(value) or isinstance(value, staticmethod | classmethod)
        among = [one for one in sorted(lacking) if (one in methods) == is_method and (is_method or one != f"{name}s")]
        if near := get_close_matches(name, among, 1, NEAR):
            article = "an" if what[0] in "aeiou" else "a"
            raise ConfigError(
                f"{what} class {kind.__name__}: {name} is no member of {article} {what}; did you mean {near[0]}? A name of your "
                f"own that is meant starts with an underscore, as _{name}"
            )


def names(kind: type, below: type) -> set[str]:
    """Public names that a class and its bases before `below` declare, annotations included."""
    bases = kind.__mro__[: kind.__mro__.index(below)]
    return {name for base in bases for name in (*vars(base), *vars(base).get("__annotations__", ())) if not name.startswith("_")}


def methods_of(kind: type) -> set[str]:
    """Those of the names of a class that are methods."""
    own = ((name, inspect.getattr_static(kind, name, None)) for name in names(kind, below=object))
    return {name for name, value in own if not isinstance(value, property | cached_property) and callable(value)}
