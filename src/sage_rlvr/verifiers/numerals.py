r"""Numbers in English words, as digits. Text only.

    in_digits:  seven             -> 7
                twenty-one        -> 21
                two and a half    -> \frac{5}{2}
                fifteen percent   -> 15\%
                x = two, two (2)  -> x = 2, 2
    amount:     seven apples      -> 7\text{ apples}
"""

from __future__ import annotations

import re
from fractions import Fraction

from sage_rlvr.verifiers.latex import plain

_ONES = (
    "zero one two three four five six seven eight nine ten "
    "eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
)
_DECADES = "zero ten twenty thirty forty fifty sixty seventy eighty ninety"
_FRACTIONS = "half third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth"
_VALUES = {word: value for value, word in enumerate(_ONES.split())}
_TENS = {word: 10 * value for value, word in enumerate(_DECADES.split()) if value > 1}
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9}
_PARTS = {word: value for value, word in enumerate(_FRACTIONS.split(), 2)}
_PARTS |= {"halve": 2, "quarter": 4, "hundredth": 100, "thousandth": 1000}
_WORD = "|".join((*_VALUES, *_TENS, *_SCALES, "hundred", *_PARTS))
_NEXT = rf"(?:an? )?(?:{_WORD})s?"
_IN_WORDS = re.compile(
    rf"(?P<sign>minus |negative )?(?P<number>{_NEXT}(?:[ -](?:and )?{_NEXT})*)(?P<percent> per ?cent)?", re.IGNORECASE
)
_RUN = re.compile(
    rf"(?<![A-Za-z\\])(?:minus |negative )?{_NEXT}(?:[ -](?:and )?{_NEXT})*(?: per ?cent)?(?![A-Za-z])", re.IGNORECASE
)
_PARTED = re.compile(r"(\s*,\s*(?:and |or )?|\s+(?:and|or|to)\s+)")
_DIGITS = r"-?\d+(?:\.\d+)?"
_TWICE = re.compile(r"(?P<first>[^()]*[^()\s])\s*\((?P<again>[^()]+)\)")
_NAMED = re.compile(r"(?P<name>[A-Za-z](?:_\w)?\s*=\s*)(?P<rest>.+)")
_ORDINALS = {word: place for place, word in enumerate(["first", "second", *_FRACTIONS.split()[1:]], 1)}
_ALONE = {"hundred": "100", "quarter": r"\frac{1}{4}"} | {word: f"{value}" for word, value in _SCALES.items()}
_PHRASE = re.compile(r"[A-Za-z ,;:.!?'’()=+*-]+")  # anything else is mathematics or code
_ENDS = {1: "st", 2: "nd", 3: "rd"}
_LONGEST = 200  # characters of a number in words


def in_digits(text: str) -> str:
    """A number in words as digits or as a fraction, also in round brackets, named (x = two), repeated (two (2)), in a list or a
    ratio; any other text is unchanged. A single ordinal (third) is too."""
    if len(text) > _LONGEST or not _RUN.search(written := plain(text)):
        return text
    if (number := _number(written)) is not None:
        return number
    if written[:1] + written[-1:] == "()" and (number := _number(written[1:-1].strip())) is not None:
        return number
    if named := _NAMED.fullmatch(written):
        inner = in_digits(named["rest"])
        return text if inner == named["rest"] else named["name"] + inner
    if twice := _TWICE.fullmatch(written):
        values = {_number(part.strip()) or part.strip() for part in twice.groups()}
        return values.pop() if len(values) == 1 else text
    parts = _PARTED.split(written)
    joints = [(part.split() or [""])[-1].lower() for part, joint in zip(parts[::2], parts[1::2], strict=False) if "and" in joint]
    cut = any(word in ("hundred", *_SCALES, *_TENS) for word in joints)  # one hundred and five may be one number
    numbers = [part if re.fullmatch(_DIGITS, part) else _number(part) for part in parts[::2]]
    if len(numbers) < 2 or cut or None in numbers:
        return text
    parts[::2] = [number for number in numbers if number is not None]
    return "".join(parts)


def amount(text: str) -> str | None:
    r"""Seven apples as `7\text{ apples}`; None for a phrase with a number in words that is not read; otherwise the text."""
    written = plain(text)
    if len(text) > _LONGEST or not _PHRASE.fullmatch(written) or not (run := _RUN.search(written)):
        return text
    if alone := _ALONE.get(written.lower()):
        return alone
    number, rest = _number(run[0]), written[run.end() :]
    if run.start() or number is None or not re.fullmatch("[A-Za-z .]+", rest) or _RUN.search(rest):
        return None
    if len(rest) < 3 or (number == "1" and rest.startswith(" of ")):
        return None  # two x, one of them
    return rf"{number}\text{{{rest}}}"


def ordinal(text: str) -> tuple[str, ...]:
    """Possible meanings of "third": 3rd, or 3, or 1/3; () for a text that is not an ordinal in words."""
    place = _ORDINALS.get(plain(text).lower().removeprefix("the "))
    return () if place is None else (f"{place}{_ENDS.get(place, 'th')}", f"{place}", rf"\frac{{1}}{{{place}}}")


def _number(written: str) -> str | None:
    """A number in words, without other text, as digits; None for any other text."""
    match = _IN_WORDS.fullmatch(written)
    value = None if match is None else _value(match["number"].lower().replace("-", " ").split())
    if match is None or value is None:
        return None
    number = f"{value}" if value.denominator == 1 else rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
    return "-" * bool(match["sign"]) + number + r"\%" * bool(match["percent"])


def _value(words: list[str]) -> Fraction | None:
    """The value of a number in words, including a fraction at the end; None if they are not a number."""
    part = _PARTS.get(words[-1]) or _PARTS.get(words[-1].removesuffix("s"))
    if part is None:
        whole = _whole(words)
        return None if whole is None else Fraction(whole)
    if words == ["half"]:
        return Fraction(1, 2)
    over = 1 if words[-2:-1] in (["a"], ["an"]) else _VALUES.get(words[-2]) if len(words) > 1 else None
    before = words[:-2]
    if part >= 100 and over != 1 and not words[-1].endswith("s"):
        return None  # five hundredth is an ordinal
    if over is None or (before and before[-1] != "and"):  # a hundred thirds and twenty fifth are not read
        return None
    whole = _whole(before[:-1]) if before else 0
    return None if whole is None else whole + Fraction(over, part)


def _whole(words: list[str]) -> int | None:
    """The integer in words; None if they are in no order of a number."""
    total, group, last, ceiling = 0, None, 0, 10**12
    for place, word in enumerate(words):
        if word == "and":
            if place in (0, len(words) - 1) or words[place - 1] not in ("hundred", *_SCALES):
                return None
        elif word in ("a", "an"):
            if place or words[1:2] not in (["hundred"], ["thousand"], ["million"], ["billion"]):
                return None
            group = last = 1
        elif word in _SCALES:
            if group is None or _SCALES[word] >= ceiling:
                return None
            total, group, ceiling, last = total + group * _SCALES[word], None, _SCALES[word], 0
        elif word == "hundred":
            if group is None or group >= 100 or not group:
                return None
            group, last = group * 100, 100
        else:
            value = _TENS.get(word) or _VALUES.get(word)
            fits = group is None or (last == 100 and value != 0) or (last in _TENS.values() and value in range(1, 10))
            if value is None or not fits:
                return None
            group, last = (group or 0) + value, value
    return None if group is None and not total else total + (group or 0)


__all__ = ["amount", "in_digits", "ordinal"]
