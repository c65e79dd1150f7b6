r"""Mathematics: check whether the answer of a completion is the gold answer, by kind, the most definite first; the last is algebra.

    verdict = right      iff the answer at the requested place equals the gold answer
              wrong      iff there is no answer there, or it is unreadable, or it differs
              undecided  iff the gold is unreadable, a text is longer than its limit, or the comparison raised

Completions are not searched for any number, as math-verify does: the answer is cut out first (`answers.py`) and parsed
as one piece. Units, times, dates, ratios, number bases and words are read before algebra sees them (`units.py`,
`quantities.py`); equations and lists are split into answers; the rest is `algebra.py`.
"""

from __future__ import annotations

import re
from collections import Counter
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
    AnswerReading,
    bare,
    by_spelling,
    extract,
    last_box,
    prepare,
    rational,
    reading_options,
    spelling,
)
from sage_rlvr.verifiers.golds import is_sentence
from sage_rlvr.verifiers.latex import has_text
from sage_rlvr.verifiers.numerals import amount
from sage_rlvr.verifiers.numerals import ordinal as read_ordinal
from sage_rlvr.verifiers.plain import unread
from sage_rlvr.verifiers.style import unknown
from sage_rlvr.verifiers.units import measured, radians, summed
from sage_rlvr.verifiers.verdict import Verdict

_IN_WORDS = "a number in words"
_LEVELS = 3  # how often an answer may be split into answers
_MOST_PARTS = 12  # sides of an equation, terms of a ratio, parts of a list that are compared
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
_FUNCTION_OF = re.compile(r"\s*[fgh]\(([a-xz])\)\s*=")
# an interval whose open end is written with an outward bracket
_OUTWARD = re.compile(
    r"(?P<before>(?:^|\\cup|\\cap|\\setminus|\\in|=)\s*)(?:\\left\s*)?(?P<left>[\[\]])(?P<ends>[^\[\]]+[,;][^\[\]]+?)(?:\\right\s*)?"
    r"(?P<right>[\[\]])(?=\s*(?:$|\\cup|\\cap|\\setminus))"
)
_VARIANTS = re.compile(r"\\var(?:phi|epsilon|theta|rho|sigma|kappa|pi)(?![a-z])")
_NOTHING = {r"\emptyset", r"\varnothing", r"\{\}"}


def _compare(answer: str, gold: str, parsed: Any | None = None) -> Verdict:
    """The verdict on one normalized answer. `parsed`: the answer, if it is already parsed."""
    # first, because the parsers recurse into brackets, and convert long numbers to integers in quadratic time
    if max(depth(answer), depth(gold)) > MAX_DEPTH:
        return unsure(f"brackets nested deeper than {MAX_DEPTH}")
    if too_long(answer) or too_long(gold):
        return unsure(f"a number of more than {MAX_DIGITS} digits")
    if (_DOTS.search(answer) is None) != (_DOTS.search(gold) is None):
        return unsure("goes on in dots")
    verdict = _decide(_rewritten(answer, gold), _rewritten(gold, answer), _LEVELS, parsed)
    # after the decision: an answer that is undecided anyway keeps its reason
    if verdict.label == "undecided":
        return verdict
    if strange := unknown(answer) or unknown(gold):
        return unsure(f"unknown command {strange}")
    if name := unread(answer) or unread(gold):
        return unsure(f"unknown name {name}")
    if verdict.right or is_sentence(answer):
        # letters of a sentence are no product, so the value of one means nothing
        return Verdict("wrong", UNREADABLE) if verdict == WRONG else verdict
    return _by_numerals(answer, gold) or verdict


def _by_numerals(answer: str, gold: str) -> Verdict | None:
    """Compare amounts and ordinals in words with digits: seven apples are 7 apples, and an unread one may be right; or None."""
    if re.search(r"\d", answer) is None and re.search(r"\d", gold) is None:
        return None
    if places := read_ordinal(answer) or read_ordinal(gold):
        other = gold if read_ordinal(answer) else answer
        if spelling(other) == places[0]:
            return RIGHT
        return unsure(_IN_WORDS) if any(_decide(place, other, _LEVELS).right for place in places) else None
    mine, theirs = amount(answer), amount(gold)
    if mine is None or theirs is None:
        return unsure(_IN_WORDS)
    if (mine, theirs) == (answer, gold):
        return None
    verdict = _decide(mine, theirs, _LEVELS)
    amounts = [measured(text) for text, before in ((mine, answer), (theirs, gold)) if text != before]
    # three squared: the rest of the body changes the number
    return unsure(_IN_WORDS) if not verdict.right and any(has_text(one.body) or one.doubt for one in amounts) else verdict


