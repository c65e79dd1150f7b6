r"""Gold answers: one reader for recipes, rewards, audits, `verify`, `eval` and exports.

    "42", 42, 42.0                   -> 42
    "6*7=42\n#### 42"                -> 42      after the #### of GSM8K
    "... so it is \boxed{42}."       -> 42      in the last box
    "\boxed{-4} and \boxed{9}"       -> -4, 9  boxes that a sentence joins, as in a completion
    ["42"]                           -> 42      a list of one

A text that hardly any completion equals (`no_answer`) is a phrase without an answer, a sentence, or alternatives. Such golds are
used unchanged; the audit names them.

Texts that JSON has damaged ("\frac" without a second backslash is a form feed and "rac") raise an error: no answer equals them.
"""

from __future__ import annotations

import re
from decimal import Decimal
from numbers import Real
from typing import Any

from sage_rlvr.verifiers.answers import CONTROL, CUT_OFF, bare, extract, no_number
from sage_rlvr.verifiers.latex import plain

GSM8K = "after ####"
BOX = r"in the last \boxed{}"
MARK = re.compile(r"(?:^|\s)####[ \t]*(?P<answer>[^\n#]+)\s*\Z")  # a worked solution whose last line is the answer
# Control characters, and line ends and tabs that replaced the first letter of a command: \theta, \right, \neq.
_DAMAGED = re.compile(
    rf"{CONTROL.pattern}|\t(?=ext|imes|heta|frac|binom|riangle|an(?![a-z])|au(?![a-z])|o(?![a-z]))"
    r"|\r(?=ight|ho(?![a-z])|angle|floor|ceil|m(?![a-z]))|\n(?=eq?(?![a-z])|u(?![a-z])|eg(?![a-z])|otin|abla)"
)
_ASKS_NOTHING = re.compile(
    r"(?!(?-i:Na)\.?\Z)"  # sodium
    r"(?:[?\-_.*\u2013\u2014]+|n\.?\s?/?\s?a|proof|omitted|todo|t\.?b\.?[da]|to be (?:determined|decided|announced|done|added)"
    r"|(?:the )?(?:answers?|solutions?|responses?|results?) (?:may|will|can|might) vary|(?:answers|it) var(?:y|ies)|not applicable"
    r"|(?:answer )?not[ _-]?(?:found|available|given|provided)|(?:missing|pending)[ _-]answer|answer[ _-](?:missing|pending)"
    r"|no[ _-]?answer|see (?:the )?(?:solution|proof|above|below|figure|explanation).*|(?:https?://|www\.)\S+)[.]?",
    re.IGNORECASE,
)
"""Phrases without an answer. Words that may be an answer (unknown, error, null, none) are not among them."""
_CLAIM = re.compile(
    r"(?<![A-Za-z\\])(?:answer|is|are|was|thus|therefore|hence|so|because|since|we|which|have|get|gives|equals?|obtain)(?![A-Za-z])",
    re.IGNORECASE,
)
_WORD = re.compile(r"(?<![A-Za-z\\])[A-Za-z]{2,}(?![A-Za-z])")
_MOST_WORDS = 7  # characters of an answer that is no explanation
_ALTERNATIVES = re.compile(r"[^=<>\\]*\d[^=<>\\]* or [^=<>\\]*\d[^=<>\\]*|\(?[A-J]\)? or \(?[A-J]\)?")
_LETTERS = {"\b": "b", "\t": "t", "\n": "n", "\f": "f", "\r": "r", "\v": "v", "\a": "a"}


def answer_of(value: Any) -> str:
    """A gold as text; integral floats lose their ".0". Raises ValueError, in words, for anything else: None, a truth value, nan, a
    list of several, a damaged text."""
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
    """(gold, its place in the value): `GSM8K`, `BOX`, or "" if it is the full value. Raises ValueError as `answer_of` does."""
    text = answer_of(value)
    if final := MARK.search(text):
        return answer_of(final["answer"]), GSM8K
    if "boxed" in text:
        boxed, why = extract(text)
        if why == CUT_OFF:
            raise ValueError(f"the box of {text[-60:]!r} is never closed; mend or leave out that row")
        if boxed is not None and boxed.strip():
            return answer_of(boxed), BOX
    return text, ""


def no_answer(gold: str) -> str:
    """The reason why hardly any completion has this gold as its answer, and the next step; "" for a valid gold."""
    text = plain(gold).strip("$ ")
    if _ASKS_NOTHING.fullmatch(text):
        return "no answer: it asks for nothing; leave out that row"
    if is_sentence(bare(gold)) or len(_WORD.findall(text)) > _MOST_WORDS:
        return "a sentence, of which a completion would have to repeat every word; keep its answer only"
    if _ALTERNATIVES.fullmatch(text):
        return "alternatives, of which a completion has to give all; write them with commas if it has to, or keep one"
    return ""


def is_sentence(text: str) -> bool:
    """Whether a text states an answer in a sentence, as in "Thus the answer is 1"."""
    words = _WORD.findall(text := plain(text))
    if len(words) < 2 or _CLAIM.search(text) is None:
        return False
    return "answer" in text.lower() or not text[-1:].isalpha() or len(words) > 5


def damage(text: str) -> str:
    r"""The fault of a text with a control character where a command began, and the next step; "" for an undamaged one."""
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


__all__ = ["BOX", "GSM8K", "MARK", "answer_of", "damage", "gold_of", "is_sentence", "no_answer"]
