r"""A second, simpler verdict on two answers, to compare with the first: equal text, or exact rational numbers.

    right      iff the texts are equal after normalizing, or both are numbers (lists of numbers) and equal as fractions
    wrong      iff both are numbers (lists of numbers) and not equal
    undecided  iff anything else is in them

It shares nothing with `sage_rlvr.verifiers.math`: no parser of LaTeX, no tolerance, no algebra. So if the two contradict each
other, one of them is wrong, and an audit names the row.
"""

from __future__ import annotations

import re
from collections import Counter
from fractions import Fraction
from itertools import accumulate, pairwise

from sage_rlvr.verifiers.verdict import Verdict

MAX_DIGITS = 300  # characters of a number that is read: int() raises an error above 4,300 digits
_DROP = re.compile(r"\s|\$|\\[!,;:]|\\left(?![a-z])|\\right(?![a-z])|\\displaystyle|\^\{?\\circ\}?")
_WRAP = re.compile(r"\\(?:text|mathrm|textbf|mbox)\{([^{}]*)\}")
_INTEGER = r"[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+"
_PLAIN = re.compile(rf"({_INTEGER})?(?:\.([0-9]*))?")
_RATIO = re.compile(r"([0-9]+)?\\frac(?:\{([-+]?[0-9]+)\}|([0-9]))(?:\{([0-9]+)\}|([0-9]))|([0-9]+)/([0-9]+)")
# three digits of an exponent: 10 to a number of nine digits would fill the memory
_POWER = re.compile(r"(.+?)(?:\\times|\\cdot)10\^(?:\{([-+]?[0-9]{1,3})\}|([0-9]))")


def normalized(text: str) -> str:
    """A text without spaces, dollar signs, bracket sizes, degree signs and wrapped words, with one kind of fraction."""
    text = re.sub(r"\\[dt]frac", r"\\frac", _WRAP.sub(r"\1", text))
    return _DROP.sub("", text).removesuffix(".")


def number(text: str) -> Fraction | None:
    r"""The exact value of 3, -1,000, 2.50, 3/4, `\frac34`, `1\frac{1}{2}`, `6\times10^{-3}`; None for any other text."""
    text = normalized(text)
    if len(text) > MAX_DIGITS:
        return None
    if power := _POWER.fullmatch(text):
        factor = number(power[1])
        return None if factor is None else factor * Fraction(10) ** int(power[2] or power[3])
    sign = -1 if text.startswith("-") else 1
    text = text[1:] if text[:1] in ("-", "+") else text
    if ratio := _RATIO.fullmatch(text):
        over, under = int(ratio[2] or ratio[3] or ratio[6]), int(ratio[4] or ratio[5] or ratio[7])
        return None if not under else sign * (int(ratio[1] or 0) + Fraction(over, under))
    plain = _PLAIN.fullmatch(text)
    if not plain or not (plain[1] or plain[2]):
        return None
    return sign * Fraction(f"{(plain[1] or '0').replace(',', '')}.{plain[2] or '0'}")


def _depths(text: str) -> list[int]:
    """For each character, the number of brackets that are open after it."""
    return list(accumulate((character in "([{") - (character in ")]}") for character in text))


def parts(text: str) -> tuple[str, tuple[str, ...]]:
    r"""(brackets, parts) of an answer that lists several: `(1,2)` -> ("()", ("1", "2")); one part if it lists none.

    A comma within brackets or within a number such as 10,000 does not separate parts.
    """
    text = normalized(text)
    around = ""
    for left, right in (("(", ")"), ("[", "]"), (r"\{", r"\}"), ("(", "]"), ("[", ")")):
        inner = text[len(left) : len(text) - len(right)]
        if text.startswith(left) and text.endswith(right) and inner and min(_depths(inner)) >= 0:
            around, text = left[-1] + right[-1], inner
            break
    if not around and number(text) is not None:
        return "", (text,)
    cuts = [i for i, depth in enumerate(_depths(text)) if text[i] == "," and depth == 0]
    return around, tuple(text[i + 1 : j] for i, j in pairwise([-1, *cuts, len(text)]))


def verify_exact(answer: str, gold: str) -> Verdict:
    """`right`, `wrong` or `undecided` only by text and exact fractions; never raises an error on a text."""
    if normalized(answer) == normalized(gold):
        return Verdict("right", "one spelling")
    (left, mine), (right, theirs) = parts(answer), parts(gold)
    values = [number(part) for part in mine], [number(part) for part in theirs]
    if any(value is None for side in values for value in side):
        return Verdict("undecided", "not only numbers")
    if left != right and {left, right} != {"", "{}"}:
        return Verdict("wrong", "brackets")
    ordered = left not in ("", "{}") or right not in ("", "{}")
    same = values[0] == values[1] if ordered else Counter(values[0]) == Counter(values[1])
    return Verdict("right", "one value") if same else Verdict("wrong", "value")


def canonical(answer: str) -> str | None:
    """One form of all answers that `verify_exact` treats as equal: exact fractions if all parts are numbers, in order for a set."""
    around, texts = parts(answer)
    values = [number(part) for part in texts]
    if any(value is None for value in values):
        return normalized(answer) or None
    ordered = around not in ("", "{}")
    in_order = values if ordered else sorted(value for value in values if value is not None)
    return (around if ordered else "") + ",".join(map(str, in_order))


__all__ = ["canonical", "normalized", "number", "parts", "verify_exact"]
