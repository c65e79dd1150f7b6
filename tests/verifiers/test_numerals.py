"""Numbers in words: by hand, and each whole number back from its words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sage_rlvr.verifiers.math import verify_math
from sage_rlvr.verifiers.numerals import in_digits

SMALL = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen",
    "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]  # fmt: skip
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def in_words(value: int) -> str:
    """A whole number below a billion as one writes it."""
    for size, name in ((10**6, "million"), (1000, "thousand"), (100, "hundred")):
        if value >= size:
            rest = value % size
            joint = " and " if size == 100 else " "
            return f"{in_words(value // size)} {name}" + (f"{joint}{in_words(rest)}" if rest else "")
    if value < 20:
        return SMALL[value]
    return TENS[value // 10 - 2] + (f"-{SMALL[value % 10]}" if value % 10 else "")


@pytest.mark.slow
@given(st.integers(0, 10**9 - 1))
def test_a_whole_number_is_read_back(value: int) -> None:
    assert in_digits(in_words(value)) == str(value)
    assert in_digits(rf"\text{{{in_words(value).replace(' and ', ' ').capitalize()}}}") == str(value)


@pytest.mark.parametrize(
    ("text", "digits"),
    [
        ("half", r"\frac{1}{2}"),
        ("one third", r"\frac{1}{3}"),
        ("three-quarters", r"\frac{3}{4}"),
        ("two and a half", r"\frac{5}{2}"),
        ("minus five", "-5"),
        ("fifteen percent", r"15\%"),
        ("a hundred", "100"),
        ("fifteen hundred", "1500"),
        ("eleven twelfths", r"\frac{11}{12}"),
        ("one hundredth", r"\frac{1}{100}"),
        ("two and three", "2 and 3"),
        ("two, three", "2, 3"),
        ("two to one", "2 to 1"),
        ("x = two", "x = 2"),
        ("(one)", "1"),
        ("two (2)", "2"),
        ("2 (two)", "2"),
    ],
)
def test_numbers_in_words(text: str, digits: str) -> None:
    assert in_digits(text) == digits and verify_math(text, digits, answer_in="whole").right


@pytest.mark.parametrize(
    "text",
    [
        *("third", "fifth", "seven eight", "twenty ten", "one hundred hundred", "and five", "five and", "thousand", "a five"),
        *("two hundred thirds", "seven dwarfs", "none", "five hundredth", "two (3)", "ones", "", "7"),
        *("seven thousand million", "one " * 100),
    ],
)
def test_other_texts_stay(text: str) -> None:
    assert in_digits(text) == text


@pytest.mark.parametrize(
    ("answer", "gold", "label"),
    [
        ("seven apples", "7 apples", "right"),
        ("six apples", "7 apples", "wrong"),
        ("five dollars", r"\$5", "right"),
        (r"\text{three days}", r"3\text{ days}", "right"),
        ("third", "3rd", "right"),
        ("third", "7", "wrong"),
        ("hundred", "100", "right"),
        ("million", "100", "wrong"),
        ("quarter", "1/4", "right"),
        ("6 seconds", "5 seconds", "wrong"),
        # not read, so that they may be right
        ("two!", "2", "undecided"),
        ("half a million", "500000", "undecided"),
        ("two point five", "2.5", "undecided"),
        ("two and one hundred and five", "2, 105", "undecided"),
        ("third", "1/3", "undecided"),
        ("three squared", "9", "undecided"),
        ("two x", "2x", "undecided"),
        ("twenty and five", "20, 5", "undecided"),
        ("one of the angles", "1", "undecided"),
    ],
)
def test_a_number_in_words_beside_something(answer: str, gold: str, label: str) -> None:
    for one, other in ((answer, gold), (gold, answer)):
        assert verify_math(one, other, answer_in="whole").label == label


def test_code_is_no_number_in_words() -> None:
    assert verify_math("open('/dev/zero').read()", "7", answer_in="whole").label == "wrong"
