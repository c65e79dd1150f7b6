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
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise, product
from typing import Any

from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
from math_verify.grader import is_relation, unwrap_fcs
from sympy import (
    EmptySet,
    Expr,
    FiniteSet,
    Float,
    I,
    Intersection,
    Interval,
    Mul,
    N,
    Product,
    Rational,
    Set,
    Sum,
    Symbol,
    Tuple,
    UnevaluatedExpr,
    Union,
    evaluate,
    nan,
    oo,
    pi,
    zoo,
)  # fmt: skip

from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.answers import (
    MAX_ANSWER,
    MAX_COMPLETION,
    NO_ANSWER,
    RIGHT,
    Place,
    bare,
    by_spelling,
    last_box,
    last_number,
    last_tag,
    prepare,
    rational,
    spelling,
)
from sage_rlvr.verifiers.quantities import (
    EMPTY,
    Measured,
    based,
    choice,
    clock,
    date,
    denied,
    has_text,
    infinity,
    joined,
    letter,
    letters,
    listed,
    measured,
    radians,
    ratio,
    split,
    summed,
    worded,
)  # fmt: skip

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its time limits are off
MAX_DIGITS = 100_000  # of a power or a factorial that is worked out
MAX_DEPTH = 40  # brackets within brackets; the parser needs minutes for 400
# Letters that the parser takes for constants although a subscript makes them names, and subscripts that it cannot read.
_CONSTANT = re.compile(r"(?<![a-zA-Z\\])([EeIi])(?=_)")
_NAMES = {"e": r"\varrho ", "i": r"\varsigma "}
_NUMERAL = re.compile(r"(?<![\w.}^\\])\d+_(?:\{\d+\}|\d+)")
_SUBSCRIPT = re.compile(r"_\{\\(?:(?:text|mathrm|rm)\s*\{?\s*([a-zA-Z]+)\s*\}?|(odot))\}")
_LEVELS = 3  # how often an answer may be parted into answers
_MOST_PARTS = 12  # sides of an equation, terms of a ratio, parts of a list that are held against each other
_CONFIG = [
    LatexExtractionConfig(
        boxed_match_priority=-1,
        # units: math-verify takes 5t for 5, and drops whatever stands from the first \\text to the end
        normalization_config=NormalizationConfig(units=False, malformed_operators=True, nits=True),
    )
]
_ANYWHERE = [replace(_CONFIG[0], boxed_match_priority=50)]
_RELATIONS = re.compile(r"[<>]|\\(?:n?leq?|n?geq?|neq?|lt|gt|not|in|notin|subset\w*)(?![a-z])")
_EQUAL = {"=", r"\approx", r"\simeq", r"\sim", r"\doteq"}
_ABOUT = re.compile(r"\\(?:approx|simeq|sim|doteq)(?![a-z])")
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
_NOTHING = {r"\emptyset", r"\varnothing", r"\{\}"}
WRONG = Verdict("wrong", "value")
UNREADABLE = "answer cannot be parsed"


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


_POWER = re.compile(r"(?P<base>\d+|\)|\})\^(?:\{(?P<many>\d+)\}|(?P<one>\d))(?!\s*\^)")
_WRAPPED = re.compile(r"(?<!\w)(?:\\left)?\((\d+)(?:\\right)?\)|(?<=\^)\{\{(\d+)\}\}")


def too_long(text: str) -> bool:
    """Whether a power or a factorial of plain numbers has more than `MAX_DIGITS` digits; towers are worked out from the top."""
    if "^" not in text and "!" not in text:
        return False
    text = text.replace(" ", "")
    for _ in range(MAX_DEPTH):
        before = text
        text = _WRAPPED.sub(lambda found: found[1] or f"{{{found[2]}}}", text)
        if any(len(found[1]) > 5 for found in re.finditer(r"(\d+)!", text)):
            return True
        for found in _POWER.finditer(text):
            base, power = found["base"], found["many"] or found["one"]
            digits = len(base) if base not in ("0", "1") else 0
            if digits and (len(power) > 18 or int(power) * digits > MAX_DIGITS):
                return True
        text = _POWER.sub(_worked_out, text)
        if text == before:
            return False
    return True


