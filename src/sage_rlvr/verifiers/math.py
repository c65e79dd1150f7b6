r"""Mathematics: is the answer of a completion the gold answer? Parsing and comparing by math-verify, the rest here.

    verdict = right      iff the answer read at the asked place equals the gold answer
              wrong      iff there is no answer there, or it is unreadable, or it differs
              undecided  iff the gold is unreadable, a text is longer than its limit, or the comparison raised

What math-verify gets wrong when it is called plainly, and what is done here:
- A gold such as `\sqrt{51}` parses only inside `$...$`: it is wrapped.
- Whole completions are searched for any number: the answer is cut out first (`answers.py`) and parsed as one piece.
- Numbers are compared to 6 or 15 decimals, so that 1/2^99 = 1/2^98: equality is confirmed relative to their size.
- `(1,2)` equals `\{1,2\}` and 2516_7 equals 2516_8: brackets and number bases are compared.
- Its time limits are alarm signals, which work in the main thread alone and never stop a big-integer power: they are
  off. Nothing here stops a comparison that runs for ever; `sage_rlvr.verifiers.pool.Pool` does.
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from typing import Any

from latex2sympy2_extended import latex2sympy
from math_verify import LatexExtractionConfig, parse, verify
from sympy import Expr, Float, N, Symbol, UnevaluatedExpr, evaluate

from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.answers import (
    MAX_ANSWER,
    MAX_COMPLETION,
    NO_ANSWER,
    RIGHT,
    WORD,
    Place,
    bare,
    by_spelling,
    last_box,
    last_number,
    last_tag,
    prepare,
    spelling,
)

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its time limits are off
MAX_DEPTH = 40  # brackets within brackets; the parser needs minutes for 400
# Letters that the parser takes for constants although a subscript makes them names, and subscripts that it cannot read.
_CONSTANT = re.compile(r"(?<![a-zA-Z\\])([EeIi])(?=_)")
_NAMES = {"e": r"\varrho ", "i": r"\varsigma "}
_SUBSCRIPT = re.compile(r"_\{\\(?:(?:text|mathrm|rm)\s*\{?\s*([a-zA-Z]+)\s*\}?|(odot))\}")
_BASE = re.compile(r"(?=[A-Z]*[0-9])[0-9A-Z]+_\{?(\d+)\}?")


def _brackets(text: str) -> str:
    """ "set" for {...}, "order" for (...) and [...], "" for an answer in no brackets."""
    text = spelling(text)
    if text.startswith(r"\{") and text.endswith(r"\}"):
        return "set"
    return "order" if text[:1] in ("(", "[") and text[-1:] in (")", "]") else ""


def _depth(text: str) -> int:
    """How deep brackets of any kind stand within each other at most."""
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest


def _other_base(answer: str, gold: str) -> bool:
    """True for 2516_7 against 2516_8; a number without its base is taken to be in the base that was asked for."""
    bases = [_BASE.fullmatch(spelling(text)) for text in (answer, gold)]
    return bool(bases[0] and bases[1] and bases[0][1] != bases[1][1])


def _readable(text: str) -> str:
    """A text in which E_1 and I_0 are names and no constants, and subscripts are plain words."""
    text = _SUBSCRIPT.sub(lambda found: f"_{{{found[1] or found[2]}}}", text)
    return _CONSTANT.sub(lambda found: _NAMES[found[1].lower()], text)


def _parse(text: str) -> Any | None:
    """One answer as a sympy object, or None when it is not mathematics. Raises when memory or the stack ran out."""
    text = _readable(text)
    config = LatexExtractionConfig(boxed_match_priority=-1)
    found = parse(f"${text}$", [config], "no_fallback", "first_match", parsing_timeout=None, raise_on_error=True)
    if not found:
        _raise_if_exhausted(text)
    return _real_symbols(found[0]) if found else None


def _real_symbols(parsed: Any) -> Any:
    """The same with all symbols real, as the parser makes them but where it sees the letter i on its own."""
    others = {
        symbol: Symbol(symbol.name, real=True)
        for symbol in getattr(parsed, "free_symbols", ())
        if symbol.is_real is False
    }
    if not others:
        return parsed
    with evaluate(False):
        return parsed.xreplace(others)


def _raise_if_exhausted(text: str) -> None:
    """math-verify takes every exception for "not mathematics"; parse once more and let through the two that are not."""
    try:
        latex2sympy(text)
    except (MemoryError, RecursionError):
        raise
    except Exception:
        return


_parse_gold = lru_cache(maxsize=4096)(_parse)


def _far(gold: Any, answer: Any) -> bool:
    """True when two numbers that math-verify calls equal differ by too much for their size.

    Allowed: 1e-4 of the larger when one is a decimal, 1e-12 when both are exact, nothing when both are rational.
    Percentages are left to math-verify, for which 50 % is 50 as well as 0.5.
    """
    if not (isinstance(gold, Expr) and isinstance(answer, Expr)):
        return False
    if gold.has(UnevaluatedExpr) or answer.has(UnevaluatedExpr):
        return False
    gold, answer = gold.doit(), answer.doit()
    if not (gold.is_number and answer.is_number):
        return False
    if gold.is_Rational and answer.is_Rational:
        return bool(gold != answer)
    size, gap = max(abs(N(gold, 30)), abs(N(answer, 30))), abs(N(gold - answer, 30))
    return bool(gap > (1e-4 if gold.has(Float) or answer.has(Float) else 1e-12) * size)


def _anywhere(completion: str) -> tuple[str, Any | None]:
    """(text, sympy object) of the answer that math-verify finds in a completion: a box, "the answer is", a number."""
    found = parse(completion, parsing_timeout=None, raise_on_error=True)
    texts = [item for item in found if isinstance(item, str)]
    objects = [item for item in found if not isinstance(item, str)]
    return bare(texts[-1]) if texts else "", objects[0] if objects else None


def _compare(answer: str, gold: str, parsed: Any | None = None) -> Verdict:
    """The verdict on one bare answer by algebra. `parsed`: the answer, if it is parsed already."""
    if max(_depth(answer), _depth(gold)) > MAX_DEPTH:
        return Verdict("undecided", f"brackets nested deeper than {MAX_DEPTH}")
    target = _parse_gold(gold)
    if target is None:
        return Verdict("undecided", "gold cannot be parsed")
    if parsed is None:
        parsed = _parse(answer)
    if parsed is None:
        return Verdict("wrong", "answer cannot be parsed")
    if {_brackets(answer), _brackets(gold)} == {"set", "order"}:
        return Verdict("wrong", "brackets")
    if _other_base(answer, gold):
        return Verdict("wrong", "base")
    if WORD.fullmatch(spelling(gold)) and WORD.fullmatch(spelling(answer)) and spelling(gold) != spelling(answer):
        return Verdict("wrong", "value")  # as algebra, "seat" and "east" are one product of four letters
    equal = verify(target, parsed, timeout_seconds=None, raise_on_error=True)
    return RIGHT if equal and not _far(target, parsed) else Verdict("wrong", "value")


def _judge_anywhere(completion: str, gold: str) -> Verdict:
    answer, parsed = _anywhere(completion)
    if not answer:
        return Verdict("wrong", NO_ANSWER)
    return by_spelling(answer, gold) or _compare(answer, gold, parsed)


def verify_math(
    completion: str,
    gold: str,
    *,
    answer_in: Place = "boxed",
    tag: str = "SOLUTION",
    closed: bool = True,
    algebra_only: bool = False,
) -> Verdict:
    r"""Whether the answer of `completion` is `gold`. Never raises on any text; may run for ever (see `Pool`).

    answer_in  where the answer must stand, its last occurrence counts: "boxed" in `\boxed{...}`, "tag" in
               `<tag>...</tag>`, "last_number" the last plain number, "whole" all of the text, "anywhere" wherever
               math-verify finds one, the last number included
    closed     False where generation stops at the closing tag and drops it: the answer then ends with the text
    algebra_only  one spelling is not enough: for audits, which ask what the parser makes of a gold

    Reasons. right: "right". wrong: "no answer", "answer cut off", "answer cannot be parsed", "brackets", "base",
    "value".
    undecided: "not a text", "no gold", "gold cannot be parsed", "completion (gold, answer) of more than N characters",
    "brackets nested deeper than N", or the name of an exception. `ConfigError` when `answer_in` is no place.
    """
    found = prepare(completion, gold, answer_in=answer_in, tag=tag, closed=closed, algebra_only=algebra_only)
    if isinstance(found, Verdict):
        return found
    try:
        return _judge_anywhere(completion, bare(gold)) if found is None else _compare(*found.key[:2])
    except Exception as error:
        return Verdict("undecided", type(error).__name__)


__all__ = ["MAX_ANSWER", "MAX_COMPLETION", "MAX_DEPTH", "Place", "last_box", "last_number", "last_tag", "verify_math"]
