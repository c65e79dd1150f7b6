"""Countdown worked step by step: verdicts by hand, laws of what is drawn, and the audit."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_rlvr.contrib.audit import audit
from sage_rlvr.contrib.tasks.countdown_steps import CountdownSteps, steps
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.tasks import TASKS, task_named
from sage_rlvr.tasks.countdown import Problem, split_of, verify

TASK = CountdownSteps({4: 0.5, 5: 0.5}, max_number=12, min_target=10, max_target=60, train_problems=50)
WORKED = "3*8=24(5 9 24)9+5=14(14 24)14+24=38"


@pytest.mark.parametrize(
    ("text", "target", "reason"),
    [
        (WORKED, 38, "right"),
        (WORKED, 39, "target"),
        ("9+5=14(3 8 14)3*8=24(14 24)14+24=38", 38, "right"),  # another order
        ("3*8=25(5 9 25)9+5=14(14 25)14+25=39", 39, "value"),
        ("3*8=24(5 9 24)9+4=13(13 24)13+24=37", 37, "numbers"),
        ("8*8=64(3 5 9)9+5=14(3 14)3+14=17", 17, "numbers"),
        ("3*8=24(9 5 24)9+5=14(14 24)14+24=38", 38, "what is left"),
        ("3*8=24(5 9)9+5=14(14 24)14+24=38", 38, "what is left"),
        ("3*8=24(5 9 24)9+5=14(14 24)14+24=38(38)", 38, "more after the last step"),
        ("3*8=24(5 9 24)9+5=14(14 24)", 38, "not a step"),
        ("3-8=-5(-5 5 9)", 38, "not a step"),
        ("3-8=5(5 5 9)5+5=10(9 10)9+10=19", 19, "value"),  # below zero
        ("9/5=1(1 3 8)", 38, "value"),  # a fraction
        ("03*8=24(5 9 24)9+5=14(14 24)14+24=38", 38, "value"),  # one spelling a number
        ("3*8+9+5=38", 38, "not a step"),
        ("", 38, "not a step"),
        ("1" * 401, 38, "too long"),
    ],
)
def test_verdicts_by_hand(text: str, target: int, reason: str) -> None:
    verdict = TASK.verify(Problem((3, 5, 8, 9), target), text)
    assert verdict.reason == reason and verdict.right == (reason == "right")


def test_steps_in_another_order_are_one_answer_and_a_wrong_step_is_none() -> None:
    problem = Problem((3, 5, 8, 9), 38)
    assert TASK.answer_key(problem, WORKED) == "9+5+3*8"
    assert TASK.answer_key(problem, "9+5=14(3 8 14)3*8=24(14 24)14+24=38") == "9+5+3*8"
    assert TASK.answer_key(problem, WORKED.replace("38", "39")) is None


def test_equal_numbers_are_used_as_often_as_they_are_there() -> None:
    problem = Problem((2, 2, 3), 12)
    assert TASK.verify(problem, "2*2=4(3 4)3*4=12").right
    assert TASK.verify(Problem((2, 3, 4), 12), "2*2=4(3 4)3*4=12").reason == "numbers"
    assert steps((2, 2, 3), "2/3*2") is None and steps((2, 2, 3), "2-3+2") is None and steps((2, 3), "3-2") == "3-2=1"
    assert TASK.verify(Problem((5, 5), 1), "5/5=1").right
    assert TASK.verify(Problem((5, 5, 3), 3), "5-5=0(0 3)3/0=0").reason == "value"


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(st.sampled_from(("train", "validation", "test")), st.integers(0, 3), st.integers(0, 4000), st.integers(0, 20))
def test_examples_are_right_in_their_split_and_a_function_of_their_place(split: str, seed: int, start: int, n: int) -> None:
    found = TASK.examples(split, seed, start, n)
    assert len(found) == n and found == TASK.examples(split, seed, 0, start + n)[start:]
    for problem, text in found:
        assert TASK.verify(problem, text).right and split_of(problem) == split and set(text) <= set(TASK.characters)
        expression = TASK.answer_key(problem, text)
        assert expression is not None and verify(problem, expression).right  # the expression is right by Countdown's own verifier
        worked = re.findall(r"(\d+)([-+*/])(\d+)=(\d+)", text)
        exact = {"+": Fraction.__add__, "-": Fraction.__sub__, "*": Fraction.__mul__, "/": Fraction.__truediv__}
        assert all(exact[how](Fraction(a), Fraction(b)) == int(result) >= 0 for a, how, b, result in worked)


def test_problems_differ_and_draws_repeat() -> None:
    rows = TASK.problems("train")
    assert len(rows) == len({p.key for p in rows}) == 50 and all(10 <= p.target <= 60 for p in rows)
    assert TASK.draw("test", 0, 30) == [problem for problem, _ in TASK.examples("test", 0, 0, 30)]


def test_refusals() -> None:
    with pytest.raises(DataError, match="sampling 'without-replacement': countdown_steps has only iid"):
        TASK.draw("test", 0, 3, "without-replacement")
    with pytest.raises(ConfigError, match="split 'dev': choose one of"):
        TASK.examples("dev", 0, 0, 1)
    with pytest.raises(ConfigError, match="max_number 0"):
        CountdownSteps(max_number=0)


@pytest.mark.slow
def test_a_world_with_too_few_problems_is_refused() -> None:
    with pytest.raises(DataError, match="ask for fewer or widen it"):
        CountdownSteps({2: 1.0}, max_number=2, max_target=4, train_problems=99).problems("train")


def test_it_is_a_task_by_name_and_passes_its_audit() -> None:
    assert isinstance(task_named("countdown_steps"), CountdownSteps) and TASKS["countdown_steps"] is CountdownSteps
    found = audit(CountdownSteps(max_number=20, min_target=10, max_target=60))
    assert found.passed and not any(check.rows for check in found.checks)
