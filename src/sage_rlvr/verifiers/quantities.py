r"""Answers that are not mathematics: clock times, dates, ratios, number bases, words, letters, lists. Text only.

    based:     42_8               -> 34, 8
    clock:     3{:}30\text{ PM}   -> 15:30
    worded:    \text{an Ellipse}  -> ellipse

Algebra knows none of these: math-verify multiplies the letters of a word. Each reader returns None for a text that is not of its
kind. Units are in `sage_rlvr.verifiers.units`.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction

from sage_rlvr.verifiers.latex import SPACE, TEXT, has_text, plain
from sage_rlvr.verifiers.units import BASES

# ---- numbers in a base

_BASED = re.compile(
    r"(?P<digits>[0-9A-Za-z]+(?:\.[0-9A-Za-z]+)?)_(?:\{\s*\(?(?P<named>[a-z]+|\d+)\)?\s*\}|(?P<digit>\d+))"
)


def based(text: str) -> tuple[Fraction | None, int] | None:
    """(value, base) of 42_8, 1A_{16}, 101_{two}; no value for 9_8; None for any other text."""
    match = _BASED.fullmatch(SPACE.sub("", TEXT.sub(r"\1", text)))
    if match is None or not re.search(r"\d", match["digits"]):
        return None
    digits, name = match["digits"], match["named"] or match["digit"]
    base = int(name) if name.isdigit() and len(name) < 3 else BASES.get(name.removeprefix("base"), 0)
    if not 2 <= base <= 36 or (digits != digits.upper() and base != 16):
        return None
    whole, _, part = digits.partition(".")
    try:
        return Fraction(int(whole + part, base), base ** len(part)), base
    except ValueError:
        return (None, base) if digits.isdigit() else None


# ---- clock times, ratios, dates

_CLOCK = re.compile(
    r"(?P<hour>\d{1,2})(?:\s*:\s*(?P<minute>[0-5]\d))?(?:\s*:\s*(?P<second>[0-5]\d))?\s*"
    r"(?P<half>[ap]\s?\.?\s?m\.?|noon|midnight|o'clock)?(?:\s+in the (?P<part>morning|afternoon|evening))?",
    re.IGNORECASE,
)
_HALVES = {"noon": "pm", "midnight": "am", "o'clock": "", "morning": "am", "afternoon": "pm", "evening": "pm"}


@dataclass(frozen=True, slots=True)
class Clock:
    """A time of day, which `clock` makes and `sage_rlvr.verifiers.math` compares: the hour as written, the seconds after it, and
    "am", "pm" or ""."""

    hour: int
    past: int
    half: str = ""
    colon: bool = field(default=True, compare=False)

    def same(self, other: Clock) -> bool:
        """Whether both can be one time; one without am and pm, with an hour up to 12, may be either."""
        left = other if self.half else self
        if bool(self.half) != bool(other.half) and 1 <= left.hour <= 12:
            return (self.hour % 12, self.past) == (other.hour % 12, other.past)
        mine, theirs = (c.hour % 12 + 12 * (c.half == "pm") if c.half else c.hour % 24 for c in (self, other))
        return (mine, self.past) == (theirs, other.past)

    def ratio(self, other: Clock) -> bool:
        """Whether both may be one ratio instead, like 10:24 and 5:12."""
        if self.half or other.half or self.past % 60 or other.past % 60 or not self.past * other.past:
            return False
        return self.hour * other.past == other.hour * self.past


def clock(text: str) -> Clock | None:
    """3:30, 15:30, 3 PM, 3:30 p.m., noon; None for a plain number."""
    written = plain(text)
    if written.lower() in ("noon", "midnight"):
        return Clock(12, 0, _HALVES[written.lower()])
    match = _CLOCK.fullmatch(written.replace("{:}", ":").rstrip(". ") + ("." if written.endswith("m.") else ""))
    if match is None or int(match["hour"]) > 24 or not (match["minute"] or match["half"] or match["part"]):
        return None
    half = (match["half"] or "").lower().replace(".", "").replace(" ", "")
    half = _HALVES.get(half, half) or _HALVES.get((match["part"] or "").lower(), "")
    past = 60 * int(match["minute"] or 0) + int(match["second"] or 0)
    return Clock(int(match["hour"]), past, half if int(match["hour"]) <= 12 else "", match["minute"] is not None)


_TO_RATIO = re.compile(r"(?:\d+(?:[./]\d+)?|[a-z])(?: to (?:\d+(?:[./]\d+)?|[a-z]))+")


def ratio(text: str) -> list[str] | None:
    """The parts of a : b (: c) and of a to b (to c); None for anything else."""
    written = plain(text)
    if _TO_RATIO.fullmatch(written):
        return written.split(" to ")
    parts = split(written.replace("{:}", ":").replace(r"\colon", ":"), {":"})
    return parts if len(parts) > 1 and all(parts) and not re.search(r"[<>=]|\\[gln]e", text) else None


_MONTHS = ["january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november", "december"]
_MONTH = {name[:n]: i for i, name in enumerate(_MONTHS, start=1) for n in (3, len(name))} | {"sept": 9}
_DATE = re.compile(r"[A-Za-z]+|\d+|[,.\s]+|.")


def date(text: str) -> tuple[int, tuple[int, ...]] | None:
    """(month, numbers in falling order) of March 14, 14 March 2024; None without the name of a month and one or two numbers."""
    months: list[int] = []
    numbers: list[int] = []
    for piece in _DATE.findall(plain(text)):
        low = piece.lower()
        if piece.isdigit() and len(piece) <= 4:
            numbers.append(int(piece))
        elif low in _MONTH:
            months.append(_MONTH[low])
        elif not (low in ("st", "nd", "rd", "th", "of", "the") and numbers) and not re.fullmatch(r"[,.\s]+", piece):
            return None
    is_date = len(months) == 1 and 1 <= len(numbers) <= 2
    return (months[0], tuple(sorted(numbers, reverse=True))) if is_date else None


# ---- words

_WORDS = re.compile(r"[^\W\d_]+(?:['’\-][^\W\d_]+)*\.?(?:\s*[,;]?\s+[^\W\d_]+(?:['’\-][^\W\d_]+)*\.?)*[.!]?")
_FREE = ("a", "an", "the", "it", "is", "answer")
_SHORT = {"yes", "no", "odd", "tie", "red", "one", "two", "six", "ten"}
_MATHEMATICAL = {"infinity", "infinite", "sqrt", "frac", "pi"}
EMPTY = {"none", "no solution", "no solutions", "empty set", "no real solution", "no real solutions"}


def worded(text: str) -> str | None:
    """An answer in words, in small letters, without articles, the parts of a list in order; None for mathematics."""
    written = plain(text).replace('"', "").strip()
    if written in ("DNE", "D.N.E."):
        return "does not exist"
    if not _WORDS.fullmatch(written):
        return None
    words = [word.strip(".,;!").lower() for word in written.split()]
    words = [word for word in words if word not in _FREE] or words
    wide = max(map(len, words))
    if not (wide >= 4 or words[0] in _SHORT or (wide == 3 and (has_text(text) or len(words) > 1))):
        return None
    if len(words) == 1 and words[0] in _MATHEMATICAL:
        return None
    low = written.lower()
    parts = re.split(r"\s*(?:\band\b|\bor\b|,)\s*", re.sub(r"[.!;]", "", low))
    if len(parts) == 1:
        return " ".join(words)
    kept = sorted(" ".join(w for w in part.split() if w not in _FREE) for part in parts if part)
    return (" or " if re.search(r"\bor\b", low) else " and ").join(kept)


_LETTERS = re.compile(r"[A-Z]{2,12}")


def letters(text: str) -> str | None:
    """Capital letters that name points or an order: their order matters; None for anything else."""
    written = plain(text).replace(" ", "").rstrip(".")
    return written if _LETTERS.fullmatch(written) else None


_PARTING = re.compile(r"[,;=:]|\band\b|\bor\b")
_WORDED_PART = re.compile(r"[A-Za-z ]*[A-Za-z]{2}[A-Za-z ]*")


def lettered(text: str) -> Counter[str]:
    """The parts of an answer or of a list in brackets that consist only of letters, two or more of them joined: words, names, or
    products of letters."""
    parts = (part.strip() for part in _PARTING.split(plain(text).strip(r"()[]{}\ ")))
    return Counter(part for part in parts if _WORDED_PART.fullmatch(part))


def is_product(word: str) -> bool:
    """Whether letters are small names of variables that are neighbors in the alphabet, as in ab, xyz, pq."""
    return "".join(sorted(word)) in "abcd fgh jklmn pqrstuvwxyz"  # without e, i and o, which mostly belong to words


_CHOICE = re.compile(
    r"\(?(?P<letter>[A-J])\s*(?:\)|[.:](?=\s|$))\s*"
    r"(?P<rest>[^\s+\-*/=^_(),\\].*|\\(?!cup|cap|cdot|times|[a-z]*eq).*)?",
    re.DOTALL,
)
_OTHERS = re.compile(  # (B) or (C) is not a choice, and in A: 3, B: 4 none is chosen
    r"^(?:and|or)\b|\([A-J]\)|^[A-J][.)]?$|(?<![A-Za-z\\])[A-J]\s*[.:)](?=\s|$)|[,;]\s*[A-J]$"
)
_DENIED = re.compile(r"(?<![A-Za-z\\])(?:no|not|isn't|never|wrong|incorrect|false)(?![A-Za-z])", re.IGNORECASE)
_LETTER = re.compile(r"\(?([A-J])\)?[.:]?")


def choice(text: str) -> tuple[str, str] | None:
    """(letter, the text after it) of (B) 12 and B. 12; None for anything else, including a single letter."""
    match = _CHOICE.fullmatch(plain(text))
    return (match["letter"], match["rest"]) if match and match["rest"] and not _OTHERS.search(match["rest"]) else None


def denied(text: str) -> bool:
    """Whether the text after a choice may deny it: (A) is wrong; it may be the choice too: (A) No."""
    match = _CHOICE.fullmatch(plain(text))
    return match is not None and _DENIED.search(match["rest"] or "") is not None


def letter(text: str) -> str | None:
    """The letter of B, (B), B."""
    match = _LETTER.fullmatch(plain(text))
    return match[1] if match else None


# ---- parts

_INFINITY = re.compile(r"(?:(?P<less>-|negative |minus )|\+|positive |plus )?infinity", re.IGNORECASE)
_AND = re.compile(r"(?<![A-Za-z\\])(and|or(?!\s+so\b))(?![A-Za-z])")


def infinity(text: str) -> str | None:
    """Infinity in words as its sign; None for anything else."""
    match = _INFINITY.fullmatch(plain(text))
    return match and (r"-\infty" if match["less"] else r"\infty")


def joined(text: str) -> set[str]:
    """The words, "and" and "or", that join the parts of an answer."""
    return set(_AND.findall(plain(text).lower()))


def split(text: str, marks: set[str]) -> list[str]:
    """A text split at marks outside brackets; commands and escapes count as one character."""
    parts, depth = [""], 0
    for piece in re.findall(r"\\[a-zA-Z]+|\\.|.", text, re.DOTALL):
        depth -= piece in (")", "]", "}", r"\}")
        # not == 0: an unopened closing bracket, as in 2], 3, must not hide the marks after it
        if piece in marks and depth <= 0:
            parts.append("")
        else:
            parts[-1] += piece
        depth += piece in ("(", "[", "{", r"\{")
    return [part.strip() for part in parts]


def _parted_words(match: re.Match[str]) -> str:
    parts = _AND.split(match[1])
    return "".join(" ; " if i % 2 else rf"\text{{{part}}}" for i, part in enumerate(parts) if i % 2 or part.strip())


def listed(text: str) -> list[str]:
    """The parts of an answer that lists several, separated by commas, semicolons, "and" and "or" outside of brackets."""
    text = TEXT.sub(_parted_words, text)
    text = re.sub(r"(?<![A-Za-z\\{])\b(?:and|or(?!\s+so\b))\b(?![A-Za-z}])", ";", text)
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)  # 1,000 is one number
    return [part for part in split(text, {",", ";"}) if part]


__all__ = [
    "EMPTY", "Clock", "based", "choice", "clock", "date", "denied", "infinity", "is_product", "joined", "letter", "lettered",
    "letters", "listed", "plain", "ratio", "split", "worded",
]  # fmt: skip
