"""Mathematics tasks: reading of rows, of each published file's shape, and (with SAGE_RLVR_DATA) the published rows."""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from sage_rlvr.config import DataConfig
from sage_rlvr.config.tasks import task_of_data
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.tasks import TASKS, math_sets
from sage_rlvr.tasks.math import ENVIRONMENT, SETS, MathProblem, MathTask, digest
from sage_rlvr.tasks.prompts import BOXED, SAGE

needs_data = pytest.mark.skipif(
    not os.environ.get(ENVIRONMENT),
    reason=f"{ENVIRONMENT} names no folder: the problems' texts are not in the repository",
)


pytestmark = pytest.mark.usefixtures("shared_pool_closed")


def lines(*rows: object) -> bytes:
    return "\n".join(json.dumps(row) for row in rows).encode() + b"\n"


def table(*rows: dict) -> bytes:
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), sink)
    return sink.getvalue()


def test_the_shapes_of_the_published_files():
    aime = math_sets._aime(
        [{"id": 60, "problem": "p", "answer": 7}],
        [{"id": "I-1", "problem": "q", "answer": "070"}],
        [{"id": "II-1", "problem": "r", "answer": "5"}],
    )
    assert [(p.problem_id, p.text, p.answer) for p in aime] == [
        ("aime24-1", "p", "7"), ("aime25-I-1", "q", "070"), ("aime25-II-1", "r", "5")
    ]  # fmt: skip
    assert math_sets._amc([{"id": 3, "problem": "p", "answer": 27.0}]) == [MathProblem("amc23-3", "p", "27")]
    row = {"problem": "p", "solution": r"so \boxed{p - q}", "answer": "p-q", "subject": "Algebra", "level": 5}
    (math,) = math_sets._math500([row | {"unique_id": "test/1"}])
    assert (math, math.solved) == (MathProblem("test/1", "p", "p-q", 5, "Algebra"), "p - q")
    gold = {"reward_model": {"ground_truth": "1.6"}}
    (minerva,) = math_sets._minerva([gold], [{"problem": "p", "type": "Physics", "solution": r"\boxed{1.60}"}])
    assert (minerva, minerva.solved) == (MathProblem("minerva-0", "p", "1.6", None, "Physics"), "1.60")
    wrapped = {"prompt": [{"content": "Do this.\n\nOne\n\ntwo\n\nThus.", "role": "user"}], "extra_info": {"index": "x"}}
    assert math_sets._dapo(math_sets.rows_of(table(wrapped | gold))) == [MathProblem("dapo-x", "One\n\ntwo", "1.6")]


@pytest.mark.slow
def test_rows_of_a_file_of_your_own(tmp_path: Path):
    path = tmp_path / "own.jsonl"
    path.write_text(
        '{"id": 0, "problem": "1+1?", "answer": 2.0}\n\n{"id": "b", "question": "half?", "answer": "\\\\frac12", "level": 5}\n'
    )
    task = MathTask(str(path))
    assert task.problems() == (MathProblem("0", "1+1?", "2"), MathProblem("b", "half?", r"\frac12", 5))
    half = task.problems()[1]
    assert task.verify(half, r"\boxed{0.5}").right and task.verify(half, "0.5").reason == "no answer"
    tagged = replace(task, form=SAGE)
    assert tagged.verify(half, "<SOLUTION>1/2</SOLUTION>").right and not task.pinned
    assert [v.label for v in task.verify_all([(half, "1/2"), (half, "2")], answer_in="whole")] == ["right", "wrong"]
    assert half.problem_id == "b"
    assert task.prompt(half) == f"{BOXED.system}\n\nhalf?\n\nSolution:\n"
    assert tagged.prompt(half).endswith("half?\n\n<start_working_out>\n")
    assert tagged.messages(half)[-1] == {"role": "user", "content": "half?"}


def test_a_column_twice_is_refused(tmp_path: Path):
    (path := tmp_path / "own.csv").write_text("problem,answer,answer\np,1,2\n")
    with pytest.raises(DataError, match=r"own.csv:1: the column 'answer' occurs 2 times in the header; rename or drop"):
        MathTask(str(path)).problems()