def _worked_out(found: re.Match[str]) -> str:
    """A power of numbers as a number, if it is no longer than an exponent can be; else without its exponent."""
    base, power = found["base"], int((found["many"] or found["one"])[:19])
    if not base.isdigit():
        return base
    return str(int(base) ** power) if len(base) * power <= 18 else "9" * min(len(base) * power, 19)


def _in_base_ten(found: re.Match[str]) -> str:
    value = based(found[0])
    return found[0] if value is None else r"\text{no numeral}" if value[0] is None else f"{value[0]}"


def _readable(text: str) -> str:
    """A text in which E_1 and I_0 are names and no constants, 42_8 is 34, and subscripts are plain words."""
    text = _NUMERAL.sub(_in_base_ten, text)
    text = _SUBSCRIPT.sub(lambda found: f"_{{{found[1] or found[2]}}}", text)
    return _CONSTANT.sub(lambda found: _NAMES[found[1].lower()], text)


def _parse(text: str) -> Any | None:
    """One answer as a sympy object, or None when it is not mathematics. Raises when memory or the stack ran out."""
    text = _readable(text)
    found = parse(f"${text}$", _CONFIG, "no_fallback", "first_match", parsing_timeout=None, raise_on_error=True)
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
    """True when two numbers that math-verify calls equal differ by too much for their size; of lists, of any two of their parts.

    Allowed: 1e-4 of the larger when one is a decimal, 1e-12 when both are exact, nothing when both are rational.
    """
    if isinstance(gold, Interval) and isinstance(answer, Interval):
        return _far(gold.start, answer.start) or _far(gold.end, answer.end)
    if (
        isinstance(gold, (Tuple, FiniteSet))
        and isinstance(answer, (Tuple, FiniteSet))
        and len(gold.args) == len(answer.args)
    ):
        mine, theirs = _ordered(answer), _ordered(gold)
        return any(_far(a, b) for a, b in zip(theirs, mine, strict=True))
    if not (isinstance(gold, Expr) and isinstance(answer, Expr)):
        return False
    if gold.has(UnevaluatedExpr) or answer.has(UnevaluatedExpr):
        return False
    gold, answer = gold.doit(), answer.doit()
    if not (gold.is_number and answer.is_number):
        return False
    if gold.is_Rational and answer.is_Rational:
        return bool(gold != answer)
    if gold.is_infinite or answer.is_infinite:
        return bool(gold != answer)
    size, gap = max(abs(N(gold, 30)), abs(N(answer, 30))), abs(N(gold - answer, 30))
    return bool(gap > (1e-4 if gold.has(Float) or answer.has(Float) else 1e-12) * size)


def _ordered(found: Any) -> list[Any]:
    """The parts of a list in their order, of a set of real numbers by size."""
    if isinstance(found, FiniteSet) and all(
        getattr(part, "is_extended_real", False) and part.is_number for part in found.args
    ):
        return sorted(found.args, key=lambda part: N(part, 30))
    return list(found.args)


def _anywhere(completion: str) -> tuple[str, Any | None]:
    """(text, sympy object) of the answer that math-verify finds in a completion: a box, "the answer is", a number."""
    found = parse(completion, [*_ANYWHERE, ExprExtractionConfig()], parsing_timeout=None, raise_on_error=True)
    texts = [item for item in found if isinstance(item, str)]
    objects = [item for item in found if not isinstance(item, str)]
    parsed = objects[0] if objects else None
    inside, _ = last_box(completion)
    if texts and inside and normalize_latex(inside, _CONFIG[0].normalization_config) == texts[-1]:
        return bare(inside), parsed  # as it was written: math-verify drops dollar signs
    # of 50% the text that comes back is 50
    sign = r"\%" if isinstance(parsed, Mul) and parsed.args[-1:] == (UnevaluatedExpr(Rational(1, 100)),) else ""
    return bare(texts[-1] + sign * ("%" not in texts[-1])) if texts else "", parsed


