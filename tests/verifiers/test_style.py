"""Dressed answers: what changes no value is taken off, what is not known is undecided, and an operation in words is never right."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sage_rlvr.verifiers.answers import extract
from sage_rlvr.verifiers.math import verify_math
from sage_rlvr.verifiers.pool import shared
from sage_rlvr.verifiers.style import LONGEST, halved, undressed, unknown
from verifiers.math_common import boxed

pytestmark = pytest.mark.usefixtures("shared_pool_closed")

GOLDS = [
    "42", "-7", "0.25", "10,080", r"\frac{3}{4}", r"\dfrac{5\pi}{6}", r"2\sqrt{3}", r"\left( 3, \frac{\pi}{2} \right)", "(2,3)",
    r"(-\infty,2)\cup(3,\infty)", r"\{1,2,3\}", "x^2+2x-1", r"\text{Evelyn}", r"\text{(C)}", r"60^\circ", r"25\text{ km/h}",
    r"864 \mbox{ inches}^2", r"\begin{pmatrix} 0 & -1 \\ 1 & 0 \end{pmatrix}", r"\$18.90", r"12.5\%", "4210_{5}",
    "x/2-1/4+ce^{-2x}", r"e^{-2t}", r"6.02 \times 10^{23}", r"11,\! 111,\! 111,\! 100", "y=2x-1",
    r"\frac{1}{2}+\frac{\sqrt{3}}{2}i", "5, -2, 3",
]  # fmt: skip
SETS = ("aime_2024_2025", "amc23", "math500", "minerva")
MATHEMATICAL_BRACKETS = {"(": r"\bigl(", ")": r"\bigr)"}
STYLES: dict[str, Callable[[str], str]] = {
    "color": lambda g: rf"\boxed{{\color{{blue}}{g}}}",
    "color with braces": lambda g: rf"\color{{red}}\boxed{{\color[rgb]{{0,0,1}} {{{g}}}}}",
    "textcolor": lambda g: rf"\boxed{{\textcolor{{red}}{{{g}}}}}",
    "colorbox": lambda g: rf"\boxed{{\colorbox{{yellow}}{{${g}$}}}}",
    "boldsymbol": lambda g: rf"\boxed{{\boldsymbol{{{g}}}}}",
    "mathbf": lambda g: rf"\boxed{{\mathbf{{{g}}}}}",
    "underline": lambda g: rf"\boxed{{\underline{{\mathbf{{{g}}}}}}}",
    "large": lambda g: rf"\boxed{{\large {g}}}",
    "Large with braces": lambda g: rf"\boxed{{\Large{{{g}}}}}",
    "bf": lambda g: rf"\boxed{{\bf {g}}}",
    "bf in braces": lambda g: rf"\boxed{{{{\bf {g}}}}}",
    "displaystyle": lambda g: rf"\boxed{{\displaystyle {g}}}",
    "bigl": lambda g: boxed(g if r"\left" in g else "".join(MATHEMATICAL_BRACKETS.get(c, c) for c in g)),
    "Big": lambda g: boxed(g.replace(r"\left(", r"\Big(").replace(r"\right)", r"\Big)")),
    "comma behind": lambda g: rf"\boxed{{{g},}}",
    "semicolon behind": lambda g: rf"\boxed{{{g};}}",
    "spaces": lambda g: rf"\boxed{{\,\quad {g}\,\;.}}",
    "line break behind": lambda g: rf"\boxed{{{g}\\}}",
    "braces": lambda g: rf"\boxed{{{{{g}}}}}",
    "dollars": lambda g: rf"\fbox{{${g}$}}",
    "doubled backslashes": lambda g: boxed(g).replace("\\", r"\\"),
    "doubled backslash of the box": lambda g: rf"\\boxed{{{g}}}",
    "words in front": lambda g: rf"\boxed{{\text{{The answer is }} {g}}}",
    "phantom": lambda g: rf"\boxed{{\phantom{{x}}\hspace{{1em}}{g}}}",
    "ensuremath": lambda g: rf"\boxed{{\ensuremath{{{g}}}}}",
    "text": lambda g: rf"\boxed{{\text{{{g}}}}}",
    "aligned": lambda g: rf"\boxed{{\begin{{aligned}} {g} \end{{aligned}}}}",
}


def all_survive(golds: list[str], styles: list[str]) -> None:
    dressed = [(STYLES[style](gold), gold) for style in styles for gold in golds]
    judged = zip(dressed, shared().verify(dressed), strict=True)
    assert [(answer, verdict.reason) for (answer, _), verdict in judged if not verdict.right] == []


def test_a_gold_survives_every_style():
    all_survive(GOLDS, list(STYLES))


@pytest.mark.skipif("SAGE_RLVR_DATA" not in os.environ, reason="SAGE_RLVR_DATA names no folder with the published sets")
def test_every_published_gold_survives_every_style():
    texts = [Path(os.environ["SAGE_RLVR_DATA"], f"{name}.jsonl").read_text(encoding="utf-8") for name in SETS]
    golds = [json.loads(line)["answer"] for text in texts for line in text.splitlines()]
    assert len(golds) == 872
    all_survive(golds, list(STYLES))


def test_another_value_in_the_same_style_is_not_right():
    dressed = [(style("43"), "42") for style in STYLES.values()] + [(style("(3,2)"), "(2,3)") for style in STYLES.values()]
    assert {verdict.label for verdict in shared().verify(dressed)} == {"wrong"}


UNKNOWN = [r"\mystyle{42}", r"\begin{fancy} 42 \end{fancy}", r"\half 42", r"\cancel{42}", r"42\ldots", "42..."]


@pytest.mark.parametrize("answer", UNKNOWN)
def test_style_that_is_not_known_is_undecided_and_never_wrong(answer: str):
    assert verify_math(boxed(answer), "42").label == "undecided"


def test_golds_that_lost_their_spaces_are_known():
    assert [unknown(text) for text in (r"2\pic", r"\sin(\omegat)", r"\ddot{x}", r"\mystyle 2")] == ["", "", "", r"\mystyle"]


OPERATIONS = [
    "factorial", "halved", "doubled", "tripled", "times ten", "divided by two", "multiplied by 3", "octal", "binary",
    "in base eight", "squared", "cubed", "^2", "raised to the second power", "to the fourth", "minus one", "plus one", "inverted",
    "negated", "rounded", "over two", "mirrored", "repeating", "reversed",
]  # fmt: skip


@pytest.mark.parametrize("words", OPERATIONS)
def test_an_operation_in_words_behind_a_number_is_never_right(words: str):
    for answer in (rf"\boxed{{42 \text{{ {words}}}}}", rf"\boxed{{42\text{{ {words}}}}}", rf"\boxed{{42 \textbf{{ {words}}}}}"):
        assert not verify_math(answer, "42").right, answer
    assert not verify_math(f"The answer is 42 {words}.", "42", answer_in="stated").right


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (r"5 \text{ times}", "5"),
        (r"5 \text{ times a day}", "5"),
        (r"20\text{ two-digit numbers}", "20"),
        (r"12\text{ painted cubes}", "12"),
        (r"12\text{ seeds}", "12"),
        (r"3\text{ binary digits}", "3"),
        (r"9\text{ cm}^2", "9"),
        (r"1.6\ \mathrm{J\,K^{-1}\,mol^{-1}}", "1.6"),
        (r"1.6 \mathrm{~erg} / \mathrm{s}", "1.6"),
        (r"25\ \mathrm{km\,h^{-1}}", r"25\text{ km/h}"),
        (r"25\,\frac{\text{km}}{\text{h}}", r"25\text{ km/h}"),
        (r"42\ \mathrm{kg \cdot m^{2} \cdot s^{-2}}", r"42\text{ J}"),
        (r"42{\rm\,cm}", "42"),
        (r"4.5e33\ \text{erg}", "4.5e33"),
        (r"4.5e33\,", r"4.5 \times 10^{33}"),
        (r"x = 1,\ y = 2", "(1,2)"),
        (r"x=-2,\quad x=3", "-2,3"),
        (r"\text{x = } 30", "30"),
        (r"\text{a total of } 30", "30"),
        (r"\text{equal to } 30", "30"),
        (r"\text{Option C}", "C"),
        (r"50\%", "0.5"),
        (r"50\%", "50"),
    ],
)
def test_units_names_and_words_that_leave_the_value(answer: str, gold: str):
    assert verify_math(boxed(answer), gold).right


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (r"\frac{5}{11}\%", r"\frac{5}{11}"),
        (r"0.5\%", "0.5"),
        (r"25\ \mathrm{km\,h^{-2}}", r"25\text{ km/h}"),
        (r"[2,\infty]", r"[2,\infty)"),
        (r"\text{half of } 30", "30"),
        (r"\text{not } 30", "30"),
        (r"4.5e33\,", "4.5"),
        (r"x = 2,\ y = 1", "(1,2)"),
        (r"\text{Option D}", "C"),
    ],
)
def test_what_changes_the_value_is_not_right(answer: str, gold: str):
    assert not verify_math(boxed(answer), gold).right


@pytest.mark.parametrize(
    ("text", "gold", "right"),
    [
        ("The answer is 42, since 6 * 7 = 42.", "42", True),
        ("The answer is 42 because 7 * 6 = 42.", "42", True),
        ("The answer is 42, as required.", "42", True),
        ("The answer is therefore 42.", "42", True),
        ("The answer is a total of 42.", "42", True),
        ("**Answer:** therefore, 42 apples", "42", True),
        ("The answer is 41, since 42 is too large.", "42", False),
        ("The answer is 42 only if n is even.", "42", False),
        ("The answer is half of 42.", "42", False),
    ],
)
def test_a_stated_answer_ends_before_its_reason(text: str, gold: str, right: bool):
    assert verify_math(text, gold, answer_in="stated").right is right


def test_boxes_that_are_joined_are_one_answer_that_lists_several():
    both = r"Hence $x=\boxed{-4}$ and $x=\boxed{9}$."
    assert extract(both) == ("-4, 9", "")
    assert verify_math(both, "-4, 9").right and not verify_math(both, "9").right
    assert extract(r"Case 1: \boxed{12}. Case 2: \boxed{17}. In all $\boxed{29}$.") == ("29", "")
    assert extract(r"\boxed{9}, or \boxed{9}") == ("9", "")


def test_single_backslashes_of_a_doubled_text():
    assert halved(r"\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}") == r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"
    assert halved(r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}") == r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"
    assert verify_math(r"\\boxed{\\{1,2\\}}", r"\{1,2\}").right
    assert not verify_math(r"\boxed{\begin{pmatrix} 1 \\ 3 \end{pmatrix}}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}").right


def test_a_gold_with_a_control_character_decides_nothing():
    damaged = "\frac{1}{2}"  # as JSON reads a single backslash
    assert verify_math(boxed(damaged), damaged).reason == "gold holds a control character"


@given(st.text(st.sampled_from(r"\{}[]()^_,;. ~$&4x" + "colrtexbfqudsin"), max_size=60))
def test_any_text_is_undressed_and_twice_is_as_good_as_once_for_its_value(text: str):
    assert isinstance(undressed(text), str) and isinstance(unknown(text), str)
    assert len(undressed(text)) <= 2 * len(text) + 20


def test_deep_texts_are_undressed_and_long_ones_stay_as_they_are():
    assert undressed("{" * 990 + "1" + "}" * 990) == "1"
    assert undressed(r"\bm{" * 390 + "1" + "}" * 390) == "1"
    text = "{" * LONGEST + "1" + "}" * LONGEST
    assert undressed(text) == text and halved(text) == text
