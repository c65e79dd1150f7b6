"""Teachers: what they say, that it does not hold the answer, and how it stands in a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sage_rlvr.config import build, dump
from sage_rlvr.contrib.hints.policy import PolicyTeacher
from sage_rlvr.contrib.hints.teachers import Function, Nothing, Patch, Rules
from sage_rlvr.contrib.tasks.repair import Broken, Repair, edit_to
from sage_rlvr.contrib.tasks.repair.programs import wrong_edits
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.evaluation.guidance import teacher_named, words_of
from sage_rlvr.models.policy import PromptRenderer, load_policy
from sage_rlvr.tasks.base import Guided, Task, guided, prompt_messages, prompt_text
from sage_rlvr.tasks.teachers import LONGEST, TEACHERS, hint_of
from sage_rlvr.verifiers import Verdict, sandbox

WRONG = Verdict("wrong", "it says so")
confined = pytest.mark.skipif(bool(sandbox.missing()), reason=f"no sandbox here: {sandbox.missing()}")


@dataclass(frozen=True)
class Sum:
    """A problem of `Sums`."""

    problem_id: str
    asked: str
    answer: str


class Sums(Task):
    """A task with a reference answer and nothing else."""

    name = "sums"

    def problems(self, split: str) -> list[Sum]:
        return [PROBLEM]

    def verify(self, problem: Sum, completion: str) -> Verdict:
        return WRONG

    def prompt(self, problem: Sum) -> str:
        return f"{problem.asked} ="

    def messages(self, problem: Sum) -> list[dict[str, str]]:
        return [{"role": "system", "content": "add"}, {"role": "user", "content": problem.asked}]

    def reference(self, problem: Sum) -> str:
        return problem.answer


TASK, PROBLEM = Sums(), Sum("p", "2 + 2", "4")


def test_guidance_stands_before_a_plain_prompt_and_ends_a_conversation() -> None:
    asked: Any = guided(TASK, PROBLEM, "count on")
    assert asked == Guided(PROBLEM, "count on") and asked.problem_id == "p"
    assert prompt_text(TASK, asked) == "Guidance: count on\n\n2 + 2 =" and prompt_text(TASK, PROBLEM) == "2 + 2 ="
    first, last = prompt_messages(TASK, asked)
    assert first["content"] == "add" and last == {"role": "user", "content": "2 + 2\n\nGuidance: count on"}
    assert prompt_messages(TASK, PROBLEM) == TASK.messages(PROBLEM)
    assert guided(TASK, PROBLEM, "") is PROBLEM, "no guidance is no change"


@pytest.mark.parametrize(
    ("hint", "found"), [("it is 4.", True), ("4", True), ("not 14 or 4a", False), ("count on", False), ("", False)]
)
def test_a_hint_that_holds_the_answer_is_found(hint: str, found: bool) -> None:
    assert TASK.leaks(PROBLEM, hint) is found


def test_a_leaking_hint_is_dropped_unless_that_was_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def teach(problem, said, verdict):\n    return f'{said[-1]} is {verdict.reason}; try {problem.answer}'\n")
    word = f"{file}:teach"
    assert hint_of(Function(word), TASK, PROBLEM, ["5"], WRONG) == ("", True)
    assert hint_of(Function(word, leak=True), TASK, PROBLEM, ["5"], WRONG) == ("5 is it says so; try 4", False)
    assert teacher_named(word) == Function(word) and Function(word).sha256[:16] in words_of(Function(word))
    file.write_text(f"def teach(problem, said, verdict):\n    return 'x' * {LONGEST + 1}\n")
    other = tmp_path / "other.py"
    file.rename(other)
    with pytest.raises(DataError, match=r"Function, problem 'p'.*at most 2,000"):
        hint_of(Function(f"{other}:teach"), TASK, PROBLEM, ["5"], WRONG)
    wrongs = {f"{file}x:teach": "no file", f"{other}:tech": "defines no function 'tech'", "teach": "FILE.py:FUNCTION"}
    for wrong, said in wrongs.items():
        with pytest.raises(ConfigError, match=said):
            Function(wrong)


def test_every_teacher_is_a_recipe_and_says_what_it_needs() -> None:
    assert set(TEACHERS) == {"nothing", "rules", "patch", "function", "policy"}
    for part in (Nothing(), Rules(), Patch(leak=True), PolicyTeacher("somewhere", whole=True)):
        assert build("teacher", dump(part)) == part
    assert teacher_named("rules") == Rules()
    with pytest.raises(ConfigError, match="'rule': unknown teacher; did you mean 'rules'"):
        teacher_named("rule")
    assert teacher_named("{name: patch, leak: true}") == Patch(leak=True) and words_of(Patch()) == "patch (leak: False)"
    assert hint_of(Nothing(), TASK, PROBLEM, ["5"], WRONG) == ("", False)
    rules, _ = hint_of(Rules(), TASK, PROBLEM, ["5"], WRONG)
    assert rules == "An earlier attempt answered 5: it says so. Try another way."
    with pytest.raises(ConfigError, match=r"Sums has no pointer\(problem\)"):
        Patch().teach(TASK, PROBLEM, ["5"], WRONG)
    with pytest.raises(ConfigError, match=r"Sums has no where\(problem, text\)"):
        PolicyTeacher("none").teach(TASK, PROBLEM, ["5"], WRONG)


@confined
def test_no_guidance_of_repair_holds_the_edit_and_prompts_carry_it() -> None:
    task, patch = Repair(), Patch()
    kinds = set()
    for one in task.problems("test"):
        hint, dropped = hint_of(patch, task, one, ["1: x"], WRONG)
        kinds.add(hint.partition(", ")[2])
        assert hint and not dropped and not task.leaks(one, hint)
        assert task.leaks(one, "try " + task.reference(one)) and task.leaks(one, edit_to(one.source, one.fixed).replace(" ", ""))
        number = task.reference(one).partition(":")[0]
        assert hint.startswith(f"edit line {number}, ")
    assert len(kinds) == 6
    one = task.problems("test")[0]
    asked = task.guided(one, "edit line 2, a first value")
    assert task.prompt(asked) == task.prompt(one).replace("\nfix:\n", "\nedit line 2, a first value\nfix:\n") != task.prompt(one)
    assert task.fingerprint([asked]) == task.fingerprint([one]) and task.verify(asked, task.reference(one)).right
    assert Patch(leak=True).teach(task, one, [], WRONG).endswith(task.reference(one))
    assert task.where(one, "3: x\n2: y\n99: z") == "edit line 2 and 3" and task.where(one, "words") == ""


@confined
@pytest.mark.parametrize(
    ("said", "reason", "wanted"),
    [
        ("4: x = 1\nwords", "f(1) gave 2, 3 is wanted", "tried 4: x = 1\nf(1) gave 2, 3 is wanted; try another edit"),
        ("4: y", "f(1) raised NameError in line 4", "tried 4: y\nf(1) raised NameError in line 4; try an index or a name"),
        ("4: y", "took longer than 1 s", "tried 4: y\ntook longer than 1 s; try where it ends"),
        ("no idea", "no line is edited", "nothing was edited: write LINE: its new text"),
    ],
)
def test_rules_say_what_was_tried_and_a_gold_line_among_it_is_dropped(said: str, reason: str, wanted: str) -> None:
    task = Repair()
    one = task.problems("test")[0]
    verdict = Verdict("wrong", reason)
    assert hint_of(Rules(), task, one, [said], verdict) == (wanted, False)
    spoiled = f"{task.reference(one)}\n1: def f():"
    assert hint_of(Rules(), task, one, [spoiled], verdict) == ("", True)


@pytest.mark.slow
@confined
def test_a_share_of_examples_carries_guidance_of_both_kinds() -> None:
    plain, hinted = (Repair(hints=share).examples("train", 0, 0, 400) for share in (0.0, 0.5))
    assert [(p.problem_id, text) for p, text in plain] == [(p.problem_id, text) for p, text in hinted]
    assert not any(p.guidance for p, _ in plain)
    said = [p.guidance for p, _ in hinted if p.guidance]
    assert 150 < len(said) < 250
    assert 60 < sum(hint.startswith("edit line") for hint in said) < len(said) - 60
    assert hinted[100:110] == Repair(hints=0.5).examples("train", 0, 100, 10)
    assert not any(Repair().leaks(p, p.guidance) for p, _ in hinted)
    for wrong in (-0.1, 1.5):
        with pytest.raises(ConfigError, match="from 0 to 1"):
            Repair(hints=wrong)


@pytest.mark.slow
@confined
def test_wrong_edits_are_wrong() -> None:
    task = Repair()
    rows = [(one, wrong_edits(one.problem_id)) for one in task.problems("train")[:20]]
    assert sum(len(found) for _, found in rows) > 20
    pairs: list[tuple[Broken, str]] = [(one, edit) for one, found in rows for edit, _ in found]
    assert {said.label for said in task.verify_all(pairs)} == {"wrong"}


class Word(Task):
    """Countdown's tokens, with a task that says where a completion acts."""

    name, max_new_tokens = "word", 6

    def problems(self, split: str) -> list[Sum]:
        return []

    def verify(self, problem: Any, completion: str) -> Verdict:
        return WRONG

    def prompt(self, problem: Any) -> str:
        return str(problem.asked)

    def where(self, problem: Any, text: str) -> str:
        return f"{len(text)} signs"


def test_a_policy_says_where_it_would_act_the_same_each_time(tiny_policy: Path) -> None:
    task, problem = Word(), Sum("q", "1 2=3:", "1+2")
    teacher = PolicyTeacher(str(tiny_policy))
    hint, _ = hint_of(teacher, task, problem, ["5"], WRONG)
    whole, _ = hint_of(PolicyTeacher(str(tiny_policy), whole=True), task, problem, ["5"], WRONG)
    again: Sequence[str] = [teacher.teach(task, problem, ["other"], WRONG) for _ in range(2)]
    assert hint.endswith("signs") and list(again) == [hint] * 2 and whole and whole != hint
    tokens = load_policy(str(tiny_policy))[1]
    with pytest.raises(ConfigError, match="cannot encode the prompts"):
        PromptRenderer.of(task, tokens)(Guided(problem, "words"))
    assert len(teacher.sha256) == 64
