"""Plain notation: what is written by hand, and laws over texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sage_rlvr.verifiers.math import verify_math
from sage_rlvr.verifiers.plain import typeset, unread

PIECES = ["pi", "sqrt(", "sin(", "x", "2", "+", "*", "**", "/", ")", "(", ",", " ", "oo", "[", "]", "U", "{", "}"]
PIECES += ["^-", r"\sqrt", r"\sqrt ", r"\pi", r"\text{pi}", "^", "3^2^", "lnx", "arctan ", "exp "]
FACTORS = {"pi": r"\pi", "sqrt(2)": r"\sqrt{2}", "exp(2)": "e^{2}", "ln(3)": r"\ln 3", "x**2": "x^2", "cos(x)": r"\cos x"}


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("2*sqrt(3)/pi", r"2*\sqrt{3}/\pi"),
        ("sqrt(1+sqrt(2))", r"\sqrt{1+\sqrt{2}}"),
        ("x**(1/3) + 2**10", "x^{1/3} + 2^{10}"),
        ("(-oo, 3] U [5, inf)", r"(-\infty, 3]\cup [5, \infty)"),
        (r"\text{pi} + \pi", r"\text{pi} + \pi"),
        ("2 ** x", "2^{x}"),
        ("47** Check", "47** Check"),
        ("pi x", r"\pi x"),
        ("pix", "pix"),
        ("5 min", "5 min"),
        ("sqrt(2", r"\sqrt(2"),
        ("tan", "tan"),
        ("gamma rays", "gamma rays"),
        ("2**3**2", "2^{3^{2}}"),
        ("2**(x+1)**2", "2^{(x+1)^{2}}"),
        ("2^3^2", "2^{3^2}"),
        ("cos pi", r"\cos \pi"),
        ("2xlnx", r"2x \ln x"),
        ("xlnx", r"x \ln x"),
        ("exp 2x", "e^{2x}"),
        ("exp xy", "exp xy"),
        ("sin sqrt(2)", r"\sin \sqrt{2}"),
        ("cost", "cost"),
        ("5 sec", "5 sec"),
        ("5sqrt10", r"5\sqrt{10}"),
        ("sqrt 10", r"\sqrt{10}"),
        (r"\sqrt 25 = 5", r"\sqrt{25} = 5"),
        (r"2\sqrt(3)", r"2\sqrt{3}"),
        (r"\sqrt \left(x+1\right)", r"\sqrt{x+1}"),
        (r"\sqrt \sqrt 16", r"\sqrt{\sqrt{16}}"),
        (r"\sqrt x", r"\sqrt x"),
        ("10^-3", "10^{-3}"),
        ("e^-x + 2^-(1/2)", "e^{-x} + 2^{-(1/2)}"),
        (r"3\text{ s^-1}", r"3\text{ s^-1}"),
        ("0^-", "0^-"),
        ("2npi", r"2n \pi"),
        ("2sinxcosx", r"2 \sin x \cos x"),
        ("lnt", r"\ln t"),
        ("e^-2x", "e^-2x"),
        (r"[2,3] U {5}", r"[2,3]\cup {5}"),
        (r"\sqrt[3]8 + \sqrt[3](2x)", r"\sqrt[3]{8} + \sqrt[3]{2x}"),
        ("0.(3) + 0.1(6)", r"0.\overline{3} + 0.1(6)"),
        ("all real numbers", r"\mathbb{R}"),
        ("all real numbers but 2", "all real numbers but 2"),
    ],
)
def test_names_become_commands(text: str, made: str) -> None:
    assert typeset(text) == made


@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_it_is_done_once(text: str) -> None:
    assert typeset(typeset(text)) == typeset(text)


@given(st.text("0123456789+-/()[]{}\\,.xyz ", max_size=60))
def test_a_text_without_a_name_stays(text: str) -> None:
    assert typeset(text) == text


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        ("0", "√10", False),
        ("0", "5√10", False),
        ("0", r"\sqrt10", False),
        (r"\sqrt{10}", "√10", True),
        ("2√5", "√20", True),
        ("5", "√25 = 5", True),
        (r"\sqrt{x+1}", "√(x+1)", True),
        ("0.001", "10^-3", True),
        (r"1.6 \times 10^{-19}", "1.6 x 10^-19", True),
        ("1/e", "e^-1", True),
        ("8", "2^-3", False),
    ],
)
def test_roots_and_signed_exponents_without_braces(gold: str, answer: str, right: bool) -> None:
    for one, other in ((gold, answer), (answer, gold)):
        assert verify_math(one, other, answer_in="whole").label == ("right" if right else "wrong")


@pytest.mark.parametrize("nested", ["sqrt(" * 300 + "2" + ")" * 300, "2**(" * 400 + "2" + ")" * 400])
def test_a_text_of_many_brackets_stays(nested: str) -> None:
    assert typeset(nested) == nested and verify_math(nested, "2", answer_in="whole").label == "undecided"


def test_a_name_that_is_not_known_is_named() -> None:
    texts = ("erf(2)", "2*lcm (4,6)", r"\text{sum(1)}", "sqrt(2)", "sum", "f(x)")
    assert [unread(text) for text in texts] == ["erf", "lcm", "", "", "", ""]


@pytest.mark.parametrize("one", FACTORS)
@pytest.mark.parametrize("other", FACTORS)
def test_a_product_is_the_one_in_latex_and_no_other(one: str, other: str) -> None:
    plain, latex = f"3*{one}/{other}", rf"\frac{{3{FACTORS[one]}}}{{{FACTORS[other]}}}"
    assert verify_math(plain, latex, answer_in="whole").right and verify_math(latex, plain, answer_in="whole").right
    assert not verify_math(plain, latex.replace("3", "4", 1), answer_in="whole").right
