r"""Parts of an answer besides its number: units, amounts, signs, words. Text only.

    measured:  5.4\text{ cents}        -> body 5.4, unit cents        body = the part for algebra
    summed:    2 hours 30 minutes      -> body 9000, unit seconds

Algebra knows none of these: math-verify drops any text after a number, including the word "not" and a second number. A reader
returns None for a text that is not of its kind.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

from sage_rlvr.verifiers.latex import BLOCK, SPACE, plain

_SPACES_AT_END = re.compile(rf"(?:{SPACE.pattern})+$")
_TOKEN = re.compile(
    rf"(?P<block>{BLOCK})|(?P<degree>\^\s*(?:\\circ|\{{\s*\\circ\s*\}}))"
    r"|(?P<space>(?:\\[,;:! ]|\\q?quad(?![a-z])|~|\s)+)"
    r"|(?P<power>\^\s*(?:-?\d|\{\s*-?\d+\s*\}))|(?P<percent>\\?%)|(?P<command>\\[a-zA-Z]+|\\.)|(?P<word>[A-Za-z]+)|(?P<other>.)",
    re.DOTALL,
)

# ---- units: dimensions -> names -> how many of the first unit of its kind

Dimensions = tuple[tuple[str, int], ...]
_F = Fraction
_TABLE: dict[str, dict[str, Fraction]] = {
    "length": {
        "m meter metre": _F(1), "km kilometer kilometre": _F(1000), "dm decimeter": _F(1, 10),
        "cm centimeter centimetre": _F(1, 100), "mm millimeter millimetre": _F(1, 1000), "um micrometer micron": _F(1, 10**6),
        "nm nanometer": _F(1, 10**9), "in inch inche": _F(254, 10000), "ft foot feet": _F(3048, 10000),
        "yd yard": _F(9144, 10000), "mi mile": _F(1609344, 1000),
    },
    "time": {
        "s sec second": _F(1), "ms millisecond": _F(1, 1000), "min minute": _F(60), "h hr hour": _F(3600), "day": _F(86400),
        "week wk": _F(604800), "fortnight": _F(1209600),
    },
    "mass": {
        "kg kilogram kilo": _F(1), "g gram gm": _F(1, 1000), "mg milligram": _F(1, 10**6), "tonne ton": _F(1000),
        "ton": _F(2000 * 45359237, 10**8), "lb pound": _F(45359237, 10**8), "oz ounce": _F(45359237, 16 * 10**8),
    },
    "length^3": {
        "L l liter litre": _F(1, 1000), "mL ml milliliter millilitre": _F(1, 10**6), "dL dl deciliter": _F(1, 10**4),
        "cL cl centiliter": _F(1, 10**5), "cc": _F(1, 10**6),
    },
    "USD": {"dollar $ USD buck": _F(1), "cent ¢": _F(1, 100)}, "EUR": {"euro € EUR": _F(1)},
    "GBP": {"£ GBP pound": _F(1)}, "JPY": {"yen ¥ JPY": _F(1)}, "INR": {"₹ rupee Rs rs INR": _F(1)},
    "year": {"year yr": _F(1), "decade": _F(10), "century centurie": _F(100), "month": _F(1, 12)},
    "celsius": {"°C celsius": _F(1)}, "fahrenheit": {"°F fahrenheit": _F(1)}, "kelvin": {"K kelvin": _F(1)},
    "gallon": {"gallon gal": _F(1), "quart qt": _F(1, 4), "pint pt": _F(1, 8), "cup": _F(1, 16)},
    "degree": {"° degree deg": _F(1), "rad radian": _F(180)},
    "mole": {"mol mole": _F(1)}, "volt": {"V volt": _F(1)}, "ampere": {"A ampere amp": _F(1)},
    "bit": {"bit": _F(1), "byte": _F(8)}, "acre": {"acre": _F(1)},
    "length time^-1": {"mph": _F(1609344, 3600 * 1000), "kmh kmph kph": _F(1000, 3600)},
    "time^-1": {"Hz hertz": _F(1)}, "length^2": {"hectare ha": _F(10**4)},
    "length mass time^-2": {"N newton": _F(1)}, "length^-1 mass time^-2": {"Pa pascal": _F(1)},
    "length^2 mass time^-2": {"J joule": _F(1), "kJ kilojoule": _F(1000)},
    "length^2 mass time^-3": {"W watt": _F(1), "kW kilowatt": _F(1000)},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of measure, in the table `UNITS` and in `Measured`: dimensions as (kind, power) pairs, sorted; size in
    first units of its kind, times pi^-pi."""

    dimensions: Dimensions
    size: Fraction
    pi: int = 0