def _rewritten(text: str, other: str) -> str:
    r"""A text with degrees in `\sin` as radians, ]2,5[ as (2,5), a set builder as its condition; f(x) = 2x as y = 2x if the
    other is in y; x = 1, y = 2 as a point if the other is one."""
    text = _OUTWARD.sub(_inward, read.infinity(text) or radians(text))
    for variant in _VARIANTS.findall(text):
        letter = variant.replace("var", "")
        if not re.search(rf"\{letter}(?![a-z])", text) and not re.search(rf"\{variant}(?![a-z])", other):
            text = re.sub(rf"\{variant}(?![a-z])", rf"\{letter}", text)  # one letter in two forms
    if (function := _FUNCTION_OF.match(text)) and re.match(r"\s*y\s*=", other) and function[1] in text[function.end() :]:
        return f"y={text[function.end() :]}"
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


def _inward(interval: re.Match[str]) -> str:
    if (interval["left"], interval["right"]) == ("[", "]"):
        return interval[0]
    left, right = interval["left"].replace("]", "("), interval["right"].replace("[", ")")
    ends = interval["ends"] if "," in interval["ends"] else interval["ends"].replace(";", ",")
    return f"{interval['before']}{left}{ends}{right}"


def _decide(answer: str, gold: str, levels: int, parsed: Any | None = None) -> Verdict:
    """Try the readers in turn, the most definite first; the last is algebra."""
    # words and notations before algebra, which reads the letters of a word as a product
    verdict = _by_words(answer, gold, levels) or _by_notation(answer, gold, levels)
    if verdict is None and levels:
        verdict = _by_claims(answer, gold, levels - 1) or _by_parts(answer, gold, levels - 1)
    verdict = verdict or _by_algebra(answer, gold, parsed)
    if verdict.right and (_unnamed(answer, gold) or _unnamed(gold, answer)):
        return unsure("an equation for a value")  # 2x = 6 is no more about 6 than about 3
    return verdict


def _by_algebra(answer: str, gold: str, parsed: Any | None) -> Verdict:
    """Algebra, in which letters are factors in either case: ba is ab, neo is not one, May is not Amy, and aba need not be aab."""
    verdict = by_measure(answer, gold, parsed)
    mine, theirs = read.lettered(answer), read.lettered(gold)
    left, others = mine - theirs, theirs - mine
    if not verdict.right or not mine or not theirs or not (left or others) or _folded(left) == _folded(others):
        return verdict
    words, letters = (*left, *others), ["".join(side.elements()) for side in (left, others)]
    one_case = sorted(letters[0]) == sorted(letters[1]) or {side.isupper() - side.islower() for side in letters} == {1, -1}
    # with a capital for some of the small letters it is not a product in another order
    if any(map(read.worded, words)) or not one_case:
        return WRONG
    return verdict if all(map(read.is_product, words)) else unsure("order of letters")


def _folded(words: Counter[str]) -> Counter[str]:
    return Counter(word.casefold() for word in words.elements())


# ---- words, notations


def _by_words(answer: str, gold: str, levels: int) -> Verdict | None:
    """Compare words, letters that name points or a choice, and empty answers."""
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
    """Compare numbers in a base, times of day, dates, ratios. A number without a base is in base ten."""
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
        worded = [" to " in read.plain(text) for text in (answer, gold)]
        # 6 to 8 may be a range, not 3 to 4; and 3:30 may be a time
        doubt = (all(worded) and parts != others) or (any(worded) and time is not None)
        return unsure("a ratio or a range") if same and doubt else right_if(same, "ratio")
    if longest > 2:
        return Verdict("wrong", "ratio")
    sides = ((parts, answer), (others, gold))
    one, other = (rf"\frac{{{pair[0]}}}{{{pair[1]}}}" if pair else text for pair, text in sides)
    verdict = _decide(one, other, levels - 1)
    if verdict.right and any(pair and ":" not in text for pair, text in sides):
        return unsure("a ratio or a range")  # of 3 to 4: may be 3/4, and may be from 3 to 4
    return unsure("a time or a ratio") if verdict.right and time is not None else verdict


def _by_base(answer: str, gold: str) -> Verdict:
    """Right in the requested base; the same number in another base is undecided: it may be the number before conversion."""
    mine, theirs = (read.based(text) or ((value := rational(spelling(text))) and (value[0], 10)) for text in (answer, gold))
    if theirs is not None and theirs[0] is None:
        return unsure("gold cannot be parsed")
    if mine is None or theirs is None or mine[0] != theirs[0]:
        return Verdict("wrong", "base")
    return RIGHT if mine[1] == theirs[1] else unsure("another base")