def _compare(answer: str, gold: str, parsed: Any | None = None) -> Verdict:
    """The verdict on one bare answer. `parsed`: the answer, if it is parsed already."""
    if max(_depth(answer), _depth(gold)) > MAX_DEPTH:
        return Verdict("undecided", f"brackets nested deeper than {MAX_DEPTH}")
    if too_long(answer) or too_long(gold):
        return Verdict("undecided", f"a number of more than {MAX_DIGITS} digits")
    return _decide(_rewritten(answer, gold), _rewritten(gold, answer), parsed, _LEVELS)


def _rewritten(text: str, other: str) -> str:
    r"""A text with degrees in `\sin` as radians, of a set builder its condition, x = 1, y = 2 as a point where the other is one."""
    text = infinity(text) or radians(text)
    builder = _BUILDER.fullmatch(text)
    if builder:
        return builder[1].strip()
    if _brackets(other) == "order" and "=" in text and "=" not in other:
        found = [_ASSIGNED.fullmatch(part) for part in listed(text)]
        values = {one[1]: one[2].strip() for one in found if one}
        if len(found) > 1 and len(values) == len(found):
            return f"({','.join(values[name] for name in sorted(values))})"
    if text.count(r"\pm") == 1 and text.find(r"\pm") > 0 and _depth(text[: text.find(r"\pm")]) and "," not in text:
        return f"{text.replace(chr(92) + 'pm', '+')}, {text.replace(chr(92) + 'pm', '-')}"
    return text


def _decide(answer: str, gold: str, parsed: Any | None, levels: int) -> Verdict:
    """The readers in turn, what is most definite first; the last is algebra."""
    found = _by_words(answer, gold, levels) or _by_notation(answer, gold, levels)
    if found is None and levels:
        found = _by_claims(answer, gold, levels - 1) or _by_parts(answer, gold, levels - 1)
    found = found or _by_measure(answer, gold, parsed)
    if found.right and (_unnamed(answer, gold) or _unnamed(gold, answer)):
        return Verdict("undecided", "an equation for a value")  # 2x = 6 says no more of 6 than of 3
    return found


def _right_if(same: bool, reason: str = "value") -> Verdict:
    return RIGHT if same else Verdict("wrong", reason)


def _by_words(answer: str, gold: str, levels: int) -> Verdict | None:
    """Words, letters that name points or a choice, and nothing at all."""
    mine, theirs = worded(answer), worded(gold)
    nothing = [said in EMPTY or spelling(text) in _NOTHING for said, text in ((mine, answer), (theirs, gold))]
    if any(nothing):
        if not all(nothing) and "none" in (mine, theirs) and "0" in (answer, gold):
            return Verdict("undecided", "none or zero")
        return _right_if(all(nothing))
    if mine is not None and theirs is not None:
        return _right_if(mine == theirs)
    if (points := letters(answer)) and (named := letters(gold)):
        if len(points) == 2 and points == named[::-1]:
            return Verdict("undecided", "order of letters")  # a product, or a segment, or points in another order
        return _right_if(points == named, "order of letters")
    for one, other in ((answer, gold), (gold, answer)):
        if denied(one) and letter(other) is not None:
            return Verdict("undecided", "a choice denied")
        chosen = choice(one)
        if chosen is not None and levels:
            if (wanted := letter(other)) is not None:
                return _right_if(chosen[0] == wanted)
            again = choice(other)
            if again is not None and again[0] != chosen[0]:
                return WRONG
            mine, theirs = (chosen[1], again[1] if again else other)
            return _decide(mine, theirs, None, levels - 1) if one is answer else _decide(theirs, mine, None, levels - 1)
    return None


