"""Countdown in words: verdicts by hand, laws of answers and guesses, how a chat model is asked, training on it, and the audit."""

from __future__ import annotations

import json
import math
import operator
from fractions import Fraction
from itertools import combinations, permutations, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byte_tokenizer import CHATML, byte_tokenizer
from chat_policy import chat_policy
from command import call, refused
from sage_rlvr.contrib.audit import audit
from sage_rlvr.contrib.audit.reference_parser import second_opinion_on_any_spelling
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.models.policy import PromptRenderer, Tokens
from sage_rlvr.tasks import TASKS, task_named
from sage_rlvr.tasks.chance import chance_of
from sage_rlvr.tasks.countdown import Countdown, Problem, draws, split_of
from sage_rlvr.tasks.countdown.chat import CountdownChat
from sage_rlvr.training.sft import texts_of
from sage_rlvr.verdicts.chance import Chance
from sage_rlvr.verifiers.countdown_chat import expression_of

TASK = CountdownChat({3: 0.5, 4: 0.5}, train_problems=50)
PROBLEM = Problem((3, 5, 7, 11), 24)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(7*11-5)/3", "right"),
        (" ( 7 * 11 - 5 ) / 3\n", "right"),
        ("((7*(11))-5)/3", "right"),
        ("(7×11−5)÷3", "right"),
        ("(7·11–5)∕3 = 24", "right"),
        ("(7*11-5)/3=24", "right"),
        ("(7*11-5)/3=25", "another total"),
        ("(7*11-5)/3=24=24", "not an expression"),
        ("(7*11-5)/3=", "not an expression"),
        ("(7*11-5)/3=x", "not an expression"),
        ("24=(7*11-5)/3", "not an expression"),
        ("(7*11-5)/03", "not an expression"),
        ("(7*11-5)/3 is it", "not an expression"),
        ("Answer: (7*11-5)/3", "not an expression"),
        ("-3+5+7+11", "not an expression"),
        ("(7*11-5)/", "not an expression"),
        ("", "not an expression"),
        ("3+5+7+11", "value"),
        ("11+7+3*2", "numbers"),
        ("24", "numbers"),
        ("7+11+3+3", "numbers"),
        ("(7*11-5)/3+3-3", "numbers"),
        ("7/(11-5-3-3)", "numbers"),
        ("(7*11-5)/3\N{REPLACEMENT CHARACTER}", "not an expression"),
        ("1" * 201, "too long"),
    ],
)
def test_verdicts_by_hand(text: str, reason: str) -> None:
    verdict = TASK.verify(PROBLEM, text)
    assert verdict.reason == reason and verdict.right == (reason == "right")
    assert second_opinion_on_any_spelling(PROBLEM.numbers, PROBLEM.target, text) == verdict.right


def test_division_by_zero_is_wrong() -> None:
    assert TASK.verify(Problem((2, 2, 3), 3), "3/(2-2)").reason == "division by zero"


def test_an_operator_that_is_not_allowed_is_wrong_and_no_problem_needs_one() -> None:
    task = CountdownChat(operators="+-", max_target=20, train_problems=30)
    assert task.verify(Problem((3, 5, 7, 11), 26), "3+5+7+11").right
    assert task.verify(PROBLEM, "(7*11-5)/3").reason == "operators"
    for problem in task.problems("train"):
        assert task.answers(problem) and not set("".join(task.answers(problem))) & set("*/")


