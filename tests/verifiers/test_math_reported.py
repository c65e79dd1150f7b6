"""Mathematical answers that were reported from outside: false verdicts of old, doubts, equations."""

from __future__ import annotations

import pytest

from sage_rlvr.verifiers.math import verify_math
from verifiers.math_common import boxed

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
    ("2**3**2", "512"),
    ("2^3^2", "512"),
    ("x**(y+1)**2", "x^{(y+1)^2}"),
    ("cos pi", "-1"),
    ("2 cos pi", "-2"),
    ("arctan 1", r"\frac{\pi}{4}"),
    ("sinx", r"\sin x"),
    ("x lnx - x", r"x \ln x - x"),
    ("cosx+sinx", r"\cos x+\sin x"),
    ("exp 2", "e^2"),
    ("exp -1", "e^{-1}"),
    ("sec x", r"\sec x"),
    ("cos theta", r"\cos\theta"),
    ("yx", "xy"),
    ("pqr", "rqp"),
    ("ba", r"a \cdot b"),
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
    ("aba", "aab"),
    ("cat", "act"),
    ("kx", "xk"),
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
    ("2**3**2", "64"),
    ("2^3^2", "64"),
    ("neo", "one"),
    ("on", "no"),
    ("xis", "six"),
    ("ow t", "two"),
    (r"\{neo, 2\}", r"\{one, 2\}"),
    ("(on, 1)", "(no, 1)"),
    ("cost", r"\cos t"),
]

EQUATIONS = [  # no name on the left, so that the other side is not what they say
    ("2x=6", "6"),
    ("x+1=3", "3"),
    ("x-3=0", "0"),
    ("x^2=4", "4"),
    ("-x=3", "3"),
    ("a+b+c=10", "10"),
]


NOTATION = [  # answer, gold, label: one thing in two notations
    ("60 miles per hour", "60 mph", "right"),
    ("60 kilometers per hour", "60 km/h", "right"),
    ("3 meters per second", "3 m/s", "right"),
    ("60 meters per hour", "60 km/h", "wrong"),
    ("–7", "-7", "right"),
    ("(–1, –2)", "(-1, -2)", "right"),
    ("‑7", "-7", "right"),
    ("–7", "7", "wrong"),
    ("does not exist", "DNE", "right"),
    ("5", "DNE", "wrong"),
    ("sinxcosx", r"\sin x\cos x", "right"),
    ("kpi", r"k\pi", "right"),
    (r"\phi", r"\varphi", "right"),
    (r"2\phi", r"\varphi+\phi", "wrong"),
    ("2**0.5", r"\sqrt2", "right"),
    ("x^{-0.5}", r"\frac{1}{\sqrt{x}}", "right"),
    ("x^{0.5y}", r"\sqrt{x}y", "wrong"),
]


@pytest.mark.parametrize("answer, gold, label", NOTATION)
def test_one_thing_in_two_notations(answer: str, gold: str, label: str):
    for one, other in ((answer, gold), (gold, answer)):
        assert verify_math(boxed(one), other).label == label


NAMES = [  # answer, gold, label: of letters with a capital, the order counts, and the case of the whole does not
    ("Amy", "May", "wrong"),
    ("Tim", "Mit", "wrong"),
    ("Al", "La", "wrong"),
    ("(Amy, Bo)", "(May, Bo)", "wrong"),
    ("No", "On", "wrong"),
    ("red", "Der", "wrong"),
    ("Co", "OC", "wrong"),
    ("Na", "An", "wrong"),
    ("Eve", "eve", "right"),
    ("Eve", "EVE", "right"),
    ("Amy", "AMY", "right"),
    ("Al", "AL", "right"),
    ("nRT", "RTn", "undecided"),
    ("cbd", "DBC", "undecided"),
    ("Ab", "bA", "undecided"),
    ("PV=nRT", "nRT=PV", "right"),
    ("Ax+By", "By+Ax", "right"),
    ("CD/AB", r"\frac{CD}{AB}", "right"),
]


@pytest.mark.parametrize("answer, gold, label", NAMES)
def test_letters_of_a_name_are_no_factors(answer: str, gold: str, label: str):
    for one, other in ((answer, gold), (gold, answer)):
        assert verify_math(boxed(one), other).label == label


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
