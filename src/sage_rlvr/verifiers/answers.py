r"""Where an answer stands in a completion, and how it is spelled. Text only: linear in its length, safe in any process.

    extract: completion, place -> answer | (none, why)          place = boxed, tag, stated, last_number or whole
    settle:  answer, gold      -> verdict | (not decided by spelling)

An answer is read at the place that was asked for and nowhere else: a number of the working is never taken for one. The
last number of a text is a place of its own, to be asked for by name. Algebra is in `sage_rlvr.verifiers.math`.
"""

from __future__ import annotations

import math
import re
from collections import deque
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

from sage_rlvr.errors import ConfigError
from sage_rlvr.verifiers.style import halved, undressed
from sage_rlvr.verifiers.verdict import Verdict

AnswerPlace = Literal["boxed", "tag", "stated", "last_number", "whole", "anywhere"]

_PLACES = get_args(AnswerPlace)
MAX_COMPLETION = 1_000_000  # characters of a completion that are searched for the answer
MAX_ANSWER = 1_000  # characters of an answer or a gold that are parsed
MAX_DIGITS = 100_000  # of a power or a factorial that is worked out
MAX_DEPTH = 40  # brackets within brackets; the parser needs minutes for 400
RIGHT = Verdict("right", "right")
NO_ANSWER, CUT_OFF = "no answer", "answer cut off"
_BRACES = re.compile(
    r"(?P<box>\\+(?:boxed|fbox)\s*\{)|\\+boxed\s*(?P<loose>[-+]?\d+(?:[.,/]\d+)*)|\\.|(?P<open>\{)|(?P<close>\})",
    re.DOTALL,
)
# "answer is", "answer:" and the four signs of GSM8K
_STATED = re.compile(r"####|\banswer\W{0,4}(?:\s(?:is|=)\b\W{0,2}?:?|:\**|=)", re.IGNORECASE)
_SENTENCE = re.compile(r"[.!?](?:\*\*)?(?:\s|$)")
_REASON = re.compile(r"(?<=\S)(?:,?\s+(?:since|because)|,\s+as)\s", re.IGNORECASE)  # a reason, and no condition, follows
# A sign counts where it cannot be a minus between two operands; 1,2 are two numbers and 1,000 is one.
_NUMBER = re.compile(
    r"(?:(?<![\w)\]}.])[-+\u2212])?"
    r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|(?<![0-9])\.[0-9]+)"
    r"(?:/[0-9]+|\s?\\?%)?"
)
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")  # what is no text; JSON makes form feeds of commands
_DOLLAR = re.compile(r"(?<!\\)\$")
_SCIENTIFIC = re.compile(r"(?<![\w.\\{])([-+]?\d+(?:\.\d+)?)[eE]([-+]?\d{1,9})(?![\w.])")
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
# No space between digits is dropped, and none that parts a list: 2 1/2 is not 21/2, and 1, 234 is not 1,234.
_LAYOUT = re.compile(
    r"\\left(?![a-z])|\\right(?![a-z])|\\[!,;:]|\\displaystyle(?![a-z])"
    r"|(?<!\d)(?<!\d,)\s|(?<=\d,)\s(?!\d{3}(?!\d))|\s(?!\d)"
)
_SPACES = r"(?:\\[, ]|~| |\{,\}|,\\!|\\!,)"
_GROUPED = re.compile(rf"(?<![\d.,^_])\d{{1,3}}(?:{_SPACES}\d{{3}})+(?!\d)")
_MIXED = re.compile(r"(?<![\w.^_}}])(\d+) (\d+)/(\d+)(?![\d.])")
_REPEATING = re.compile(r"(?<![\d.])(\d*)\.(\d*)\\(?:overline|bar|dot)\s*(?:\{(\d{1,40})\}|(\d))(?!\d)")
# What stands on the left is written as on the right before anything is parsed.
_REWRITES = (
    (re.compile(r"(?<!\\)~"), " "),
    (re.compile(r"\\degree(?![a-z])"), r"^\\circ "),
    (re.compile(r"\\log\s*_\s*(?:e(?![a-z])|\{\s*(?:\\mathrm\s*\{?)?e\}?\s*\})"), r"\\ln "),
    (re.compile(r"(?<=\d)\s*x\s*(?=10\s*\^)"), r"\\times "),
    (re.compile(r"\^\s*\{?\s*\\(?:text|mathrm)\s*\{\s*(?:st|nd|rd|th)\s*\}\s*\}?"), ""),
    (re.compile(r"\\(?:nice|s|x)frac(?![a-z])"), r"\\frac"),
    (re.compile(r"\\([dt]?frac)\s*(\\pi|\d)\s*(\\pi(?![a-z])|\d)(?=\W|$)"), r"\\\1{\2}{\3}"),
    (re.compile(r"\\langle(?![a-z])"), "("),
    (re.compile(r"\\rangle(?![a-z])"), ")"),
)
_MARKDOWN = re.compile(r"(\*\*|`+|\*)\s*(.*?)\s*\1")
_REWRITTEN = re.compile(
    r"~|x\s*10|\\(?:degree|nicefrac|sfrac|xfrac|d?frac\s*\\pi|tfrac\s*\\pi|d?frac\s*\d\s*\\pi|log|langle|rangle|overline|bar|dot)|\^\s*\{?\s*\\(?:text|mathrm)"
)
_IDLE_POINT = re.compile(r"(?<=[0-9])\.(?=/)")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:_\d{3})+")
_NUMERAL = re.compile(
    r"(?P<sign>[-+]?)(?:(?P<whole>[0-9]+)(?:\.(?P<decimals>[0-9]+))?"
    r"|(?:(?P<over>[0-9]+)/|\\[dt]?frac\{(?P<top>[0-9]+)\}\{(?=[0-9]+\}))(?P<under>[0-9]+)\}?)"
)
# Full-width forms, the minus sign and the wide space as ASCII; marks that no reader sees are dropped.
_ASCII: dict[int, int | str | None] = {0xFF01 + i: 0x21 + i for i in range(94)} | {0x2212: "-", 0x3000: " "}
_ASCII |= dict.fromkeys((0xAD, 0x200B, 0x200C, 0x200D, 0x200E, 0x200F, 0x2060, 0xFEFF))
# Signs that models write and the parser does not know.
_SIGNS = re.findall(
    r"\S+",
    "√ sqrt π pi ∞ infty ≤ le ≥ ge ≠ ne ≈ approx × times · cdot ÷ div ± pm ∪ cup ∩ cap ∅ emptyset ∈ in α alpha β beta γ gamma "
    "δ delta ε varepsilon θ theta λ lambda μ mu σ sigma φ varphi ω omega",
)
_ASCII |= {ord(sign): rf"\{command} " for sign, command in zip(_SIGNS[::2], _SIGNS[1::2], strict=True)}
_ASCII |= {ord(sign): rf"\frac{{{a}}}{{{b}}}" for sign, a, b in zip("½⅓⅔¼¾⅕⅛", "1121311", "2334458", strict=True)}
_ASCII |= {ord("°"): r"^\circ ", ord("º"): r"^\circ ", ord("ℝ"): r"\mathbb{R}"}
_POWERS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")
WORD = re.compile(r"[^\W\d_]{4,}|[A-Z]?[a-z]{3}|[Nn]o|NO|YES")