def _by_notation(answer: str, gold: str, levels: int) -> Verdict | None:
    """Numbers in a base, times of day, dates, ratios. A number without a base is one of base ten."""
    mine, theirs = based(answer), based(gold)
    if mine is not None or theirs is not None:
        return _by_base(answer, gold, mine, theirs)
    (early, late), (day, other_day) = (clock(answer), clock(gold)), (date(answer), date(gold))
    if day is not None or other_day is not None:
        return _right_if(day == other_day, "date")
    if early is not None and late is not None:
        if not early.same(late) and early.ratio(late):
            return Verdict("undecided", "a time or a ratio")
        return _right_if(early.same(late), "time")
    told = early or late
    if told is not None and (told.half or not told.colon):
        return Verdict("wrong", "time")
    parts, others = ratio(answer), ratio(gold)
    if not (parts or others) or not levels or max(len(parts or ()), len(others or ())) > _MOST_PARTS:
        return None
    if parts and others:
        same = len(parts) == len(others) and all(
            _decide(rf"\frac{{{a}}}{{{parts[-1]}}}", rf"\frac{{{b}}}{{{others[-1]}}}", None, levels - 1).right
            for a, b in zip(parts[:-1], others[:-1], strict=True)
        )
        return _right_if(same, "ratio")
    if len(parts or others or []) > 2:
        return Verdict("wrong", "ratio")
    one, other = (
        rf"\frac{{{pair[0]}}}{{{pair[1]}}}" if pair else text for pair, text in ((parts, answer), (others, gold))
    )
    found = _decide(one, other, None, levels - 1)
    return Verdict("undecided", "a time or a ratio") if found.right and told is not None else found


def _by_base(
    answer: str, gold: str, mine: tuple[Fraction | None, int] | None, theirs: tuple[Fraction | None, int] | None
) -> Verdict:
    """Right in the base that was asked for; the same number in another base is undecided: it may be what was to be converted."""
    sides = []
    for text, found in ((answer, mine), (gold, theirs)):
        value = rational(spelling(text)) if found is None else None
        sides.append(found or (value and (value[0], 10)))
    if sides[1] is not None and sides[1][0] is None:
        return Verdict("undecided", "gold cannot be parsed")
    if sides[0] is None or sides[1] is None or sides[0][0] != sides[1][0]:
        return Verdict("wrong", "base")
    return RIGHT if sides[0][1] == sides[1][1] else Verdict("undecided", "another base")


def _claim(text: str, levels: int) -> tuple[str, list[str]] | Verdict | None:
    r"""(name, values) of x = 7, 7 = x, 2 + 5 = 7, \frac13 \approx 0.333; None for another relation; wrong where it is false."""
    if ("=" not in text and not _ABOUT.search(text)) or _RELATIONS.search(text):
        return None
    sides = split(text, _EQUAL)
    marks = re.findall(r"=|\\(?:approx|simeq|sim|doteq)(?![a-z])", text)
    if len(sides) != len(marks) + 1 or len(sides) > _MOST_PARTS or len(split(text, {",", ";"})) > 1:
        return None
    if not sides[0] and len(sides) > 1:
        sides, marks = sides[1:], marks[1:]
    numeric = [bool(side) and _is_numeric(side) for side in sides]
    if len(sides) == 2 and numeric == [True, False]:
        sides, numeric = sides[::-1], [False, True]
    told = [side for side, is_number in zip(sides, numeric, strict=True) if is_number]
    if (
        set(marks) <= {"="}
        and not all(numeric)
        and any(not _decide(b, a, None, levels).right for a, b in pairwise(told))
    ):
        return Verdict("wrong", "a false equation")  # 3 = x = 4
    name = "" if numeric[0] else sides[0]
    values, signs = (sides, marks) if numeric[0] else (sides[1:], marks[1:])
    if not all(numeric[len(sides) - len(values) :]) or not values or (name and not _is_name(name)):
        return None
    for i, sign in enumerate(signs):
        near = sign != "=" and _near(values[i], values[i + 1])
        if not near and not _decide(values[i + 1], values[i], None, levels).right:
            return Verdict("wrong", "a false equation")
    return name, values


