"""What the tests of mathematical verdicts share."""

from __future__ import annotations


def boxed(answer: str) -> str:
    return rf"First 17, then 25, so $\boxed{{{answer}}}$. Check: 42 - 25 = 17."