AnswerSpan = tuple[int, int]
"""(first character of an answer, the one behind it) in a completion."""
SpanOrReason = tuple[AnswerSpan | None, str]
"""Where the answer stands; or None, and why there is none."""


def _cut(text: str, span: SpanOrReason) -> tuple[str | None, str]:
    return (None if span[0] is None else text[slice(*span[0])]), span[1]


def last_box(text: str) -> tuple[str | None, str]:
    r"""The contents of the last outermost `\boxed{...}` (or the number of `\boxed 5`), or None and why it is none."""
    return _cut(text, _box_span(text))


def _box_span(text: str) -> SpanOrReason:
    boxes, cut = _boxes(text)
    if cut or not boxes:
        return None, CUT_OFF if cut else NO_ANSWER
    return boxes[-1], ""


def _boxes(text: str) -> tuple[list[AnswerSpan], bool]:
    """What the outermost boxes hold, in their order, and whether the last one is cut off."""
    opened: list[int | None] = []  # for each open brace: where its box's contents start, None when it is no box
    boxes: list[AnswerSpan] = []
    for token in _BRACES.finditer(text):
        if token["box"]:
            opened.append(token.end())
        elif token["loose"] and not opened:
            boxes.append(token.span("loose"))
        elif token["open"]:
            opened.append(None)
        elif token["close"] and opened:
            start = opened.pop()
            if start is not None:
                while boxes and boxes[-1][0] > start:
                    boxes.pop()  # a box within this one
                boxes.append((start, token.start()))
    return boxes, any(start is not None and (not boxes or start > boxes[-1][1]) for start in opened)