def _units() -> dict[str, list[Unit]]:
    made: dict[str, list[Unit]] = {}
    for dimensions, sizes in _TABLE.items():
        powers = tuple((kind, int(power or 1)) for kind, _, power in (word.partition("^") for word in dimensions.split()))
        for names, size in sizes.items():
            for name in names.split():  # radians are a fraction of pi degrees
                made.setdefault(name, []).append(Unit(powers, size, int(name in ("rad", "radian"))))
    return made


UNITS = _units()
SCALES = {
    "hundred": _F(100), "thousand": _F(1000), "million": _F(10**6), "billion": _F(10**9), "trillion": _F(10**12),
    "dozen": _F(12),
}  # fmt: skip
PARTS = {
    "half": _F(1, 2), "halve": _F(1, 2), "third": _F(1, 3), "quarter": _F(1, 4), "fourth": _F(1, 4), "fifth": _F(1, 5),
    "sixth": _F(1, 6), "seventh": _F(1, 7), "eighth": _F(1, 8), "ninth": _F(1, 9), "tenth": _F(1, 10), "twelfth": _F(1, 12),
    "hundredth": _F(1, 100), "thousandth": _F(1, 1000), "millionth": _F(1, 10**6),
}  # fmt: skip
SHORT = {"k": _F(1000), "M": _F(10**6), "mn": _F(10**6), "B": _F(10**9), "bn": _F(10**9)}
MONEY_SHORT = {**SHORT, "K": _F(1000), "m": _F(10**6), "mm": _F(10**6), "b": _F(10**9), "T": _F(10**12)}
BASES = {
    "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "sixteen": 16,
}  # fmt: skip

def _words(text: str) -> set[str]:
    return set(text.split())


# Symbols that count as units without \text{}: other symbols of these lengths are products of variables.
_BARE = _words("cm mm km kg ft in hr lb lbs oz ml mL mph min sec rad deg yd gal sq cu mol hrs mins secs kmh")
# Words about the number itself: with one of them the text is not a unit.
_TELLING = _words(
    "not no never none neither nor isn isnt cannot or and but except least most than infinitely if unless else too minus plus "
    "am pm a.m p.m noon midnight mod modulo squared cubed pi sqrt inf sin cos tan log ln exp"
)
_COUNTS = _words("one two three four five six seven eight nine ten eleven twelve fifteen twenty thirty forty fifty hundred")
# Words that are about the number if no noun follows: 3 false alarms are 3, 3 false is unknown.
_ADJECTIVES = _words(
    "non more less fewer greater larger smaller small large low high undefined infinite infinity incorrect impossible unknown "
    "negative base wrong false true "
    # operations on the number, and its notation
    "factorial subfactorial multiplied divided halved doubled tripled trebled quadrupled double triple twice thrice raised inverse "
    "inverted reciprocal reversed negated opposite conjugate conjugated complement transposed rounded truncated floored "
    "added subtracted increased decreased reduced diminished scaled shifted octal binary ternary hex hexadecimal decimal "
    "repeating recurring one two three four five six seven eight nine ten eleven twelve fifteen twenty thirty forty fifty"
)
# Words that may be about the number: an answer that is right except for them is undecided.
_DOUBTFUL = _words("is are was were be when where while without maybe perhaps possibly almost above below over under so")
_IDLE = _words("unit of each total all altogether exactly th st nd rd point")
_STOPS = _words("in of for to from on at by the a an per each long tall wide deep away")
_SIDES = _words("left right old ago")  # their qualification of an amount is compared with that of the other side
_ABOUT = r"(?:approximately|about|approx\.?|roughly|around|exactly)"
_AROUND = re.compile(rf"\\(?:text|mathrm)\{{\s*{_ABOUT}\s*\}}\s*|{_ABOUT}\s+", re.IGNORECASE)
_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_DEGREES = re.compile(r"(?<![\w.}])(?:\{\s*([0-9.]+)\s*\}|([0-9.]+))\s*\^\s*(?:\\circ|\{\s*\\circ\s*\})")
_CURRENCY = re.compile(
    r"^(?P<sign>[-+]?)\s*(?P<mark>\\\$|[€£¥₹]|\\(?:text|mathrm)\{\s*\\?\$\s*\})(?:\s|\\[,; ])*(?P<rest>.+)", re.DOTALL
)
_SIGN_AT_END = re.compile(r"(?<=[\d}])\s*([¢€£¥₹])\s*$")
_SHORT_AT_END = re.compile(r"(?<=\d)\s*([kKMB])$")


