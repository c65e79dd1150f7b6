r"""Mathematics: is the answer of a completion the gold answer? Read by kind, what is most definite first; the last is algebra.

    verdict = right      iff the answer read at the asked place equals the gold answer
              wrong      iff there is no answer there, or it is unreadable, or it differs
              undecided  iff the gold is unreadable, a text is longer than its limit, or the comparison raised

Whole completions are not searched for any number, as math-verify does: the answer is cut out first (`answers.py`) and parsed
as one piece. Units, times, dates, ratios, number bases and words are read before algebra sees them (`units.py`,
`quantities.py`); equations and lists are parted into answers; the rest is `algebra.py`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

from latex2sympy2_extended import normalize_latex
from math_verify import ExprExtractionConfig, parse
from sympy import Expr, Mul, N, Rational, UnevaluatedExpr

from sage_rlvr.verifiers import quantities as read
from sage_rlvr.verifiers.algebra import (
    CONFIG,
    UNREADABLE,
    WRONG,
    brackets,
    by_measure,
    depth,
    parsed_of,
    right_if,
    too_long,
    unsure,
)
from sage_rlvr.verifiers.answers import (
    MAX_DEPTH,
    MAX_DIGITS,
    NO_ANSWER,
    RIGHT,
    AnswerPlace,
    bare,
    by_spelling,
    last_box,
    prepare,
    rational,
    spelling,
)
from sage_rlvr.verifiers.style import unknown
from sage_rlvr.verifiers.units import has_text, measured, radians, summed
from sage_rlvr.verifiers.verdict import Verdict

_LEVELS = 3  # how often an answer may be parted into answers
_MOST_PARTS = 12  # sides of an equation, terms of a ratio, parts of a list that are held against each other
_ANYWHERE = [replace(CONFIG, boxed_match_priority=50), ExprExtractionConfig()]
_RELATIONS = re.compile(r"[<>]|\\(?:n?leq?|n?geq?|neq?|lt|gt|not|in|notin|subset\w*)(?![a-z])")
_EQUAL = {"=", r"\approx", r"\simeq", r"\sim", r"\doteq"}
_MARK = re.compile(r"=|\\(?:approx|simeq|sim|doteq)(?![a-z])")
_NUMERIC = re.compile(
    r"(?:[\d.,+\-*/^(){}\[\]|!%\s]|\\(?:[dtc]?frac|sqrt|pi|cdot|times|div|left|right|ln|log|exp|sin|cos|tan|d?binom|choose|%|circ)"
    r"(?![a-z])|(?<![A-Za-z])e(?![A-Za-z]))*"
)
_NAME = re.compile(
    r"(?:\\(?:angle|triangle|measuredangle|overline|vec|mathbf|mathrm|text|operatorname|alpha|beta|gamma|theta|phi|lambda|mu|sigma|"
    r"omega|Delta|gcd|max|min|det|deg|dim|Pr)(?![a-z])|[A-Za-z ]|[{}|']|_(?:\{\w+\}|\w)|\([\w, ]+\))+"
)
_MODULUS = re.compile(r"\|\s*[a-z]\s*\|")
_FUNCTION = re.compile(
    r"(?:\\(?:bar|hat|tilde|sigma|phi|varphi|tau|Phi|Gamma|zeta)(?![a-z])|[A-Zfghpq])"
    r"[\w'^{}\-]*(?:\([^=]*\))?|\(f\s*\\circ\s*g\)\([^=]*\)|\\d?frac\{d\w?\}\{d\w\}|\\\|[^=|]*\\\||\\boxed\{.*\}"
)
_BUILDER = re.compile(
    r"\\\{\s*[a-zA-Z]\s*(?:\\in\s*(?:\\mathbb\s*\{?\s*R\s*\}?)\s*)?(?:\\mid(?![a-z])|\\colon|:|\|)\s*(.+)\\\}",
    re.DOTALL,
)
_ASSIGNED = re.compile(r"([A-Za-z](?:_\{?\w+\}?)?)\s*=\s*([^=]+)")
_DOTS = re.compile(r"(?:\.\.\.|\\[lc]?dots)\s*\Z")
_NOTHING = {r"\emptyset", r"\varnothing", r"\{\}"}


def _compare(answer: str, gold: str, parsed: Any | None = None) -> Verdict:
    """The verdict on one bare answer. `parsed`: the answer, if it is parsed already."""
    # first, since the parsers recurse into brackets, and turn long numbers into integers in quadratic time
    if max(depth(answer), depth(gold)) > MAX_DEPTH:
        return unsure(f"brackets nested deeper than {MAX_DEPTH}")
    if too_long(answer) or too_long(gold):
        return unsure(f"a number of more than {MAX_DIGITS} digits")
    if (_DOTS.search(answer) is None) != (_DOTS.search(gold) is None):
        return unsure("goes on in dots")
    verdict = _decide(_rewritten(answer, gold), _rewritten(gold, answer), _LEVELS, parsed)
    # after the decision: an answer that is undecided anyway keeps its own reason
    strange = unknown(answer) or unknown(gold)
    return unsure(f"unknown command {strange}") if strange and verdict.label != "undecided" else verdict


def _rewritten(text: str, other: str) -> str:
    r"""A text with degrees in `\sin` as radians, of a set builder its condition, x = 1, y = 2 as a point where the other is one."""
    text = read.infinity(text) or radians(text)
    if builder := _BUILDER.fullmatch(text):
        return builder[1].strip()
    if brackets(other) == "order" and "=" in text and "=" not in other:
        assignments = [_ASSIGNED.fullmatch(part) for part in read.listed(text)]
        values = {one[1]: one[2].strip() for one in assignments if one}
        if len(assignments) > 1 and len(values) == len(assignments):
            return f"({','.join(values[name] for name in sorted(values))})"
    if text.count(r"\pm") == 1 and depth(text.partition(r"\pm")[0]) and "," not in text:
        return ", ".join(text.replace(r"\pm", sign) for sign in "+-")
    return text


def _decide(answer: str, gold: str, levels: int, parsed: Any | None = None) -> Verdict:
    """The readers in turn, what is most definite first; the last is algebra."""
    # words and notations before algebra, which reads the letters of a word as a product
    verdict = _by_words(answer, gold, levels) or _by_notation(answer, gold, levels)
    if verdict is None and levels:
        verdict = _by_claims(answer, gold, levels - 1) or _by_parts(answer, gold, levels - 1)
    verdict = verdict or by_measure(answer, gold, parsed)
    if verdict.right and (_unnamed(answer, gold) or _unnamed(gold, answer)):
        return unsure("an equation for a value")  # 2x = 6 says no more of 6 than of 3
    return verdict


# ---- words, notations


def _by_words(answer: str, gold: str, levels: int) -> Verdict | None:
    """Words, letters that name points or a choice, and nothing at all."""
    mine, theirs = read.worded(answer), read.worded(gold)
    nothing = [words in read.EMPTY or spelling(text) in _NOTHING for words, text in ((mine, answer), (theirs, gold))]
    if any(nothing):
        doubt = not all(nothing) and "none" in (mine, theirs) and "0" in (answer, gold)
        return unsure("none or zero") if doubt else right_if(all(nothing))
    if mine is not None and theirs is not None:
        return right_if(mine == theirs)
    if (points := read.letters(answer)) and (named := read.letters(gold)):
        if len(points) == 2 and points == named[::-1]:
            return unsure("order of letters")  # a product, or a segment, or points in another order
        return right_if(points == named, "order of letters")
    for one, other in ((answer, gold), (gold, answer)):
        if read.denied(one) and read.letter(other) is not None:
            return unsure("a choice denied")
        chosen, again = read.choice(one), read.choice(other)
        if chosen is not None and levels:
            if (wanted := read.letter(other)) is not None:
                return right_if(chosen[0] == wanted)
            if again is not None and again[0] != chosen[0]:
                return WRONG
            rest = {one: chosen[1], other: again[1] if again else other}
            return _decide(rest[answer], rest[gold], levels - 1)
    return None


def _by_notation(answer: str, gold: str, levels: int) -> Verdict | None:
    """Numbers in a base, times of day, dates, ratios. A number without a base is one of base ten."""
    if read.based(answer) or read.based(gold):
        return _by_base(answer, gold)
    (early, late), days = (read.clock(answer), read.clock(gold)), (read.date(answer), read.date(gold))
    if any(days):
        return right_if(days[0] == days[1], "date")
    if early is not None and late is not None:
        doubt = not early.same(late) and early.ratio(late)
        return unsure("a time or a ratio") if doubt else right_if(early.same(late), "time")
    time = early or late
    if time is not None and (time.half or not time.colon):
        return Verdict("wrong", "time")
    parts, others = read.ratio(answer), read.ratio(gold)
    longest = max(len(parts or ()), len(others or ()))
    if not longest or not levels or longest > _MOST_PARTS:
        return None
    if parts and others:
        same = len(parts) == len(others) and all(
            _decide(rf"\frac{{{a}}}{{{parts[-1]}}}", rf"\frac{{{b}}}{{{others[-1]}}}", levels - 1).right
            for a, b in zip(parts[:-1], others[:-1], strict=True)
        )
        return right_if(same, "ratio")
    if longest > 2:
        return Verdict("wrong", "ratio")
    sides = ((parts, answer), (others, gold))
    verdict = _decide(*(rf"\frac{{{pair[0]}}}{{{pair[1]}}}" if pair else text for pair, text in sides), levels - 1)
    return unsure("a time or a ratio") if verdict.right and time is not None else verdict


def _by_base(answer: str, gold: str) -> Verdict:
    """Right in the base that was asked for; the same number in another base is undecided: it may be what was to be converted."""
    mine, theirs = (read.based(text) or ((value := rational(spelling(text))) and (value[0], 10)) for text in (answer, gold))
    if theirs is not None and theirs[0] is None:
        return unsure("gold cannot be parsed")
    if mine is None or theirs is None or mine[0] != theirs[0]:
        return Verdict("wrong", "base")
    return RIGHT if mine[1] == theirs[1] else unsure("another base")


# ---- equations and lists


def _claim(text: str, levels: int) -> tuple[str, list[str]] | Verdict | None:
    r"""(name, values) of x = 7, 7 = x, 2 + 5 = 7, \frac13 \approx 0.333; None for another relation; wrong where it is false."""
    marks = _MARK.findall(text)
    if not marks or _RELATIONS.search(text):
        return None
    sides = read.split(text, _EQUAL)
    if len(sides) != len(marks) + 1 or len(sides) > _MOST_PARTS or len(read.split(text, {",", ";"})) > 1:
        return None
    if not sides[0]:
        sides, marks = sides[1:], marks[1:]
    numeric = [bool(side) and _is_numeric(side) for side in sides]
    if numeric == [True, False]:
        sides, numeric = sides[::-1], [False, True]
    numbers = [side for side, is_number in zip(sides, numeric, strict=True) if is_number]
    plain = set(marks) <= {"="} and not all(numeric)
    if plain and any(not _decide(b, a, levels).right for a, b in pairwise(numbers)):
        return Verdict("wrong", "a false equation")  # 3 = x = 4
    name, first = ("", 0) if numeric[0] else (sides[0], 1)
    values, signs = sides[first:], marks[first:]
    if not values or not all(numeric[first:]) or (name and not _is_name(name)):
        return None
    for sign, (one, other) in zip(signs, pairwise(values), strict=True):
        if not (sign != "=" and _near(one, other)) and not _decide(other, one, levels).right:
            return Verdict("wrong", "a false equation")
    return name, values


def _is_name(side: str) -> bool:
    """Whether a side of an equation names a value: S, AB, f(2), P(A and B); |x| = 3 does not say what x is."""
    return (_NAME.fullmatch(side) is not None and not _MODULUS.search(side)) or _FUNCTION.fullmatch(side) is not None


def _unnamed(text: str, other: str) -> bool:
    """Whether a text is an equation, or a list with one, that is no name with its value, and the other text a value."""
    if "=" not in text or _has_relation(other):
        return False
    return any(_without_name(*read.split(part, {"="})) for part in read.split(text, {",", ";"}))


def _without_name(first: str, *sides: str) -> bool:
    if not sides or not first or _is_name(first) or first.startswith(r"\{"):
        return False
    if _is_numeric(first):
        return not all(_is_numeric(side) or _is_name(side) for side in sides)
    left = parsed_of(first)
    return not isinstance(left, Expr) or bool(left.free_symbols)


def _is_numeric(side: str) -> bool:
    """Whether a side of an equation has no letter but those of its unit and of functions."""
    digits = any(map(str.isdigit, side))
    return side.strip() in (r"\pi", "e") or (digits and _NUMERIC.fullmatch(measured(side).body) is not None)


def _near(exact: str, rounded: str) -> bool:
    """Whether a number may be written for another behind a sign of approximation: half of its last place, or 1 %."""
    one, other = (parsed_of(measured(side).body) for side in (exact, rounded))
    if not all(isinstance(side, Expr) and side.is_number for side in (one, other)):
        return False
    decimals = len(rounded.strip().partition(".")[2]) if rational(rounded.strip()) else 0
    slack = max(0.5 * 10.0**-decimals if abs(N(other)) >= 1 or decimals else 0.0, 0.01 * float(abs(N(one))))
    return bool(abs(N(one - other, 30)) <= slack)  # 30 digits: a difference of nearly equal numbers has few in float64


def _by_claims(answer: str, gold: str, levels: int) -> Verdict | None:
    """Equations that say what a number is: both must be true in themselves, of one name, and one of their values the other's."""
    mine, theirs = _claim(answer, levels), _claim(gold, levels)
    if isinstance(mine, Verdict):
        return mine
    if isinstance(theirs, Verdict):
        return unsure("gold is a false equation")
    if mine is None and theirs is None:
        return None
    if mine and theirs and mine[0] and theirs[0] and spelling(mine[0]) != spelling(theirs[0]):
        return WRONG
    if (mine is None and _has_relation(answer)) or (theirs is None and _has_relation(gold)):
        return None
    verdict = WRONG
    # the last value first: behind signs of approximation it is the one that is meant as the answer
    for value, wanted in product(mine[1][::-1] if mine else [answer], theirs[1][::-1] if theirs else [gold]):
        verdict = _decide(value, wanted, levels)
        if verdict.label != "wrong":
            break
    return verdict