def last_tag(text: str, tag: str, closed: bool = True) -> tuple[str | None, str]:
    """What stands between the last `<tag>` and its `</tag>`, or None and why: "no answer", "answer cut off"."""
    return _cut(text, _tag_span(text, tag, closed))


def _tag_span(text: str, tag: str, closed: bool = True) -> SpanOrReason:
    start = text.rfind(f"<{tag}>")
    if start < 0:
        return None, NO_ANSWER
    start += len(tag) + 2
    end = text.find(f"</{tag}>", start)
    if end < 0 and closed:
        return None, CUT_OFF
    return (start, end if end >= 0 else len(text)), ""


def last_number(text: str) -> tuple[str | None, str]:
    """The last plain number of a text (-3, 1,000, 2.5, 3/4, 20 %), or None and "no answer"."""
    return _cut(text, _number_span(text))


def _number_span(text: str) -> SpanOrReason:
    # only the last match is kept: a completion of a million characters may hold half a million numbers
    matches = deque(_NUMBER.finditer(text), maxlen=1)
    return (matches[0].span(), "") if matches else (None, NO_ANSWER)


def _stated_span(text: str) -> SpanOrReason:
    """What follows the last "answer is", "answer:" or "####", to the end of its sentence; None and why where nothing does."""
    matches = deque(_STATED.finditer(text), maxlen=1)
    if not matches:
        return None, NO_ANSWER
    rest = text[matches[0].end() :].lstrip()
    start, line = len(text) - len(rest), rest.partition("\n")[0].rstrip()
    if not line:
        return None, CUT_OFF
    sentence = _SENTENCE.split(line, maxsplit=1)[0]
    sentence = _REASON.split(sentence, maxsplit=1)[0].rstrip()
    if (front := _FRONT_WORDS.match(sentence)) is not None:
        start, sentence = start + front.end(), sentence[front.end() :]
    answer = sentence.strip("*")
    start += len(sentence) - len(sentence.lstrip("*"))
    return (start, start + len(answer)), ""


_PLACED = {"boxed": _box_span, "stated": _stated_span, "last_number": _number_span}


def extract(
    completion: str, answer_in: AnswerPlace = "boxed", tag: str = "SOLUTION", closed: bool = True
) -> tuple[str | None, str]:
    """The answer of a completion at the place that was asked for, or None and why.

    Boxes that are joined, x = \\boxed{-4} and x = \\boxed{9}, are one answer that lists several: "-4, 9".
    """
    if answer_in == "boxed" and len(boxes := _listed_boxes(completion)) > 1:
        return ", ".join(boxes), ""
    return _cut(completion, span_of(completion, answer_in, tag, closed))


# what may stand between a box and another of one list
_BETWEEN = re.compile(
    r"\}?\s*\$?\s*(?:,|;|,?\s*(?:\\text\s*\{)?\s*(?:and|or)\s*\}?)\s*(?:\\q?quad|\\[ ,;])?\s*\$?"
    r"\s*(?:[A-Za-z](?:_\{?\w\}?)?\s*=\s*)?\\+(?:boxed|fbox)\s*\{?"
)


def _listed_boxes(text: str) -> list[str]:
    """The different boxes of the list that ends with the last box; [] where that is cut off."""
    boxes, cut = _boxes(text)
    if cut or not boxes:
        return []
    first = len(boxes) - 1
    while first and _BETWEEN.fullmatch(text, boxes[first - 1][1], boxes[first][0]):
        first -= 1
    return list(dict.fromkeys(text[start:end] for start, end in boxes[first:]))


def span_of(completion: str, answer_in: AnswerPlace = "boxed", tag: str = "SOLUTION", closed: bool = True) -> SpanOrReason:
    """Where `extract` finds the answer, (first character, the one behind it), or None and why. "anywhere" is the whole text."""
    if answer_in == "tag":
        return _tag_span(completion, tag, closed)
    return _PLACED[answer_in](completion) if answer_in in _PLACED else ((0, len(completion)), "")


def marked_span(completion: str) -> AnswerSpan | None:
    """The answer of a text whose place nobody names: behind the last mark of a box, `<answer>`, or "answer:"; None without one."""
    spans = (_box_span(completion), _tag_span(completion, "answer"), _stated_span(completion))
    return max((span for span, _ in spans if span is not None), default=None)


