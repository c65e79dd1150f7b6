r"""Compare two answers by algebra: parsing and comparing by math-verify and sympy, corrected where they are wrong.

- A gold such as `\sqrt{51}` parses only inside `$...$`: it is wrapped.
- Numbers are compared to 6 or 15 decimals, so that 1/2^99 = 1/2^98: equality is confirmed relative to their size.
- `(1,2)` equals `\{1,2\}`: brackets are compared.
- Its time limits are alarm signals, which work only in the main thread and never stop a big-integer power: they are off. This
module does not stop an endless comparison; `sage_rlvr.verifiers.pool.Pool` does.
"""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any

from latex2sympy2_extended import NormalizationConfig, latex2sympy
from math_verify import LatexExtractionConfig, parse, verify
from math_verify.grader import is_relation, unwrap_fcs
from sympy import (
    EmptySet,
    Expr,
    FiniteSet,
    Float,
    I,
    Intersection,
    Interval,
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

from sage_rlvr.verifiers.answers import MAX_DEPTH, MAX_DIGITS, RIGHT, spelling
from sage_rlvr.verifiers.quantities import based
from sage_rlvr.verifiers.units import Measured, measured, summed
from sage_rlvr.verifiers.verdict import Verdict

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its time limits are off
WRONG = Verdict("wrong", "value")
UNREADABLE = "answer cannot be parsed"
CONFIG = LatexExtractionConfig(
    boxed_match_priority=-1,
    # units: math-verify takes 5t for 5, and drops the text from the first \\text to the end
    normalization_config=NormalizationConfig(units=False, malformed_operators=True, nits=True),
)


def right_if(same: bool, reason: str = "value") -> Verdict:
    """Right, or wrong for a reason."""
    return RIGHT if same else Verdict("wrong", reason)


def unsure(reason: str) -> Verdict:
    """Undecided, with the reason."""
    return Verdict("undecided", reason)


# ---- computations that are too large


def depth(text: str) -> int:
    """The largest nesting depth of brackets of any kind."""
    now = deepest = 0
    for character in text:
        now += (character in "([{") - (character in ")]}")
        deepest = max(deepest, now)
    return deepest


_POWER = re.compile(r"(?P<base>\d+|\)|\})\^(?:\{(?P<many>\d+)\}|(?P<one>\d))(?!\s*\^)")
_WRAPPED = re.compile(r"(?<!\w)(?:\\left)?\((\d+)(?:\\right)?\)|(?<=\^)\{\{(\d+)\}\}")


def too_long(text: str) -> bool:
    """Whether a power or a factorial of plain numbers has more than `MAX_DIGITS` digits; towers are computed from the top."""
    if "^" not in text and "!" not in text:
        return False
    text = text.replace(" ", "")
    for _ in range(MAX_DEPTH):
        before, text = text, _WRAPPED.sub(lambda match: match[1] or f"{{{match[2]}}}", text)
        if any(len(match[1]) > 5 for match in re.finditer(r"(\d+)!", text)) or any(map(_huge, _POWER.finditer(text))):
            return True
        text = _POWER.sub(_worked_out, text)
        if text == before:
            return False
    return True


def _huge(match: re.Match[str]) -> bool:
    base, power = match["base"], match["many"] or match["one"]
    # its digits are counted first: int() raises for a text of more than 4,300 digits
    return base not in ("0", "1") and (len(power) > 18 or int(power) * len(base) > MAX_DIGITS)


def _worked_out(match: re.Match[str]) -> str:
    """A power of numbers as a number, if it is no longer than an exponent can be; otherwise without its exponent."""
    base, power = match["base"], int((match["many"] or match["one"])[:19])
    if not base.isdigit():
        return base
    return str(int(base) ** power) if len(base) * power <= 18 else "9" * min(len(base) * power, 19)


# ---- parsing

# Letters that the parser reads as constants although a subscript makes them names, and subscripts that it cannot read.
_CONSTANT = re.compile(r"(?<![a-zA-Z\\])([EeIi])(?=_)")
_NAMES = {"e": r"\varrho ", "i": r"\varsigma "}
_NUMERAL = re.compile(r"(?<![\w.}^\\])\d+_(?:\{\d+\}|\d+)")
_ROOT = re.compile(r"\^(?:\{(-?)0?\.50*\}|0?\.50*(?!\d))")  # math-verify compares no decimal power with a root
_SUBSCRIPT = re.compile(r"_\{\\(?:(?:text|mathrm|rm)\s*\{?\s*([a-zA-Z]+)\s*\}?|(odot))\}")


def parsed_of(text: str) -> Any | None:
    """One answer as a sympy object, or None when it is not mathematics. Raises an error when memory or the stack ran out.

    E_1 and I_0 are names and not constants, 42_8 is 34, subscripts are plain words.
    """
    text = _ROOT.sub(lambda match: rf"^{{{match[1] or ''}1/2}}", _NUMERAL.sub(_in_base_ten, text))
    text = _SUBSCRIPT.sub(lambda match: f"_{{{match[1] or match[2]}}}", text)
    text = _CONSTANT.sub(lambda match: _NAMES[match[1].lower()], text)
    parsed = parse(f"${text}$", [CONFIG], "no_fallback", "first_match", parsing_timeout=None, raise_on_error=True)
    if parsed:
        return _real_symbols(parsed[0])
    try:  # math-verify treats every exception as "not mathematics"; parse again and let through the two that are not
        latex2sympy(text)
    except (MemoryError, RecursionError):
        raise
    except Exception:
        return None
    return None


_parsed_gold = lru_cache(maxsize=4096)(parsed_of)


def _in_base_ten(match: re.Match[str]) -> str:
    value = based(match[0])
    return match[0] if value is None else r"\text{no numeral}" if value[0] is None else f"{value[0]}"


def _real_symbols(parsed: Any) -> Any:
    """The same with all symbols real, as the parser makes them except if it sees a separate letter i."""
    symbols = getattr(parsed, "free_symbols", ())
    others = {symbol: Symbol(symbol.name, real=True) for symbol in symbols if symbol.is_real is False}
    if not others:
        return parsed
    with evaluate(False):
        return parsed.xreplace(others)


# ---- comparing


def brackets(text: str) -> str:
    """ "set" for {...}, "order" for (...) and [...], "" for an answer without brackets."""
    text = spelling(text)
    if text.startswith(r"\{") and text.endswith(r"\}"):
        return "set"
    return "order" if text[:1] in ("(", "[") and text[-1:] in (")", "]") else ""


_CLOSED = re.compile(r"\\infty\s*(?:\\right)?\s*\]|\[\s*[-+]?\s*\\infty")


def compare(answer: str, gold: str, parsed: Any | None = None, factor: Any = 1) -> Verdict:
    """The verdict of math-verify on factor * answer and gold, corrected. parsed: the answer, if it is already parsed."""
    target = _parsed_gold(gold)
    if target is None:
        return unsure("gold cannot be parsed")
    parsed = parsed_of(answer) if parsed is None else parsed
    if parsed is None:
        return Verdict("wrong", UNREADABLE)
    if {brackets(answer), brackets(gold)} == {"set", "order"}:
        return Verdict("wrong", "brackets")
    if factor != 1:
        numbers = isinstance(parsed, Expr), isinstance(target, Expr)
        if not all(numbers):
            return WRONG if any(numbers) else unsure("unit of a list")
        parsed = factor * parsed.doit()
    if any(side in (nan, zoo) for side in (target, parsed)):
        return Verdict("undecided" if target in (nan, zoo) else "wrong", "not a number")
    if any(side in (oo, -oo) for side in (target, parsed)):  # the difference of two infinities is not a number
        return right_if(target == parsed)
    if isinstance(target, Set) and isinstance(parsed, Set) and _inequalities(parsed) != _inequalities(target):
        target, parsed = _solved(target, gold), _solved(parsed, answer)
    equal = verify(target, parsed, allow_set_relation_comp=True, timeout_seconds=None, raise_on_error=True)
    if not equal and _names(target) == _names(parsed) and (_has_i(target) or _has_i(parsed)):
        target, parsed = (side.subs(_I, I) if _has_i(side) else side for side in (target, parsed))
        equal = verify(target, parsed, timeout_seconds=None, raise_on_error=True)
    if equal and (_CLOSED.search(answer) is None) != (_CLOSED.search(gold) is None):
        return unsure("closed at infinity")  # the parser opens [2, \\infty]
    return right_if(bool(equal) and not _far(target, parsed))


def _far(gold: Any, answer: Any) -> bool:
    """True when two numbers that math-verify calls equal differ by too much for their size; for lists, if any two parts do.

    Allowed: 1e-4 of the larger when one is a decimal, 1e-12 when both are exact, 0 when both are rational.
    """
    sides = gold, answer
    if all(isinstance(side, Interval) for side in sides):
        return _far(gold.start, answer.start) or _far(gold.end, answer.end)
    if all(isinstance(side, (Tuple, FiniteSet)) for side in sides) and len(gold.args) == len(answer.args):
        parts = [_ordered(answer), _ordered(gold)]
        return any(_far(a, b) for b, a in zip(*parts, strict=True))
    if not all(isinstance(side, Expr) for side in sides) or any(side.has(UnevaluatedExpr) for side in sides):
        return False
    gold, answer = gold.doit(), answer.doit()
    if not (gold.is_number and answer.is_number):
        return False
    if (gold.is_Rational and answer.is_Rational) or gold.is_infinite or answer.is_infinite:
        return bool(gold != answer)
    # 30 digits: in doubles the difference of two nearly equal surds has no correct digit
    size, gap = max(abs(N(gold, 30)), abs(N(answer, 30))), abs(N(gold - answer, 30))
    return bool(gap > (1e-4 if gold.has(Float) or answer.has(Float) else 1e-12) * size)


def _ordered(collection: Any) -> list[Any]:
    """The parts of a list in their order, of a set of real numbers by size."""
    real = all(getattr(part, "is_extended_real", False) and part.is_number for part in collection.args)
    by_size = isinstance(collection, FiniteSet) and real
    return sorted(collection.args, key=lambda part: N(part, 30)) if by_size else list(collection.args)


_I = Symbol("i", real=True)  # which may be the imaginary unit


def _names(side: Any) -> set[Any]:
    return set(getattr(side, "free_symbols", ())) - {_I}


def _has_i(side: Any) -> bool:
    return _I in getattr(side, "free_symbols", ()) and not side.has(Sum, Product)


def _inequalities(side: Any) -> bool:
    return isinstance(side, FiniteSet) and bool(side.args) and all(is_relation(part) for part in side.args)


def _solved(side: Any, text: str) -> Any:
    """Return the solution set of a list of inequalities; any other set is unchanged.

    The solutions of all inequalities; those of any if "or" joins them, or if no number solves all and no "and" does.
    Inequalities of several variables are unchanged: no set of numbers solves them.
    """
    if not _inequalities(side) or len(side.free_symbols) > 1:
        return side
    each = [unwrap_fcs(part).as_set() for part in side.args]
    both = Intersection(*each)
    if re.search(r"(?<![a-z])or(?![a-z])|\\lor|\\vee|\\cup", text):
        return Union(*each)
    stated = re.search(r"(?<![a-z])and(?![a-z])|\\land|\\wedge|\\cap", text)
    return Union(*each) if both is EmptySet and not stated else both


# ---- units


def by_measure(answer: str, gold: str, parsed: Any | None) -> Verdict:
    """Verdict by comparing or converting units, resolving amounts and percent signs, and comparing the rest by algebra.

    A unit on only one side is ignored; degrees then may be radians too, and a percentage a share.
    """
    mine, theirs = summed(answer) or measured(answer), summed(gold) or measured(gold)
    if mine == Measured(answer) and theirs == Measured(gold):
        return compare(answer, gold, parsed)
    factors = _factors(mine, theirs)
    if factors is None:
        degrees = {kind for unit in (*mine.units, *theirs.units) for kind, _ in unit.dimensions}
        return Verdict("undecided" if degrees <= {"celsius", "fahrenheit", "kelvin"} else "wrong", "unit")
    verdict = WRONG
    for factor in factors:
        verdict = compare(mine.body, theirs.body, None, factor)
        if verdict.right and mine.percent != theirs.percent and factor == factors[0] and _is_share(theirs.body):
            verdict = unsure("a percentage or a share")  # 0.5 % or 0.5: the gold may be either
        if verdict.label != "wrong":
            return unsure("unit") if verdict.right and _doubtful(mine, theirs) else verdict
    for factor in _other_factors(mine, theirs):
        if compare(mine.body, theirs.body, None, factor).right:
            return unsure("amount")
    return verdict


def _doubtful(mine: Measured, theirs: Measured) -> bool:
    """Whether two amounts of one value may still be of different things."""
    if mine.doubt or theirs.doubt:  # 4 are left, 12 fewer
        return True
    if mine.noun != theirs.noun and (mine.noun or mine.units) and (theirs.noun or theirs.units):
        return True  # apples and pears, students and people: whether these are the same is not known
    if mine.side and theirs.side and mine.side != theirs.side:  # meters east and meters west
        return True
    return mine.percent != theirs.percent and bool(mine.noun or theirs.noun)


def _is_share(text: str) -> bool:
    """Whether a number is between -1 and 1."""
    number = parsed_of(text)
    return isinstance(number, Expr) and bool(number.is_number) and bool(number.is_real) and bool(abs(N(number)) < 1)


def _other_factors(mine: Measured, theirs: Measured) -> list[Any]:
    """`_factors` for the other readings of an amount; only if at least one side has no unit."""
    ways = list(product((mine.scale, *mine.other), (theirs.scale, *theirs.other)))[1:]
    pairs = ((replace(mine, scale=a), replace(theirs, scale=b)) for a, b in ways)
    return [factor for pair in pairs for factor in _factors(*pair) or ()]


def _factors(mine: Measured, theirs: Measured) -> list[Any] | None:
    """Factors by which the answer's body may be multiplied before it is compared with the gold's; None if the units are of two
    kinds."""
    if (mine.percent and not theirs.percent and theirs.units) or (theirs.percent and not mine.percent and mine.units):
        return None
    # exact: with a float factor 1 inch and 2.54 cm would be decimals, which may differ by 1e-4
    scale = Rational(*(mine.scale / theirs.scale).as_integer_ratio())
    if mine.units and theirs.units:
        one_unit = mine.units == theirs.units  # on both sides: only one reading is possible
        pairs = zip(mine.units, theirs.units, strict=True) if one_unit else product(mine.units, theirs.units)
        ratios = dict.fromkeys((a.size / b.size, b.pi - a.pi) for a, b in pairs if a.dimensions == b.dimensions)
        return [scale * Rational(*size.as_integer_ratio()) * pi**power for size, power in ratios] or None
    made = [scale]
    if mine.percent != theirs.percent:
        made.append(scale / 100 if mine.percent else scale * 100)
    for one, other, power in ((mine, theirs, 1), (theirs, mine, -1)):
        degrees = any(unit.dimensions == (("degree", 1),) and not unit.pi for unit in one.units)
        if degrees and other.bare:
            made.append(scale * (pi / 180) ** power)
    return made


__all__ = [
    "CONFIG", "UNREADABLE", "WRONG", "brackets", "by_measure", "compare", "depth", "parsed_of",
    "right_if", "too_long", "unsure",
]  # fmt: skip
