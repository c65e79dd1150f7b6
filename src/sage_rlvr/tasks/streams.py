"""How generated problems are drawn: counter-based streams of bits, pure functions of their path, and the first that differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np


def stream(*path: int) -> np.random.Philox:
    """A counter-based bit stream; only its raw 64-bit words are used, which every numpy version gives alike."""
    return np.random.Philox(np.random.SeedSequence(list(path)))


def words(*path: int) -> Iterator[int]:
    """The endless 64-bit words of a stream, as whole numbers from 0 to 2^64 - 1."""
    bits = stream(*path)
    while True:
        yield from (int(word) for word in bits.random_raw(64))


def different(blocks: Iterable[Sequence[tuple[Any, str]]], n: int, dry: int) -> list[Any]:
    """The first n problems of blocks of examples whose ids differ; fewer where `dry` blocks in a row bring none."""
    found: dict[str, Any] = {}
    stale = 0
    for drawn in blocks:
        before = len(found)
        for problem, _ in drawn:
            found.setdefault(problem.problem_id, problem)
        stale = 0 if len(found) > before else stale + 1
        if len(found) >= n or stale == dry:
            break
    return list(found.values())[:n]


__all__ = ["different", "stream", "words"]
