"""Repair of small functions: its problems, edits, and unit tests that decide."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sage_rlvr.errors import ConfigError
from sage_rlvr.tasks import TASKS, task_named
from sage_rlvr.tasks.base import verdicts
from sage_rlvr.tasks.repair import KINDS, Repair, edit_to, edited, numbered
from sage_rlvr.tasks.repair import programs as made
from sage_rlvr.verifiers import sandbox

pytestmark = pytest.mark.skipif(bool(sandbox.missing()), reason=f"no sandbox here: {sandbox.missing()}")


def test_its_problems_are_many_of_every_kind_and_no_right_program_is_in_two_splits() -> None:
    task = Repair()
    splits = {split: task.problems(split) for split in ("train", "validation", "test")}
    assert len(splits["test"]) >= 200 and len(splits["train"]) >= 750
    for rows in splits.values():
        kinds = Counter(one.kind for one in rows)
        assert set(kinds) == set(KINDS) and min(kinds.values()) >= 20
        assert all(len({wanted for _, wanted in one.tests}) > 1 for one in rows)  # no returned constant mends one
        assert len({one.source for one in rows}) == len(rows) == len({one.problem_id for one in rows})
    rights = [{one.fixed for one in rows} for rows in splits.values()]
    assert not (rights[0] & rights[1] | rights[0] & rights[2] | rights[1] & rights[2])
    assert not {one.source for one in splits["train"]} & {one.source for one in splits["test"]}


def test_undone_changes_are_right_and_programs_as_they_are_given_are_not() -> None:
    task, rows = Repair(count=60), Repair(count=60).problems("test")
    pairs = [(one, edit_to(one.source, one.fixed)) for one in rows]
    assert all(found.right for found in verdicts(task, pairs))
    first = [(one, f"1: {one.source.splitlines()[0]}") for one in rows]
    assert {(found.label, found.reason) for found in verdicts(task, first)} == {("wrong", "the program is as it was")}
    assert task.verify(rows[0], "I do not know").reason == "no line is edited"
    assert "raised" in task.verify(rows[0], "2: return no_such_name").reason
    plain = next(one for one in rows if one.family == "product of a range")
    assert task.verify(plain, "2: while True: pass").reason == "took longer than 1 s"


def test_another_right_edit_counts_and_the_prompt_shows_what_a_test_said() -> None:
    task = Repair()
    one = next(p for p in task.problems() if p.family == "power" and p.kind == "start")
    assert one.said in task.prompt(one) and one.said not in Repair(trace=False).prompt(one)
    assert task.prompt(one).startswith(numbered(one.source)) and task.messages(one)[0]["content"].endswith(task.asked(one))
    undone = edit_to(one.source, one.fixed)
    other = undone.replace("result = ", "result = 0 + ")
    assert other != undone and task.verify(one, other).right
    assert task.answer_key(one, other) != task.answer_key(one, undone) == one.fixed
    assert all(text == edit_to(p.source, p.fixed) for p, text in task.examples("test", 0, 0, 3))


@given(st.lists(st.sampled_from(["1: def f(a):", "2:  x = 1", " 3 : return x ", "4: more", "0: none", "words", "2:"])))
def test_edits_keep_indentation_and_other_lines(lines: list[str]) -> None:
    source = "def f(a):\n    x = 2\n    return a"
    found = edited(source, "\n".join(lines))
    named = [int(line.split(":")[0]) for line in lines if ":" in line]
    if not set(named) & {1, 2, 3}:
        assert found is None
        return
    assert found is not None
    rows = found.split("\n")
    assert len(rows) == 3 and all(rows[n - 1] == source.split("\n")[n - 1] for n in {1, 2, 3} - set(named))
    assert all(row.startswith("    ") for row in rows[1:])
    assert edited(source, edit_to(source, found)) == (found if found != source else None)


@pytest.mark.parametrize("hostile", ["\n" * 100_000 + "x", "1: x" + " " * 100_000 + "y", "1" + " " * 100_000, "1" * 100_000])
def test_long_completions_are_read_in_linear_time(hostile: str) -> None:
    began = time.process_time()
    edited("def f(a):\n    return a", hostile)
    assert time.process_time() - began < 2


def test_it_is_found_by_name_and_refused_where_nothing_confines(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(task_named("repair"), Repair) and TASKS["repair"] is Repair
    for wrong in ({"kinds": ()}, {"kinds": ("spelling",)}, {"count": 0}, {"seconds": 0.0}):
        with pytest.raises(ConfigError):
            Repair(**wrong)
    with pytest.raises(ConfigError, match="'dev': choose one of test, validation, train"):
        Repair().problems("dev")
    monkeypatch.setattr(sandbox, "missing", lambda: "no seccomp")
    with pytest.raises(ConfigError, match=r"confined or not at all.*no seccomp"):
        Repair().problems("test")


def test_a_change_that_never_ends_is_no_problem() -> None:
    endless = "def f(n):\n    while n >= 0:\n        n = n // 2\n    return n"
    assert made.tested(endless, [([3], "0")]) is None
