"""Answers that are wrong by construction: what a verifier must not call right."""

from __future__ import annotations

import re
from fractions import Fraction

from sage_rlvr.verifiers.exact import normalized, number, parts, verify_exact

# Golds to which "+1" can be written: numbers, single letters, and the operations between them.
_EXPRESSION = re.compile(
    r"(?:[0-9.+\-*/^_{}()\s]|\\[dt]?frac|\\sqrt|\\pi|\\cdot|\\left|\\right|(?<![a-zA-Z\\])[a-zA-Z](?![a-zA-Z]))+"
)


def wrong_answers(gold: str, other: str) -> list[tuple[str, str]]:
    r"""(kind, answer) pairs that differ from a gold in value: +1, -1, sign, reciprocal, part, another problem's.

    Numbers are changed as numbers, other expressions by writing `+1` and the like; of an answer with several parts each
    part is left out once. Kinds that would not change the value (the sign of 0) are left out.
    """
    made: list[tuple[str, str]] = []
    value = number(gold)
    if value is not None:
        changed = {"+1": value + 1, "-1": value - 1, "sign": -value}
        if value:
            changed["reciprocal"] = 1 / value
        made += [(kind, _written(new)) for kind, new in changed.items() if new != value]
    elif (
        _EXPRESSION.fullmatch(gold)
        and "\\pm" not in gold
        and normalized(gold).count("(") == normalized(gold).count(")")
    ):
        made += [
            ("+1", rf"{gold}+1"),
            ("-1", rf"{gold}-1"),
            ("sign", rf"-({gold})"),
            ("reciprocal", rf"\frac{{1}}{{{gold}}}"),
        ]
    around, several = parts(gold)
    if len(several) > 1 and value is None:
        left, right = {"": ("", ""), "{}": (r"\{", r"\}")}.get(around, (around[:1], around[-1:]))
        made += [("part", left + ",".join(several[:i] + several[i + 1 :]) + right) for i in range(len(several))]
    if not verify_exact(_value_of(other), _value_of(gold)).right:
        made.append(("another's", other))
    return made


def _value_of(gold: str) -> str:
    """The right-hand side of x = 5."""
    return re.sub(r"^\s*[a-zA-Z]\s*=", "", gold)


def _written(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else f"{value.numerator}/{value.denominator}"


__all__ = ["wrong_answers"]
