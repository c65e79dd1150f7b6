"""A task of one's own: what its class must have, which names are refused, and which abilities its members give."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

import sage_rlvr
from sage_rlvr.errors import ConfigError
from sage_rlvr.members import check_names
from sage_rlvr.tasks import TASKS, task_named
from sage_rlvr.tasks.abilities import (
    ABILITIES,
    Classified,
    Conversational,
    Counted,
    Enumerable,
    Environment,
    Generated,
    HasGolds,
    ParallelEnvironment,
    ReadsAnswers,
    Referenced,
    Spelled,
    Worked,
)
from sage_rlvr.tasks.base import Guided, Task, check_class, problems_of, ready, turns_of, verdicts
from sage_rlvr.verifiers import Verdict


@dataclass(frozen=True)
class Ones(sage_rlvr.Task):
    """The least that a task has."""

    name: ClassVar[str] = "ones"

    def problems(self, split: str) -> list[Any]:
        return [Guided(None, "")]

    def prompt(self, problem: Any) -> str:
        return "1 1 ="

    def verify(self, problem: Any, completion: str) -> Verdict:
        return Verdict("right" if "1" in completion else "wrong", "")


def member(*said: Any, **named: Any) -> Any:
    """Any method."""


def test_the_least_task_has_the_defaults() -> None:
    task = Ones()
    assert task.max_new_tokens == 3072 and turns_of(task) == 1 and task.form is None and task.identity == {"name": "ones"}
    assert task.answer_key(None, " a  b ") == "a b" and task.answer_key(None, " ") is None and not task.keyed
    assert task.files() == {} and task.choices(None) is None and not task.leaks(None, "1") and task.audited() == "1 problems"
    assert [v.right for v in verdicts(task, [(None, "1"), (None, "2")])] == [True, False]
    assert not any(isinstance(task, ability) for ability in ABILITIES if ability is not sage_rlvr.Task)
    with pytest.raises(ConfigError, match=r"Ones has no episodes, .* give it turns, reply\(problem, responses\) and judge"):
        verdicts(task, [(None, ("1",))])


@pytest.mark.parametrize(
    ("name", "value", "near"),
    [
        ("answerkey", member, "answer_key"),
        ("solution", member, "solutions"),
        ("verify_al", member, "verify_all"),
        ("max_tokens", 12, "max_new_tokens"),
        ("need_chat_template", True, "needs_chat_template"),
        ("problem_off", staticmethod(member), "problem_of"),
        ("identify", property(member), "identity"),
    ],
)
def test_a_misspelled_member_is_an_error_with_the_near_name(name: str, value: Any, near: str) -> None:
    with pytest.raises(ConfigError, match=f"task class Mine: {name} is no member of a task; did you mean {near}\\?.*_{name}"):
        type("Mine", (Ones,), {name: value})


@pytest.mark.parametrize(
    "names",
    [
        {"kind": "a", "world": "b", "file": "rows.jsonl", "_solution": member, "census": member},
        {"solution": member, "solutions": member},
    ],
)
def test_names_of_ones_own_pass(names: dict[str, Any]) -> None:
    kind: Any = dataclass(frozen=True)(type("Mine", (Ones,), {**names, "__annotations__": {"size": "int"}, "size": 3}))
    check_class("task mine", kind)
    assert problems_of(kind(), "test", 0, None)


def test_an_annotation_alone_is_a_member_too() -> None:
    with pytest.raises(ConfigError, match="did you mean max_new_tokens"):
        type("Mine", (Ones,), {"__annotations__": {"max_tokens": "int"}})


def test_a_class_that_does_not_inherit_task_is_refused_at_registration_and_at_first_use() -> None:
    kind: Any = type("Plain", (), {"name": "plain", "problems": member, "prompt": member, "verify": member})
    words = r"Plain does not inherit sage_rlvr.Task; write class Plain\(sage_rlvr.Task\), with name: ClassVar\[str\], problems"
    for use in (
        lambda: sage_rlvr.register("task", dataclass(frozen=True)(kind)),
        lambda: problems_of(kind(), "test", 0, 1),
        lambda: ready(kind(), print, "train"),
    ):
        with pytest.raises(ConfigError, match=words):
            use()
    assert "plain" not in TASKS


@pytest.mark.parametrize(
    ("members", "rest"),
    [
        ({"reply": member, "judge": member}, "judge, reply but not turns"),
        ({"kinds_of": member}, "kinds_of but not kinds"),
        ({"draw": lambda *a: []}, ""),
        ({"described": member}, ""),
    ],
)
def test_members_that_go_together_are_all_there(members: dict[str, Callable[..., Any]], rest: str) -> None:
    kind: Any = type("Mine", (Ones,), members)
    if not rest:  # the default gives the other one
        assert problems_of(kind(), "test", 0, 1) is not None
        return
    with pytest.raises(ConfigError, match=rest):
        problems_of(kind(), "test", 0, 1)


def test_a_class_without_a_required_member_lacks_it() -> None:
    unnamed: Any = type("Mine", (sage_rlvr.Task,), {"problems": member, "prompt": member})
    with pytest.raises(ConfigError, match=r"Mine lacks name, verify; a task has name"):
        check_class("task mine", unnamed)


def test_the_tasks_of_the_package_have_the_abilities_that_their_pages_say() -> None:
    has = {
        "countdown": {Enumerable, Generated, Classified, Counted, Referenced, Worked},
        "countdown_steps": {Generated, Worked, Spelled},
        "knights_and_knaves": {Conversational, Referenced, Worked, Spelled},
        "repair": {Conversational, Environment, ParallelEnvironment, Referenced, Worked, Spelled},
        "math500": {Conversational, ReadsAnswers, Referenced, HasGolds},
    }
    every = set().union(*has.values())
    for name, abilities in has.items():
        assert {ability for ability in every if isinstance(task_named(name), ability)} == abilities, name


def test_every_ability_is_of_few_members_and_says_what_it_is_for() -> None:
    for ability in ABILITIES:
        own = [name for name in vars(ability) if not name.startswith("_")]
        assert 1 <= len(own) <= 4 and ability.__doc__, ability
        assert all(inspect.getdoc(getattr(ability, name)) for name in own)


def test_the_classes_of_the_package_pass_the_check_of_names() -> None:
    for kind in filter(inspect.isclass, TASKS.values()):
        check_names(kind, Task, "task", *ABILITIES, singular=True)
