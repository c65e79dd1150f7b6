r"""What an answer says beside its mathematics: units, amounts, clock times, dates, ratios, number bases, words. Text only.

    measured:  5.4\text{ cents}   -> body 5.4, unit cents        body = what algebra compares
    based:     42_8               -> 34, 8
    clock:     3{:}30\text{ PM}   -> 15:30
    worded:    \text{an Ellipse}  -> ellipse

Algebra knows none of these: math-verify drops whatever text stands behind a number, the word "not" and a second number
included, and multiplies the letters of a word. Each reader gives None for a text that is not of its kind.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise

_BLOCK = (
    r"\\(?:text|textbf|textit|textrm|textnormal|textsc|mathrm|mathbf|mathit|mathsf|mbox|operatorname)\s*\{([^{}]*)\}"
)
_TEXT = re.compile(_BLOCK)
_SPACE = re.compile(r"\\[,;:! ]|\\q?quad(?![a-z])|~|\s")
_SPACES_AT_END = re.compile(rf"(?:{_SPACE.pattern})+$")
_TOKEN = re.compile(
    rf"(?P<block>{_BLOCK})|(?P<degree>\^\s*(?:\\circ|\{{\s*\\circ\s*\}}))"
    r"|(?P<space>(?:\\[,;:! ]|\\q?quad(?![a-z])|~|\s)+)"
    r"|(?P<power>\^\s*(?:-?\d|\{\s*-?\d+\s*\}))|(?P<percent>\\?%)|(?P<command>\\[a-zA-Z]+|\\.)|(?P<word>[A-Za-z]+)|(?P<other>.)",
    re.DOTALL,
)

# ---- units: name -> dimensions, and how many of the first unit of its kind; radians are a fraction of pi degrees.

Dimensions = tuple[tuple[str, int], ...]
_F = Fraction
_LENGTH = {
    "m meter metre": _F(1), "km kilometer kilometre": _F(1000), "dm decimeter": _F(1, 10), "cm centimeter centimetre": _F(1, 100),
    "mm millimeter millimetre": _F(1, 1000), "um micrometer micron": _F(1, 10**6), "nm nanometer": _F(1, 10**9),
    "in inch inche": _F(254, 10000), "ft foot feet": _F(3048, 10000), "yd yard": _F(9144, 10000), "mi mile": _F(1609344, 1000),
}  # fmt: skip
_TIME = {
    "s sec second": _F(1), "ms millisecond": _F(1, 1000), "min minute": _F(60), "h hr hour": _F(3600), "day": _F(86400),
    "week wk": _F(604800), "fortnight": _F(1209600),
}  # fmt: skip
_MASS = {
    "kg kilogram kilo": _F(1), "g gram gm": _F(1, 1000), "mg milligram": _F(1, 10**6), "tonne ton": _F(1000),
    "ton": _F(2000 * 45359237, 10**8),
    "lb pound": _F(45359237, 10**8), "oz ounce": _F(45359237, 16 * 10**8),
}  # fmt: skip
_VOLUME = {
    "L l liter litre": _F(1, 1000), "mL ml milliliter millilitre": _F(1, 10**6),
    "dL dl deciliter": _F(1, 10**4), "cL cl centiliter": _F(1, 10**5),
    "cc": _F(1, 10**6),
}  # fmt: skip
_ALONE = {
    "USD": {"dollar $ USD buck": _F(1), "cent ¢": _F(1, 100)}, "EUR": {"euro € EUR": _F(1)}, "GBP": {"£ GBP pound": _F(1)},
    "JPY": {"yen ¥ JPY": _F(1)}, "INR": {"₹ rupee Rs rs INR": _F(1)},
    "year": {"year yr": _F(1), "decade": _F(10), "century centurie": _F(100), "month": _F(1, 12)},
    "celsius": {"°C celsius": _F(1)}, "fahrenheit": {"°F fahrenheit": _F(1)}, "kelvin": {"K kelvin": _F(1)},
    "gallon": {"gallon gal": _F(1), "quart qt": _F(1, 4), "pint pt": _F(1, 8), "cup": _F(1, 16)},
    "degree": {"° degree deg": _F(1)}, "mole": {"mol mole": _F(1)}, "volt": {"V volt": _F(1)}, "ampere": {"A ampere amp": _F(1)},
    "bit": {"bit": _F(1), "byte": _F(8)}, "acre": {"acre": _F(1)},
}  # fmt: skip
_COMPOUND: dict[str, tuple[dict[str, int], Fraction]] = {
    "mph": ({"length": 1, "time": -1}, _F(1609344, 3600 * 1000)), "kmh kmph kph": ({"length": 1, "time": -1}, _F(1000, 3600)),
    "Hz hertz": ({"time": -1}, _F(1)), "N newton": ({"mass": 1, "length": 1, "time": -2}, _F(1)),
    "J joule": ({"mass": 1, "length": 2, "time": -2}, _F(1)), "kJ kilojoule": ({"mass": 1, "length": 2, "time": -2}, _F(1000)),
    "W watt": ({"mass": 1, "length": 2, "time": -3}, _F(1)), "kW kilowatt": ({"mass": 1, "length": 2, "time": -3}, _F(1000)),
    "Pa pascal": ({"mass": 1, "length": -1, "time": -2}, _F(1)), "hectare ha": ({"length": 2}, _F(10**4)),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of measure: dimensions as (kind, power) pairs, sorted; size in first units of its kind, times pi^-pi."""

    dimensions: Dimensions
    size: Fraction
    pi: int = 0


