r"""The place of an answer in a completion, and its form as text. Text only: linear in its length, safe in any process.

    extract: completion, reading -> answer | (none, why)        read at boxed, tag, stated, last_number or whole
    settle:  answer, gold      -> verdict | (not decided by text)

An answer is read after the thinking (`thinking.py`), only at the requested place: a number of the working is never used as one. The
last number of a text is a separate place with a name. Algebra is in `sage_rlvr.verifiers.math`.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import deque
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, Literal, get_args

from sage_rlvr.errors import ConfigError
from sage_rlvr.verifiers.numerals import in_digits
from sage_rlvr.verifiers.plain import typeset
from sage_rlvr.verifiers.style import halved, undressed
from sage_rlvr.verifiers.thinking import KNOWN, behind_thinking, check_thinking
from sage_rlvr.verifiers.verdict import Verdict

AnswerPlace = Literal["boxed", "tag", "stated", "last_number", "whole", "anywhere"]

_PLACES = get_args(AnswerPlace)
MAX_COMPLETION = 1_000_000  # characters of a completion that are searched for the answer
MAX_ANSWER = 1_000  # characters of an answer or a gold that are parsed
MAX_DIGITS = 100_000  # digits of a power or a factorial that is computed
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
_REASON = re.compile(r"(?<=\S)(?:,?\s+(?:since|because)|,\s+as)\s", re.IGNORECASE)  # a reason, not a condition, follows
# A sign counts if it cannot be a minus between two operands; 1,2 are two numbers and 1,000 is one.
_NUMBER = re.compile(
    r"(?:(?<![\w)\]}.])[-+\u2212])?"
    r"(?:(?:\d{1,3}(?:[,\u066c]\d{3})+(?!\d)|\d+)(?:[.\u066b]\d+)?|(?<!\d)\.\d+)"
    r"(?:/\d+|\s?\\?[%\u066a])?"
)
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")  # characters that are not text; JSON makes form feeds of commands
_DOLLAR = re.compile(r"(?<!\\)\$")
_SCIENTIFIC = re.compile(r"(?<![\w.\\{])([-+]?\d+(?:\.\d+)?)[eE]([-+]?\d{1,9})(?![\w.])")
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
# Spaces between digits are kept, and those that separate a list: 2 1/2 is not 21/2, and 1, 234 is not 1,234.
_LAYOUT = re.compile(
    r"\\left(?![a-z])|\\right(?![a-z])|\\[!,;:]|\\displaystyle(?![a-z])"
    r"|(?<!\d)(?<!\d,)\s|(?<=\d,)\s(?!\d{3}(?!\d))|\s(?!\d)"
)
_SPACES = r"(?:\\[, ]|~| |\{,\}|,\\!|\\!,)"
_GROUPED = re.compile(rf"(?<![\d.,^_])\d{{1,3}}(?:{_SPACES}\d{{3}})+(?!\d)")
_MIXED = re.compile(r"(?<![\w.^_}}])(\d+) (\d+)/(\d+)(?![\d.])")
_REPEATING = re.compile(r"(?<![\d.])(\d*)\.(\d*)\\(?:overline|bar|dot)\s*(?:\{(\d{1,40})\}|(\d))(?!\d)")
# The forms on the left are rewritten as on the right before parsing.
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
# Full-width forms, the minus sign and the wide space as ASCII; invisible marks are dropped.
_ASCII: dict[int, int | str | None] = {0xFF01 + i: 0x21 + i for i in range(94)} | {0x2212: "-", 0x3000: " "}
_ASCII |= dict.fromkeys((0x2010, 0x2011, 0x2012), "-")
_DASH = re.compile(r"(?<![\w)\]}.!'%])\u2013(?=[\w.\\(])")  # an en dash before an operand; 3\u20135 may be a range
_ASCII |= dict.fromkeys((0xAD, 0x200B, 0x200C, 0x200D, 0x200E, 0x200F, 0x2060, 0xFE0F, 0xFEFF))
_ASCII |= {ord("٫"): ".", ord("٬"): ",", ord("٪"): "%", ord("،"): ","}
# Signs that models write but the parser does not know.
_SIGNS = re.findall(
    r"\S+",
    "√ sqrt π pi ∞ infty ≤ le ≥ ge ≠ ne ≈ approx × times · cdot ÷ div ± pm ∪ cup ∩ cap ∅ emptyset ∈ in α alpha β beta γ gamma "
    "δ delta ε varepsilon θ theta λ lambda μ mu σ sigma φ varphi ω omega",
)
_ASCII |= {ord(sign): rf"\{command} " for sign, command in zip(_SIGNS[::2], _SIGNS[1::2], strict=True)}
_ASCII |= {ord(sign): rf"\frac{{{a}}}{{{b}}}" for sign, a, b in zip("½⅓⅔¼¾⅕⅛", "1121311", "2334458", strict=True)}
_ASCII |= {ord("∛"): r"\sqrt[3]", ord("°"): r"^\circ ", ord("º"): r"^\circ ", ord("ℝ"): r"\mathbb{R}"}
_POWERS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")
WORD = re.compile(r"[^\W\d_]{4,}|[A-Z]?[a-z]{3}|[A-Z][a-z]{2}|[Nn]o|NO|YES")
_SHOUTED = re.compile(r"[A-Z][a-z]{2}\s[A-Z]{3}|[A-Z]{3}\s[A-Z][a-z]{2}")  # Eve and EVE; for ABC and abc algebra decides


AnswerSpan = tuple[int, int]
"""(first character of an answer, the character after it) in a completion."""
SpanOrReason = tuple[AnswerSpan | None, str]
"""The place of the answer; or None, and why there is none."""


def _cut(text: str, span: SpanOrReason) -> tuple[str | None, str]:
    return (None if span[0] is None else text[slice(*span[0])]), span[1]


def last_box(text: str) -> tuple[str | None, str]:
    r"""The contents of the last outermost `\boxed{...}` (or the number of `\boxed 5`), or None and why."""
    return _cut(text, _box_span(text))


def _box_span(text: str) -> SpanOrReason:
    boxes, cut = _boxes(text)
    if cut or not boxes:
        return None, CUT_OFF if cut else NO_ANSWER
    return boxes[-1], ""


def _boxes(text: str) -> tuple[list[AnswerSpan], bool]:
    """The contents of the outermost boxes, in their order, and whether the last one is cut off."""
    opened: list[int | None] = []  # for each open brace: where its box's contents start, None if it is no box
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
    """The text between the last `<tag>` and its `</tag>`, or None and why: "no answer", "answer cut off"."""
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
    # only the last match is stored: a completion of a million characters may have half a million numbers
    matches = deque(_NUMBER.finditer(text), maxlen=1)
    return (matches[0].span(), "") if matches else (None, NO_ANSWER)


def _stated_span(text: str) -> SpanOrReason:
    """The text after the last "answer is", "answer:" or "####", to the end of its sentence; None and why if there is none."""
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


@dataclass(frozen=True, slots=True)
class AnswerReading:
    r"""The place and form in which an answer is read in a completion. Prompt formats, rewards and `verify_math` make it from their
    fields; `extract` and `span_of` use it.

    answer_in    the place of the answer; its last occurrence counts: "boxed" in `\boxed{...}`, "tag" in `<tag>...</tag>`,
                 "stated" after the last "answer is" or "####", "last_number" the last plain number, "whole" all of the text,
                 "anywhere" the place where math-verify finds one, including the last number
    closed       False if generation stops at the closing tag and drops it: the answer then ends with the text
    thinking     the tag of the thinking, after which answers are read: "think" means all known marks (`<think>`,
                 `<thinking>`, `<reasoning>`, `[THINK]`, `<|channel|>analysis`, ...), another name its tag; if it is not
                 closed, there is no answer; "" reads texts from their beginning
    in_thinking  True if the prompt opens the thinking: a completion that does not close it then has no answer

    Raises ConfigError for an unknown `answer_in` and a `thinking` that is no tag.
    """

    answer_in: AnswerPlace = "boxed"
    tag: str = "SOLUTION"
    closed: bool = True
    thinking: str = KNOWN
    in_thinking: bool = False

    def __post_init__(self) -> None:
        if self.answer_in not in _PLACES:
            raise ConfigError(f"answer_in: {self.answer_in!r} is no place for an answer: {', '.join(_PLACES)}.")
        check_thinking(self.thinking)


def reading_options(source: Any) -> dict[str, Any]:
    """The fields of `AnswerReading` that an object has under the same names: the options of `verify_math` for the place of an
    answer."""
    return {field.name: getattr(source, field.name) for field in fields(AnswerReading)}


BOXED = AnswerReading()


def extract(completion: str, reading: AnswerReading = BOXED) -> tuple[str | None, str]:
    """The answer of a completion at the requested place, or None and why.

    Boxes that are joined, x = \\boxed{-4} and x = \\boxed{9}, are one answer that lists several: "-4, 9".
    """
    start = behind_thinking(completion, reading.thinking, reading.in_thinking)
    if start is None:
        return None, CUT_OFF
    text = completion[start:]
    if reading.answer_in == "boxed" and len(boxes := _listed_boxes(text)) > 1:
        return ", ".join(boxes), ""
    return _cut(text, _placed(text, reading))


# text that may separate the boxes of one list
_BETWEEN = re.compile(
    r"\}?\s*\$?\s*(?:,|;|,?\s*(?:\\text\s*\{)?\s*(?:and|or)\s*\}?)\s*(?:\\q?quad|\\[ ,;])?\s*\$?"
    r"\s*(?:[A-Za-z](?:_\{?\w\}?)?\s*=\s*)?\\+(?:boxed|fbox)\s*\{?"
)


def _listed_boxes(text: str) -> list[str]:
    """The different boxes of the list that ends with the last box; [] if that is cut off."""
    boxes, cut = _boxes(text)
    if cut or not boxes:
        return []
    first = len(boxes) - 1
    while first and _BETWEEN.fullmatch(text, boxes[first - 1][1], boxes[first][0]):
        first -= 1
    return list(dict.fromkeys(text[start:end] for start, end in boxes[first:]))


def span_of(completion: str, reading: AnswerReading = BOXED) -> SpanOrReason:
    """The place where `extract` finds the answer, (first character, the character after it), or None and why. "anywhere" is the
    full text."""
    start = behind_thinking(completion, reading.thinking, reading.in_thinking)
    if start is None:
        return None, CUT_OFF
    span, why = _placed(completion[start:], reading)
    return (None if span is None else (start + span[0], start + span[1])), why


def _placed(text: str, reading: AnswerReading) -> SpanOrReason:
    if reading.answer_in == "tag":
        return _tag_span(text, reading.tag, reading.closed)
    return _PLACED[reading.answer_in](text) if reading.answer_in in _PLACED else ((0, len(text)), "")


def marked_span(completion: str) -> AnswerSpan | None:
    """The answer of a text without a named place: after the thinking, after the last mark of a box, `<answer>`, or "answer:";
    None without one."""
    start = behind_thinking(completion)
    if start is None:
        return None
    text = completion[start:]
    spans = (_box_span(text), _tag_span(text, "answer"), _stated_span(text))
    last = max((span for span, _ in spans if span is not None), default=None)
    return None if last is None else (start + last[0], start + last[1])


def bare(text: str) -> str:
    """An answer without box, dollar signs, math delimiters, full stop and needless spaces, in ASCII if possible.

    1e-3 becomes a power of ten (math-verify reads e - 3), 1_000 and 1 000 become 1000 (math-verify reads 1 and 1 * 0), 1./3
    becomes 1/3, seven becomes 7, 2 1/2 a mixed number, 0.1\\overline{6} a fraction; signs such as \u221a and \u00b0 become
    commands.
    """
    if text.isdigit() and text.isascii():  # isdigit is also true of ² and of Arabic digits
        return text
    boxed = last_box(text)[0] if "box" in text else None
    text = _without_dollars(halved(boxed if boxed is not None else text))
    if not text.isascii():
        text = _RAISED.sub(lambda match: f"^{{{match[0].translate(_POWERS)}}}", _DASH.sub("-", text)).translate(_ASCII)
        text = re.sub(r"\d", lambda digit: str(unicodedata.decimal(digit[0])), text)  # of any script
    text = " ".join(text.split())
    if marked := _MARKDOWN.fullmatch(text):
        text = marked[2]
    for left, right in ((r"\(", r"\)"), (r"\[", r"\]")):
        text = text.removeprefix(left).removesuffix(right).strip()
    text = in_digits(_without_front(undressed(text)))
    if (whole := _TEXT.fullmatch(text)) and any(map(str.isdigit, whole[1])):
        text = whole[1].strip()
    if _THOUSANDS.fullmatch(text):
        return text.replace("_", "")
    if " " in text or "," in text:
        text = _GROUPED.sub(lambda match: re.sub(r"\D", "", match[0]), text)
        # groups first: in 1 000 1/2 the mixed number would be 000 1/2
        text = _MIXED.sub(r"\1\\frac{\2}{\3}", text)
    text = typeset(_IDLE_POINT.sub("", text))
    if "e" in text or "E" in text:
        text = _SCIENTIFIC.sub(lambda match: rf"{match[1]}\times 10^{{{int(match[2])}}}", text)
    if not _REWRITTEN.search(text):
        return text
    for pattern, written in _REWRITES:
        text = pattern.sub(written, text)
    return _REPEATING.sub(_as_fraction, text).strip()


# Words before an answer that do not change its value. "half of" and "not" do.
_FRONT = (
    r"(?:so |thus |hence |therefore,? )?(?:(?:the )?(?:final |correct |right )?(?:answer|result|value|solution)(?: is|:| =)|it is"
    r"|this is|which is|(?:is )?equal to|equals|a total of|in total|therefore|thus|hence|so|simply|just)[,:]?"
)
_BLOCK = r"\\(?:text|textbf|textit|textrm|mathrm|mbox)\s*\{"
_FRONT_TEXT = re.compile(rf"{_BLOCK}\s*{_FRONT}\s*\}}\s*(?:\\[,;: ]|~|\s)*(?=\S)", re.IGNORECASE)
_FRONT_WORDS = re.compile(rf"\W{{0,2}}{_FRONT}\s+(?=\S)", re.IGNORECASE)
_NAMED_TEXT = re.compile(rf"{_BLOCK}\s*([A-Za-z]\s*=)\s*\}}(?=\s*\S)")
_IS = re.compile(r"\$?([A-Za-z])\$? (?:is in|is)(?= *[^A-Za-z\s])")  # x is in (1, 2), x is 5
_OPTION = re.compile(rf"(?:{_BLOCK})?\s*(?:option|choice)\s*:?\s*\(?([A-J])\)?\s*[.:]?\s*\}}?", re.IGNORECASE)


def _without_front(text: str) -> str:
    r"""An answer without the words before it that do not change its value: `\text{a total of } 30` -> 30."""
    if not text[:1].isalpha() and not text.startswith("\\"):
        return text
    text = _NAMED_TEXT.sub(r"\1 ", text, count=1) if _NAMED_TEXT.match(text) else text
    text = _FRONT_TEXT.sub("", text, count=1) if _FRONT_TEXT.match(text) else text
    if named := _IS.match(text):
        text = named[1] + (r" \in" if named[0].endswith("in") else " =") + text[named.end() :]
    chosen = _OPTION.fullmatch(text)
    return chosen[1].upper() if chosen else text


def _without_dollars(text: str) -> str:
    """A text without the dollar signs of mathematics; a single one before a digit is money."""
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
    r"""A text without `\text{}`, spacing and bracket sizes: answers with equal text need no algebra to be equal."""
    text = _LAYOUT.sub("", _TEXT.sub(r"\1", text)).replace(r"\dfrac", r"\frac").replace(r"\tfrac", r"\frac")
    return text.casefold() if WORD.fullmatch(text) else text


def rational(text: str) -> tuple[Fraction, bool] | None:
    r"""(value, whether it is a decimal) of 3, -2.50, 3/4, `\frac{3}{4}`; None for any other text, including 3/0."""
    match = _NUMERAL.fullmatch(text)
    if match is None or (match["over"] is not None and text.endswith("}")) or not int(match["under"] or 1):
        return None
    whole = f"{match['whole']}.{match['decimals'] or 0}" if match["whole"] else match["over"] or match["top"]
    value = Fraction(whole) / int(match["under"] or 1)
    return (-value if match["sign"] == "-" else value), match["decimals"] is not None


def by_spelling(answer: str, gold: str) -> Verdict | None:
    """The verdict on two normalized answers with equal text, or on two plain numbers; None if it needs algebra.

    Numbers that differ are left to algebra when one is a decimal, because it may be rounded.
    """
    if answer == gold or spelling(answer) == spelling(gold):
        return RIGHT
    if len(answer) == 3 and answer.casefold() == gold.casefold() and _SHOUTED.fullmatch(f"{answer} {gold}"):
        return RIGHT
    mine, theirs = rational(answer), rational(gold)
    if mine is None or theirs is None:
        return None
    if mine[0] == theirs[0]:
        return RIGHT
    return None if mine[1] or theirs[1] else Verdict("wrong", "value")


def no_number(value: object) -> bool:
    """Whether a gold or an answer is the result of broken arithmetic: nan in any capitalization, or an infinite float."""
    if isinstance(value, float):
        return not math.isfinite(value)
    text = value.strip() if isinstance(value, str) else ""
    return "nan" in text.casefold() and spelling(text).casefold().lstrip("+-") == "nan"


@dataclass(frozen=True, slots=True)
class PendingComparison:
    """A comparison that the text does not decide. `prepare` makes it; `verify_math` and a `Pool` decide it by algebra.

    key: (answer, gold, algebra_only); pairs of one key have one verdict. args, options: the call of `verify_math` that decides.
    """

    key: tuple[str, str, bool]
    args: tuple[str, str]
    options: dict[str, str | bool]


def prepare(
    completion: str, gold: str, *, algebra_only: bool = False, **reading: Any
) -> Verdict | PendingComparison | None:
    """The verdict of `verify_math` on these arguments without algebra: a verdict, the remaining comparison, or None.

    reading: fields of `AnswerReading`. None: the place "anywhere" needs algebra to find the answer. Raises `ConfigError` as
        `AnswerReading` does.
    """
    read_by = AnswerReading(**reading)
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
    extracted, why = extract(completion, read_by)
    if extracted is None:
        return Verdict("wrong", why)
    if read_by.answer_in == "anywhere":
        return None
    if len(extracted) > MAX_ANSWER:
        return Verdict("undecided", f"answer of more than {MAX_ANSWER} characters")
    answer = bare(extracted)
    if not answer or no_number(answer):
        return Verdict("wrong", "answer is not a number" if answer else NO_ANSWER)
    settled = None if algebra_only else by_spelling(answer, wanted)
    if settled is not None:
        return settled
    left: dict[str, str | bool] = {"answer_in": "whole", "thinking": "", "algebra_only": algebra_only}
    return PendingComparison((answer, wanted, algebra_only), (extracted, gold), left)


__all__ = [
    "BOXED", "CONTROL", "CUT_OFF", "MAX_ANSWER", "MAX_COMPLETION", "MAX_DEPTH", "MAX_DIGITS", "AnswerPlace", "AnswerReading",
    "PendingComparison", "bare", "by_spelling", "extract", "last_box", "last_number", "last_tag", "marked_span", "no_number",
    "prepare", "rational", "reading_options", "span_of", "spelling",
]  # fmt: skip