@dataclass(frozen=True, slots=True)
class Measured:
    """An answer as body, amount and unit. `measured` and `summed` make it; `sage_rlvr.verifiers.algebra.by_measure` compares two.

    body   the part for algebra
    scale  its factor: 10^6 for "million"
    units  the readings of its unit ("pound" has two); () without a known one
    noun   a unit that is in no table ("apple"); ()
    percent  whether a percent sign follows it
    side   other qualifications: direction, kind ("east", "loss"); ()
    other  the amounts that it may have instead: 1 for "3 quarters", which may be coins; ()
    doubt  whether a word after it may be about the number itself
    """

    body: str
    scale: Fraction = Fraction(1)
    units: tuple[Unit, ...] = ()
    noun: tuple[str, ...] = ()
    percent: bool = False
    side: tuple[str, ...] = ()
    other: tuple[Fraction, ...] = ()
    doubt: bool = False

    @property
    def bare(self) -> bool:
        """No unit, amount, sign or word at all."""
        return replace(self, body="") == Measured("")


def radians(text: str) -> str:
    r"""A text in which the degrees in `\sin` and the like are fractions of pi."""
    if r"\circ" not in text or not _TRIGONOMETRY.search(text):
        return text
    return _DEGREES.sub(lambda match: rf"{{\frac{{{match[1] or match[2]}\pi}}{{180}}}}", text)


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def known(word: str) -> list[Unit]:
    """The readings of a unit's name: as written, else in small letters, else without its plural s."""
    small = word.lower()
    names = [word, small if len(word) > 1 else word, word.removesuffix("s") if len(word) > 2 else word]
    names += [small.removesuffix("s")] if len(word) > 3 else []
    return next((UNITS[name] for name in names if name in UNITS), [])


def times(one: Unit, other: Unit, power: int) -> Unit:
    """one * other^power."""
    dimensions = Counter(dict(one.dimensions))
    for kind, many in other.dimensions:
        dimensions[kind] += many * power
    kept = tuple(sorted((kind, many) for kind, many in dimensions.items() if many))
    return Unit(kept, one.size * other.size**power, one.pi + other.pi * power)


def _multiplied(units: list[Unit], by: list[Unit], power: int) -> list[Unit]:
    by = by if len(by) == len(units) else by[:1] * len(units)
    return [times(one, other, power) for one, other in zip(units, by, strict=True)]


_PIECE = re.compile(r"[A-Za-zµ°¢€£¥₹$]+|\^\s*\{?\s*(-?\d)\s*\}?|/|[.]|·|\s+|.")
_RAISING = {"squared": 1, "cubed": 2}  # after a unit
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}  # in front of one


_POWER_OF = re.compile(r"\bto the (?:power|second|third|\w+th|nth)\b")


def _participle(word: str) -> bool:
    """Whether a word may be an operation on the number: "squashed", but not "seed"."""
    return len(word) > 4 and word.endswith("ed") and not word.endswith("eed")


def _noun_follows(words: list[str], at: int) -> bool:
    """Whether the next word that is no adjective is a noun."""
    behind = next((word for word in words[at + 1 :] if word not in _ADJECTIVES), "")
    return bool(behind) and not any(behind in some for some in (_TELLING, _DOUBTFUL, _IDLE, _STOPS, _SIDES))


def _tells(tail: str, words: list[str]) -> bool:
    """Whether the text after a number is about the number itself."""
    if re.search(r"\d", re.sub(r"\^\s*\{?\s*-?\d+\s*\}?", "", tail)):
        return True
    if _POWER_OF.search(" ".join(words)):
        return True
    pairs = list(pairwise(["", *words]))
    if any(word in _TELLING and not (word in _RAISING and known(before)) for before, word in pairs):
        return True
    return any((before == "base" and word in BASES) or (before == "times" and word in _COUNTS) for before, word in pairs)


