"""Countdown answers as chat models write them: any form of an expression, judged exactly.

Spaces, needless parentheses, typographic operators such as the multiplication sign, and a final "= TARGET" do not matter. Signs
before a number, leading zeros and any other text before or after it are not allowed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sage_rlvr.verifiers.countdown import MAX_LENGTH, Parsed, parse
from sage_rlvr.verifiers.verdict import Verdict

OPERATORS = "+-*/"
_SPELLED = str.maketrans(
    {**dict.fromkeys("×✕✖·⋅∙∗", "*"), **dict.fromkeys("÷∕⁄", "/"), **dict.fromkeys("−–—‒", "-"), "\N{NO-BREAK SPACE}": " "}
)
_LEADING_ZERO = re.compile(r"(?<![0-9])0[0-9]")
_RIGHT = Verdict("right", "right")
_WRONG = {
    reason: Verdict("wrong", reason)
    for reason in ("too long", "not an expression", "operators", "numbers", "division by zero", "value", "another total")
}


def in_ascii(text: str) -> str:
    """The text with typographic operators as + - * /."""
    return text.translate(_SPELLED)


def expression_of(text: str) -> tuple[Parsed | None, str]:
    """The expression of a completion (None without one), and the text after its "=" ("" without one)."""
    left, _, total = in_ascii(text.strip()).partition("=")
    left = left.strip()
    return (None if _LEADING_ZERO.search(left) else parse(left)), total.strip()


def judge(numbers: Sequence[int], target: int, completion: str, operators: str = OPERATORS) -> Verdict:
    """Right iff the completion is an expression with `operators` that uses each of `numbers` once and equals `target` exactly.

    Reasons, in the order of the checks: "too long", "not an expression", "operators", "numbers", "division by zero", "value",
    "another total" (a right expression, but another number than the target after its "="); or "right".
    """
    if len(completion) > MAX_LENGTH:
        return _WRONG["too long"]
    parsed, total = expression_of(completion)
    if parsed is None or (total and not re.fullmatch(r"-?[0-9]+", total)) or ("=" in completion and not total):
        return _WRONG["not an expression"]
    if not operators_of(parsed.spelling) <= set(operators):
        return _WRONG["operators"]
    if parsed.numbers != tuple(sorted(numbers)):
        return _WRONG["numbers"]
    if not parsed.den:
        return _WRONG["division by zero"]
    if parsed.num != target * parsed.den:
        return _WRONG["value"]
    return _RIGHT if total in ("", str(target)) else _WRONG["another total"]


def operators_of(expression: str) -> set[str]:
    """The operators of a canonical expression."""
    return set(expression) & set(OPERATORS)


__all__ = ["OPERATORS", "expression_of", "in_ascii", "judge", "operators_of"]