def test_spellings_of_one_expression_are_one_answer() -> None:
    keys = {TASK.answer_key(PROBLEM, text) for text in ("(7*11-5)/3", "( 7×11 - 5 ) / 3 = 24", "((7*11)-5)/(3)")}
    assert keys == {"(7*11-5)/3"}
    assert TASK.answer_key(PROBLEM, "(11*7-5)/3") == "(11*7-5)/3" and TASK.answer_key(PROBLEM, "I think") is None
    assert TASK.answer_span(PROBLEM, "  3+5 = 8") == (2, 5) and TASK.answer_span(PROBLEM, "none") is None


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_every_enumerated_answer_is_right_and_a_perturbed_one_is_wrong(data: st.DataObject) -> None:
    problem = data.draw(st.sampled_from(TASK.problems("train")))
    text = data.draw(st.sampled_from(TASK.answers(problem)))
    assert TASK.verify(problem, text).right and TASK.answer_key(problem, text) == text
    spaced = "".join(f" {one} " if one in "+-*/()" else one for one in text)
    behind = data.draw(st.sampled_from(("", f" = {problem.target}", "\n")))
    assert TASK.verify(problem, spaced + behind).right and TASK.answer_key(problem, spaced + behind) == text
    perturbed = [f"{text}+1", f"{text}={problem.target + 1}", text.replace(str(problem.numbers[0]), "13"), f"{text})", f"x{text}"]
    assert not any(TASK.verify(problem, other).right for other in perturbed)
    # another operator in one place: right only if its value is the target again
    place = data.draw(st.sampled_from([i for i, one in enumerate(text) if one in "+-*/"]))
    other = text[:place] + data.draw(st.sampled_from("+-*/")) + text[place + 1 :]
    assert TASK.verify(problem, other).right == second_opinion_on_any_spelling(problem.numbers, problem.target, other)


@settings(deadline=None, max_examples=100)
@given(st.text("0123456789+-*/()= ×−x", max_size=14), st.sampled_from(("+-*/", "+-", "*")))
def test_the_second_verifier_agrees_on_any_text(text: str, operators: str) -> None:
    task = CountdownChat({2: 1.0}, operators=operators)
    problem = Problem((2, 3), 6)
    assert task.verify(problem, text).right == second_opinion_on_any_spelling((2, 3), 6, text, operators)


def test_problems_and_splits_are_those_of_the_world() -> None:
    world = Countdown({4: 1.0}, max_number=12, max_target=100)
    assert CountdownChat().first("test", 40) == world.first("test", 40)
    assert CountdownChat().draw("validation", 3, 40) == world.draw("validation", 3, 40)
    assert CountdownChat().examples("train", 1, 4090, 20) == world.examples("train", 1, 4090, 20)
    assert all(split_of(problem) == "validation" for problem in CountdownChat().draw("validation", 3, 40))


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(st.integers(1, 6), st.integers(0, 3), st.integers(0, 200), st.integers(0, 20))
def test_several_solutions_of_a_problem_follow_one_another(each: int, seed: int, start: int, n: int) -> None:
    task = CountdownChat({3: 1.0}, solutions_per_problem=each)
    found = task.examples("train", seed, start, n)
    assert len(found) == n and found == task.examples("train", seed, 0, start + n)[start:]
    assert all(task.verify(problem, text).right for problem, text in found)
    whole = task.examples("train", seed, 0, 5 * each)
    for i in range(5):
        group = whole[i * each : (i + 1) * each]
        problem = group[0][0]
        assert {p for p, _ in group} == {problem}
        assert len({text for _, text in group}) == min(each, len(task.answers(problem)))


def test_chance_is_that_of_a_uniform_guess_among_listed_expressions() -> None:
    task = CountdownChat({2: 1.0}, operators="+-")
    problem = Problem((3, 5), 8)  # 3+5, 5+3, 3-5, 5-3
    assert task.candidates(problem) == 4 and task.answers(problem) == ["3+5", "5+3"] and task.choices(problem) == 2
    chance = chance_of(task, [problem])
    assert chance is not None and chance.law == "answers" and chance.at(2) == pytest.approx(0.75)
    assert TASK.candidates(PROBLEM) == 244 * 24 and task.choices(Problem((3, 5), 99)) == math.inf
    assert chance_of(task, [Problem((3, 5), 99)]) == Chance("answers", (0.0,))


def every_value(numbers: tuple[int, ...], operators: str) -> dict[str, Fraction | None]:
    """Canonical spelling -> value (None: division by zero) of every expression tree over the numbers, by recursion alone."""
    if len(numbers) == 1:
        return {str(numbers[0]): Fraction(numbers[0])}
    found: dict[str, Fraction | None] = {}
    for order in set(permutations(numbers)):
        for size in range(1, len(order)):
            parts = product(every_value(order[:size], operators).items(), every_value(order[size:], operators).items())
            for ((left, a), (right, b)), between in product(parts, operators):
                parsed, _ = expression_of(f"({left}){between}({right})")
                assert parsed is not None
                none = a is None or b is None or (between == "/" and b == 0)
                found[parsed.spelling] = None if none else VALUES[between](a, b)
    return found


