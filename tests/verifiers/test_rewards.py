"""Rewards as a plain TRL script meets them: standard and conversational rows, the three column names, None."""

from __future__ import annotations

import asyncio
import inspect
import json
import pickle
import subprocess
import sys
from decimal import Decimal

import pytest

from sage_rlvr.errors import DataError
from sage_rlvr.verifiers.pool import Pool
from sage_rlvr.verifiers.rewards import MathReward, math_reward, text_of

pytestmark = pytest.mark.usefixtures("shared_pool_closed")


COMPLETIONS = [r"so \boxed{\frac{1}{2}}", r"so \boxed{3}", "so 0.5", r"so \boxed{1}"]


@pytest.mark.parametrize("column", ["answer", "solution", "ground_truth"])
def test_right_wrong_and_undecided_are_one_zero_and_none(column: str):
    golds = [0.5, "5", "0.5", None]
    logged = {}
    scores = math_reward(
        prompts=["p"] * 4,
        completions=COMPLETIONS,
        completion_ids=[[1]] * 4,
        trainer_state=None,
        log_extra=None,
        log_metric=logged.__setitem__,
        tag=["a column that is called like an option"] * 4,
        **{column: golds},
    )
    assert scores == [1.0, 0.0, 0.0, None]
    assert logged == {"verifier/no_answer_frac": 0.25, "verifier/undecided_frac": 0.25}


def test_conversations_and_their_parts():
    parts = [{"type": "text", "text": r"\boxed{"}, {"type": "image"}, {"type": "text", "text": "7}"}]
    completions = [
        [{"role": "assistant", "content": r"\boxed{7}"}],
        [{"role": "assistant", "content": r"\boxed{7}"}, {"role": "assistant", "content": "8"}],
        [{"role": "assistant", "content": parts}],
        [{"role": "assistant", "content": None}],
    ]
    assert math_reward(completions, answer=["7"] * 4) == [1.0, 0.0, 1.0, 0.0]
    assert text_of([]) == ""


@pytest.mark.slow
def test_a_tag_a_column_and_a_pool_of_its_own():
    with Pool(1, seconds=4) as pool:
        reward = MathReward(answer_in="tag", column="solution", pool=pool)
        texts = ["17+25=42 <SOLUTION>41</SOLUTION>", "<SOLUTION>42</SOLUTION> 42-25 = 17."]
        assert reward(texts, answer=["a long proof"] * 2, solution=["42", "42"]) == [0.0, 1.0]
        assert [v.reason for v in reward.verdicts(texts, solution=["42", "42"])] == ["value", "right"]
        assert asyncio.run(reward.rewards_async(texts, solution=[42, 42])) == [0.0, 1.0]
        assert pool.pids() == []  # whole numbers take no algebra, hence no worker
        assert reward([r"<SOLUTION>\sqrt{4}</SOLUTION>"], solution=["2"]) == [1.0] and len(pool.pids()) == 1


def test_what_a_data_set_can_do_wrong():
    with pytest.raises(DataError, match=r"found \['answer', 'solution'\]"):
        math_reward(["x"], answer=["1"], solution=["1"])
    with pytest.raises(DataError, match=r"no column of answer or solution or ground_truth among .*'target'"):
        math_reward(["x"], target=["1"])
    with pytest.raises(DataError, match="2 entries for 1 completions"):
        math_reward(["x"], answer=["1", "2"])
    with pytest.raises(DataError, match=r"column answer, row 1: the answer is a list of 2: \['1', '2'\]"):
        math_reward(["x", "y"], answer=["1", ["1", "2"]])


def test_a_gold_is_read_as_everywhere_else():
    golds = ["6*7=42\n#### 42", "6*7 is 42 #### 42", r"so it is $\boxed{42}$.", ["42"], 42, 42.0, Decimal("42"), "42"]
    assert math_reward([r"\boxed{42}"] * len(golds), answer=golds) == [1.0] * len(golds)
    assert math_reward([r"\boxed{7}"] * len(golds), answer=golds) == [0.0] * len(golds)


def test_a_damaged_gold_names_its_row_and_the_fix():
    for text, command in (('"\\frac{1}{2}"', "frac"), ('"2\\theta"', "theta"), ('"\\beta"', "beta"), ('"\\right]"', "right]")):
        damaged = json.loads(text)  # the file had one backslash
        with pytest.raises(DataError, match=rf'column solution, row 1: .*\\{command}.*must be written .*double its backslashes'):
            math_reward(["x"] * 2, solution=["1", damaged])
    assert math_reward([r"\boxed{(1,2)}"], answer=["(1,\n\t2)"]) == [1.0]  # a line end and a tab that stand for themselves


def test_what_a_tool_or_a_user_wrote_is_not_paid():
    assistant = {"role": "assistant", "content": "I ask the tool."}
    said = [{"role": role, "content": r"\boxed{7}"} for role in ("tool", "user", "system", "assistant")]
    completions = [[assistant, message] for message in said]
    assert math_reward(completions, answer=["7"] * 4) == [0.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("gold", [float("nan"), float("inf"), "nan", " NaN "])
def test_a_gold_that_is_no_number_is_refused_with_its_value_its_place_and_what_to_do(gold):
    with pytest.raises(
        DataError, match=r"column answer, row 1: .*(nan|inf|NaN).* is no gold answer.*mend or leave out that row"
    ):
        math_reward([r"\boxed{5}", r"\boxed{nan}"], answer=["5", gold])


def test_it_is_what_trl_takes_for_a_reward_function():
    assert math_reward.__name__ == "math_reward"
    assert not inspect.iscoroutinefunction(math_reward) and not inspect.iscoroutinefunction(type(math_reward).__call__)
    copy = pickle.loads(pickle.dumps(MathReward(answer_in="tag", pool=Pool(2, seconds=1))))
    assert (copy.answer_in, copy.pool.workers, copy.pool.seconds) == ("tag", 2, 1)


@pytest.mark.slow
def test_the_caller_loads_no_algebra_and_a_missing_library_is_an_error():
    code = f"""
import sys; sys.path[:0] = {sys.path!r}
from sage_rlvr.errors import ConfigError
from sage_rlvr.verifiers.rewards import math_reward
print(sorted({{"sympy", "math_verify", "torch"}} & set(sys.modules)))
import sage_rlvr.verifiers.pool as pool
pool._BOOT = "import sys; sys.modules['math_verify'] = None; " + pool._BOOT
try:
    math_reward([r"\\boxed{{x+x}}"], answer=["2x"])
except ValueError as error:
    print(isinstance(error, ConfigError), "math_verify" in str(error))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["[]", "True True"], done.stderr


def test_a_row_gives_its_gold_and_the_place_of_a_completions_answer():
    reward = MathReward(answer_in="tag", tag="A")
    assert reward.reference_answer({"prompt": "?", "answer": 3}, "so <A>12</A>") == ("3", (6, 8))
    assert reward.reference_answer({"solution": "1/2"}, "no tag") == ("1/2", None)
    with pytest.raises(DataError, match="a row without a gold answer"):
        reward.reference_answer({"answer": None, "prompt": "?"}, "")
