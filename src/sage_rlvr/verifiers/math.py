r"""Mathematics: is the answer of a completion the gold answer? Parsing and comparing by math-verify, the rest here.

    verdict = right      iff the answer read at the asked place equals the gold answer
              wrong      iff there is no answer there, or it is unreadable, or it differs
              undecided  iff the gold is unreadable, a text is longer than its limit, or the comparison raised

What math-verify gets wrong when it is called plainly, and what is done here:
- A gold such as `\sqrt{51}` parses only inside `$...$`: it is wrapped.
- Whole completions are searched for any number: the answer is cut out first and parsed as one piece.
- Numbers are compared to 6 or 15 decimals, so that 1/2^99 = 1/2^98: equality is confirmed relative to their size.
- `(1,2)` equals `\{1,2\}` and 2516_7 equals 2516_8: brackets and number bases are compared.
- Its time limits are alarm signals, which work in the main thread alone and never stop a big-integer power: they are
  off. Nothing here stops a comparison that runs for ever; `sage_rlvr.verifiers.pool.Pool` does.
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from typing import Any, Literal, get_args

from latex2sympy2_extended import latex2sympy
from math_verify import LatexExtractionConfig, parse, verify
from sympy import Expr, Float, N, UnevaluatedExpr

from sage_rlvr.errors import ConfigError
from sage_rlvr.verifiers import Verdict

Place = Literal["boxed", "tag", "anywhere"]

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its time limits are off
MAX_COMPLETION = 1_000_000  # characters of a completion that are searched for the answer
MAX_ANSWER = 1_000  # characters of an answer or a gold that are parsed
MAX_DEPTH = 40  # brackets within brackets; the parser needs minutes for 400
RIGHT = Verdict("right", "right")
_NO_ANSWER, _CUT_OFF = "no answer", "answer cut off"
_BRACES = re.compile(r"(?P<box>\\(?:boxed|fbox)\s*\{)|\\.|(?P<open>\{)|(?P<close>\})", re.DOTALL)
_DOLLAR = re.compile(r"(?<!\\)\$")
_SCIENTIFIC = re.compile(r"([-+]?\d+(?:\.\d+)?)[eE]([-+]?\d+)")
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
# No space between digits is dropped: 2 1/2 is not 21/2.
_LAYOUT = re.compile(r"\\left(?![a-z])|\\right(?![a-z])|\\[!,;:]|\\displaystyle(?![a-z])|(?<!\d)\s|\s(?!\d)")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:_\d{3})+")
_BASE = re.compile(r"[0-9A-Z]+_\{?(\d+)\}?")
# Full-width forms, the minus sign and the wide space as ASCII; marks that no reader sees are dropped.
_ASCII: dict[int, int | str | None] = {0xFF01 + i: 0x21 + i for i in range(94)} | {0x2212: "-", 0x3000: " "}
_ASCII |= dict.fromkeys((0xAD, 0x200B, 0x200C, 0x200D, 0x200E, 0x200F, 0x2060, 0xFEFF))
_WORD = re.compile(r"[^\W\d_]{4,}")


def last_box(text: str) -> tuple[str | None, str]:
    r"""The contents of the last outermost `\boxed{...}`, or None and why: "no answer", "answer cut off"."""
    opened: list[int | None] = []  # for each open brace: where its box's contents start, None when it is no box
    found, cut = None, False
    for token in _BRACES.finditer(text):
        if token["box"]:
            opened.append(token.end())
        elif token["open"]:
            opened.append(None)
        elif token["close"] and opened:
            start = opened.pop()
            if start is not None:
                found = (start, token.start())
    cut = any(start is not None and (found is None or start > found[1]) for start in opened)
    if cut or found is None:
        return None, _CUT_OFF if cut else _NO_ANSWER
    return text[slice(*found)], ""


def last_tag(text: str, tag: str, closed: bool = True) -> tuple[str | None, str]:
    """What stands between the last `<tag>` and its `</tag>`, or None and why: "no answer", "answer cut off"."""
    start = text.rfind(f"<{tag}>")
    if start < 0:
        return None, _NO_ANSWER
    start += len(tag) + 2
    end = text.find(f"</{tag}>", start)
    if end < 0 and closed:
        return None, _CUT_OFF
    return text[start : end if end >= 0 else len(text)], ""


def _bare(text: str) -> str:
    """An answer without box, dollar signs, math delimiters, full stop and needless spaces, in ASCII where it can be.

    1e-3 becomes a power of ten (math-verify reads e - 3), 1_000 becomes 1000 (math-verify reads 1).
    """
    boxed, _ = last_box(text)
    text = " ".join(_DOLLAR.sub("", boxed if boxed is not None else text).translate(_ASCII).split())
    for left, right in ((r"\(", r"\)"), (r"\[", r"\]")):
        text = text.removeprefix(left).removesuffix(right).strip()
    text = text.rstrip(".").strip() if not text.endswith(r"\right.") else text
    if _THOUSANDS.fullmatch(text):
        return text.replace("_", "")
    number = _SCIENTIFIC.fullmatch(text)
    return rf"{number[1]}\times 10^{{{int(number[2])}}}" if number else text


def _spelling(text: str) -> str:
    r"""A text without `\text{}`, spacing and bracket sizes: answers of one spelling need no algebra to be equal."""
    text = _LAYOUT.sub("", _TEXT.sub(r"\1", text)).replace(r"\dfrac", r"\frac").replace(r"\tfrac", r"\frac")
    return text.casefold() if _WORD.fullmatch(text) else text


def _brackets(text: str) -> str:
    """ "set" for {...}, "order" for (...) and [...], "" for an answer in no brackets."""
    text = _spelling(text)
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
    bases = [_BASE.fullmatch(_spelling(text)) for text in (answer, gold)]
    return bool(bases[0] and bases[1] and bases[0][1] != bases[1][1])


def _parse(text: str) -> Any | None:
    """One answer as a sympy object, or None when it is not mathematics. Raises when memory or the stack ran out."""
    config = LatexExtractionConfig(boxed_match_priority=-1)
    found = parse(f"${text}$", [config], "no_fallback", "first_match", parsing_timeout=None, raise_on_error=True)
    if not found:
        _raise_if_exhausted(text)
    return found[0] if found else None


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
    return _bare(texts[-1]) if texts else "", objects[0] if objects else None


def _compare(answer: str, gold: str, parsed: Any | None = None) -> Verdict:
    """The verdict on one answer: by spelling, then by algebra. `parsed`: the answer, if it is parsed already."""
    if _spelling(answer) == _spelling(gold):
        return RIGHT
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
    if _WORD.fullmatch(_spelling(gold)) and _WORD.fullmatch(_spelling(answer)):
        return Verdict("wrong", "value")  # as algebra, "seat" and "east" are one product of four letters
    equal = verify(target, parsed, timeout_seconds=None, raise_on_error=True)
    return RIGHT if equal and not _far(target, parsed) else Verdict("wrong", "value")


def _judge(completion: str, gold: str, answer_in: Place, tag: str, closed: bool) -> Verdict:
    gold = _bare(gold)
    if not gold:
        return Verdict("undecided", "no gold")
    parsed: Any | None = None
    if answer_in == "anywhere":
        answer, parsed = _anywhere(completion)
    else:
        found, why = last_box(completion) if answer_in == "boxed" else last_tag(completion, tag, closed)
        if found is None:
            return Verdict("wrong", why)
        if len(found) > MAX_ANSWER:
            return Verdict("undecided", f"answer of more than {MAX_ANSWER} characters")
        answer = _bare(found)
    return _compare(answer, gold, parsed) if answer else Verdict("wrong", _NO_ANSWER)


def verify_math(
    completion: str, gold: str, *, answer_in: Place = "boxed", tag: str = "SOLUTION", closed: bool = True
) -> Verdict:
    r"""Whether the answer of `completion` is `gold`. Never raises on any text; may run for ever (see `Pool`).

    answer_in  where the answer must stand, its last occurrence counts: "boxed" in `\boxed{...}`, "tag" in
               `<tag>...</tag>`, "anywhere" wherever math-verify finds one, the last number included
    closed     False where generation stops at the closing tag and drops it: the answer then ends with the text

    Reasons. right: "right". wrong: "no answer", "answer cut off", "answer cannot be parsed", "brackets", "base",
    "value".
    undecided: "not a text", "no gold", "gold cannot be parsed", "completion (gold, answer) of more than N characters",
    "brackets nested deeper than N", or the name of an exception. `ConfigError` when `answer_in` is none of the three.
    """
    if answer_in not in get_args(Place):
        raise ConfigError(f"answer_in: {answer_in!r} is no place for an answer: {', '.join(get_args(Place))}.")
    if not (isinstance(completion, str) and isinstance(gold, str)):
        return Verdict("undecided", "not a text")
    for name, text, most in (("completion", completion, MAX_COMPLETION), ("gold", gold, MAX_ANSWER)):
        if len(text) > most:
            return Verdict("undecided", f"{name} of more than {most} characters")
    try:
        return _judge(completion, gold, answer_in, tag, closed)
    except Exception as error:
        return Verdict("undecided", type(error).__name__)
