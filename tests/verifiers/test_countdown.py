"""The parser answers any text, and accepts exactly the canonical spelling."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_rlvr.errors import DataError
from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.countdown import MAX_LENGTH, canonical, judge, parse, structure, value

SYMBOLS = st.text(alphabet="0123456789+-*/() ", max_size=40)
LEAVES = st.integers(0, 99).map(str)
WORDY = st.recursive(  # expressions with parentheses everywhere
    LEAVES,
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda t: f"({t[0]}{t[1]}{t[2]})"),
    max_leaves=12,
)


def exact(text: str) -> Fraction | None:
    try:
        return value(text)
    except ZeroDivisionError:
        return None


@given(st.one_of(st.text(), SYMBOLS, st.text(alphabet=st.characters(codec=None), max_size=300)))
def test_any_text_gets_a_verdict(text):
    verdict = judge((3, 5), 8, text)
    assert verdict.right == (text in ("3+5", "5+3"))


@pytest.mark.slow
@given(WORDY)
@settings(max_examples=300)
def test_spelling_is_idempotent_and_keeps_value_and_numbers(text):
    short = canonical(text) if len(text) <= MAX_LENGTH else "1"
    if short == "1":
        return
    assert canonical(short) == short
    assert exact(short) == exact(text)
    assert parse(short).numbers == parse(text).numbers
    assert len(short) <= len(text)


@given(WORDY, SYMBOLS)
def test_what_is_accepted_is_its_own_spelling(wordy, symbols):
    for text in (wordy, symbols):
        parsed = parse(text)
        if parsed is None or not parsed.den or parsed.num % parsed.den:
            continue
        verdict = judge(parsed.numbers, parsed.num // parsed.den, text)
        assert verdict.right == (parsed.spelling == text)
        assert verdict.reason == ("right" if verdict.right else "not canonical")


@given(WORDY)
def test_no_pair_of_parentheses_can_go_without_a_change(text):
    """Minimality: drop any matching pair of a canonical text and the tree (not only the text) is another one."""
    if len(text) > MAX_LENGTH:
        return
    short = canonical(text)
    opened = []
    for place, character in enumerate(short):
        if character == "(":
            opened.append(place)
        elif character == ")":
            start = opened.pop()
            without = short[:start] + short[start + 1 : place] + short[place + 1 :]
            assert canonical(without) != short


@pytest.mark.parametrize(
    "text, spelling",
    [
        ("1+(2+3)", "1+2+3"),
        ("1+(2-3)", "1+2-3"),
        ("1-(2+3)", "1-(2+3)"),
        ("1-(2-3)", "1-(2-3)"),
        ("1+(2*3)", "1+2*3"),
        ("1-(2*3)", "1-2*3"),
        ("(1+2)+3", "1+2+3"),
        ("(1-2)*3", "(1-2)*3"),
        ("1*(2*3)", "1*2*3"),
        ("1*(2/3)", "1*2/3"),
        ("1/(2*3)", "1/(2*3)"),
        ("1/(2/3)", "1/(2/3)"),
        ("1/(2+3)", "1/(2+3)"),
        ("(1*2)/3", "1*2/3"),
        ("(1/2)*3", "1/2*3"),
        ("1*(2+3)", "1*(2+3)"),
        ("((7))", "7"),
        ("007", "7"),
        (" 1 + 2 ", "1+2"),
        ("1+((2-3)*4)", "1+(2-3)*4"),
        ("1-(2-(3-4))", "1-(2-(3-4))"),
        ("1+(2-(3+4))", "1+2-(3+4)"),
        ("(1+2)/(3+4)", "(1+2)/(3+4)"),
    ],
)
def test_spelling_by_hand(text, spelling):
    assert canonical(text) == spelling
    assert judge((), 0, text).reason == ("numbers" if text == spelling else "not canonical")


@pytest.mark.parametrize(
    "text, reason",
    [
        ("3*(5+7)", "right"),
        ("(5+7)*3", "right"),
        ("5*3+7*3", "numbers"),
        ("3+5+7", "value"),
        ("3*5+7", "value"),
        ("3*(7+5)", "right"),
        ("(3*(5+7))", "not canonical"),
        ("3*5", "numbers"),
        ("3*(5+7)+0", "numbers"),
        ("36", "numbers"),
        ("3*(5+7", "not an expression"),
        ("3*5+7)", "not an expression"),
        ("", "not an expression"),
        ("()", "not an expression"),
        ("-3+5*7", "not an expression"),
        ("3--5", "not an expression"),
        ("3 5 7", "not an expression"),
        ("3(5+7)", "not an expression"),
        ("(5+7)3", "not an expression"),
        ("3**5", "not an expression"),
        ("3//5", "not an expression"),
        ("3.0*12", "not an expression"),
        ("3*(5+7)\n", "not an expression"),
        ("３*(5+7)", "not an expression"),
        ("3*(5+7) ", "not canonical"),
        ("03*(5+7)", "not canonical"),
        ("3*(5+7)=36", "not an expression"),
        ("٣*(5+7)", "not an expression"),
        ("²", "not an expression"),
    ],
)
def test_reasons_by_hand(text, reason):
    assert judge((7, 3, 5), 36, text) == Verdict("right" if reason == "right" else "wrong", reason)


def test_division_by_zero_has_its_own_reason():
    assert judge((2, 2, 1), 1, "1/(2-2)").reason == "division by zero"
    assert judge((2, 2, 1, 3), 1, "3*(2-2)/1").reason == "value"
    assert judge((1, 1, 2, 2), 1, "1/(1/(2-2))").reason == "division by zero"


@pytest.mark.parametrize(
    "text",
    [
        "\0",
        "3+\x005",
        "\ud800",
        "3+5" * 10**5,
        "(" * 5000 + "3+5" + ")" * 5000,
        "(" * 90 + "3+5" + ")" * 90,
        "9" * 200,
        "9" * 10**6,
        "__import__('os').system('true')",
        "lambda: 3",
        "+".join(["1"] * 100),
        "1/" * 99 + "1",
        "1e999",
        "3+5#",
    ],
)
def test_hostile_text_is_only_text(text):
    started = time.process_time()  # of this process: a loaded machine is no slower by it
    assert not judge((3, 5), 8, text).right
    assert time.process_time() - started < 0.5


def test_what_is_not_text_is_wrong():
    assert judge((3, 5), 8, None).reason == "not an expression"  # type: ignore[arg-type]
    assert judge((3, 5), 8, b"3+5").reason == "not an expression"  # type: ignore[arg-type]


def test_length_limit_is_exact():
    longest = "1" * MAX_LENGTH
    assert judge((int(longest),), int(longest), longest).right
    assert judge((1,), 1, longest + "1").reason == "too long"


@pytest.mark.parametrize(
    "text, label",
    [
        ("7", ("", ".")),
        ("3*(5+7)", ("+*", "(.(..))")),
        ("7*(3+5)", ("+*", "(.(..))")),
        ("3+5*7", ("+*", "(.(..))")),
        ("3*5+7", ("+*", "((..).)")),
        ("8/(3-8/3)", ("-//", "(.(.(..)))")),
        ("1+2-3*4", ("+-*", "((..)(..))")),
    ],
)
def test_structure_by_hand(text, label):
    assert structure(text) == label


def test_refusals_say_what_to_write():
    for function in (canonical, value, structure):
        with pytest.raises(DataError, match="whole numbers"):
            function("3+")
        with pytest.raises(DataError):
            function("1+" * 150 + "1")


def test_only_right_counts_as_right():
    assert Verdict("right", "right").right
    assert not Verdict("wrong", "value").right
    assert not Verdict("undecided", "timeout").right