def _has_relation(text: str) -> bool:
    return "=" in text or _RELATIONS.search(text) is not None


def _by_parts(answer: str, gold: str, levels: int) -> Verdict | None:
    """Lists whose parts have units or words of their own, in any order; lists of mathematics are left to algebra."""
    mine, theirs = read.listed(answer), read.listed(gold)
    longest = max(len(mine), len(theirs))
    if longest < 2 or longest > _MOST_PARTS or summed(answer) or summed(gold):
        return None
    if not any(has_text(part) or not measured(part).bare for part in (*mine, *theirs)):
        return None
    if len(mine) != len(theirs):
        return WRONG
    left, doubt = list(theirs), False
    for part in mine:
        labels = [_decide(part, wanted, levels).label for wanted in left]
        if "right" in labels:
            del left[labels.index("right")]
        elif doubt or "undecided" in labels:
            doubt = True
        else:
            return WRONG
    if not left and {"and", "or"} == read.joined(answer) ^ read.joined(gold) and not re.search(r"\d", answer + gold):
        return unsure("and, or")  # Al or Bo is not both
    return unsure("unit") if left else RIGHT


# ---- the whole


def _judge_anywhere(completion: str, gold: str) -> Verdict:
    answer, parsed = _anywhere(completion)
    if not answer:
        return Verdict("wrong", NO_ANSWER)
    verdict = by_spelling(answer, gold) or _compare(answer, gold)
    return _compare(answer, gold, parsed) if verdict.reason == UNREADABLE else verdict


