"""Arithmetic expressions: one parser, one canonical form, exact rational values.

Canonical form. An expression is written with integers (ASCII digits, no leading zero), the binary operators
`+ - * /` and parentheses; there are no spaces and no signs before a number. `*` and `/` bind tighter than `+` and `-`,
and operators of one strength associate to the left. Parentheses are used only where leaving them out would change the meaning as
algebra: around a left operand iff the operator is `*` or `/` and the operand is a sum or difference; around a right operand never
    after `+`, after `-` and `*` iff it is a sum or difference, after `/` iff it is
any operation at all. So `a+(b-c)` is written `a+b-c` and `a*(b/c)` is written `a*b/c`, while `a+b` and `b+a` are two
expressions. Every text has at most one parse and every parse has one canonical form; a text is canonical iff it is the form of its
parse.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from sage_rlvr.errors import DataError
from sage_rlvr.verifiers.verdict import Verdict

MAX_LENGTH = 200  # characters; a longer completion is wrong without being parsed
ATOM, PRODUCT, SUM = 0, 1, 2  # kinds of expression, from the tightest binding to the loosest

_STRENGTH = {"+": 1, "-": 1, "*": 2, "/": 2}
_ALPHABET = re.compile(r"[0-9+\-*/() ]+")
_TOKEN = re.compile(r"[0-9]+|[-+*/()]")
RIGHT = Verdict("right", "right")
_WRONG = {
    reason: Verdict("wrong", reason)
    for reason in ("too long", "not an expression", "not canonical", "numbers", "division by zero", "value")
}


@dataclass(frozen=True, slots=True)
class Parsed:
    """A parsed expression: canonical form, ascending numbers, exact value num/den (0/0: division by zero). `parse` makes it;
    both Countdown verifiers and the task's answer keys read it."""

    spelling: str
    numbers: tuple[int, ...]
    num: int
    den: int


def kind_of(operator: str) -> int:
    """`SUM` for + and -, `PRODUCT` for * and /."""
    return SUM if operator in "+-" else PRODUCT


def spell(operator: str, left: str, left_kind: int, right: str, right_kind: int) -> str:
    """The canonical form of `left operator right`, from the forms and kinds of both operands."""
    if left_kind == SUM and operator in "*/":
        left = f"({left})"
    if (right_kind == SUM and operator != "+") or (right_kind == PRODUCT and operator == "/"):
        right = f"({right})"
    return f"{left}{operator}{right}"


def postfix(text: str) -> list[str] | None:
    """The tokens of `text` in postfix order (shunting-yard, no recursion), or None when it is not an expression.

    Spaces between tokens, leading zeros and needless parentheses are accepted; `parse` finds them not canonical.
    """
    if not isinstance(text, str) or not _ALPHABET.fullmatch(text):
        return None
    output: list[str] = []
    waiting: list[str] = []  # operators and open parentheses
    want_operand = True
    for token in _TOKEN.findall(text):
        if want_operand != (token == "(" or token.isdigit()):
            return None
        if token == "(":
            waiting.append(token)
        elif token == ")":
            while waiting and waiting[-1] != "(":
                output.append(waiting.pop())
            if not waiting:
                return None
            waiting.pop()
        elif want_operand:
            output.append(token)
            want_operand = False
        else:
            while waiting and waiting[-1] != "(" and _STRENGTH[waiting[-1]] >= _STRENGTH[token]:
                output.append(waiting.pop())
            waiting.append(token)
            want_operand = True
    if want_operand or "(" in waiting:
        return None
    return output + waiting[::-1]


def _apply(operator: str, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    """Exact a operator b on (num, den); 0/0 means a division by zero and absorbs everything."""
    (an, ad), (bn, bd) = a, b[::-1] if operator == "/" else b
    num = an * bn if operator in "*/" else an * bd + (bn if operator == "+" else -bn) * ad
    return (num, ad * bd) if ad * bd else (0, 0)


@lru_cache(maxsize=1 << 16)
def parse(text: str) -> Parsed | None:
    """Parse any text of at most `MAX_LENGTH` characters; None when it is longer or not an expression. Never raises an error."""
    tokens = postfix(text) if len(text) <= MAX_LENGTH else None
    if tokens is None:
        return None
    stack: list[tuple[str, int, tuple[int, int]]] = []
    numbers: list[int] = []
    for token in tokens:
        if token.isdigit():
            number = int(token)
            numbers.append(number)
            stack.append((str(number), ATOM, (number, 1)))
            continue
        right, right_kind, b = stack.pop()
        left, left_kind, a = stack.pop()
        stack.append((spell(token, left, left_kind, right, right_kind), kind_of(token), _apply(token, a, b)))
    spelling, _, (num, den) = stack.pop()
    return Parsed(spelling, tuple(sorted(numbers)), num, den)


def judge(numbers: Sequence[int], target: int, completion: str) -> Verdict:
    """Right iff `completion` is canonical, uses exactly `numbers` (each once) and equals `target` exactly.

    Reasons, in the order of the checks: "too long", "not an expression", "not canonical", "numbers",
    "division by zero", "value"; or "right". Every text gets a verdict; nothing is evaluated as code.
    """
    if not isinstance(completion, str):
        return _WRONG["not an expression"]
    if len(completion) > MAX_LENGTH:
        return _WRONG["too long"]
    parsed = parse(completion)
    if parsed is None:
        return _WRONG["not an expression"]
    if parsed.spelling != completion:
        return _WRONG["not canonical"]
    if parsed.numbers != tuple(sorted(numbers)):
        return _WRONG["numbers"]
    if not parsed.den:
        return _WRONG["division by zero"]
    return RIGHT if parsed.num == target * parsed.den else _WRONG["value"]


def _parse_or_refuse(text: str) -> Parsed:
    parsed = parse(text) if isinstance(text, str) else None
    if parsed is None:
        raise DataError(
            f"{text!r:.80} is not an arithmetic expression of at most {MAX_LENGTH} characters: "
            "write whole numbers, + - * / and parentheses."
        )
    return parsed


def canonical(text: str) -> str:
    """The canonical form of an expression; raises `DataError` for any other text."""
    return _parse_or_refuse(text).spelling


def value(text: str) -> Fraction:
    """The exact value of an expression; raises `DataError` for any other text, `ZeroDivisionError` when it divides by 0."""
    parsed = _parse_or_refuse(text)
    return Fraction(parsed.num, parsed.den)


def structure(text: str) -> tuple[str, str]:
    """Structure of an expression without its numbers: its operators in a fixed order, and its tree.

    A leaf is a dot and an operation a pair of parentheses: `structure("3*(5+7)") == ("+*", "(.(..))")`. Completions with one
    structure differ only in the order of numbers and operators. Raises `DataError` when the text is not an expression.
    """
    _parse_or_refuse(text)
    stack: list[str] = []
    tokens = postfix(text) or []
    for token in tokens:
        right = "" if token.isdigit() else stack.pop()
        stack.append("." if token.isdigit() else f"({stack.pop()}{right})")
    operators = sorted((token for token in tokens if not token.isdigit()), key="+-*/".index)
    return "".join(operators), stack.pop()
