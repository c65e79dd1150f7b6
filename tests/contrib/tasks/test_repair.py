"""Repair of small functions: its problems, edits, and unit tests that decide."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sage_rlvr.contrib.tasks import repair as package
from sage_rlvr.contrib.tasks.repair import KINDS, Repair, edit_to, edited, numbered
from sage_rlvr.contrib.tasks.repair import programs as made
from sage_rlvr.errors import ConfigError
from sage_rlvr.tasks import TASKS, task_named
from sage_rlvr.tasks.base import verdicts
from sage_rlvr.verifiers import sandbox

pytestmark = pytest.mark.skipif(bool(sandbox.missing()), reason=f"no sandbox here: {sandbox.missing()}")


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_another_right_edit_counts_and_the_prompt_shows_what_a_test_said() -> None:
    task = Repair()
    one = next(p for p in task.problems() if p.family == "power" and p.kind == "start")
    assert one.output in task.prompt(one) and one.output not in Repair(trace=False).prompt(one)
    assert task.prompt(one).startswith(numbered(one.source)) and task.messages(one)[0]["content"].endswith(task.question(one))
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
    assert task_named("repair:4") == Repair(turns=4) and task_named("repair") == Repair()
    with pytest.raises(ConfigError, match="repair:four: repair:TURNS is a number of turns"):
        task_named("repair:four")
    assert isinstance(task_named("repair"), Repair) and TASKS["repair"] is Repair
    for wrong in ({"kinds": ()}, {"kinds": ("spelling",)}, {"count": 0}, {"seconds": 0.0}, {"turns": 0}):
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


# ---- in turns


@pytest.mark.slow
def test_an_episode_runs_the_tests_reads_what_they_say_and_edits(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Repair(turns=4)
    one = next(p for p in task.problems() if p.family == "clamp" and p.kind == "compare")
    assert one.output not in task.prompt(one) and "Write test alone" in task.messages(one)[0]["content"]
    undone, line = edit_to(one.source, one.fixed), one.source.splitlines()[1].strip()
    wrong = ("2: if y == 99:", "that was wrong", undone)
    monkeypatch.setattr(package, "_SAID", {})
    ran: list[int] = []
    verify = package._pool().verify
    monkeypatch.setattr(package._pool(), "verify", lambda jobs: ran.append(len(jobs)) or verify(jobs))
    assert task.reply(one, ("test",)) == one.output == task.reply(one, ("hm", f"2: {line}"))  # an edit that changes nothing
    assert task.reply(one, ("Please test it",)) == "write test, or LINE: its new text" == task.reply(one, ("1 : x", "x"))
    said = task.reply(one, wrong[:1])
    assert said is not None and "is wanted" in said and said == task.judge(one, wrong[:2]).reason
    assert task.reply(one, wrong) is None and task.judge(one, wrong).right and not task.judge(one, wrong[:1]).right
    assert task.judge(one, ("test", "test")).reason == "no line is edited"
    assert task.reply(one, ("hm", "hm", "hm", "hm")) is None  # no turn is left
    assert sum(ran) == 2  # two programs, each run once
    three = task.judge(one, ("3: return 0", "5: return 1", undone))  # edits add up
    assert not three.right and task.answer_key(one, ("3: return 0", undone)) == edited(one.fixed, "3: return 0")
    batch = [(one, wrong), (one, ("test",)), (one, wrong[:1])]
    assert task.reply_all(batch) == [None, one.output, said] and [v.right for v in task.judge_all(batch)] == [True, False, False]


@pytest.mark.slow
def test_examples_of_episodes_end_right_and_their_replies_are_the_environments() -> None:
    task, lengths = Repair(turns=4), Counter[int]()
    for problem, turns in task.examples("test", 3, 0, 40):
        assert not isinstance(turns, str)
        own = tuple(turn.text for turn in turns if turn.who == "policy")
        told = [turn.text for turn in turns if turn.who == "environment"]
        assert told == [task.reply(problem, own[: n + 1]) for n in range(len(told))]
        assert task.reply(problem, own) is None and task.judge(problem, own).right and own[0] == "test"
        assert [turn.learned for turn in turns if turn.who == "policy"] == [True, *[False] * (len(own) - 2), True]
        lengths[len(own)] += 1
    assert set(lengths) == {2, 3} and min(lengths.values()) > 10
    assert task.examples("test", 3, 7, 2) == task.examples("test", 3, 0, 40)[7:9] != task.examples("test", 4, 7, 2)
    assert {len(turns) for _, turns in Repair(turns=2).examples("test", 3, 0, 20)} == {3}
    rows = task.problems("test")[:3]
    assert task.fingerprint(rows) != Repair().fingerprint(rows) and task.max_new_tokens == 160