VALUES: dict[str, Any] = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
OPERATOR_SETS = ["".join(chosen) for n in range(1, 5) for chosen in combinations("+-*/", n)]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 7), min_size=2, max_size=3), st.sampled_from(OPERATOR_SETS), st.integers(1, 15))
def test_floor_and_right_answers_are_those_of_all_expressions_for_any_operators(
    numbers: list[int], operators: str, target: int
) -> None:
    task, problem = CountdownChat({3: 1.0}, operators=operators), Problem(tuple(sorted(numbers)), target)
    every = every_value(problem.numbers, operators)
    right = {text for text, value in every.items() if value == target}
    assert set(task.answers(problem)) == right and len(task.answers(problem)) == len(right)
    assert task.candidates(problem) == len(every)
    assert task.choices(problem) == (len(every) / len(right) if right else math.inf)
    for text, value in every.items():  # distinct by canonical key, right by value alone
        assert task.answer_key(problem, f" ( {text} ) ") == text and task.verify(problem, text).right == (value == target)


def test_the_floor_of_five_numbers_is_counted_too() -> None:
    problem = Problem((1, 2, 3, 4, 5), 15)
    for operators in ("+", "+-", "+-*/"):
        task = CountdownChat({5: 1.0}, operators=operators)
        assert task.choices(problem) == task.candidates(problem) / len(task.answers(problem))
    assert CountdownChat({5: 1.0}, operators="+").choices(problem) == 1


def test_the_order_of_operators_is_no_other_task() -> None:
    assert CountdownChat(operators="-+") == CountdownChat(operators="++-") and CountdownChat(operators="-+").operators == "+-"
    assert CountdownChat(operators="-+").identity == CountdownChat(operators="+-").identity


def test_it_is_asked_by_the_chat_template() -> None:
    tokens = Tokens.of(byte_tokenizer(CHATML, eos_token="<|im_end|>"))
    asking = PromptRenderer.of(TASK, tokens)
    user = "Numbers: 3, 5, 7, 11. Target: 24. Write an expression."
    assert asking(PROBLEM).text == f"<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n"
    own = CountdownChat(system="Be brief.", question="Make {target} of {numbers}!")
    assert own.messages(PROBLEM) == [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Make 24 of 3, 5, 7, 11!"},
    ]  # fmt: skip
    (text,) = texts_of([(PROBLEM, "(7*11-5)/3")], asking)  # fine-tuning goes on from the same prompt
    assert text.prompt == asking(PROBLEM).ids and text.own is not None and all(text.own)
    assert tokens.tokenizer.decode(text.tokens) == "(7*11-5)/3<|im_end|>"