def _table() -> dict[str, list[Unit]]:
    made: dict[str, list[Unit]] = {}

    def add(names: str, dimensions: dict[str, int], size: Fraction, pi: int = 0) -> None:
        for name in names.split():
            made.setdefault(name, []).append(Unit(tuple(sorted(dimensions.items())), size, pi))

    for kind, sizes in {"length": _LENGTH, "time": _TIME, "mass": _MASS}.items():
        for names, size in sizes.items():
            add(names, {kind: 1}, size)
    for names, size in _VOLUME.items():
        add(names, {"length": 3}, size)
    for kind, sizes in _ALONE.items():
        for names, size in sizes.items():
            add(names, {kind: 1}, size)
    for names, (dimensions, size) in _COMPOUND.items():
        add(names, dimensions, size)
    add("rad radian", {"degree": 1}, Fraction(180), 1)
    return made


UNITS = _table()
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


def _words(text: str) -> set[str]:
    return set(text.split())


# Symbols that count as units without \text{}: others of these lengths are products of variables.
_BARE = _words("cm mm km kg ft in hr lb lbs oz ml mL mph min sec rad deg yd gal sq cu mol hrs mins secs kmh")
# Words that say something of the number itself: with one of them the text is no unit.
_TELLING = _words(
    "not no never none neither nor isn isnt cannot or and but except least most than infinitely if unless else too minus plus "
    "am pm a.m p.m noon midnight mod modulo squared cubed pi sqrt inf sin cos tan log ln exp"
)
# Words that do so where no noun follows: 3 false alarms are 3, of 3 false nobody knows.
_ADJECTIVES = _words(
    "non more less fewer greater larger smaller small large low high undefined infinite infinity incorrect impossible unknown "
    "negative base wrong false true"
)
# Words that may do so: what is right but for them is undecided.
_DOUBTFUL = _words(
    "is are was were be when where while without maybe perhaps possibly almost above below over under so"
)
_IDLE = _words("unit of each total all altogether exactly th st nd rd point")
_STOPS = _words("in of for to from on at by the a an per each long tall wide deep away")
_SIDES = _words("left right old ago")  # what they say of an amount is held against what the other side says
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
    """An answer as body, amount and unit.

    body   what is left for algebra
    scale  what it is multiplied with: 10^6 for "million"
    units  the readings of its unit ("pound" has two); () without a known one
    noun   a unit that is in no table ("apple"); ()
    percent  whether a percent sign stands behind it
    side   what else is said of it: which way, of what ("east", "loss"); ()
    other  the amounts that it may have instead: of "3 quarters" 1, for they may be coins; ()
    doubt  whether a word behind it may say something of the number itself
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


def plain(text: str) -> str:
    r"""A text with what stands in `\text{}` and the like unwrapped and each run of spaces as one."""
    return " ".join(_SPACE.sub(" ", _TEXT.sub(r" \1 ", text)).split())


def radians(text: str) -> str:
    r"""A text in which the degrees within `\sin` and the like are fractions of pi."""
    if r"\circ" not in text or not _TRIGONOMETRY.search(text):
        return text
    return _DEGREES.sub(lambda found: rf"{{\frac{{{found[1] or found[2]}\pi}}{{180}}}}", text)


def has_text(text: str) -> bool:
    r"""Whether anything stands in `\text{}` and the like."""
    return _TEXT.search(text) is not None


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _known(word: str) -> list[Unit]:
    """The readings of a unit's name: as it is written, else in small letters, else without its plural s."""
    for name in (
        word,
        word.lower() if len(word) > 1 else word,
        word[:-1] if len(word) > 2 and word[-1] == "s" else word,
    ):
        if name in UNITS:
            return UNITS[name]
    name = word.lower()
    return UNITS.get(name[:-1], []) if len(name) > 3 and name.endswith("s") else []