def _anywhere(completion: str) -> tuple[str, Any | None]:
    """(text, sympy object) of the answer that math-verify finds in a completion: a box, "the answer is", a number."""
    candidates = parse(completion, _ANYWHERE, parsing_timeout=None, raise_on_error=True)
    text = next((item for item in reversed(candidates) if isinstance(item, str)), None)
    parsed = next((item for item in candidates if not isinstance(item, str)), None)
    if text is None:
        return "", parsed
    inside, _ = last_box(completion)
    if inside and normalize_latex(inside, CONFIG.normalization_config) == text:
        return bare(inside), parsed  # as it was written: math-verify drops dollar signs
    # of 50% the text that comes back is 50
    percent = isinstance(parsed, Mul) and parsed.args[-1:] == (UnevaluatedExpr(Rational(1, 100)),)
    return bare(text + r"\%" * (percent and "%" not in text)), parsed


def verify_math(
    completion: str,
    gold: str,
    *,
    answer_in: AnswerPlace = "boxed",
    tag: str = "SOLUTION",
    closed: bool = True,
    algebra_only: bool = False,
) -> Verdict:
    r"""Whether the answer of `completion` is `gold`. Never raises on any text; may run for ever (see `Pool`).

    answer_in  where the answer must stand, its last occurrence counts: "boxed" in `\boxed{...}`, "tag" in
               `<tag>...</tag>`, "stated" behind the last "answer is" or "####", "last_number" the last plain
               number, "whole" all of the text, "anywhere" wherever math-verify finds one, the last number included
    closed     False where generation stops at the closing tag and drops it: the answer then ends with the text
    algebra_only  one spelling is not enough: for audits, which ask what the parser makes of a gold

    Reasons. right: "right". wrong: "no answer", "answer cut off", "answer cannot be parsed", "brackets", "base",
    "value".
    undecided: "not a text", "no gold", "gold cannot be parsed", "completion (gold, answer) of more than N characters",
    "brackets nested deeper than N", "a number of more than N digits", "unit", "amount", "an equation for a value" and other
    readings that leave doubt, or the name of an exception. `ConfigError` when `answer_in` is no place.
    """
    prepared = prepare(completion, gold, answer_in=answer_in, tag=tag, closed=closed, algebra_only=algebra_only)
    if isinstance(prepared, Verdict):
        return prepared
    try:
        return _judge_anywhere(completion, bare(gold)) if prepared is None else _compare(*prepared.key[:2])
    except Exception as error:  # the parser and sympy raise almost any class on a text; an exception is no "wrong"
        return unsure(type(error).__name__)


__all__ = ["verify_math"]
