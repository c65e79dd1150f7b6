"""Verdicts worked by hand: each line is a pair that verifiers are known to get wrong, or the plain case."""

from __future__ import annotations

from typing import Any

import pytest

from sage_rlvr.errors import ConfigError
from sage_rlvr.tasks.prompts import FORMATS
from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.answers import (
    MAX_ANSWER,
    MAX_COMPLETION,
    MAX_DEPTH,
    MAX_DIGITS,
    AnswerReading,
    last_box,
    last_number,
    last_tag,
    span_of,
)
from sage_rlvr.verifiers.math import verify_math
from verifiers.math_common import boxed

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
    (r"{5 \choose 2}", "10"),
    (r"5 \choose 2", r"\binom{5}{2}"),
    (r"{1+2 \over 6}", "1/2"),  # the whole group stands over the 6
    ("42\\ ", "42"),
    (r"42\>", "42"),
    ("\u0661\u0662", "12"),  # Arabic-Indic
    ("\u0967\u0968", "12"),  # Devanagari
    ("\u0663\u066b\u0665", "3.5"),
    ("\u0661\u066c\u0662\u0660\u0660", "1200"),
    (r"3 \text{ to } 4", "3:4"),
    ("3 to 4 to 5", "3:4:5"),
    ("]2,5[", "(2,5)"),
    (r"\left]2;5\right]", "(2,5]"),
    (r"]-\infty,2[\cup]3,5]", r"(-\infty,2)\cup(3,5]"),
    ("f(x)=2x+1", "y=2x+1"),
    ("y=t^2", "g(t)=t^2"),
    (r"42 \checkmark", "42"),
    (r"x+1\ \blacksquare", "1+x"),
    ("42 \u2705", "42"),
    ("pi/3", r"\frac{\pi}{3}"),
    ("-2*pi", r"-2\pi"),
    ("2pi", r"2\pi"),
    ("x**2/2", r"\frac{x^2}{2}"),
    ("2**(1/3)", r"\sqrt[3]{2}"),
    ("x**-2", "1/x^2"),
    ("sqrt 2", r"\sqrt{2}"),
    ("sqrt(x^2+(y-1)^2)", r"\sqrt{x^2+(y-1)^2}"),
    ("4*cos(x)**2", r"4\cos^2 x"),
    ("sin(pi/4)", r"\frac{\sqrt{2}}{2}"),
    ("exp(-2x)", "e^{-2x}"),
    ("ln(2)", r"\ln 2"),
    ("log2(8)", "3"),
    ("binomial(5,2)", "10"),
    ("abs(-3)", "3"),
    ("floor(2.5)", "2"),
    ("(-oo, 3]", r"(-\infty,3]"),
    ("(-inf,1) U (2,infinity)", r"(-\infty,1)\cup(2,\infty)"),
    ("theta/2", r"\frac{\theta}{2}"),
    ("tan", r"\text{tan}"),  # a color
    ("gamma rays", "Gamma rays"),
    ("5 min", r"5\text{ minutes}"),
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
    ("The answer is 25", "25", "answer cannot be parsed"),  # a sentence, and no box
    (r"{6 \choose 2}", "10", "value"),
    (r"1+2 \over 6", "4/3", "value"),
    ("3 to 5", "3:4", "ratio"),
    ("]2,5[", "[2,5]", "value"),
    ("]2,5]", "[2,5]", "value"),
    ("f(x)=2x+2", "y=2x+1", "value"),
    ("f(t)=2t+1", "y=2x+1", "value"),
    ("f(5)=5", "y=5", "value"),
    (r"42 \checkmark", "43", "value"),
    ("\u0661\u0663", "12", "value"),
    ("3*pi", r"2\pi", "value"),
    ("x**2", "x^3", "value"),
    ("p*i", r"\pi", "value"),
    ("pi", "3.14", "value"),
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
    ("3 to 4", "3/4", "a ratio or a range"),
    ("6 to 8", "3 to 4", "a ratio or a range"),
    ("3 to 30", "3:30", "a ratio or a range"),
    ("2", "erf(2)", "unknown name erf"),
    ("(" * 41 + "1" + ")" * 41, "1", f"brackets nested deeper than {MAX_DEPTH}"),
    ("1" * (MAX_ANSWER + 1), "5", f"answer of more than {MAX_ANSWER} characters"),
    ("5", "1" * (MAX_ANSWER + 1), f"gold of more than {MAX_ANSWER} characters"),
    ("1" * MAX_COMPLETION, "5", f"completion of more than {MAX_COMPLETION} characters"),
]


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
        ("The answer is 42.", "whole", "wrong", "answer cannot be parsed"),
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


