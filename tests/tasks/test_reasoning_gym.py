"""Tasks of reasoning-gym, where it is installed; without it, what the message says."""

from __future__ import annotations

import importlib.util

import pytest

from sage_rlvr.errors import ConfigError
from sage_rlvr.tasks import reasoning_gym
from sage_rlvr.tasks.reasoning_gym import ReasoningGym

there = importlib.util.find_spec("reasoning_gym") is not None


@pytest.mark.skipif(there, reason="reasoning-gym is installed")
def test_without_the_package_the_message_names_the_extra():
    with pytest.raises(ConfigError, match=r'pip install "sage-rlvr\[tasks\]"'):
        ReasoningGym("leg_counting").problems()
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        reasoning_gym.nothing  # noqa: B018


@pytest.mark.skipif(not there, reason="reasoning-gym (the extra `tasks`) is not installed")
def test_golds_are_right_and_other_answers_are_not():
    task = ReasoningGym("leg_counting", count=3, settings={"max_animals": 4})
    problems = task.problems()
    assert problems == task.problems() and len({problem.asked for problem in problems}) == 3
    golds = [(problem, task.form.assistant("so", problem.answer)) for problem in problems]
    others = [(problem, rf"\boxed{{{int(problem.answer) + 1}}}") for problem in problems]
    with task.pool:
        assert [v.right for v in task.verify_all(golds + others)] == [True] * 3 + [False] * 3
        assert task.verify(problems[0], "no box").reason == "no answer"
    with pytest.raises(ConfigError, match="not registered"):
        ReasoningGym("no_such_task").problems()
    with pytest.raises(ConfigError, match="no_such_setting"):
        ReasoningGym("leg_counting", settings={"no_such_setting": 1}).problems()
