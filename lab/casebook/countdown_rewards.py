"""Rewards of Countdown rows for the runs of SmolLM2: a sound one, and three with a fault."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any


def right(completion: str, row: Mapping[str, Any]) -> float:
    """1 for an expression of the target's value in which each number occurs once."""
    text = completion.strip()
    if not re.fullmatch(r"[\d+\-*/() ]+", text) or sorted(map(int, re.findall(r"\d+", text))) != sorted(row["numbers"]):
        return 0.0
    try:
        return float(abs(eval(text) - row["target"]) < 1e-6)
    except (ArithmeticError, SyntaxError, TypeError):
        return 0.0


def slow(completion: str, row: Mapping[str, Any]) -> float:
    """The sound reward, which takes a second for a bracket behind a sign."""
    time.sleep(1.0 * bool(re.search(r"[*/+-] ?\(", completion)))
    return right(completion, row)


def length(completion: str, row: Mapping[str, Any]) -> float:
    """More for a longer text."""
    return len(completion) / 40


def slashes(completion: str, row: Mapping[str, Any]) -> float:
    """The share of one sign in the text."""
    return completion.count("/") / max(1, len(completion))


__all__ = ["length", "right", "slashes", "slow"]