def _times(one: Unit, other: Unit, power: int) -> Unit:
    dimensions = Counter(dict(one.dimensions))
    for kind, times in other.dimensions:
        dimensions[kind] += times * power
    kept = tuple(sorted((kind, times) for kind, times in dimensions.items() if times))
    return Unit(kept, one.size * other.size**power, one.pi + other.pi * power)


_PIECE = re.compile(r"[A-Za-zµ°¢€£¥₹$]+|\^\s*\{?\s*(-?\d)\s*\}?|/|[.]|·|\s+|.")
_NONE = Unit((), Fraction(1))
_RAISING = {"squared": 1, "cubed": 2}  # behind a unit


def _noun_follows(words: list[str], at: int) -> bool:
    """Whether the next word that is no adjective is a noun."""
    behind = next((word for word in words[at + 1 :] if word not in _ADJECTIVES), "")
    return bool(behind) and not any(behind in some for some in (_TELLING, _DOUBTFUL, _IDLE, _STOPS, _SIDES))


def _meaning(tail: str, money: bool = False) -> Measured | None:
    """What the text behind a number says, body left empty; None where it says something of the number itself."""
    tail = re.sub(r"\bor so\b", "so", tail, flags=re.IGNORECASE)
    words = [word.strip(".") for word in re.findall(r"[a-z.]+", tail.lower().replace("'", ""))]
    if re.search(r"\d", re.sub(r"\^\s*\{?\s*-?\d+\s*\}?", "", tail)):
        return None
    if any(
        word in _TELLING and not (word in _RAISING and at and _known(words[at - 1])) for at, word in enumerate(words)
    ):
        return None
    if any(word == "base" and said in _NAMES for word, said in pairwise(words)):
        return None
    tail = re.sub(r"°\s*(?=[CF]\b)", "°", tail.replace(r"\cdot", " "))
    scale, found, sign, next_power, percent = Fraction(1), [_NONE], 1, 1, False
    noun: list[str] = []
    side: list[str] = []
    other: tuple[Fraction, ...] = ()
    doubt, at = False, -1
    last: list[Unit] = []
    done = False
    for piece in _PIECE.finditer(tail):
        said = piece[0]
        low = said.lower()
        if not said.strip() or said in ".·,'":
            continue
        if said[0] == "^":
            if last and not done:
                power = int(piece[1]) - 1
                found = [
                    _times(one, other, sign * power) for one, other in zip(found, _spread(last, found), strict=True)
                ]
            continue
        at += low.isascii() and low.isalpha()
        if said == "/" or low == "per":
            sign = -1
            continue
        if low in ("percent", "percentage", "pct") or said in ("%", "\\"):
            percent = percent or low != "\\"
            continue
        first = not last and not noun
        if low in _RAISING and last and not done:
            found = [
                _times(one, other, sign * _RAISING[low]) for one, other in zip(found, _spread(last, found), strict=True)
            ]
            continue
        if first and said in (MONEY_SHORT if money else SHORT):
            scale, other = scale * (MONEY_SHORT if money else SHORT)[said], () if money else (scale,)
            continue
        if first and _singular(low) in SCALES:
            scale *= SCALES[_singular(low)]
            continue
        if first and _singular(low) in PARTS:
            many, alone = _singular(low) != low, not _noun_follows(words, at)
            if many or alone:
                other = (scale,) if low == "quarters" else other  # they may be coins
                scale *= PARTS[_singular(low)]
                continue
            doubt = doubt or bool(_known(words[at + 1]))  # half-dollars; but third graders are counted
        if low in ("square", "sq", "cubic", "cu") and not done:
            next_power = 2 if low[0] == "s" else 3
            continue
        if low in _ADJECTIVES or low in _DOUBTFUL:
            high = low == "high" and bool(last)
            doubt = doubt or not (high or (low in _ADJECTIVES and _noun_follows(words, at)))
            (side if last else noun).extend([] if high or low in _DOUBTFUL else [low])
            done = True
            continue
        known = [] if done or (low in _STOPS and (last or noun)) else _known(said)
        if known:
            power, next_power = sign * next_power, 1
            last = known
            if len(found) == 1 and len(known) > 1:
                found = found * len(known)
            found = [_times(one, other, power) for one, other in zip(found, _spread(known, found), strict=True)]
            continue
        if _singular(low) in _IDLE or low in _STOPS:
            done = done or bool(last)
            continue
        if not any(map(str.isalpha, said)):
            doubt = doubt or said not in "()-&"
            continue
        (side if last or low in _SIDES else noun).append(_singular(low))
        done = True
    units = tuple(one for one in found if one.dimensions)
    return Measured("", scale, units, () if units else tuple(noun), percent, tuple(side), other, doubt)


