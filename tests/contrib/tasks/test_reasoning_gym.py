"""Tasks of reasoning-gym, where it is installed; without it, what the message says."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sage_rlvr.contrib.tasks.reasoning_gym import ReasoningGym
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.tasks import TASKS, task_named
from sage_rlvr.tasks.base import reference

reasoning_gym = importlib.import_module("sage_rlvr.contrib.tasks.reasoning_gym")  # in the package a function has that name
there = importlib.util.find_spec("reasoning_gym") is not None


@pytest.mark.skipif(there, reason="reasoning-gym is installed")
def test_without_the_package_the_message_names_the_extra():
    with pytest.raises(ConfigError, match=r"-e '\.\[tasks\]'"):
        ReasoningGym("leg_counting").problems()
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        reasoning_gym.nothing  # noqa: B018


PACKAGE = '''
class Puzzle:
    def __init__(self, name, size, seed):
        self.name = name

    def __getitem__(self, index):
        return {"question": f"{self.name} {index}?", "answer": None if self.name == "colors" else "Yes"}

    def score_answer(self, answer, entry):
        if self.name == "colors":
            return float(answer in ('{"1": 2}', '{"1": 1}'))
        return float(int(answer) == 7) if self.name == "strict" else float(answer == entry["answer"])


def create_dataset(name, **settings):
    return Puzzle(name, **settings)
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package of that name with three tasks: a word, many right answers, and a scorer that fails on what is no number."""
    (tmp_path / "reasoning_gym").mkdir()
    (tmp_path / "reasoning_gym" / "__init__.py").write_text(PACKAGE)
    known = sys.modules.pop("reasoning_gym", None)
    monkeypatch.syspath_prepend(str(tmp_path))
    reasoning_gym._dataset.cache_clear()
    yield
    reasoning_gym._dataset.cache_clear()
    sys.modules.pop("reasoning_gym", None)
    if known is not None:
        sys.modules["reasoning_gym"] = known


def judged(name: str, *completions: str) -> list[str]:
    task = ReasoningGym(name, count=1)
    (problem,) = task.problems()
    with task.pool:
        return [verdict.label for verdict in task.verify_all([(problem, text) for text in completions])]


@pytest.mark.slow
def test_an_answer_is_scored_without_its_latex(package: None):
    right = (r"\boxed{Yes}", r"\boxed{\text{Yes}}", r"\boxed{\textbf{Yes}}", r"\boxed{\color{red}\text{Yes},}")
    assert judged("words", *right) == ["right"] * 4
    assert judged("words", r"\boxed{\text{No}}", "Yes", r"\boxed{\text{Yes and no}}") == ["wrong"] * 3
    texts = (r"\boxed{7}", r"\boxed{\text{7}}", r"\boxed{8}", r"\boxed{seven}")
    assert judged("strict", *texts) == ["right", "right", "wrong", "undecided"]


def test_a_task_that_names_no_answer_is_judged_by_its_scorer(package: None):
    task = ReasoningGym("colors", count=2)
    assert [problem.answer for problem in task.problems()] == ["", ""]
    texts = (r'\boxed{{"1": 2}}', r'\boxed{{"1": 1}}', r'\boxed{{"1": 3}}', r"\boxed{None}")
    assert judged("colors", *texts) == ["right", "right", "wrong", "wrong"]
    with pytest.raises(DataError, match="no reference answer"):
        reference(task, task.problems()[0])


@pytest.mark.skipif(not there, reason="reasoning-gym (the extra `tasks`) is not installed")
def test_golds_are_right_and_other_answers_are_not():
    task = ReasoningGym("leg_counting", count=3, settings={"max_animals": 4})
    problems = task.problems()
    assert problems == task.problems() and len({problem.question for problem in problems}) == 3
    golds = [(problem, task.form.assistant("so", problem.answer)) for problem in problems]
    others = [(problem, rf"\boxed{{{int(problem.answer) + 1}}}") for problem in problems]
    with task.pool:
        assert [v.right for v in task.verify_all(golds + others)] == [True] * 3 + [False] * 3
        assert task.verify(problems[0], "no box").reason == "no answer"
    with pytest.raises(ConfigError, match="not registered"):
        ReasoningGym("no_such_task").problems()
    with pytest.raises(ConfigError, match="no_such_setting"):
        ReasoningGym("leg_counting", settings={"no_such_setting": 1}).problems()


def test_a_generator_by_the_name_of_the_command_line(package: None):
    made = task_named("reasoning_gym:words", "boxed")
    assert isinstance(made, ReasoningGym) and made == TASKS["reasoning_gym"](dataset="words")
