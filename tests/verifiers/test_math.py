"""Verdicts worked by hand: each line is a pair that verifiers are known to get wrong, or the plain case."""

from __future__ import annotations

import re
import threading
import time
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sage_rlvr.verifiers
from sage_rlvr.errors import ConfigError
from sage_rlvr.verifiers import MATHEMATICS, Verdict
from sage_rlvr.verifiers.algebra import MAX_DEPTH, MAX_DIGITS, too_long
from sage_rlvr.verifiers.answers import (
    MAX_ANSWER,
    MAX_COMPLETION,
    bare,
    last_box,
    last_number,
    last_tag,
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


def boxed(answer: str) -> str:
    return rf"First 17, then 25, so $\boxed{{{answer}}}$. Check: 42 - 25 = 17."


EQUAL = [  # answer, gold
    ("42", "42"),
    ("-0", "0"),
    ("0.5", r"\frac12"),
    ("1/2", r"\dfrac{1}{2}"),
    (r"\dfrac{9}{7}", "9/7"),
    ("0.333333", "1/3"),
    ("1e-3", "0.001"),
    ("1_000", "1000"),
    ("10,000", "10000"),
    (r"\$12.50", "12.5"),
    ("50\\%", "0.5"),
    ("50\\%", "50"),
    (r"42\text{ cm}", "42"),
    ("12 miles", r"12\text{ miles}"),
    ("90", r"90^\circ"),
    ("2,1", "1,2"),
    (r"3 \text{ or } 5", "3,5"),
    (r"\{2,1\}", r"\{1,2\}"),
    ("[0,1)", r"\left[0,1\right)"),
    (r"(-\infty,3)\cup(3,\infty)", r"(3,\infty)\cup(-\infty,3)"),
    ("x=5", "5"),
    ("5", "x=5"),
    ("(x+1)^2", "x^2+2x+1"),
    (r"2+\sqrt3", r"\sqrt{3}+2"),
    (r"\frac{\pi}{2}", r"$\pi/2$"),
    ("5", r"\boxed{5}"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
    ("B", r"\text{(B)}"),
    ("evelyn", r"\text{Evelyn}"),
    (r"2516_{8}", "2516_8"),
    ("\u200f\uff15.", "5"),  # a right-to-left mark and a full-width five
    ("{{{5}}}", "{{{5}}}"),
    (r"e^{2 i t}/(2 i+2)", r"\frac{e^{2it}}{(2+2i)}"),  # a lone i makes the parser's symbols another kind
    (r"2E_2/3 + E_1/3", r"\frac{1}{3}E_{1}+\frac{2}{3}E_{2}"),  # a subscript makes e a name
    (r"L_{\odot}I_0", r"I_{0}L_{\odot}"),
    (r"\sqrt2\lambda_{\mathrm{red}}/2", r"\lambda_{\text{red}}/\sqrt{2}"),
    ("-1./3", r"\frac{-1}{3}"),
]

DIFFERENT = [  # answer, gold, reason
    ("41", "42", "value"),
    ("1/2^{99}", "1/2^{98}", "value"),  # equal to 15 decimals
    ("0.0000012", "0.0000009", "value"),  # equal to 6 decimals
    ("4.5e-33", "9.11e-28", "value"),
    ("1728", r"1331 \text{ and } 1728", "value"),
    ("1_000", "1", "value"),
    ("2 1/2", "21/2", "value"),
    ("[1,2)", "[1,2]", "value"),
    ("(2,1)", "(1,2)", "value"),
    ("(1,2)", r"\{1,2\}", "brackets"),
    ("2516_7", "2516_8", "base"),
    ("2516", "2516_8", "base"),  # a number without a base is one of base ten
    ("E_1", "E_2", "value"),
    ("E_1", "e", "value"),
    ("seat", r"\text{east}", "value"),  # one product of letters
    ("", "5", "no answer"),
    (r"\frac{1", "5", "answer cut off"),
    ("__import__('os').getpid()", "5", "answer cannot be parsed"),
    ("\x00", "5", "answer cannot be parsed"),
    ("\ud800", "5", "answer cannot be parsed"),
]

UNDECIDED = [  # answer, gold, reason
    ("5", "", "no gold"),
    ("5", r"\frac{", "gold cannot be parsed"),
    ("5", r"\frac{1}{0}", "not a number"),
    ("1358", "2516_8", "another base"),  # the same number; it may be what was to be converted
    ("3:30", "0.1", "a time or a ratio"),
    (r"42\text{ apples}", r"42\text{ pears}", "unit"),
    ("AB", "BA", "order of letters"),
    (r"25^\circ\text{C}", r"77^\circ\text{F}", "unit"),
    ("nan", "nan", "gold is not a number"),
    ("{" * 41 + "1" + "}" * 41, "1", f"brackets nested deeper than {MAX_DEPTH}"),
    ("1" * (MAX_ANSWER + 1), "5", f"answer of more than {MAX_ANSWER} characters"),
    ("5", "1" * (MAX_ANSWER + 1), f"gold of more than {MAX_ANSWER} characters"),
    ("1" * MAX_COMPLETION, "5", f"completion of more than {MAX_COMPLETION} characters"),
]


REPORTED_EQUAL = [  # found from outside: called wrong or undecided before
    (r"\infty", r"+\infty"),
    (r"0.\overline{3}", r"\frac13"),
    (r"\log_e 2", r"\ln 2"),
    (r"5~\text{cm}", "5"),
    ("60°", r"60^\circ"),
    ("60°", "60"),
    (r"\emptyset", r"\varnothing"),
    (r"5\text{ million}", "5000000"),
    (r"2<x\le5", "(2,5]"),
    ("2 1/2", r"2\frac12"),
    (r"50\%", "1/2"),
    ("50%", "1/2"),
    (r"20\text{ high school students}", "20"),
    (r"8\text{ small cubes}", "8"),
    (r"12\text{ large boxes}", "12"),
    (r"3\text{ negative roots}", "3"),
    (r"3\text{ true statements}", "3"),
    (r"5\text{ false alarms}", "5"),
    (r"15\text{ fewer apples}", "15"),
    (r"7\text{ third-class tickets}", "7"),
    (r"4\text{ third-graders}", "4"),
    (r"4\text{ base pairs}", "4"),
    (r"2\text{ quarter turns}", "2"),
    ("20 high school students", "20"),
    ("8 small cubes", "8"),
    (r"5\text{ non-negative integers}", "5"),
    (r"4\text{ larger boxes}", "4"),
    (r"6\text{ feet high}", r"6\text{ feet}"),
    (r"3\text{ wrong answers}", "3"),
    (r"2\text{ unknown variables}", "2"),
    (r"4\text{ low-income families}", "4"),
    (r"4\text{ left}", "4"),
    (r"4\text{ apples left}", "4"),
    (r"30\text{ years old}", "30"),
    (r"2\text{ thirds}", r"\frac23"),
    (r"5\text{ cm cubed}", r"5\text{ cm}^3"),
    (r"5\text{ meters squared}", r"5\text{ m}^2"),
    ("25¢", r"\$0.25"),
    ("15€", "€15"),
    (r"5\text{ cl}", r"50\text{ ml}"),
    (r"1\text{ ton}", r"2000\text{ pounds}"),
    (r"1\text{ ton}", r"1000\text{ kg}"),
    (r"8\text{ bits}", r"1\text{ byte}"),
    (r"\text{Sept. 3}", r"\text{September 3}"),
    ("24:00", "0:00"),
    (r"\text{noon}", r"12{:}00\text{ PM}"),
    (r"1.5\text{M}", "1500000"),
    (r"\$1.5\text{B}", "1500000000"),
    (r"\$1.5M", r"\$1{,}500{,}000"),
    (r"3\text{ quarters}", r"\frac34"),
    (r"7\text{ tenths}", "0.7"),
    (r"1\text{ half}", "0.5"),
    (r"\infty", r"\text{infinity}"),
    (r"-\infty", r"\text{negative infinity}"),
    (r"\frac\pi2", r"\frac{\pi}{2}"),
    (r"\frac\pi4", r"\frac{\pi}{4}"),
    (r"\frac1\pi", r"\frac{1}{\pi}"),
    (r"\text{none}", r"\emptyset"),
    (r"\nicefrac{1}{2}", r"\frac12"),
    ("f(x)=x^2+1", "x^2+1"),
    ("f^{-1}(x)=x+1", "x+1"),
    ("y=2x+3", "2x+3"),
    ("f(g(2))=3", "3"),
    ("x=1, x=2", "1, 2"),
    (r"\|v\| = 5", "5"),
    ("|AB| = 5", "5"),
    (r"P(A \cap B) = \frac{1}{6}", r"\frac16"),
    ("3 = x = 3", "3"),
    (r"\text{Al or Bo}", r"\text{Bo or Al}"),
    ("(B) 12", "B"),
    ("S_n = 2n", "2n"),
    ("2^{10}", "1024"),
]

REPORTED_DOUBTFUL = [  # a word, a sign or a second reading leaves doubt: neither right nor wrong
    (r"\$100\text{ more}", r"\$100"),
    (r"12\text{ less}", "12"),
    (r"9\text{ or so}", "9"),
    (r"3\text{ half-dollars}", "3"),
    (r"5\text{ without replacement}", "5"),
    (r"4\text{ are left}", "4"),
    ("4 are left", "4"),
    (r"6\text{ is the answer}", "6"),
    (r"-2\text{ (negative)}", "-2"),
    (r"3\text{ left over}", "3"),
    ("10:24", "5:12"),
    ("6:40", "3:20"),
    (r"5\text{ k}", "5"),
    (r"1.5\text{M}", "1.5"),
    (r"3\text{ quarters}", "3"),
    (r"5\text{ meters east}", r"5\text{ meters west}"),
    (r"10\text{ dollars profit}", r"10\text{ dollars loss}"),
    (r"\$10\text{ profit}", r"10\text{ dollars loss}"),
    (r"30\text{ years old}", r"30\text{ years ago}"),
    (r"5\text{ left}", r"5\text{ right}"),
    (r"15\text{ fewer apples}", r"15\text{ more apples}"),
    ("|x|=3", "3"),
    ("(A) is wrong", "A"),
    (r"\text{none}", "0"),
    (r"\text{Al or Bo}", r"\text{Al and Bo}"),
]

REPORTED_DIFFERENT = [  # found from outside: called right before
    ("42", "42_8"),
    ("10", "10_2"),
    ("101_2", "101"),
    ("42", r"42\text{ million}"),
    ("42", r"42\text{ thousand}"),
    (r"5\text{ million}", r"5\text{ thousand}"),
    (r"42\text{ apples and }5\text{ pears}", "42"),
    (r"5\text{ m}", r"5\text{ cm}"),
    (r"\$5.4", r"5.4\text{ cents}"),
    ("ACB", "ABC"),
    (r"3\text{ AM}", r"3\text{ PM}"),
    ("3:30", "0.1"),
    (r"3\text{ not}", "3"),
    (r"3\approx4", "3"),
    ("7=3", "3"),
    ("41=42", "42"),
    ("nan", "5"),
    (r"\text{NaN}", "nan"),
    ("3 = x = 4", "4"),
    ("x = 3 = y = 4", "4"),
    ("A. 3 B. 4", "A"),
    ("A: 3, B: 4", "A"),
    ("A. no, B", "A"),
    ("3 = 2x", "3"),
    ("x>1, y<2", "(1,2)"),
    ("2<x<5, 3<y<4", "(3,4)"),
    (r"a\ge0, b\le3", "[0,3]"),
    ("x>0,y>0", r"(0,\infty)"),
    (r"x<1\text{ and }x>2", r"(-\infty,1)\cup(2,\infty)"),
    (r"5\text{ cl}", r"500\text{ ml}"),
    ("0:30", r"12:30\text{ PM}"),
    ("00:30", r"12{:}30\text{ p.m.}"),
    (r"2\text{ thirds}", "2"),
    (r"5\text{ fifths}", "5"),
    (r"6\text{ halves}", "6"),
    (r"7\text{ eighths}", "7"),
    (r"\$5", r"5\%"),
    (r"5\text{ cm}", r"5\%"),
    (r"5^\circ", r"5\%"),
    (r"\$1.5\text{B}", "1.5"),
    (r"5\text{ cm squared}", r"5\text{ cm}"),
    (r"12\text{ fewer}", "12"),
    (r"42\text{ base eight}", "42"),
    (r"3\text{ squared}", "3"),
    (r"5\text{ is too low}", "5"),
    (r"4\text{ is not the answer}", "4"),
    (r"12\text{ or more}", "12"),
    (r"3\text{ half-dollars}", r"3\text{ dollars}"),
    (r"1\text{ ton}", r"0.90718474\text{ ton}"),
]

EQUATIONS = [  # no name on the left, so that the other side is not what they say
    ("2x=6", "6"),
    ("x+1=3", "3"),
    ("x-3=0", "0"),
    ("x^2=4", "4"),
    ("-x=3", "3"),
    ("a+b+c=10", "10"),
]


@pytest.mark.slow
@pytest.mark.parametrize("answer, gold", REPORTED_EQUAL)
def test_what_was_reported_as_false_wrong_is_right_both_ways_and_read_anywhere(answer: str, gold: str):
    for one, other in ((answer, gold), (gold, answer)):
        assert verify_math(boxed(one), other).right
        assert verify_math(f"<SOLUTION>{one}</SOLUTION>", other, answer_in="tag").right
        assert verify_math(rf"So it is \boxed{{{one}}}.", other, answer_in="anywhere").right


@pytest.mark.slow
@pytest.mark.parametrize("answer, gold", REPORTED_DIFFERENT)
def test_what_was_reported_as_false_right_is_not_right_either_way(answer: str, gold: str):
    for one, other in ((answer, gold), (gold, answer)):
        assert not verify_math(boxed(one), other).right
        assert not verify_math(one, other, answer_in="whole").right
        assert not verify_math(rf"So it is \boxed{{{one}}}.", other, answer_in="anywhere").right


@pytest.mark.parametrize("answer, gold", REPORTED_DOUBTFUL)
def test_what_was_reported_as_doubtful_is_undecided_both_ways(answer: str, gold: str):
    for one, other in ((answer, gold), (gold, answer)):
        assert verify_math(boxed(one), other).label == "undecided"


@pytest.mark.parametrize("answer, gold", EQUATIONS)
def test_an_equation_that_names_no_value_is_none(answer: str, gold: str):
    assert verify_math(boxed(answer), gold).reason == "an equation for a value"
    assert not verify_math(boxed(gold), answer).right


@pytest.mark.parametrize(
    "text",
    [
        "9^{9^{9^{9}}}",
        "9⁹⁹⁹⁹⁹⁹⁹⁹⁹",
        "9^{9^9}",
        "(9^9)^{9^{9}}",
        "99999999!",
        r"(\frac{1}{2})^{99999999999}",
        "2^{(10^{9})}",
        "9^{(9^{(9^{9})})}",
    ],
)
def test_a_number_too_long_to_write_is_not_worked_out(text: str):
    for one, other in ((text, "3"), ("3", text)):
        assert verify_math(boxed(one), other) == Verdict("undecided", f"a number of more than {MAX_DIGITS} digits")


@pytest.mark.parametrize(
    "answer, gold", [("2^{2010}", "4^{1005}"), ("10^{100}", "100^{50}"), ("100!", r"100\cdot 99!")]
)
def test_a_long_number_is_worked_out(answer: str, gold: str):
    assert verify_math(boxed(answer), gold).right and not verify_math(boxed(answer), "3").right


@pytest.mark.parametrize(
    "text", ["The answer is 50%.", r"The answer is $50\%$.", "20 of 40, that is 50 %", r"So \boxed{50\%}."]
)
def test_a_percentage_is_a_share_wherever_math_verify_finds_it(text: str):
    assert verify_math(text, "1/2", answer_in="anywhere").right
    assert not verify_math(text, "1/4", answer_in="anywhere").right


@pytest.mark.parametrize(
    "answer, gold, label",
    [
        ("(B) or (C)", "B", "wrong"),  # two choices are none
        (r"5\text{ is too low}", "5", "wrong"),
        ("2 1/2, 3", "2.5, 3", "right"),
        ("2 1/2, 3", "21/2, 3", "wrong"),
        (r"10 000\text{ km}", "10000", "right"),
        (r"2\text{ hours and }30\text{ minutes}", r"2.5\text{ hours}", "right"),
        (r"30\text{ minutes and }2\text{ hours}", r"2.5\text{ hours}", "wrong"),
        (r"3\text{ cm and }4\text{ cm}", r"7\text{ cm}", "wrong"),
        (r"3\text{ and }4\text{ cm}", r"3\text{ cm}, 4\text{ cm}", "right"),
        (r"x = 2 = 3", "3", "wrong"),
        (r"\sqrt{2}\approx1.414", r"\sqrt{2}", "right"),
        (r"12\text{ cm}", r"12\text{ cm}^2", "wrong"),
        (r"6\text{ feet}", "72", "wrong"),
        (r"1_{\text{two}}", "1_2", "right"),
        (r"9_8", "9", "wrong"),
        ("1, 234", "1,234", "wrong"),
        ("1, 23, 4567", "1,23,4567", "right"),
        ("x = 42_8", "42", "wrong"),
        ("x = 42_8", "34", "right"),
        ("12:00", r"12:00\text{ noon}", "right"),
        (r"1/2\text{ dozen}", "6", "right"),
    ],
)
def test_what_stands_beside_the_number_is_read(answer: str, gold: str, label: str):
    assert verify_math(answer, gold, answer_in="whole").label == label


@pytest.mark.slow
@pytest.mark.parametrize("answer, gold", EQUAL)
def test_equal_answers_are_right_in_a_box_and_in_a_tag(answer: str, gold: str):
    assert verify_math(boxed(answer), gold).right
    assert verify_math(f"17 <SOLUTION>{answer}</SOLUTION> 25", gold, answer_in="tag").right


@pytest.mark.parametrize("answer, gold, reason", DIFFERENT)
def test_other_answers_are_wrong_and_why(answer: str, gold: str, reason: str):
    verdict = verify_math(boxed(answer), gold)
    assert (verdict.label, verdict.reason) == ("wrong", reason)


@pytest.mark.parametrize("answer, gold, reason", UNDECIDED, ids=lambda value: value[:20])
def test_what_cannot_be_decided_is_neither_right_nor_wrong(answer: str, gold: str, reason: str):
    verdict = verify_math(boxed(answer), gold)
    assert (verdict.label, verdict.reason) == ("undecided", reason)


@pytest.mark.parametrize(
    "completion, answer_in, label, reason",
    [
        ("17+25=42 <SOLUTION>41</SOLUTION>", "tag", "wrong", "value"),
        ("<SOLUTION>42</SOLUTION> Check: 42-25 = 17.", "tag", "right", "right"),
        ("<SOLUTION>41</SOLUTION> no: <SOLUTION>42 </SOLUTION>", "tag", "right", "right"),
        (r"<SOLUTION>$\boxed{42}$</SOLUTION>", "tag", "right", "right"),
        (r"\boxed{42}", "tag", "wrong", "no answer"),
        ("<SOLUTION>42", "tag", "wrong", "answer cut off"),
        (r"\boxed{41}, no: \boxed{42}", "boxed", "right", "right"),
        (r"\boxed{42}, no: \boxed{41}", "boxed", "wrong", "value"),
        (r"\boxed{42}, no: \boxed{4", "boxed", "wrong", "answer cut off"),
        ("The answer is 42.", "boxed", "wrong", "no answer"),
        ("The answer is 42.", "anywhere", "right", "right"),
        (r"$\sqrt{4}$ and then \boxed{42}", "anywhere", "right", "right"),
        ("17 + 25 = 42.", "last_number", "right", "right"),
        (r"\boxed{42}. Check: 42 - 25 = 17.", "last_number", "wrong", "value"),  # what was asked for, and nothing else
        ("The answer is forty-two.", "last_number", "wrong", "no answer"),
        (" $42$ ", "whole", "right", "right"),
        ("The answer is 42.", "whole", "wrong", "value"),
        ("The answer is 42.", "stated", "right", "right"),
        ("Work. #### 42", "stated", "right", "right"),
        ("**Answer:** $42$", "stated", "right", "right"),
        (r"The final answer is: \boxed{42}. I hope it is correct.", "stated", "right", "right"),
        ("The answer is 41. Wait. The answer is\n42. Check: 42 - 25 = 17.", "stated", "right", "right"),
        ("The answer is 42 or 43.", "stated", "wrong", "value"),
        ("The answer is not 42.", "stated", "wrong", "value"),
        ("17 + 25 = 42", "stated", "wrong", "no answer"),  # a number of the working
        (r"\boxed 42, as $\boxed4$ was", "boxed", "wrong", "value"),
        (r"so $\boxed 42$", "boxed", "right", "right"),
        ("nothing", "anywhere", "wrong", "no answer"),
        ("", "anywhere", "wrong", "no answer"),
    ],
)
def test_the_answer_is_taken_from_the_place_that_was_asked_for(completion, answer_in, label, reason):
    verdict = verify_math(completion, "42", answer_in=answer_in)
    assert (verdict.label, verdict.reason) == (label, reason)


def test_a_tag_of_another_name_and_one_whose_end_the_sampler_drops():
    assert verify_math("<answer>3", "3", answer_in="tag", tag="answer", closed=False).right
    assert verify_math("<SOLUTION>3</SOLUTION>", "3", answer_in="tag", tag="answer").reason == "no answer"


def test_the_last_outermost_box_counts():
    assert last_box(r"\boxed{\boxed{1}, \frac{2}{3}} \{") == (r"\boxed{1}, \frac{2}{3}", "")
    assert last_box(r"\boxed{a \} b}") == (r"a \} b", "")
    assert last_box(r"\boxed{ unclosed, then \boxed{7}") == ("7", "")
    assert last_box("}}}{") == (None, "no answer")
    assert last_tag("<A>1</A><A>2</A>", "A") == ("2", "")
    assert last_box(r"\boxed{7}, in \boxed form") == ("7", "")


@pytest.mark.parametrize(
    "text, number",
    [
        ("x = -3.", "-3"),
        ("from 5-3", "3"),
        ("f(2)-3", "3"),
        ("in all 1,000,000 ways", "1,000,000"),
        ("the pair 1,2", "2"),
        ("3/4 of it", "3/4"),
        ("half: .5", ".5"),
        ("2.50 dollars", "2.50"),
        ("about 20 %", "20 %"),
        ("\u22127 degrees", "\u22127"),
        ("1,2345", "2345"),
        ("none", None),
    ],
)
def test_the_last_number_of_a_text(text: str, number: str | None):
    assert last_number(text)[0] == number


def test_algebra_alone_asks_the_parser_what_one_spelling_would_hide():
    broken = r"\hbar\omega\broken("
    assert verify_math(broken, broken, answer_in="whole").right
    assert verify_math(broken, broken, answer_in="whole", algebra_only=True).reason == "gold cannot be parsed"
    assert verify_math("7", "7", answer_in="whole", algebra_only=True).right


def test_many_open_boxes_take_one_pass():
    assert last_box(r"\boxed{" * 100_000) == (None, "answer cut off")


def test_not_a_text_and_not_a_place():
    assert verify_math(None, "5").reason == "not a text"  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="'box' is no place"):
        verify_math("5", "5", answer_in="box")  # type: ignore[arg-type]


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


def test_every_module_that_a_verdict_is_made_of_is_among_those_that_are_hashed() -> None:
    folder = Path(sage_rlvr.verifiers.__file__).parent
    text = "".join((folder / f"{name}.py").read_text(encoding="utf-8") for name in MATHEMATICS)
    imported = set(re.findall(r"^\s*from sage_rlvr\.verifiers\.(\w+) import", text, re.M))
    imported |= set(re.findall(r"^from sage_rlvr\.verifiers import (\w+) as", text, re.M))
    assert "quantities" in imported and imported <= set(MATHEMATICS)
