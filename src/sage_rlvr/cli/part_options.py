"""The options of a part: default, what it allows, one line each; `sage-rlvr parts NAME`.

Name, kind and default are those of the signature, the line is the docstring's. The allowed range of a number is found by
constructing the part with different numbers and the other options at their defaults.
"""

from __future__ import annotations

import inspect
import re
import typing
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union

from sage_rlvr.core.advantages import ADVANTAGES
from sage_rlvr.core.anchor import Anchor
from sage_rlvr.core.extras import EXTRAS
from sage_rlvr.core.extras import base as extras
from sage_rlvr.errors import SageError
from sage_rlvr.registry import first_sentence, in_snake_case, registry_of
from sage_rlvr.schema import kind_of, parameters, phrase

KINDS = (
    "advantage", "surrogate", "reduction", "guide", "rollout_plan", "extra", "schedule", "prompt_weight",
)  # fmt: skip
"""The kinds of parts of a method."""
SHOWN_GROUP = 8
FAR = 1e12


@dataclass(frozen=True)
class Option:
    """An option of a part, as text: its default, its allowed values, and the sentence of the docstring that names it."""

    name: str
    default: str
    allowed: str
    description: str


def options_of(part: Callable[..., Any]) -> list[Option]:
    """The options of a part in the order of its signature."""
    return [_option(part, name, hint, default) for name, (hint, default) in parameters(part).items()]


def _option(part: Callable[..., Any], name: str, hint: Any, default: Any) -> Option:
    shown = "required" if default is inspect.Parameter.empty else _shown(default)
    return Option(name, shown, allowed(part, name, hint), sentence(part, name))


def _shown(default: Any) -> str:
    if isinstance(default, bool) or default is None:
        return {True: "true", False: "false", None: "null"}[default]
    return f"{default:g}" if isinstance(default, float) else str(default)


# ---- allowed values of an option


def allowed(part: Callable[..., Any], name: str, hint: Any) -> str:
    """The allowed values in words; for a number the interval that the part accepts, with the other options at their defaults."""
    members = typing.get_args(hint) if typing.get_origin(hint) in (Union, UnionType) else (hint,)
    phrases = [_allowed(part, name, one) for one in members]
    return " or ".join(dict.fromkeys(filter(None, phrases))) or phrase(hint)  # none, if it raises an error for its defaults


def _allowed(part: Callable[..., Any], name: str, hint: Any) -> str:
    if hint is NoneType:
        return "null"
    if typing.get_origin(hint) is Literal:
        return ", ".join(map(_shown, typing.get_args(hint)))
    if kind := kind_of(hint):
        return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind.replace('_', ' ')}"
    if hint in (int, float):
        counts = [other for other, (kind, _) in parameters(part).items() if kind is int and other != name]
        for settings in ({}, *({other: 1} for other in counts)):  # `base_prompts` raises an error without `base`
            if text := interval(lambda value, settings=settings: accepts(part, name, value, **settings), hint):
                return "".join((text, *(f", with {other}" for other in settings)))
        return ""
    return phrase(hint)


