"""The second opinion: exact numbers and one spelling, worked by hand; and laws against the fractions they stand for."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sage_rlvr.verifiers.exact import number, parts, verify_exact


@pytest.mark.parametrize(
    "text, value",
    [
        ("3", 3),
        ("-3", -3),
        ("+3", 3),
        ("1,000", 1000),
        ("10,00", None),
        ("2.50", Fraction(5, 2)),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        (".", None),
        ("", None),
        ("3/4", Fraction(3, 4)),
        ("3/0", None),
        (r"\frac34", Fraction(3, 4)),
        (r"-\dfrac{3}{4}", Fraction(-3, 4)),
        (r"\frac{-3}{4}", Fraction(-3, 4)),
        (r"1\frac{1}{2}", Fraction(3, 2)),
        (r"6\times 10^{-3}", Fraction(6, 1000)),
        (r"2.5 \cdot 10^4", 25000),
        (r"90^\circ", 90),
        (r"\text{7}", 7),
        ("$ 7 $", 7),
        ("x", None),
        (r"\sqrt{4}", None),
        ("50\\%", None),
        ("1" * 301, None),
    ],
)
def test_numbers_by_hand(text: str, value: Fraction | int | None):
    assert number(text) == value


@pytest.mark.parametrize(
    "text, found",
    [
        ("1,2", ("", ("1", "2"))),
        ("10,000", ("", ("10,000",))),
        (r"\left( 3, \frac{\pi}{2} \right)", ("()", ("3", r"\frac{\pi}{2}"))),
        (r"\{1,2,3\}", ("{}", ("1", "2", "3"))),
        ("[0,1)", ("[)", ("0", "1"))),
        ("(1,2),(3,4)", ("", ("(1,2)", "(3,4)"))),
        (r"\{(1,2)\}", ("{}", ("(1,2)",))),
        ("f(1,2)", ("", ("f(1,2)",))),
    ],
)
def test_the_parts_of_an_answer(text: str, found: tuple[str, tuple[str, ...]]):
    assert parts(text) == found


@pytest.mark.parametrize(
    "answer, gold, label, reason",
    [
        (r"\text{Evelyn}", "Evelyn", "right", "one spelling"),
        ("0.5", r"\frac{1}{2}", "right", "one value"),
        ("0.3333", r"\frac{1}{3}", "wrong", "value"),  # no tolerance
        ("2,1", "1,2", "right", "one value"),
        (r"\{2,1\}", "1,2", "right", "one value"),
        ("(2,1)", "(1,2)", "wrong", "value"),
        ("(1,2)", r"\{1,2\}", "wrong", "brackets"),
        ("[0,1)", "[0,1]", "wrong", "brackets"),
        ("1", "1,2", "wrong", "value"),
        ("x+1", "1+x", "undecided", "not only numbers"),
        ("x", "5", "undecided", "not only numbers"),
    ],
)
def test_verdicts_by_hand(answer: str, gold: str, label: str, reason: str):
    verdict = verify_exact(answer, gold)
    assert (verdict.label, verdict.reason) == (label, reason)


fractions = st.fractions(max_denominator=10**6)


@pytest.mark.slow
@given(fractions, fractions)
def test_it_is_right_iff_the_fractions_are_equal(one: Fraction, other: Fraction):
    sign = "-" if one < 0 else ""
    written = rf"{sign}\frac{{{abs(one.numerator)}}}{{{one.denominator}}}"
    assert number(written) == one
    assert verify_exact(f"{other.numerator}/{other.denominator}", written).right == (one == other)


@given(st.text(st.sampled_from("\\{}()[],.0123/-frac\ud800\x00 x^_")))
def test_no_text_makes_it_raise(text: str):
    assert verify_exact(text, "1,2").label in ("right", "wrong", "undecided")
    assert verify_exact(text, text).right
