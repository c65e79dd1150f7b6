r"""LaTeX around words: blocks such as `\text{}`, and spaces."""

from __future__ import annotations

import re

BLOCK = (
    r"\\(?:text|textbf|textit|textrm|textnormal|textsc|mathrm|mathbf|mathit|mathsf|mbox|operatorname)\s*\{([^{}]*)\}"
)
TEXT = re.compile(BLOCK)
SPACE = re.compile(r"\\[,;:! ]|\\q?quad(?![a-z])|~|\s")


def plain(text: str) -> str:
    r"""A text with the contents of `\text{}` and the like unwrapped and each run of spaces as one."""
    return " ".join(SPACE.sub(" ", TEXT.sub(r" \1 ", text)).split())


def has_text(text: str) -> bool:
    r"""Whether the text has a non-empty `\text{}` or the like."""
    return TEXT.search(text) is not None


__all__ = ["BLOCK", "SPACE", "TEXT", "has_text", "plain"]