def _spread(known: list[Unit], found: list[Unit]) -> list[Unit]:
    return known if len(known) == len(found) else known[:1] * len(found)


def _is_unit_word(word: str, before: str) -> bool:
    r"""Whether a word outside of `\text{}` is a unit or a noun and no product of variables."""
    if word in _BARE or (len(word) == 1 and before == "degree"):
        return True
    low = word.lower()
    wide = len(word) >= 4 or low in _DOUBTFUL or low in _ADJECTIVES
    return wide and before in ("space", "block", "degree") and (low not in _TELLING or low in _RAISING)


def measured(text: str) -> Measured:
    """An answer without its unit. What stands in front or behind and says something of the number is left in the body."""
    around = _AROUND.match(text)
    text = text[around.end() :] if around else text
    text = _SIGN_AT_END.sub(r"\\text{ \1}", text)
    money = _CURRENCY.match(text)
    front = Measured("")
    if money:
        mark = next(mark for mark in "$€£¥₹" if mark in money["mark"])
        text, front = money["sign"] + money["rest"], Measured("", units=tuple(UNITS[mark]))
        text = _SHORT_AT_END.sub(r"\\text{\1}", text)
    tokens = list(_TOKEN.finditer(text))
    start = len(tokens)
    while start and _in_tail(tokens, start - 1):
        start -= 1
    while start < len(tokens) and tokens[start].lastgroup == "space":
        start += 1
    if start == 0 or (_TRIGONOMETRY.search(text) and any(token.lastgroup == "degree" for token in tokens)):
        return Measured(text) if not money else Measured(money[0])
    cut = tokens[start].start() if start < len(tokens) else len(text)
    tail = plain("".join(_written(token) for token in tokens[start:]))
    said = _meaning(tail, bool(money)) if tail else front
    body = _trimmed(text[:cut]).lstrip()
    if said is None or not body or body[-1] in "=+-*/^_<>(,:":
        return Measured(text) if not money else Measured(text, units=front.units)
    units = said.units or front.units
    if front.units and said.units and not any(one in front.units for one in said.units):
        units = tuple(_times(one, other, 1) for one in front.units for other in said.units)
    if front.units and said.noun:
        said = replace(said, noun=(), side=(*said.noun, *said.side))
    return replace(said, body=body, units=units)


def _trimmed(body: str) -> str:
    """Without the space marks at its end."""
    found = _SPACES_AT_END.search(body)
    return body[: found.start()] if found else body


def _written(token: re.Match[str]) -> str:
    return " ° " if token.lastgroup == "degree" else token[0]


def _kind(token: re.Match[str]) -> str:
    return token.lastgroup or ""


def _in_tail(tokens: list[re.Match[str]], at: int) -> bool:
    """Whether the token at a place can belong to a unit that ends the answer."""
    token = tokens[at]
    before = _kind(tokens[at - 1]) if at else ""
    kind = _kind(token)
    if kind in ("space", "degree", "percent"):
        return True
    if kind == "block":
        return not re.search(r"\d", token[0].split("{", 1)[1].replace("^", " ^ ")) or "^" in token[0]
    if kind == "word":
        return _is_unit_word(token[0], before) or _of_fraction(tokens, at)
    if kind == "power":
        return before == "block" or (before == "word" and tokens[at - 1][0] in _BARE) or _of_fraction(tokens, at - 1)
    if token[0] == "/":
        return (
            before == "block"
            or (before == "word" and _is_unit_word(tokens[at - 1][0], ""))
            or _of_fraction(tokens, at - 1)
        )
    return token[0] in (r"\cdot", ".") and before in ("block", "power") and at + 1 < len(tokens)