def _is_name(side: str) -> bool:
    """Whether a side of an equation names a value: S, AB, f(2), P(A and B); |x| = 3 does not say what x is."""
    return (_NAME.fullmatch(side) is not None and not _MODULUS.search(side)) or _FUNCTION.fullmatch(side) is not None


def _unnamed(text: str, other: str) -> bool:
    """Whether a text is an equation, or a list with one, that is no name with its value, and the other text a value."""
    if "=" not in text or _has_relation(other):
        return False
    for part in split(text, {",", ";"}):
        sides = split(part, {"="})
        if len(sides) < 2 or not sides[0] or _is_name(sides[0]) or sides[0].startswith(r"\{"):
            continue
        if _is_numeric(sides[0]):
            if all(_is_numeric(side) or _is_name(side) for side in sides[1:]):
                continue
            return True
        left = _parse(sides[0])
        if not isinstance(left, Expr) or left.free_symbols:
            return True
    return False


def _is_numeric(side: str) -> bool:
    """Whether a side of an equation has no letter but those of its unit and of functions."""
    return (_NUMERIC.fullmatch(measured(side).body) is not None and any(map(str.isdigit, side))) or side.strip() in (
        r"\pi",
        "e",
    )


def _near(exact: str, rounded: str) -> bool:
    """Whether a number may be written for another behind a sign of approximation: half of its last place, or 1 %."""
    one, other = (_parse(measured(side).body) for side in (exact, rounded))
    if not (isinstance(one, Expr) and isinstance(other, Expr) and one.is_number and other.is_number):
        return False
    places = len(rounded.strip().partition(".")[2]) if rational(rounded.strip()) else 0
    slack = max(0.5 * 10.0**-places if abs(N(other)) >= 1 or places else 0.0, 0.01 * float(abs(N(one))))
    return bool(abs(N(one - other, 30)) <= slack)


def _by_claims(answer: str, gold: str, levels: int) -> Verdict | None:
    """Equations that say what a number is: both must be true in themselves, of one name, and one of their values the other's."""
    mine, theirs = _claim(answer, levels), _claim(gold, levels)
    if isinstance(mine, Verdict):
        return mine
    if isinstance(theirs, Verdict):
        return Verdict("undecided", "gold is a false equation")
    if mine is None and theirs is None:
        return None
    if mine and theirs and mine[0] and theirs[0] and spelling(mine[0]) != spelling(theirs[0]):
        return WRONG
    if (mine is None and _has_relation(answer)) or (theirs is None and _has_relation(gold)):
        return None
    found = WRONG
    for value in mine[1][::-1] if mine else [answer]:
        for wanted in theirs[1][::-1] if theirs else [gold]:
            found = _decide(value, wanted, None, levels)
            if found.label != "wrong":
                return found
    return found


def _has_relation(text: str) -> bool:
    return "=" in text or _RELATIONS.search(text) is not None


def _by_parts(answer: str, gold: str, levels: int) -> Verdict | None:
    """Lists whose parts have units or words of their own, in any order; lists of mathematics are left to algebra."""
    mine, theirs = listed(answer), listed(gold)
    if (len(mine) < 2 and len(theirs) < 2) or summed(answer) or summed(gold):
        return None
    if (
        not any(has_text(part) or not measured(part).bare for part in (*mine, *theirs))
        or max(len(mine), len(theirs)) > _MOST_PARTS
    ):
        return None
    if len(mine) != len(theirs):
        return WRONG
    left, unsure = list(theirs), False
    for part in mine:
        verdicts = [_decide(part, wanted, None, levels) for wanted in left]
        at = next((i for i, verdict in enumerate(verdicts) if verdict.right), None)
        if at is None:
            unsure = unsure or any(verdict.label == "undecided" for verdict in verdicts)
            if not unsure:
                return WRONG
        else:
            del left[at]
    if not left and {"and", "or"} == joined(answer) ^ joined(gold) and not re.search(r"\d", answer + gold):
        return Verdict("undecided", "and, or")  # Al or Bo is not both
    return Verdict("undecided", "unit") if left else RIGHT


