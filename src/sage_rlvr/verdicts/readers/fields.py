"""Fields of a row that another program wrote, each checked when it is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.readers.file import RowFile

WORDS: dict[type, str] = {
    str: "text", dict: "an object {...}", list: "a list [...]", int: "a whole number", float: "a number", bool: "true or false",
}  # fmt: skip
NUMBER = re.compile(r"[-+]?(?:\d{1,60}|\d{1,3}(?:,\d{3}){1,20})(?:\.\d{1,60})?", re.ASCII)
TYPES: dict[type, tuple[type, ...]] = {float: (int, float)}
"""Accepted types of a value, if they are more than the requested type."""


def gold_text(value: Any) -> str | None:
    """Return a gold as text, None for a missing one: the number 18.0 is "18", which another file may contain as text."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else None if value != value else str(value)
    return str(value)


def gold_key(gold: str) -> str | Fraction:
    """The key by which golds are compared: "18", "18.0", " 18" and "$18$" are one gold, as are "1,000" and "1000"."""
    text = gold.strip()
    if len(text) > 2 and text[0] == text[-1] == "$" and "$" not in text[1:-1]:
        text = text[1:-1].strip()
    return Fraction(text.replace(",", "")) if NUMBER.fullmatch(text) else text


def messages_text(value: Any) -> str | None:
    """Text, or the contents of messages; None for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(one, dict) and isinstance(one.get("content"), str) for one in value):
        return "\n".join(one["content"] for one in value)
    return None


def _answer(value: Any) -> str | None:
    return gold_text(value) if isinstance(value, (str, int, float)) else None


def _request(value: Any) -> str | int | None:
    if isinstance(value, (str, int)) and not isinstance(value, bool):
        return value
    return int(value) if isinstance(value, float) and value.is_integer() else None


def _cut(value: Any) -> bool | None:
    return bool(value) if isinstance(value, (bool, int, float)) and value in (0, 1) else None


SAMPLE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "text": (messages_text, "text, or messages with texts,"),
    "answer": (_answer, "text or a number"),
    "request": (_request, "text or a whole number"),
    "cut": (_cut, "true or false (or 1 or 0)"),
}
"""Optional fields of a sample: how a value is read, None where it is of another type, and the words for what is expected."""


def sample_field(name: str, value: Any) -> Any:
    """A field of `SAMPLE`, None if it is null or NaN, like the missing values of tables. Raises ValueError with the expected
    type."""
    if value is None or (isinstance(value, float) and value != value):
        return None
    read, expected = SAMPLE[name]
    if (made := read(value)) is None:
        raise ValueError(f"{expected} is expected")
    return made


@dataclass(frozen=True, eq=False)
class Fields:
    """An object of a log. number: of its row in the file; path: of the object in the row, "" for the row."""

    file: RowFile
    number: int
    tree: Mapping[str, Any]
    path: str = ""

    def get(self, name: str, kind: type) -> Any:
        """Return a field; None if it is missing or null."""
        value = self.tree.get(name)
        return None if value is None else self._checked(name, value, kind)

    def need(self, name: str, kind: type) -> Any:
        """A field that every row has."""
        if name not in self.tree:
            raise self.error(name, f"is missing; {WORDS[kind]} is expected")
        return self._checked(name, self.tree[name], kind)

    def inside(self, name: str) -> Fields:
        """The object in a field; an empty one if it is missing or null."""
        return Fields(self.file, self.number, self.get(name, dict) or {}, f"{self.path}{name}.")

    def inner(self, name: str) -> Fields:
        """The object in a field that every row has."""
        return Fields(self.file, self.number, self.need(name, dict), f"{self.path}{name}.")

    def list_of(self, name: str, kind: type) -> list[Any]:
        """A list with elements of one type; [] if it is missing or null."""
        values = self.get(name, list) or []
        for i, value in enumerate(values):
            self._checked(f"{name}[{i}]", value, kind)
        return list(values)

    def id(self, name: str) -> str:
        """Return the id of a problem, a text or an integer, as text."""
        value = self.tree.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        return str(self.need(name, str))

    def right(self, name: str, share: Any, n: int) -> int | None:
        """The number of right completions among the n that a metric is the mean over; None without a score."""
        if share is None or share != share:
            return None
        right = share * n if isinstance(share, (int, float)) else -1.0
        if not -1e-6 <= right <= n + 1e-6 or abs(right - round(right)) > 1e-6:
            raise self.error(name, f"= {share!r:.60}: not a share of {n} completions that are right or wrong")
        return round(right)

    def error(self, name: str, problem: str) -> DataError:
        """The error for a field."""
        return DataError(
            f"{self.file.location(self.number)}: {self.path}{name} {problem}; write the log again, or remove the row on both sides"
        )

    def _checked(self, name: str, value: Any, kind: type) -> Any:
        if not isinstance(value, TYPES.get(kind, kind)) or (kind is not bool and isinstance(value, bool)):
            raise self.error(name, f"= {value!r:.60}: {WORDS[kind]} is expected")
        return value