def _of_fraction(tokens: list[re.Match[str]], at: int) -> bool:
    """Whether a word is one half of a unit such as m/s, which stands behind a space and is made of known units."""
    if at < 1 or _kind(tokens[at]) != "word" or not _known(tokens[at][0]):
        return False
    left = at >= 3 and tokens[at - 1][0] == "/" and _kind(tokens[at - 2]) == "word" and _kind(tokens[at - 3]) == "space"
    right = at + 2 < len(tokens) and tokens[at + 1][0] == "/" and _kind(tokens[at - 1]) == "space"
    if left:
        return bool(_known(tokens[at - 2][0]))
    return right and _kind(tokens[at + 2]) == "word" and bool(_known(tokens[at + 2][0]))


_TERM = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]{1,12})\.?\s*(?:and\s+)?")


def summed(text: str) -> Measured | None:
    """2 hours 30 minutes as 9000 seconds: several whole numbers with units of one kind, each unit smaller than the last."""
    said = plain(text)
    terms, at = [], 0
    while at < len(said):
        term = _TERM.match(said, at)
        if term is None:
            return None
        terms.append((Fraction(term[1]), _known(term[2])))
        at = term.end()
    if len(terms) < 2 or any(not known for _, known in terms):
        return None
    units = [known[0] for _, known in terms]
    if len({unit.dimensions for unit in units}) > 1 or any(a.size <= b.size for a, b in pairwise(units)):
        return None
    total = sum((amount * unit.size for (amount, _), unit in zip(terms, units, strict=True)), Fraction(0))
    return Measured(f"{total.numerator}/{total.denominator}", units=(Unit(units[0].dimensions, Fraction(1)),))


# ---- numbers in a base

_BASED = re.compile(
    r"(?P<digits>[0-9A-Za-z]+(?:\.[0-9A-Za-z]+)?)_(?:\{\s*\(?(?P<named>[a-z]+|\d+)\)?\s*\}|(?P<digit>\d+))"
)
_NAMES = {
    "two": 2,
    "three": 3,
    "four": 4,
    "five": 5,
    "six": 6,
    "seven": 7,
    "eight": 8,
    "nine": 9,
    "ten": 10,
    "sixteen": 16,
}


def based(text: str) -> tuple[Fraction | None, int] | None:
    """(value, base) of 42_8, 1A_{16}, 101_{two}; no value for 9_8; None for what is no numeral with a base."""
    found = _BASED.fullmatch(_SPACE.sub("", _TEXT.sub(r"\1", text)))
    if found is None or not re.search(r"\d", found["digits"]):
        return None
    name = found["named"] or found["digit"]
    base = int(name) if name.isdigit() and len(name) < 3 else _NAMES.get(name.removeprefix("base"), 0)
    if not 2 <= base <= 36 or (found["digits"] != found["digits"].upper() and base != 16):
        return None
    whole, _, part = found["digits"].partition(".")
    try:
        return Fraction(int(whole, base)) + (Fraction(int(part, base), base ** len(part)) if part else 0), base
    except ValueError:
        return (None, base) if found["digits"].isdigit() else None


# ---- clock times, ratios, dates