THOUGHT = [  # completion, options, whether 4 is the answer
    (r"<think>maybe \boxed{4}", {}, False),
    (r"<think>maybe \boxed{4}</think> so", {}, False),
    (r"<think>maybe \boxed{5}</think> \boxed{4}", {}, True),
    (r"maybe \boxed{5}</think> \boxed{4}", {}, True),
    (r"<think>a</think> b <think>c</think> \boxed{4}", {}, True),
    (r"<think>a</think> \boxed{4} <think>but", {}, False),
    (r"maybe \boxed{4}", {}, True),
    (r"maybe \boxed{4}", {"in_thinking": True}, False),
    (r"maybe \boxed{5}</think> \boxed{4}", {"in_thinking": True}, True),
    (r"<think>maybe \boxed{4}", {"thinking": ""}, True),
    (r"<thinking>maybe \boxed{4}", {}, False),
    (r"<reasoning>maybe \boxed{4}", {}, False),
    (r"<reasoning>maybe \boxed{5}</reasoning> \boxed{4}", {}, True),
    (r"[THINK]maybe \boxed{4}", {}, False),
    (r"[THINK]maybe \boxed{5}[/THINK]\boxed{4}", {}, True),
    (r"<|channel|>analysis<|message|>maybe \boxed{4}", {}, False),
    (r"<|channel|>analysis<|message|>a<|channel|>analysis<|message|>\boxed{5}<|channel|>final<|message|>\boxed{4}", {}, True),
    (r"<think>the tag <think> is mine</think> \boxed{4}", {}, True),  # a text may speak of a mark
    (r"<think> <think> maybe \boxed{5}</think> \boxed{4}", {}, True),
    (r"<think>a</think> \boxed{4} <reasoning>because</reasoning>", {}, True),
    (r"<think>a</think> then the <thought> that \boxed{4}", {}, True),
    (r"the <thought> of \boxed{5}</think> \boxed{4}", {}, True),
    (r"<think>I may write </reasoning> or \boxed{4}", {}, False),
    (r"to [think] of \boxed{4}", {}, True),  # the case counts: no model's mark
    (r"abc <think> abc</think> \boxed{4}", {"in_thinking": True}, True),
    (r"<think>a <think>b</think> \boxed{5}</think> \boxed{4}", {}, True),
    (r"<think>I may use <reasoning> or \boxed{5}</think> \boxed{4}", {}, True),
    (r"<think>a</think> \boxed{4}", {"in_thinking": True}, True),
    (r"<think>maybe \boxed{4}", {"thinking": "<think>"}, False),
    (r"[r]maybe \boxed{4}", {"thinking": "[r]"}, False),
    (r"<reasoning>maybe \boxed{4}", {"thinking": "r"}, True),
    (r"<reasoning>maybe \boxed{4}", {"thinking": "reasoning"}, False),
    (r"<reasoning>5</reasoning>\boxed{4}", {"thinking": "reasoning"}, True),
    ("<think>it is 4", {"answer_in": "last_number"}, False),
    ("<think>the answer is 4", {"answer_in": "stated"}, False),
    ("<think><SOLUTION>4</SOLUTION>", {"answer_in": "tag"}, False),
    ("<think>the answer is 4", {"answer_in": "anywhere"}, False),
    ("<think>5</think> The answer is $4$.", {"answer_in": "anywhere"}, True),
]


@pytest.mark.parametrize(("completion", "options", "right"), THOUGHT)
def test_answers_are_read_behind_the_thinking(completion: str, options: dict[str, Any], right: bool):
    assert verify_math(completion, "4", **options).right is right
    span, why = span_of(completion, AnswerReading(**options))
    if right:
        assert span is not None and "4" in completion[slice(*span)] and "5" not in completion[slice(*span)]
    else:
        assert span is None and Verdict("wrong", why).unanswered


@pytest.mark.parametrize("thinking", ["a b", "<>", "think>>", "<think></think>"])
def test_a_tag_that_can_never_match_is_refused(thinking: str):
    with pytest.raises(ConfigError, match=r"thinking: .* is no tag; write its name, such as think"):
        verify_math(r"\boxed{4}", "4", thinking=thinking)
    with pytest.raises(ConfigError, match="is no tag"):
        FORMATS["boxed"].read_at(None, thinking=thinking)


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