def bare(text: str) -> str:
    """An answer without box, dollar signs, math delimiters, full stop and needless spaces, in ASCII where it can be.

    1e-3 becomes a power of ten (math-verify reads e - 3), 1_000 and 1 000 become 1000 (math-verify reads 1 and 1 * 0), 1./3
    becomes 1/3, 2 1/2 a mixed number, 0.1\\overline{6} a fraction; signs such as \u221a and \u00b0 become commands.
    """
    if text.isdigit() and text.isascii():  # isdigit is true of ² and of Arabic digits too
        return text
    boxed = last_box(text)[0] if "box" in text else None
    text = _without_dollars(halved(boxed if boxed is not None else text))
    if not text.isascii():
        text = _RAISED.sub(lambda match: f"^{{{match[0].translate(_POWERS)}}}", text).translate(_ASCII)
    text = " ".join(text.split())
    if marked := _MARKDOWN.fullmatch(text):
        text = marked[2]
    for left, right in ((r"\(", r"\)"), (r"\[", r"\]")):
        text = text.removeprefix(left).removesuffix(right).strip()
    text = _without_front(undressed(text))
    if (whole := _TEXT.fullmatch(text)) and any(map(str.isdigit, whole[1])):
        text = whole[1].strip()
    if _THOUSANDS.fullmatch(text):
        return text.replace("_", "")
    if " " in text or "," in text:
        text = _GROUPED.sub(lambda match: re.sub(r"\D", "", match[0]), text)
        # groups first: of 1 000 1/2 the mixed number would be 000 1/2
        text = _MIXED.sub(r"\1\\frac{\2}{\3}", text)
    text = _IDLE_POINT.sub("", text)
    if "e" in text or "E" in text:
        text = _SCIENTIFIC.sub(lambda match: rf"{match[1]}\times 10^{{{int(match[2])}}}", text)
    if not _REWRITTEN.search(text):
        return text
    for pattern, written in _REWRITES:
        text = pattern.sub(written, text)
    return _REPEATING.sub(_as_fraction, text).strip()


# Words in front of an answer that say nothing of its value. "half of" and "not" are none of them.
_FRONT = (
    r"(?:so |thus |hence |therefore,? )?(?:(?:the )?(?:final |correct |right )?(?:answer|result|value|solution)(?: is|:| =)|it is"
    r"|this is|which is|(?:is )?equal to|equals|a total of|in total|therefore|thus|hence|so|simply|just)[,:]?"
)
_BLOCK = r"\\(?:text|textbf|textit|textrm|mathrm|mbox)\s*\{"
_FRONT_TEXT = re.compile(rf"{_BLOCK}\s*{_FRONT}\s*\}}\s*(?:\\[,;: ]|~|\s)*(?=\S)", re.IGNORECASE)
_FRONT_WORDS = re.compile(rf"\W{{0,2}}{_FRONT}\s+(?=\S)", re.IGNORECASE)
_NAMED_TEXT = re.compile(rf"{_BLOCK}\s*([A-Za-z]\s*=)\s*\}}(?=\s*\S)")
_OPTION = re.compile(rf"(?:{_BLOCK})?\s*(?:option|choice)\s*:?\s*\(?([A-J])\)?\s*[.:]?\s*\}}?", re.IGNORECASE)


def _without_front(text: str) -> str:
    r"""An answer without the words in front of it that say nothing of its value: `\text{a total of } 30` -> 30."""
    if not text[:1].isalpha() and not text.startswith("\\"):
        return text
    text = _NAMED_TEXT.sub(r"\1 ", text, count=1) if _NAMED_TEXT.match(text) else text
    text = _FRONT_TEXT.sub("", text, count=1) if _FRONT_TEXT.match(text) else text
    chosen = _OPTION.fullmatch(text)
    return chosen[1].upper() if chosen else text


def _without_dollars(text: str) -> str:
    """A text without the dollar signs of mathematics; the only one there is, in front of a digit, is money."""
    if text.count("$") == 1 and re.match(r"\s*[-+]?\$\s*[\d.]", text):
        return text.replace("$", r"\$")
    return _DOLLAR.sub("", text)


def _as_fraction(match: re.Match[str]) -> str:
    r"""The fraction of 0.1\overline{6}: 1/6."""
    whole, fixed, again = match[1], match[2], match[3] or match[4]
    nines = 10 ** len(again) - 1
    value = Fraction(int(whole + fixed + again or 0) - int(whole + fixed or 0), nines * 10 ** len(fixed))
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def spelling(text: str) -> str:
    r"""A text without `\text{}`, spacing and bracket sizes: answers of one spelling need no algebra to be equal."""
    text = _LAYOUT.sub("", _TEXT.sub(r"\1", text)).replace(r"\dfrac", r"\frac").replace(r"\tfrac", r"\frac")
    return text.casefold() if WORD.fullmatch(text) else text


