"""Reference answers: in the place of a completion's own they make it right, by the task's own verifier."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sage_rlvr.contrib.tasks.knights_and_knaves import KnightsAndKnaves
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.tasks.base import NO_ANSWER, reference, verdicts
from sage_rlvr.tasks.countdown import WORLDS, Countdown, solutions
from sage_rlvr.tasks.jsonl import jsonl
from sage_rlvr.tasks.prompts import SAGE
from sage_rlvr.verifiers.answers import AnswerReading, marked_span, span_of

SCORE = "def score(completion, row):\n    return float(row['answer'] in completion)\n"


def task_of(kind: str, folder: Path) -> Any:
    if kind == "countdown":
        return Countdown({3: 1.0}, max_number=9, max_target=30, train_problems=8)
    if kind == "knights and knaves":
        return KnightsAndKnaves(people=(2, 3), count=4, train_count=4, rule="strict")
    rows = [{"prompt": f"twice {i}?", "answer": f"{2 * i}"} for i in range(2, 6)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "mine.py").write_text(SCORE)
    reward = {"exact": "exact", "own": f"{folder / 'mine.py'}:score", "sage": None, "boxed": None}[kind]
    return jsonl(str(folder / "rows.jsonl"), reward=reward, prompt="sage" if kind == "sage" else None)


CASES = [
    ("countdown", ["1+1", "9-(8-7)"]),
    ("knights and knaves", ["CONCLUSION:\n(1) Nobody is a knight\n", "CONCLUSION: no. Again, CONCLUSION:\n\n(1) x "]),
    ("boxed", [r"so \boxed{1}, no: \boxed{\frac{1}{2}}."]),
    ("sage", ["x<end_working_out>\n<SOLUTION>0</SOLUTION>", "<SOLUTION></SOLUTION>"]),
    ("exact", ["0", "anything"]),
    ("own", ["The answer is 0. Done", "<answer>0</answer>", r"<answer>1</answer> or \boxed{0}", "#### 0\n"]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "texts"), CASES)
def test_a_completion_with_the_reference_in_it_is_right(kind: str, texts: list[str], tmp_path: Path) -> None:
    task = task_of(kind, tmp_path)
    pairs, before = [], []
    for problem in task.problems("train")[:4]:
        for text in texts:
            found = task.answer_span(problem, text)
            assert found is not None
            pairs.append((problem, text[: found[0]] + reference(task, problem) + text[found[1] :]))
            before.append((problem, text))
    assert all(said.right for said in verdicts(task, pairs))
    assert not any(said.right for said in verdicts(task, before))


@pytest.mark.parametrize(
    ("kind", "text"),
    [("countdown", "1+"), ("countdown", f"1+1{NO_ANSWER}"), ("knights and knaves", "CONCLUSION:\n "), ("boxed", "5"), ("own", "5")],
)
def test_a_completion_without_an_answer_has_no_place_for_one(kind: str, text: str, tmp_path: Path) -> None:
    task = task_of(kind, tmp_path)
    assert task.answer_span(task.problems("train")[0], text) is None


def test_the_reference_of_countdown_is_the_shortest_solution() -> None:
    world = WORLDS["demo"]
    for problem in world.problems("test", 0, 20):
        found = world.reference(problem)
        assert found in solutions(problem) and not any((len(one), one) < (len(found), found) for one in solutions(problem))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (r"<answer>1</answer>, that is \boxed{2}", "2"),
        (r"\boxed{2}. <answer>1</answer>", "1"),
        ("the answer: **3**. And so on", "3"),
        ("**answer:**\n\n 4 apples \n5", "4 apples"),
        ("7", None),
    ],
)
def test_the_last_mark_counts(text: str, wanted: str | None) -> None:
    found = marked_span(text)
    assert (None if found is None else text[slice(*found)]) == wanted


def test_a_place_of_its_own() -> None:
    assert span_of("1 of 3/4", AnswerReading("last_number")) == ((5, 8), "")
    assert span_of("ab", AnswerReading("whole")) == ((0, 2), "")
    assert span_of("<SOLUTION>5", AnswerReading(**SAGE.reading)) == (None, "answer cut off")


def test_what_has_no_reference_says_how_to_give_one(tmp_path: Path) -> None:
    class Bare:
        name = "bare"

    with pytest.raises(ConfigError, match=r"task bare: Bare has no reference\(problem\)"):
        reference(Bare(), None)  # type: ignore[arg-type]
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1?", "id": "r1"}\n')
    (tmp_path / "mine.py").write_text(SCORE)
    task = jsonl(str(tmp_path / "rows.jsonl"), reward=f"{tmp_path / 'mine.py'}:score")
    with pytest.raises(DataError, match="problem 'r1': no reference answer"):
        reference(task, task.problems("train")[0])