def _by_measure(answer: str, gold: str, parsed: Any | None) -> Verdict:
    """Units compared or converted, amounts and percent signs resolved, the rest by algebra.

    A unit on one side only is left out; degrees then may be radians too, and a percentage a share.
    """
    mine, theirs = summed(answer) or measured(answer), summed(gold) or measured(gold)
    if mine == Measured(answer) and theirs == Measured(gold):
        return _algebra(answer, gold, parsed)
    factors, doubt = _factors(mine, theirs), False
    if factors is None:
        degrees = {kind for unit in (*mine.units, *theirs.units) for kind, _ in unit.dimensions}
        return Verdict("undecided" if degrees <= {"celsius", "fahrenheit", "kelvin"} else "wrong", "unit")
    if mine.noun != theirs.noun and (mine.noun or mine.units) and (theirs.noun or theirs.units):
        doubt = True  # apples and pears, students and people: whether these are one is not known here
    if (mine.side and theirs.side and mine.side != theirs.side) or mine.doubt or theirs.doubt:
        doubt = True  # meters east and meters west; 4 are left, 12 fewer
    if mine.percent != theirs.percent and (mine.noun or theirs.noun):
        doubt = True
    found = WRONG
    for factor in factors:
        found = _algebra(mine.body, theirs.body, None, factor)
        if found.label != "wrong":
            return Verdict("undecided", "unit") if found.right and doubt else found
    for factor in _other_factors(mine, theirs):
        if _algebra(mine.body, theirs.body, None, factor).right:
            return Verdict("undecided", "amount")
    return found


def _other_factors(mine: Measured, theirs: Measured) -> list[Any]:
    """What `_factors` says where an amount has its other reading; for numbers without a unit on one side at least."""
    ways = [
        (replace(mine, scale=a), replace(theirs, scale=b))
        for a in (mine.scale, *mine.other)
        for b in (theirs.scale, *theirs.other)
    ]
    return [factor for one, other in ways[1:] for factor in _factors(one, other) or ()]


def _factors(mine: Measured, theirs: Measured) -> list[Any] | None:
    """What the answer's body may be multiplied with to be compared with the gold's; None where the units are of two kinds."""
    scale = Rational(mine.scale.numerator, mine.scale.denominator) * Rational(
        theirs.scale.denominator, theirs.scale.numerator
    )
    if (mine.percent and not theirs.percent and theirs.units) or (theirs.percent and not mine.percent and mine.units):
        return None
    if mine.units and theirs.units:
        # of one unit on both sides one reading is meant
        pairs = (
            zip(mine.units, theirs.units, strict=True)
            if mine.units == theirs.units
            else product(mine.units, theirs.units)
        )
        ratios = [(a.size / b.size, b.pi - a.pi) for a, b in pairs if a.dimensions == b.dimensions]
        made = [scale * Rational(size.numerator, size.denominator) * pi**power for size, power in dict.fromkeys(ratios)]
        return made or None
    made = [scale]
    if mine.percent != theirs.percent:
        made.append(scale / 100 if mine.percent else scale * 100)
    for one, other, power in ((mine, theirs, 1), (theirs, mine, -1)):
        degrees = any(unit.dimensions == (("degree", 1),) and not unit.pi for unit in one.units)
        if degrees and other.bare:
            made.append(scale * (pi / 180) ** power)
    return made