_CLOCK = re.compile(
    r"(?P<hour>\d{1,2})(?:\s*:\s*(?P<minute>[0-5]\d))?(?:\s*:\s*(?P<second>[0-5]\d))?\s*"
    r"(?P<half>[ap]\s?\.?\s?m\.?|noon|midnight|o'clock)?(?:\s+in the (?P<part>morning|afternoon|evening))?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Clock:
    """A time of day: hour as written, seconds past it, and "am", "pm" or ""."""

    hour: int
    past: int
    half: str = ""
    colon: bool = field(default=True, compare=False)

    @property
    def readings(self) -> set[int]:
        """Seconds since midnight; without am or pm an hour up to 12 may be of either half where the other side says so."""
        if self.half:
            return {(self.hour % 12 + 12 * (self.half == "pm")) * 3600 + self.past}
        return {self.hour % 24 * 3600 + self.past}

    def same(self, other: Clock) -> bool:
        """Whether both can be one time; one that leaves am and pm out is taken at its word."""
        if bool(self.half) != bool(other.half):
            told, left = (self, other) if self.half else (other, self)
            if 1 <= left.hour <= 12:
                return (told.hour % 12, told.past) == (left.hour % 12, left.past)
        return bool(self.readings & other.readings)

    def ratio(self, other: Clock) -> bool:
        """Whether both may be one ratio instead, as 10:24 and 5:12 are."""
        if self.half or other.half or self.past % 60 or other.past % 60 or not self.past * other.past:
            return False
        return self.hour * other.past == other.hour * self.past


def clock(text: str) -> Clock | None:
    """3:30, 15:30, 3 PM, 3:30 p.m., noon; None for a plain number."""
    if (said := plain(text).lower()) in ("noon", "midnight"):
        return Clock(12, 0, "pm" if said == "noon" else "am")
    found = _CLOCK.fullmatch(plain(text).replace("{:}", ":").rstrip(". ") + ("." if plain(text).endswith("m.") else ""))
    if found is None or int(found["hour"]) > 24 or not (found["minute"] or found["half"] or found["part"]):
        return None
    half = (found["half"] or "").lower().replace(".", "").replace(" ", "")
    half = {"noon": "pm", "midnight": "am", "o'clock": ""}.get(half, half)
    half = half or {"morning": "am", "afternoon": "pm", "evening": "pm"}.get((found["part"] or "").lower(), "")
    past = 60 * int(found["minute"] or 0) + int(found["second"] or 0)
    return Clock(int(found["hour"]), past, half if int(found["hour"]) <= 12 else "", found["minute"] is not None)


def ratio(text: str) -> list[str] | None:
    """The parts of a : b (: c); None for anything else."""
    parts = split(plain(text).replace("{:}", ":").replace(r"\colon", ":"), {":"})
    return parts if len(parts) > 1 and all(parts) and not re.search(r"[<>=]|\\[gln]e", text) else None


_MONTHS = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
]
_DATE = re.compile(r"[A-Za-z]+|\d+|[,.\s]+|.")


def date(text: str) -> tuple[int, tuple[int, ...]] | None:
    """(month, numbers in falling order) of March 14, 14 March 2024; None without the name of a month and one or two numbers."""
    month, numbers = 0, []
    for piece in _DATE.findall(plain(text)):
        low = piece.lower()
        if piece.isdigit() and len(piece) <= 4:
            numbers.append(int(piece))
        elif low.isalpha():
            named = [
                i for i, name in enumerate(_MONTHS, start=1) if low in (name, name[:3]) or (low == "sept" and i == 9)
            ]
            if low in ("st", "nd", "rd", "th", "of", "the") and numbers:
                continue
            if month or not named:
                return None
            month = named[0]
        elif not re.fullmatch(r"[,.\s]+", piece):
            return None
    return (month, tuple(sorted(numbers, reverse=True))) if month and 1 <= len(numbers) <= 2 else None


# ---- words

_WORDS = re.compile(r"[^\W\d_]+(?:['’\-][^\W\d_]+)*\.?(?:\s*[,;]?\s+[^\W\d_]+(?:['’\-][^\W\d_]+)*\.?)*[.!]?")
_FREE = ("a", "an", "the", "it", "is", "answer")
_SHORT = {"yes", "no", "odd", "tie", "red"}
_MATHEMATICAL = {"infinity", "infinite", "sqrt", "frac", "undefined", "pi"}
EMPTY = {"none", "no solution", "no solutions", "empty set", "no real solution", "no real solutions"}


def worded(text: str) -> str | None:
    """An answer in words, in small letters, without articles, the parts of a list in order; None for mathematics."""
    said = plain(text).replace('"', "").strip()
    if not _WORDS.fullmatch(said):
        return None
    words = [word.strip(".,;!").lower() for word in said.split()]
    words = [word for word in words if word not in _FREE] or words
    wide = max(map(len, words))
    if not (wide >= 4 or words[0] in _SHORT or (has_text(text) and wide >= 3) or (len(words) > 1 and wide >= 3)):
        return None
    if not _MATHEMATICAL.isdisjoint(words[:1]) and len(words) == 1 and words != ["undefined"]:
        return None
    parts = re.split(r"\s*(?:\band\b|\bor\b|,)\s*", re.sub(r"[.!;]", "", said.lower()))
    if len(parts) > 1:
        kept = sorted(" ".join(w for w in part.split() if w not in _FREE) for part in parts if part)
        return (" or " if re.search(r"\bor\b", said.lower()) else " and ").join(kept)
    return " ".join(words)