def _meaning(tail: str, money: bool = False) -> Measured | None:
    """The unit and qualifications in the text after a number, with an empty body; None if it is about the number itself."""
    tail = re.sub(r"\bor so\b", "so", tail, flags=re.IGNORECASE)
    words = [word.strip(".") for word in re.findall(r"[a-z.]+", tail.lower().replace("'", ""))]
    if _tells(tail, words):
        return None
    tail = re.sub(r"°\s*(?=[CF]\b)", "°", tail.replace(r"\cdot", " "))
    short = MONEY_SHORT if money else SHORT
    scale, product, sign, power, at = Fraction(1), [Unit((), Fraction(1))], 1, 1, -1
    noun: list[str] = []
    side: list[str] = []
    last: list[Unit] = []
    other: tuple[Fraction, ...] = ()
    doubt = done = percent = False
    for piece in _PIECE.finditer(tail):
        token, low = piece[0], piece[0].lower()
        at += low.isascii() and low.isalpha()
        one, first, raised = _singular(low), not last and not noun, bool(last) and not done
        units = [] if done or (low in _STOPS and not first) else known(token)
        if not token.strip() or token in ".·,'":
            continue
        if token[0] == "^" and at < 0:
            return None  # a power of the number itself: 9\text{ ^2}
        if token[0] == "^" or (low in _RAISING and raised):
            if raised:
                product = _multiplied(product, last, sign * (int(piece[1]) - 1 if token[0] == "^" else _RAISING[low]))
        elif token == "/" or low == "per":
            sign = -1
        elif low in ("percent", "percentage", "pct", "%", "\\"):
            percent = percent or low != "\\"
        elif first and token in short:
            scale, other = scale * short[token], () if money else (scale,)
        elif first and one in SCALES:
            scale *= SCALES[one]
        elif first and one in PARTS and (one != low or not _noun_follows(words, at)):
            other = (scale,) if low == "quarters" else other  # they may be coins
            scale *= PARTS[one]
        else:
            if first and one in PARTS:
                doubt = doubt or bool(known(words[at + 1]))  # half-dollars; but third graders are counted
            if low in _POWERS and not done:
                power = _POWERS[low]
            elif low in _ADJECTIVES or low in _DOUBTFUL or (first and _participle(low)):
                high = low == "high" and bool(last)
                doubt = doubt or not (high or (low not in _DOUBTFUL and _noun_follows(words, at)))
                (side if last else noun).extend([] if high or low in _DOUBTFUL else [low])
                done = True
            elif units:
                last, product = units, product * len(units) if len(product) == 1 else product
                product, power = _multiplied(product, units, sign * power), 1
            elif one in _IDLE or low in _STOPS:
                done = done or bool(last)
            elif not any(map(str.isalpha, token)):
                doubt = doubt or token not in "()-&"
            else:
                (side if last or low in _SIDES else noun).append(one)
                done = True
    made = tuple(unit for unit in product if unit.dimensions)
    return Measured("", scale, made, () if made else tuple(noun), percent, tuple(side), other, doubt)


def _is_unit_word(word: str, before: str) -> bool:
    r"""Whether a word outside of `\text{}` is a unit or a noun and not a product of variables."""
    if word in _BARE or (len(word) == 1 and before == "degree"):
        return True
    low = word.lower()
    wide = len(word) >= 4 or low == "per" or low in _DOUBTFUL or low in _ADJECTIVES
    return wide and before in ("space", "block", "degree") and (low not in _TELLING or low in _RAISING)


