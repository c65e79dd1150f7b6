"""Things by a key."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
K = TypeVar("K")


def grouped(things: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """key -> the things with this key, in order."""
    groups: dict[K, list[T]] = {}
    for thing in things:
        groups.setdefault(key(thing), []).append(thing)
    return groups