_LETTERS = re.compile(r"[A-Z]{2,12}")


def letters(text: str) -> str | None:
    """Capital letters that name points or an order: their order counts; None for anything else."""
    said = plain(text).replace(" ", "").rstrip(".")
    return said if _LETTERS.fullmatch(said) else None


_CHOICE = re.compile(
    r"\(?(?P<letter>[A-J])\s*(?:\)|[.:](?=\s|$))\s*"
    r"(?P<rest>[^\s+\-*/=^_(),\\].*|\\(?!cup|cap|cdot|times|[a-z]*eq).*)?",
    re.DOTALL,
)
_OTHERS = re.compile(  # (B) or (C) is no choice, and of A: 3, B: 4 none is chosen
    r"^(?:and|or)\b|\([A-J]\)|^[A-J][.)]?$|(?<![A-Za-z\\])[A-J]\s*[.:)](?=\s|$)|[,;]\s*[A-J]$"
)
_DENIED = re.compile(r"(?<![A-Za-z\\])(?:no|not|isn't|never|wrong|incorrect|false)(?![A-Za-z])", re.IGNORECASE)
_LETTER = re.compile(r"\(?([A-J])\)?[.:]?")


def choice(text: str) -> tuple[str, str] | None:
    """(letter, what stands behind it) of (B) 12 and B. 12; None for anything else, a letter alone included."""
    found = _CHOICE.fullmatch(plain(text))
    if found is None or not found["rest"] or _OTHERS.search(found["rest"]):
        return None
    return found["letter"], found["rest"]


def denied(text: str) -> bool:
    """Whether what stands behind a choice may deny it: (A) is wrong; it may be the choice too: (A) No."""
    found = _CHOICE.fullmatch(plain(text))
    return found is not None and _DENIED.search(found["rest"] or "") is not None


def letter(text: str) -> str | None:
    """The letter of B, (B), B."""
    found = _LETTER.fullmatch(plain(text))
    return found[1] if found else None


# ---- parts

_INFINITY = re.compile(r"(?:(?P<less>-|negative |minus )|\+|positive |plus )?infinity", re.IGNORECASE)


def infinity(text: str) -> str | None:
    """Infinity in words as its sign; None for anything else."""
    found = _INFINITY.fullmatch(plain(text))
    return None if found is None else r"-\infty" if found["less"] else r"\infty"


def joined(text: str) -> set[str]:
    """Which of "and" and "or" join the parts of an answer."""
    return set(_AND.findall(plain(text).lower()))


_AND = re.compile(r"(?<![A-Za-z\\])(and|or(?!\s+so\b))(?![A-Za-z])")


def _pieces(text: str) -> Iterator[tuple[str, int]]:
    """The characters of a text with the depth of brackets they stand at; commands and escapes as one."""
    depth = 0
    for found in re.finditer(r"\\[a-zA-Z]+|\\.|.", text, re.DOTALL):
        piece = found[0]
        if piece in (")", "]", "}", r"\}"):
            depth -= 1
        yield piece, depth
        if piece in ("(", "[", "{", r"\{"):
            depth += 1


def split(text: str, marks: set[str]) -> list[str]:
    """A text parted at marks that stand in no bracket."""
    found = [""]
    for piece, depth in _pieces(text):
        if piece in marks and depth <= 0:
            found.append("")
        else:
            found[-1] += piece
    return [part.strip() for part in found]


def _parted_words(found: re.Match[str]) -> str:
    parts = _AND.split(found[1])
    return "".join(" ; " if i % 2 else rf"\text{{{part}}}" for i, part in enumerate(parts) if i % 2 or part.strip())


def listed(text: str) -> list[str]:
    """The parts of an answer that lists several, parted by commas, semicolons, "and" and "or" outside of brackets."""
    text = _TEXT.sub(_parted_words, text)
    text = re.sub(r"(?<![A-Za-z\\{])\b(?:and|or(?!\s+so\b))\b(?![A-Za-z}])", ";", text)
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)  # 1,000 is one number
    return [part for part in split(text, {",", ";"}) if part]


__all__ = [
    "EMPTY", "UNITS", "Clock", "Measured", "Unit", "based", "choice", "clock", "date", "denied", "has_text", "infinity", "joined",
    "letter", "letters", "listed", "measured", "plain", "radians", "ratio", "split", "summed", "worded",
]  # fmt: skip
