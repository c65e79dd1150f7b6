"""Laws of mathematical verdicts: plain numbers and units against arithmetic, any text, time and threads."""

from __future__ import annotations

import threading
import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_rlvr.verifiers.algebra import too_long
from sage_rlvr.verifiers.answers import (
    MAX_ANSWER,
    bare,
    prepare,
    rational,
    spelling,
)
from sage_rlvr.verifiers.math import verify_math
from sage_rlvr.verifiers.quantities import (
    based,
    choice,
    clock,
    date,
    denied,
    infinity,
    joined,
    letter,
    letters,
    listed,
    ratio,
    worded,
)  # fmt: skip
from sage_rlvr.verifiers.units import UNITS, measured, summed
from verifiers.math_common import boxed


def test_off_the_main_thread_it_answers_the_same():
    seen = []
    thread = threading.Thread(target=lambda: seen.append(verify_math(boxed("0.5"), r"\frac{1}{2}")))
    thread.start()
    thread.join()
    assert seen[0].right


@pytest.mark.parametrize(
    "text, value",
    [
        ("-3", (Fraction(-3), False)),
        ("+2.50", (Fraction(5, 2), True)),
        ("3/4", (Fraction(3, 4), False)),
        (r"-\dfrac{3}{4}", (Fraction(-3, 4), False)),
        ("3/0", None),
        ("3/4}", None),
        (r"\frac{3}{4", None),
        (r"\frac34", None),
        ("1,000", None),
        (".5", None),
        ("", None),
    ],
)
def test_plain_numbers_need_no_algebra(text: str, value):
    assert rational(text) == value


NUMERALS = st.builds(
    lambda form, a, b, sign: sign + form.format(a, b),
    st.sampled_from(["{0}", "{0}/{1}", r"\frac{{{0}}}{{{1}}}", r"\tfrac{{{0}}}{{{1}}}", "{0}.0", "{0}.5", "{0}.{1}"]),
    st.integers(0, 12),
    st.integers(1, 12),
    st.sampled_from(["", "-", "+"]),
)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(NUMERALS, NUMERALS)
def test_what_is_settled_without_algebra_is_what_algebra_says(answer: str, gold: str):
    assert verify_math(answer, gold, answer_in="whole") == verify_math(
        answer, gold, answer_in="whole", algebra_only=True
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(-(10**9), 10**9), st.integers(-(10**9), 10**9))
def test_integers_are_right_iff_they_are_equal(answer: int, gold: int):
    assert verify_math(boxed(str(gold)), f"+{gold}" if gold > 0 else str(gold)).right
    assert verify_math(boxed(str(answer)), str(gold)).right == (answer == gold)


METERS = {
    "mm": Fraction(1, 1000),
    "cm": Fraction(1, 100),
    "m": Fraction(1),
    "km": Fraction(1000),
    "inches": Fraction(254, 10000),
}


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(1, 999), st.integers(1, 999), st.sampled_from(sorted(METERS)), st.sampled_from(sorted(METERS)))
def test_lengths_are_one_iff_they_are_as_long(a: int, b: int, unit: str, other: str):
    verdict = verify_math(rf"{a}\text{{ {unit}}}", rf"{b}\text{{ {other}}}", answer_in="whole")
    assert verdict.right == (a * METERS[unit] == b * METERS[other])
    exact = a * METERS[unit] / METERS[other]
    assert verify_math(rf"{a}\text{{ {unit}}}", rf"{exact}\text{{ {other}}}", answer_in="whole").right
    assert verify_math(rf"{a}\text{{ {unit}}}", rf"{a}\text{{ kg}}", answer_in="whole").reason == "unit"