def rational(text: str) -> tuple[Fraction, bool] | None:
    r"""(value, whether it is a decimal) of 3, -2.50, 3/4, `\frac{3}{4}`; None for all else, 3/0 included."""
    match = _NUMERAL.fullmatch(text)
    if match is None or (match["over"] is not None and text.endswith("}")) or not int(match["under"] or 1):
        return None
    whole = f"{match['whole']}.{match['decimals'] or 0}" if match["whole"] else match["over"] or match["top"]
    value = Fraction(whole) / int(match["under"] or 1)
    return (-value if match["sign"] == "-" else value), match["decimals"] is not None


def by_spelling(answer: str, gold: str) -> Verdict | None:
    """The verdict on two bare answers of one spelling, or on two plain numbers; None where it takes algebra.

    Numbers that differ are left to algebra when one is a decimal, for it may be a rounded one.
    """
    if answer == gold or spelling(answer) == spelling(gold):
        return RIGHT
    mine, theirs = rational(answer), rational(gold)
    if mine is None or theirs is None:
        return None
    if mine[0] == theirs[0]:
        return RIGHT
    return None if mine[1] or theirs[1] else Verdict("wrong", "value")


def no_number(value: object) -> bool:
    """Whether a gold or an answer is what broken arithmetic leaves: nan in any spelling, or an infinite float."""
    if isinstance(value, float):
        return not math.isfinite(value)
    text = value.strip() if isinstance(value, str) else ""
    return "nan" in text.casefold() and spelling(text).casefold().lstrip("+-") == "nan"


@dataclass(frozen=True, slots=True)
class PendingComparison:
    """A comparison that spelling does not decide. `prepare` makes it; `verify_math` and a `Pool` decide it by algebra.

    key: (answer, gold, algebra_only); pairs of one key have one verdict. args, options: the call of `verify_math` that decides.
    """

    key: tuple[str, str, bool]
    args: tuple[str, str]
    options: dict[str, str | bool]


def prepare(
    completion: str,
    gold: str,
    *,
    answer_in: AnswerPlace = "boxed",
    tag: str = "SOLUTION",
    closed: bool = True,
    algebra_only: bool = False,
) -> Verdict | PendingComparison | None:
    """What `verify_math` of these arguments says without algebra: a verdict, the question that is left, or None.

    None: the place "anywhere" needs algebra to find the answer. `ConfigError` when `answer_in` is no place.
    """
    if answer_in not in _PLACES:
        raise ConfigError(f"answer_in: {answer_in!r} is no place for an answer: {', '.join(_PLACES)}.")
    if not (isinstance(completion, str) and isinstance(gold, str)):
        return Verdict("undecided", "not a text")
    for name, text, most in (("completion", completion, MAX_COMPLETION), ("gold", gold, MAX_ANSWER)):
        if len(text) > most:
            return Verdict("undecided", f"{name} of more than {most} characters")
    if CONTROL.search(gold):
        return Verdict("undecided", "gold holds a control character")
    wanted = bare(gold)
    if not wanted or no_number(wanted):
        return Verdict("undecided", "gold is not a number" if wanted else "no gold")
    if answer_in == "anywhere":
        return None
    extracted, why = extract(completion, answer_in, tag, closed)
    if extracted is None:
        return Verdict("wrong", why)
    if len(extracted) > MAX_ANSWER:
        return Verdict("undecided", f"answer of more than {MAX_ANSWER} characters")
    answer = bare(extracted)
    if not answer or no_number(answer):
        return Verdict("wrong", "answer is not a number" if answer else NO_ANSWER)
    settled = None if algebra_only else by_spelling(answer, wanted)
    if settled is not None:
        return settled
    left: dict[str, str | bool] = {"answer_in": "whole", "algebra_only": algebra_only}
    return PendingComparison((answer, wanted, algebra_only), (extracted, gold), left)


__all__ = [
    "CONTROL", "CUT_OFF", "MAX_ANSWER", "MAX_COMPLETION", "MAX_DEPTH", "MAX_DIGITS", "AnswerPlace", "PendingComparison", "bare",
    "by_spelling", "extract", "last_box", "last_number", "last_tag", "marked_span", "no_number", "prepare", "rational", "span_of",
    "spelling",
]  # fmt: skip