def accepts(part: Callable[..., Any], name: str, value: Any, **settings: Any) -> bool:
    """Whether the part can be made with this value, the other options as in `settings` or at their defaults; those without a
    default at 1 or at `FAR`."""
    needed = [key for key, (_, default) in parameters(part).items() if default is inspect.Parameter.empty and key != name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for other in (1, int(FAR)) if needed else (1,):
            try:
                part(**{**dict.fromkeys(needed, other), **settings, name: value})
            except SageError:
                continue
            return True
    return False


def interval(accepted: Callable[[Any], bool], kind: type[int] | type[float]) -> str:
    """The numbers that are accepted, which must be one interval: "0 <= x < 1", "x >= 1", "any number"; "" if none is.

    Its ends are searched among round numbers and then by halving, to nine digits.
    """
    word = "whole number" if kind is int else "number"
    grid = [-FAR, *(float(n) for n in range(-3, 41)), 0.25, 0.5, 0.75, 1.1, 1.5, 2.5, 100.0, 1000.0, 1e4, FAR]
    numbers = sorted({int(n) for n in grid}) if kind is int else sorted(grid)
    inside = [number for number in numbers if accepted(number)]
    if len(inside) < 2:
        return ", ".join(map(_number, inside))
    low = None if inside[0] == numbers[0] else _end(accepted, numbers[numbers.index(inside[0]) - 1], inside[0], kind)
    high = None if inside[-1] == numbers[-1] else _end(accepted, numbers[numbers.index(inside[-1]) + 1], inside[-1], kind)
    lower = "" if low is None else f"{_number(low)} {'<=' if accepted(low) else '<'} "
    upper = "" if high is None else f" {'<=' if accepted(high) else '<'} {_number(high)}"
    if low is None and high is None:
        return f"any {word}"
    if low is not None and high is not None:
        return f"{lower}x{upper}" + ", whole" * (kind is int)
    one = f"x {'>=' if accepted(low) else '>'} {_number(low)}" if low is not None else f"x{upper}"
    return one + ", whole" * (kind is int)


def _end(accepted: Callable[[Any], bool], outside: float, inside: float, kind: type[int] | type[float]) -> Any:
    """The end of the interval between a number outside of it and one inside."""
    if kind is int:
        while abs(outside - inside) > 1:
            middle = int(outside + inside) // 2
            outside, inside = (outside, middle) if accepted(middle) else (middle, inside)
        return int(inside)
    for _ in range(80):
        middle = (outside + inside) / 2
        outside, inside = (outside, middle) if accepted(middle) else (middle, inside)
    return 0.0 if abs(inside) < 1e-9 else float(f"{inside:.9g}")


def _number(value: float) -> str:
    return f"{value:.6g}"


# ---- the description of an option


def sentence(part: Callable[..., Any], name: str) -> str:
    """Return the sentence about an option in the docstring of the part, of its base classes, or of `Anchor`; "" if there is none.

    It is the sentence that begins with "name:", or else the first that contains the name. A line that begins with "name:"
    begins a sentence, however the line before it ends.
    """
    bases = inspect.getmro(part) if inspect.isclass(part) else (part,)
    texts = [inspect.cleandoc(one.__doc__) for one in (*bases, Anchor) if one is not object and one.__doc__]
    line = re.compile(rf"(?m)^ *(?=`?(?:{'|'.join(map(re.escape, parameters(part)))})\b(?:, \w+)*`?: )")
    texts = [line.sub("\n\n", text) for text in texts]  # a line that begins with "name:" does not continue a sentence
    sentences = [one(text, name) for one in (_definition, _naming) for text in texts]
    return next(filter(None, sentences), "").removesuffix(".")


STOP = re.compile(r"(?<=[\w)\]`\"'])(?<!\bDr)(?<!\bEq)(?<!\bEqs)[.;]\s+(?=[\w`])")


ROW = re.compile(r"(?m)^ *(\w+(?:, \w+)*)  +(?=\S)")


def _sentences(text: str) -> list[str]:
    """Split a docstring into sentences; a row of an aligned table, "name  text", becomes "name: text"."""
    text = ROW.sub(r"\n\n\1: ", text)
    return [one for part in text.split("\n\n") for one in STOP.split(" ".join(part.split()))]


def _definition(text: str, name: str) -> str:
    """The text after "name:" at the beginning of a sentence."""
    head = re.compile(rf"`?(?:\w+, )*{re.escape(name)}(?:, \w+)*`?: (.+)")
    return next((match[1] for one in _sentences(text) if (match := head.fullmatch(one))), "")


def _naming(text: str, name: str) -> str:
    """The first sentence that has the name in it."""
    word = re.compile(rf"(?<![\w.\"]){re.escape(name)}(?![\w\"])")
    return next(filter(word.search, _sentences(text)), "")


# ---- terminal and page


def extras_by_kind() -> dict[str, dict[str, str]]:
    """Kind of extra ("token_weight") -> its extras: name -> the first sentence. A function that makes extras is in no kind."""
    kinds: dict[str, dict[str, str]] = {}
    for name, part in EXTRAS.items():
        kind = extras.declared_kind(part) if inspect.isclass(part) else None
        if kind is not None:
            kinds.setdefault(in_snake_case(kind.__name__), {})[name] = first_sentence(part)
    return kinds


def dead_line(part: Any) -> str:
    """The values of an advantage or an extra in groups without a comparison, with its defaults; empty if some defaults are missing
    or it declares none, and for any other part."""
    declares = part in ADVANTAGES.values() or part in EXTRAS.values()
    if not declares or any(default is inspect.Parameter.empty for _, default in parameters(part).values()):
        return ""
    declared = part().dead(SHOWN_GROUP)
    return "" if declared is None else f"a group of {SHOWN_GROUP} earns where it is {declared}"


def refused_line(part: Any) -> str:
    """The part's error for its defaults; empty if it accepts them, or some are missing."""
    if any(default is inspect.Parameter.empty for _, default in parameters(part).values()):
        return ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            part()
        except SageError as error:
            return f"its defaults are refused, so give other ones: {error}"
    return ""


def about(kind: str, name: str) -> list[str]:
    """The description of a part for a terminal: kind, first sentence, `dead_line`, and two lines per option."""
    part = registry_of(kind)[name]
    refused = refused_line(part)
    head = [f"{kind.replace('_', ' ')} {name}: {first_sentence(part)}", *filter(None, [refused or dead_line(part)])]
    texts = [[f"  {one.name:<15} {one.default:<10}  may be: {one.allowed}", f"      {one.description}"] for one in options_of(part)]
    return [*head, *(line for lines in texts for line in lines if line.strip())]