# ---- equations and lists


def _claim(text: str, levels: int) -> tuple[str, list[str]] | Verdict | None:
    r"""(name, values) of x = 7, 7 = x, 2 + 5 = 7, \frac13 \approx 0.333; None for another relation; wrong if it is false."""
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
    """Whether a side of an equation names a value: S, AB, f(2), P(A and B); |x| = 3 does not determine x."""
    return (_NAME.fullmatch(side) is not None and not _MODULUS.search(side)) or _FUNCTION.fullmatch(side) is not None


def _unnamed(text: str, other: str) -> bool:
    """Whether a text is an equation, or a list with one, other than a name with its value, and the other text a value."""
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
    """Whether a side of an equation has no letters except those of its unit and of functions."""
    digits = any(map(str.isdigit, side))
    return side.strip() in (r"\pi", "e") or (digits and _NUMERIC.fullmatch(measured(side).body) is not None)


def _near(exact: str, rounded: str) -> bool:
    """Whether a number may be an approximation of another after a sign of approximation: within half of its last place, or 1 %."""
    one, other = (parsed_of(measured(side).body) for side in (exact, rounded))
    if not (isinstance(one, Expr) and one.is_number and isinstance(other, Expr) and other.is_number):
        return False
    decimals = len(rounded.strip().partition(".")[2]) if rational(rounded.strip()) else 0
    slack = max(0.5 * 10.0**-decimals if abs(N(other)) >= 1 or decimals else 0.0, 0.01 * float(abs(N(one))))
    return bool(abs(N(one - other, 30)) <= slack)  # 30 digits: a difference of nearly equal numbers has few in float64


def _by_claims(answer: str, gold: str, levels: int) -> Verdict | None:
    """Compare equations that state the value of a name: both must be true, for one name, and one of their values that of the
    other."""
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
    # the last value first: after signs of approximation it is the intended answer
    for value, wanted in product(mine[1][::-1] if mine else [answer], theirs[1][::-1] if theirs else [gold]):
        verdict = _decide(value, wanted, levels)
        if verdict.label != "wrong":
            break
    return verdict


def _has_relation(text: str) -> bool:
    return "=" in text or _RELATIONS.search(text) is not None


def _by_parts(answer: str, gold: str, levels: int) -> Verdict | None:
    """Compare lists whose parts have units or words, in any order; lists of mathematics are left to algebra."""
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
        return bare(inside), parsed  # as written: math-verify drops dollar signs
    # for 50% the returned text is 50
    percent = isinstance(parsed, Mul) and parsed.args[-1:] == (UnevaluatedExpr(Rational(1, 100)),)
    return bare(text + r"\%" * (percent and "%" not in text)), parsed


def verify_math(
    completion: str,
    gold: str,
    *,
    answer_in: AnswerPlace = "boxed",
    tag: str = "SOLUTION",
    closed: bool = True,
    thinking: str = "think",
    in_thinking: bool = False,
    algebra_only: bool = False,
) -> Verdict:
    r"""Whether the answer of `completion` is `gold`. Never raises an error on any text; may never return (see `Pool`).

    answer_in, tag, closed, thinking, in_thinking  the place of the answer: the fields of `AnswerReading`
    algebra_only  equal text is not enough: for audits, which test how the parser reads a gold

    Reasons. right: "right". wrong: "no answer", "answer cut off", "answer cannot be parsed", "brackets", "base",
    "value".
    undecided: "not a text", "no gold", "gold cannot be parsed", "completion (gold, answer) of more than N characters",
    "brackets nested deeper than N", "a number of more than N digits", "unit", "amount", "an equation for a value" and other
    uncertain readings, or the name of an exception. Raises `ConfigError` as `AnswerReading` does.
    """
    reading = AnswerReading(answer_in, tag, closed, thinking, in_thinking)
    prepared = prepare(completion, gold, algebra_only=algebra_only, **reading_options(reading))
    if isinstance(prepared, Verdict):
        return prepared
    try:
        if prepared is None:
            return _judge_anywhere(extract(completion, reading)[0] or "", bare(gold))
        return _compare(*prepared.key[:2])
    except Exception as error:  # the parser and sympy raise almost any class on a text; an exception does not mean "wrong"
        return unsure(type(error).__name__)


__all__ = ["verify_math"]