def _algebra(answer: str, gold: str, parsed: Any | None = None, factor: Any = 1) -> Verdict:
    """The verdict of math-verify on factor * answer and gold, corrected."""
    target = _parse_gold(gold)
    if target is None:
        return Verdict("undecided", "gold cannot be parsed")
    if parsed is None:
        parsed = _parse(answer)
    if parsed is None:
        return Verdict("wrong", UNREADABLE)
    if {_brackets(answer), _brackets(gold)} == {"set", "order"}:
        return Verdict("wrong", "brackets")
    if factor != 1:
        numbers = isinstance(parsed, Expr), isinstance(target, Expr)
        if not all(numbers):
            return WRONG if any(numbers) else Verdict("undecided", "unit of a list")
        parsed = factor * parsed.doit()
    if any(side in (nan, zoo) for side in (target, parsed)):
        return Verdict("undecided" if target in (nan, zoo) else "wrong", "not a number")
    if any(side in (oo, -oo) for side in (target, parsed)):
        return _right_if(target == parsed)
    target, parsed = _as_sets(target, gold, parsed, answer)
    equal = verify(target, parsed, allow_set_relation_comp=True, timeout_seconds=None, raise_on_error=True)
    if not equal and _names(target) == _names(parsed) and (_has_i(target) or _has_i(parsed)):
        target, parsed = _complex(target), _complex(parsed)
        equal = verify(target, parsed, timeout_seconds=None, raise_on_error=True)
    return _right_if(bool(equal) and not _far(target, parsed))


_I = Symbol("i", real=True)


def _names(side: Any) -> set[Any]:
    return set(getattr(side, "free_symbols", ())) - {_I}


def _has_i(side: Any) -> bool:
    return _I in getattr(side, "free_symbols", ()) and not side.has(Sum, Product)


def _complex(side: Any) -> Any:
    """The letter i as the imaginary unit."""
    return side.subs(_I, I) if _has_i(side) else side


def _as_sets(target: Any, gold: str, parsed: Any, answer: str) -> tuple[Any, Any]:
    """Both sides, a list of inequalities as the set of their solutions where the other side is a set of numbers."""
    if isinstance(target, Set) and isinstance(parsed, Set):
        if _inequalities(parsed) and not _inequalities(target):
            parsed = _solved(parsed, answer)
        elif _inequalities(target) and not _inequalities(parsed):
            target = _solved(target, gold)
    return target, parsed


def _inequalities(side: Any) -> bool:
    return isinstance(side, FiniteSet) and bool(side.args) and all(is_relation(part) for part in side.args)


def _solved(side: Any, text: str) -> Any:
    """What all inequalities allow; what any does where "or" stands between them, or nothing fulfils them all and no "and" does.

    Inequalities of several variables stay as they are: no set of numbers solves them.
    """
    if len(side.free_symbols) > 1:
        return side
    each = [unwrap_fcs(part).as_set() for part in side.args]
    both = Intersection(*each)
    if re.search(r"(?<![a-z])or(?![a-z])|\\lor|\\vee|\\cup", text):
        return Union(*each)
    stated = re.search(r"(?<![a-z])and(?![a-z])|\\land|\\wedge|\\cap", text)
    return Union(*each) if both is EmptySet and not stated else both


def _judge_anywhere(completion: str, gold: str) -> Verdict:
    answer, parsed = _anywhere(completion)
    if not answer:
        return Verdict("wrong", NO_ANSWER)
    found = by_spelling(answer, gold) or _compare(answer, gold)
    return _compare(answer, gold, parsed) if found.reason == UNREADABLE else found


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
    found = prepare(completion, gold, answer_in=answer_in, tag=tag, closed=closed, algebra_only=algebra_only)
    if isinstance(found, Verdict):
        return found
    try:
        return _judge_anywhere(completion, bare(gold)) if found is None else _compare(*found.key[:2])
    except Exception as error:
        return Verdict("undecided", type(error).__name__)


__all__ = [
    "MAX_ANSWER",
    "MAX_COMPLETION",
    "MAX_DEPTH",
    "MAX_DIGITS",
    "Place",
    "last_box",
    "last_number",
    "last_tag",
    "too_long",
    "verify_math",
]