@pytest.mark.parametrize(
    "text, message",
    [
        ("{\n", r"own.jsonl:1: cannot be read as JSON"),
        ("[1]\n", r"own.jsonl:1: list instead of a mapping"),
        ('{"answer": "1"}\n', r"no column for the problem \(its columns: answer\); accepted are problem, question, prompt"),
        ('{"problem": " ", "answer": "1"}\n', r"own.jsonl:1, column problem"),
        ('{"problem": "p"}\n', r"no column for the answer"),
        ('{"problem": "p", "answer": true}\n', r"own.jsonl:1, column answer: the answer is bool True"),
        ('{"problem": "p", "answer": ["1", "2"]}\n', r"column answer: the answer is a list of 2: \['1', '2'\]"),
        ('{"problem": "p", "answer": {"a": 1}}\n', r"column answer: the answer is dict \{'a': 1\}"),
        ('{"problem": "p", "answer": "\\frac{1}{2}"}\n', r'own.jsonl:1, column answer: .*must be written "\\\\frac" in the file'),
        ('{"id": 1, "problem": "p", "answer": 1}\n' * 2, r"own.jsonl:2, column id: '1' is there already at .*own.jsonl:1"),
        ('{"problem": "p", "answer": "1", "answer": "2"}\n', r"own.jsonl:1: .*the key 'answer' occurs 2 times in one object"),
        ('{"problem": "p", "answer": "1", "x": {"y": 1, "y": 1}}\n', r"own.jsonl:1: .*the key 'y' occurs 2 times"),
        ("", r"has no rows"),
    ],
)
def test_rows_that_cannot_be_used(tmp_path: Path, text: str, message: str):
    path = tmp_path / "own.jsonl"
    path.write_text(text)
    with pytest.raises((ConfigError, DataError), match=message):
        MathTask(str(path)).problems()


def test_names_and_folders_that_are_none(tmp_path: Path):
    with pytest.raises(ConfigError, match="task 'aime24': choose one of aime, amc23"):
        MathTask("aime24")
    with pytest.raises(
        DataError, match=r"has no amc23.jsonl; put it there, or unset SAGE_RLVR_DATA to fetch https://raw"
    ):
        MathTask("amc23", folder=str(tmp_path)).problems()
    with pytest.raises(ConfigError, match="no such file"):
        MathTask(str(tmp_path / "none.jsonl")).problems()


def test_a_folder_is_read_before_anything_is_fetched_and_other_rows_are_told_apart(tmp_path: Path, monkeypatch):
    (tmp_path / "math500.jsonl").write_bytes(
        lines(
            {"id": "a", "problem": "p", "answer": "1", "level": 5},
            {"id": "b", "problem": "q", "answer": "2", "level": 4},
        )
    )
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path))
    assert [p.problem_id for p in MathTask("math500").problems()] == ["a", "b"]
    assert [p.problem_id for p in MathTask("math500_l5").problems()] == ["a"]
    assert not MathTask("math500").pinned


def test_pinned_files_are_read_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(math_sets, "fetch", lambda pin: lines({"id": 1, "problem": "p", "answer": -1.0}))
    math_sets._read.cache_clear()
    try:
        assert MathTask("amc23", folder="").problems() == (MathProblem("amc23-1", "p", "-1"),)
    finally:
        math_sets._read.cache_clear()


def test_a_digest_sees_ids_texts_golds_and_order():
    one, two = MathProblem("a", "p", "1"), MathProblem("b", "q", "2")
    digests = {digest(rows) for rows in ([one, two], [two, one], [one], [replace(one, answer="2"), two])}
    assert len(digests) == 4 and digest([one]) == digest([replace(one, level=5, solved="x")])


@needs_data
@pytest.mark.parametrize("name", SETS)
def test_the_published_rows(name: str):
    task = MathTask(name)
    problems = task.problems()
    rows = {"aime": 60, "amc23": 40, "math500": 500, "math500_l5": 134, "minerva": 272, "dapo_math": 2000}[name]
    assert task.pinned and len(problems) == len({p.problem_id for p in problems}) == rows
    turns = [(p, task.form.assistant("By the above.", p.answer)) for p in problems]
    assert all(verdict.right for verdict in task.verify_all(turns))


def test_recipes_say_whether_answers_are_read_behind_the_thinking(tmp_path: Path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"problem": "2 + 2?", "answer": "4"}\n')
    texts = [r"<think>\boxed{4}", r"\boxed{4}", r"\boxed{5}</think>\boxed{4}", r"<r>\boxed{5}</r>\boxed{4}", r"<r>\boxed{4}"]
    for options, right in [
        ({}, [False, True, True, True, True]),
        ({"in_thinking": True}, [False, False, True, False, False]),
        ({"thinking": "r"}, [True, True, True, True, False]),
        ({"thinking": ""}, [True, True, True, True, True]),
    ]:
        of_data = task_of_data(DataConfig(path=str(file), prompt="boxed", **options))
        for task in (TASKS["jsonl"](str(file), **options), of_data):
            problem = task.problems()[0]
            assert [task.verify(problem, text).right for text in texts] == right
    with pytest.raises(ConfigError, match="in_thinking: of mathematics"):
        TASKS["jsonl"](str(file), reward="exact", in_thinking=True)