SIZES = {  # unit -> how many of the second, from the definitions and not from the table under test
    ("km", "m"): 1000, ("dm", "cm"): 10, ("m", "cm"): 100, ("cm", "mm"): 10, ("mm", "um"): 1000, ("micrometer", "nm"): 1000,
    ("inch", "mm"): "25.4", ("foot", "inches"): 12, ("yard", "feet"): 3, ("mile", "feet"): 5280, ("minute", "seconds"): 60,
    ("second", "ms"): 1000, ("hour", "minutes"): 60, ("day", "hours"): 24, ("week", "days"): 7, ("fortnight", "weeks"): 2,
    ("kg", "g"): 1000, ("g", "mg"): 1000, ("tonne", "kg"): 1000, ("ton", "kg"): 1000, ("ton", "pounds"): 2000,
    ("pound", "ounces"): 16, ("ounce", "g"): "28.349523125", ("liter", "ml"): 1000, ("dl", "ml"): 100, ("cl", "ml"): 10,
    ("dL", "mL"): 100, ("cL", "mL"): 10, ("cc", "ml"): 1, ("dollar", "cents"): 100, ("USD", "¢"): 100, ("year", "months"): 12,
    ("decade", "years"): 10, ("century", "years"): 100, ("gallon", "quarts"): 4, ("quart", "pints"): 2, ("pint", "cups"): 2,
    ("byte", "bits"): 8, ("mph", "feet/hour"): 5280, ("kmh", "m/hour"): 1000, ("hertz", "/s"): 1, ("N", "kg m/s^2"): 1,
    ("J", "N m"): 1, ("kJ", "J"): 1000, ("W", "J/s"): 1, ("kW", "W"): 1000, ("Pa", "N/m^2"): 1, ("hectare", "m^2"): 10000,
}  # fmt: skip
ALONE = {
    "euro",
    "GBP",
    "yen",
    "rupee",
    "celsius",
    "fahrenheit",
    "kelvin",
    "degree",
    "mole",
    "volt",
    "ampere",
    "acre",
    "radian",
}


@pytest.mark.parametrize("pair", SIZES, ids="-".join)
def test_a_unit_has_its_size(pair: tuple[str, str]):
    (_, one), (_, other) = ((name, measured(rf"1\text{{ {name}}}").units) for name in pair)
    same = [a.size / b.size for a in one for b in other if a.dimensions == b.dimensions and a.pi == b.pi]
    assert Fraction(SIZES[pair]) in same


def test_every_row_of_the_table_of_units_is_of_one_size_and_tested():
    named = [name for pair in SIZES for name in pair] + sorted(ALONE)
    seen = {unit for name in named for unit in measured(rf"1\text{{ {name}}}").units}
    assert {name for name, units in UNITS.items() if seen.isdisjoint(units)} == set()


PIECES = [
    r"\text{", "}", "{", " cm", " and ", " or ", ":", "_2", "=", r"\approx ", r"\%", r"\$", "$", "1", "25", "3.5", " ", ",", "x",
    "AB", "(", ")", r"\{", r"\}", r"\pm ", "^2", r"^\circ ", r"\sin ", "°", "√", "<", r"\in ", "PM", "March", "million", "not", "-",
    "/", r"\infty ", r"\overline{3}", "0.", "yes", "(A)", r"\ ", "~", "`", "**", "nan", r"\frac{1}{2}",
]  # fmt: skip


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=10).map("".join), st.sampled_from(["7", "7 cm", "B", "7:30"]))
def test_no_pieces_of_answers_make_it_raise_or_are_the_gold(text: str, gold: str):
    for answer, wanted in ((text, gold), (gold, text)):
        assert not verify_math(answer, wanted, answer_in="whole").right  # none of the pieces has a seven


@pytest.mark.parametrize(
    "piece",
    [
        *PIECES,
        "_a",
        "^{-1}",
        "a ",
        "1 000 ",
        "12 1/2 ",
        "a.m. ",
        r"\text{a}",
        "####",
        "answer is",
        "`",
        "(1,",
        "9^",
        "9!",
    ],
)
def test_long_answers_are_read_in_little_time(piece: str):
    long = (piece * MAX_ANSWER)[: MAX_ANSWER - 1] + "!"
    start = time.process_time()
    for reader in (
        bare,
        spelling,
        measured,
        summed,
        based,
        clock,
        ratio,
        date,
        worded,
        letters,
        choice,
        letter,
        listed,
        infinity,
        joined,
        denied,
        too_long,
    ):
        reader(long)
    prepare(piece * (200_000 // len(piece)), "5", answer_in="stated")
    assert time.process_time() - start < 1.5


@settings(max_examples=60, deadline=None)
@given(
    st.text(st.sampled_from("\\{}$boxed012, \ud800\x00"), max_size=40),
    st.sampled_from(["boxed", "tag", "stated", "anywhere", "last_number", "whole"]),
)
def test_no_text_makes_it_raise(text: str, place):
    assert verify_math(rf"\boxed{{{text}}} <SOLUTION>{text}</SOLUTION>", "7", answer_in=place).label in (
        "right", "wrong", "undecided"
    )  # fmt: skip
