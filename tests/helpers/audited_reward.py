"""A reward that passes an audit, in a module that the worker of the audit imports without torch."""

from __future__ import annotations

import re

from sage_rlvr.verifiers.exact import verify_exact


def good(completions: list[str], answer: list[str], **columns: object) -> list[float]:
    """1 for the gold in the last box."""
    boxes = [re.findall(r"\\boxed\{(.*)\}", text) for text in completions]
    pairs = zip(boxes, answer, strict=True)
    return [float(bool(box) and verify_exact(box[-1].replace("x = ", ""), gold).right) for box, gold in pairs]


def last_digit(completions: list[str], answer: list[str], **columns: object) -> list[float]:
    """1 for a text that ends like the gold, behind a brace or not."""
    return [float(text.rstrip("}")[-1:] == gold[-1]) for text, gold in zip(completions, answer, strict=True)]