def test_a_tokenizer_without_a_chat_template_is_an_error_with_the_next_step() -> None:
    with pytest.raises(ConfigError, match="has no chat template, which task countdown_chat needs; use a chat model"):
        PromptRenderer.of(TASK, Tokens.of(byte_tokenizer()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"operators": ""}, "operators '': one or more of"),
        ({"operators": "+^"}, r"operators '\+\^': one or more of"),
        ({"question": "Make {target}"}, "must have {numbers} and {target}"),
        ({"question": "{numbers} {target} {x}"}, "no other braces"),
        ({"question": "{numbers} {target} }"}, "no other braces"),
        ({"solutions_per_problem": 0}, "solutions_per_problem 0: from 1 to 64"),
        ({"max_number": 0}, "max_number 0"),
        ({"counts": {6: 1.0}}, "from 2 to 5"),
        ({"min_target": 9, "max_target": 8}, "targets 9..8"),
        ({"counts": {}}, "at least one number of numbers"),
        ({"counts": {3: -1.0, 4: 2.0}}, "not negative"),
        ({"train_problems": 0}, "train_problems 0"),
    ],
)
def test_settings_out_of_range(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CountdownChat(**changes)  # type: ignore[arg-type]


@pytest.mark.slow
def test_distinct_draws_are_the_first_different_ones_of_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    task = CountdownChat({4: 1.0}, max_number=7, min_target=1, max_target=20)
    drawn = [p.problem_id for p in task.draw("test", 1, 60, "distinct")]
    law = [p.problem_id for p in task.draw("test", 1, 200)]
    assert len(law) > len(set(law)) and list(dict.fromkeys(law))[:60] == drawn
    monkeypatch.setattr(draws, "DRY", 4)
    with pytest.raises(DataError, match="9999 different test problems"):
        task.draw("test", 1, 9999, "distinct")


def test_other_draws_are_errors() -> None:
    with pytest.raises(DataError, match="sampling 'without-replacement': countdown_chat has only iid"):
        TASK.draw("test", 0, 3, "without-replacement")
    with pytest.raises(ConfigError, match="split 'dev': choose one of"):
        TASK.examples("dev", 0, 0, 1)


@pytest.mark.slow
def test_it_is_a_task_by_name_and_passes_its_audit() -> None:
    assert isinstance(task_named("countdown_chat"), CountdownChat) and TASKS["countdown_chat"] is CountdownChat
    found = audit(CountdownChat({3: 1.0}))
    assert found.passed and not any(check.rows for check in found.checks)
    assert found.head.endswith("Countdown: 3 numbers of 1..12, targets 1..100, drawn by expression, asked in words")
    sums = audit(CountdownChat({3: 1.0}, operators="+-"))
    assert "targets 1..100, drawn by expression, operators + -, asked in words" in sums.head


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings_",
    [
        {"counts": {2: 1.0}, "operators": "+"},
        {"counts": {2: 1.0}, "max_number": 5, "max_target": 25},
        {"counts": {2: 1.0, 3: 1.0}, "operators": "*/", "max_number": 9},
        pytest.param({"counts": {3: 1.0}, "operators": "-", "max_number": 30, "max_target": 20}, marks=pytest.mark.slow),
        pytest.param({"counts": {4: 1.0}, "operators": "+-", "min_target": 21, "max_target": 40}, marks=pytest.mark.slow),
        pytest.param({"counts": {5: 1.0}}, marks=pytest.mark.slow),
    ],
    ids=lambda settings_: " ".join(str(value) for value in settings_.values()),
)
def test_every_setting_passes_its_audit_and_has_a_floor(settings_: dict[str, Any]) -> None:
    task = CountdownChat(**settings_)
    found = audit(task, k=8)
    assert found.passed and not any(check.rows for check in found.checks)
    problems = task.draw("test", 1, 20)
    chance = chance_of(task, problems)
    assert chance is not None and chance.at(1) > 0
    assert task.operators == "+" or chance.at(1) < chance.at(8) <= 1  # sums of all numbers have one value
    for problem in problems:
        keys = {task.answer_key(problem, text) for text in task.answers(problem)}
        assert keys == set(task.answers(problem)) and task.reference(problem) in keys


def test_a_setting_without_a_problem_is_an_error_with_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "DRY", 2)
    task = CountdownChat({2: 1.0}, operators="+", min_target=25)
    with pytest.raises(DataError, match="no train example in 2 blocks fits the task; widen the targets"):
        task.draw("train", 0, 1)


@pytest.mark.slow
def test_it_trains_is_evaluated_and_is_taught_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = chat_policy(tmp_path / "chat", CHATML)
    small = ("--engine.dtype", "float32", "--optimizer.warmup_steps", "0")
    assert call("sft", "real/sft", "--model", model, "--steps", 1, "--batch_size", 4, *small, "--run", "sft", "--quiet") == 0
    steps = ("--steps", 1, "--rollout.prompts_per_step", 2, "--rollout.group_size", 2, *small)
    assert call("train", "grpo", "--task", "countdown_chat", "--model", "sft/policy", *steps, "--run", "rl", "--quiet") == 0
    row = json.loads((tmp_path / "rl" / "metrics.jsonl").read_text().splitlines()[0])
    assert row["reward/mean"] == 0
    capsys.readouterr()
    assert call("eval", "rl", "--samples", 4, "--problems", 3) == 0
    assert "enumerated" in refused(capsys, "eval", "rl", "--problems", 3)
