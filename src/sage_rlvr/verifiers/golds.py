r"""What a gold answer is: one reader behind recipes, rewards, audits, `verify`, `eval` and exports.

    "42", 42, 42.0                   -> 42
    "6*7=42\n#### 42"                -> 42      behind the #### of GSM8K
    "... so it is \boxed{42}."       -> 42      in the last box
    "\boxed{-4} and \boxed{9}"       -> -4, 9  boxes that a sentence joins, as a completion's are read
    ["42"]                           -> 42      a list of one

Texts that JSON has damaged ("\frac" without a second backslash is a form feed and "rac") are refused: no answer equals them.
"""

from __future__ import annotations

import re
from decimal import Decimal
from numbers import Real
from typing import Any

from sage_rlvr.verifiers.answers import CONTROL, CUT_OFF, extract, no_number

GSM8K = "after ####"
BOX = r"in the last \boxed{}"
MARK = re.compile(r"(?:^|\s)####[ \t]*(?P<answer>[^\n#]+)\s*\Z")  # a worked solution whose last line is the answer
# Control characters, and line ends and tabs that were the first letter of a command: \theta, \right, \neq.
_DAMAGED = re.compile(
    rf"{CONTROL.pattern}|\t(?=ext|imes|heta|frac|binom|riangle|an(?![a-z])|au(?![a-z])|o(?![a-z]))"
    r"|\r(?=ight|ho(?![a-z])|angle|floor|ceil|m(?![a-z]))|\n(?=eq?(?![a-z])|u(?![a-z])|eg(?![a-z])|otin|abla)"
)
_LETTERS = {"\b": "b", "\t": "t", "\n": "n", "\f": "f", "\r": "r", "\v": "v", "\a": "a"}


def answer_of(value: Any) -> str:
    """A gold as text; whole floats lose their ".0". ValueError, in words, for what is no gold: None, a truth value, nan, a list of
    several, a damaged text."""
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    if value is None or (isinstance(value, str) and not value.strip()):
        raise ValueError("the answer is missing")
    if isinstance(value, list | tuple):
        raise ValueError(
            f"the answer is a list of {len(value)}: {value!r:.60}; write one text, its parts with commas where all of them are "
            "wanted, or keep one where any is right"
        )
    if isinstance(value, bool) or not isinstance(value, str | Real | Decimal):
        raise ValueError(f"the answer is {type(value).__name__} {value!r:.60}; one text or number is expected")
    if no_number(value):
        raise ValueError(
            f"{value!r:.60} is no gold answer, and nothing is trained on it; mend or leave out that row (a column that was divided "
            "or joined leaves such values where there was none)"
        )
    if isinstance(value, str) and (why := damage(value)):
        raise ValueError(why)
    return str(value).strip()


def gold_of(value: Any) -> tuple[str, str]:
    """(gold, where in the value it stood): `GSM8K`, `BOX`, or "" where it stood alone. ValueError as `answer_of`."""
    text = answer_of(value)
    if final := MARK.search(text):
        return answer_of(final["answer"]), GSM8K
    if "boxed" in text:
        boxed, why = extract(text, "boxed")
        if why == CUT_OFF:
            raise ValueError(f"the box of {text[-60:]!r} is never closed; mend or leave out that row")
        if boxed is not None and boxed.strip():
            return answer_of(boxed), BOX
    return text, ""


def damage(text: str) -> str:
    r"""What is wrong with a text that holds a control character where a command began, and the next step; "" for a sound one."""
    match = _DAMAGED.search(text)
    if match is None:
        return ""
    letter, behind = _LETTERS.get(match[0], ""), text[match.end() : match.end() + 12]
    message = f"{text!r:.60} holds the control character {match[0]!r} before {behind!r}"
    if not letter:
        return f"{message}; mend or leave out that row"
    return (
        rf'{message}: JSON reads "\{letter}" as that character, so that a command such as \{letter}{behind.split("{")[0]} must be '
        rf'written "\\{letter}{behind.split("{")[0]}" in the file; double its backslashes, or write it by json.dumps'
    )


__all__ = ["BOX", "GSM8K", "MARK", "answer_of", "damage", "gold_of"]