def measured(text: str) -> Measured:
    """An answer without its unit. Text before or after it that is about the number itself remains in the body."""
    around = _AROUND.match(text)
    text = _SIGN_AT_END.sub(r"\\text{ \1}", text[around.end() :] if around else text)
    money = _CURRENCY.match(text)
    front: tuple[Unit, ...] = ()
    if money:
        front = tuple(UNITS[next(mark for mark in "$€£¥₹" if mark in money["mark"])])
        text = _SHORT_AT_END.sub(r"\\text{\1}", money["sign"] + money["rest"])
    tokens = list(_TOKEN.finditer(text))
    start = len(tokens)
    while start and _in_tail(tokens, start - 1):
        start -= 1
    while start < len(tokens) and tokens[start].lastgroup == "space":
        start += 1
    if start == 0 or (_TRIGONOMETRY.search(text) and any(token.lastgroup == "degree" for token in tokens)):
        return Measured(money[0] if money else text)
    cut = tokens[start].start() if start < len(tokens) else len(text)
    tail = plain("".join(" ° " if token.lastgroup == "degree" else token[0] for token in tokens[start:]))
    meaning = _meaning(tail, bool(money)) if tail else Measured("", units=front)
    spaces = _SPACES_AT_END.search(text[:cut])
    body = text[: spaces.start() if spaces else cut].lstrip()
    if meaning is None or not body or body[-1] in "=+-*/^_<>(,:":
        return Measured(text, units=front)
    units = meaning.units or front
    if front and meaning.units and not any(one in front for one in meaning.units):
        units = tuple(times(one, other, 1) for one in front for other in meaning.units)
    if front and meaning.noun:
        meaning = replace(meaning, noun=(), side=(*meaning.noun, *meaning.side))
    return replace(meaning, body=body, units=units)


def _in_tail(tokens: list[re.Match[str]], at: int) -> bool:
    """Whether the token at a place can belong to a unit that ends the answer."""
    token = tokens[at]
    before, word_before = (tokens[at - 1].lastgroup or "", tokens[at - 1][0]) if at else ("", "")
    if token.lastgroup in ("space", "degree", "percent"):
        return True
    if token.lastgroup == "block":
        return not re.search(r"\d", token[0].split("{", 1)[1].replace("^", " ^ ")) or "^" in token[0]
    if token.lastgroup == "word":
        return _is_unit_word(token[0], before) or _of_fraction(tokens, at)
    if token.lastgroup == "power":
        return before == "block" or (before == "word" and word_before in _BARE) or _of_fraction(tokens, at - 1)
    if token[0] == "/":
        if before == "space" and at > 1:
            before, word_before = tokens[at - 2].lastgroup or "", tokens[at - 2][0]
        unit = before == "block" or (before == "word" and _is_unit_word(word_before, ""))
        return unit or _of_fraction(tokens, at - 1)
    return token[0] in (r"\cdot", ".") and before in ("block", "power") and at + 1 < len(tokens)


def _of_fraction(tokens: list[re.Match[str]], at: int) -> bool:
    """Whether a word is one half of a unit such as m/s, which follows a space and consists of known units."""
    kinds = {i: tokens[i].lastgroup if 0 <= i < len(tokens) else "" for i in range(at - 3, at + 3)}
    texts = {i: tokens[i][0] if 0 <= i < len(tokens) else "" for i in range(at - 3, at + 3)}
    if at < 1 or kinds[at] != "word" or not known(texts[at]):
        return False
    if texts[at - 1] == "/" and kinds[at - 2] == "word" and kinds[at - 3] == "space":
        return bool(known(texts[at - 2]))
    return texts[at + 1] == "/" and kinds[at - 1] == "space" and kinds[at + 2] == "word" and bool(known(texts[at + 2]))


_TERM = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]{1,12})\.?\s*(?:and\s+)?")


def summed(text: str) -> Measured | None:
    """2 hours 30 minutes as 9000 seconds: several integers with units of one kind, each unit smaller than the last."""
    written = plain(text)
    terms, at = [], 0
    while at < len(written):
        term = _TERM.match(written, at)
        readings = known(term[2]) if term else []
        if term is None or not readings:
            return None
        terms.append((Fraction(term[1]), readings[0]))
        at = term.end()
    units = [unit for _, unit in terms]
    if len({unit.dimensions for unit in units}) != 1 or len(units) < 2:
        return None
    if any(a.size <= b.size for a, b in pairwise(units)):
        return None
    total = sum((amount * unit.size for amount, unit in terms), Fraction(0))
    return Measured(f"{total.numerator}/{total.denominator}", units=(Unit(units[0].dimensions, Fraction(1)),))


__all__ = ["BASES", "UNITS", "Measured", "Unit", "known", "measured", "radians", "summed"]
