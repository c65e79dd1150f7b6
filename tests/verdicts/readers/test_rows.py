"""Rows that cannot be used: each is named with file, line and field, and the error has the next step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.readers import CountTable, read_evaluation
from sage_rlvr.verdicts.readers.file import RowFile
from sage_rlvr.verdicts.readers.registry import READERS, Choice, FileRows, reader


def file_of(folder: Path, *rows: Any) -> Path:
    path = folder / "a.jsonl"
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def tables(folder: Path, *rows: Any, picks: tuple[str, ...] = ()) -> tuple[CountTable, ...]:
    return read_evaluation(file_of(folder, *rows), picks).tables


GOOD = {"id": "p", "n": 4, "c": 2}
BAD = [
    ({"id": "q", "n": 4, "c": 5}, "a.jsonl:2: c = 5: more correct samples than samples (n = 4)"),
    ({"id": "q", "n": 4}, "a.jsonl:2: c = None: is missing"),
    ({"id": "q", "n": 0, "c": 0}, "a.jsonl:2: n = 0: a problem without samples"),
    ({"id": "q", "n": 4.5, "c": 0}, "a.jsonl:2: n = 4.5: is not a whole number"),
    ({"id": "q", "n": True, "c": 0}, "a.jsonl:2: n = True: is not a whole number"),
    ({"n": 4, "c": 0}, "a.jsonl:2: id = None: the id of the problem is missing"),
    ({"id": ["q"], "n": 4, "c": 0}, "a.jsonl:2: id = ['q']: the id of the problem is neither text nor a whole number"),
    ({"id": "p", "n": 4, "c": 0}, "a.jsonl:2: id = 'p': the problem is also in row 1"),
    ({"id": "q", "n": 4, "c": 0, "seed": "x"}, "a.jsonl:2: seed = 'x': a whole number is expected"),
    ({"id": "q", "n": 4, "c": 0, "temperature": -1}, "a.jsonl:2: temperature = -1: a sampling temperature"),
    ({"id": "q", "n": 4, "c": 1, "keys": {"7": 2}}, "a.jsonl:2: keys = {'7': 2}: more answers than correct samples"),
    ({"id": "q", "n": 4, "c": 1, "cluster": 1.5}, "a.jsonl:2: cluster = 1.5: the name of the problem's cluster is"),
    ({"id": "q", "n": 4, "c": 1, "chance": 25}, "a.jsonl:2: chance = 25: the probability that one guess is right"),
    ({"id": "q", "correct": True}, 'a.jsonl:2: a row with "correct" among rows with "n" and "c"'),
    (
        {"id": "q", "text": "so 7"},
        'a.jsonl:2: nothing says whether the row is correct: the row has text and no score; add "cor',
    ),
    ('{"id": "q", "n": 4, "c', "a.jsonl:2: cannot be read as JSON"),
    ("[1, 2]", "a.jsonl:2: an object {...} is expected"),
]


@pytest.mark.parametrize(("row", "said"), BAD, ids=[said[:40] for _, said in BAD])
def test_a_row_of_counts_that_cannot_be_used(row: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as refused:
        tables(tmp_path, GOOD, row)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('{"id": "p", "score": NaN}', "a.jsonl:2: score = nan: no score (1 completions in 1 of 1 problems have none)"),
        ('{"id": "p", "score": null}', "a.jsonl:2: score = None: no score (1 completions"),
        ('{"id": "p", "score": 0.5}', "a.jsonl:2: score = 0.5: neither 0 nor 1; pass --right-from X"),
        ('{"id": "p", "score": "A"}', "a.jsonl:2: score = 'A': not a number"),
    ],
)
def test_a_score_that_cannot_be_used(row: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as refused:
        tables(tmp_path, {"id": "p", "score": 1}, row)
    assert said in str(refused.value)


def test_rows_of_one_problem_have_one_cluster_and_one_chance(tmp_path: Path) -> None:
    rows = [{"id": "p", "correct": True, "cluster": 7, "chance": 0.25}, {"id": "p", "correct": False}]
    (table,) = tables(tmp_path, *rows)
    assert table.clusters == {"p": "7"} and table.chances == {"p": 0.25}
    for name, other in (("cluster", "8"), ("chance", 0.5)):
        with pytest.raises(DataError, match=rf"a\.jsonl:3: {name} = .*: an earlier row of problem 'p' has .*; give all its"):
            tables(tmp_path, *rows, rows[0] | {name: other})
    path = tmp_path / "a.csv"
    path.write_text("id,n,c,cluster,chance\np,4,2,007,0.5\n")
    (table,) = read_evaluation(path).tables
    assert table.clusters == {"p": "007"} and table.chances == {"p": 0.5}


def test_half_a_line_at_the_end_says_that_the_file_may_still_be_written(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(GOOD) + '\n{"id": "q", "n"')
    with pytest.raises(
        DataError, match=r"a\.jsonl:2: .*the last line of the file has no end, so it may still be written"
    ):
        read_evaluation(path)


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_an_empty_file(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match="the file is empty; write one row per problem or per completion"):
        read_evaluation(path)


def test_texts_without_scores(tmp_path: Path) -> None:
    with pytest.raises(DataError) as refused:
        tables(tmp_path, *[{"id": "p", "text": "so 7"}] * 2)
    said = 'a.jsonl:1: nothing says whether the row is correct: the row has text and no score; add "correct"'
    assert said in str(refused.value)


def test_a_threshold_makes_graded_scores_correct_or_not(tmp_path: Path) -> None:
    path = file_of(tmp_path, *({"id": "p", "score": score} for score in (0.2, 0.5, 0.9)))
    (table,) = read_evaluation(path, choice=Choice(right_from=0.5)).tables
    assert (table.n.tolist(), table.c.tolist()) == ([3], [2])


def test_rows_are_grouped_by_their_own_columns(tmp_path: Path) -> None:
    rows = [{"id": i, "n": 4, "c": i, "arm": arm, "seed": seed} for arm in "ab" for seed in (0, 1) for i in (1, 2)]
    found = {(table.group.arm, table.group.seed): table for table in tables(tmp_path, *rows)}
    assert set(found) == {("a", 0), ("a", 1), ("b", 0), ("b", 1)}
    assert found["b", 1].problems == ("1", "2") and found["b", 1].c.tolist() == [1, 2]


def test_one_of_several_steps_is_selected_by_its_number(tmp_path: Path) -> None:
    rows = [{"id": "p", "n": 4, "c": step // 50, "step": step} for step in (0, 50, 100)]
    with pytest.raises(DataError, match=r"rows of 3 steps \(0, 50, 100\); select one with @STEP"):
        tables(tmp_path, *rows)
    (table,) = tables(tmp_path, *rows, picks=("100",))
    assert table.c.tolist() == [2]
    with pytest.raises(DataError, match=r"a.jsonl@70: no rows of '70'; the file has steps 0, 50, 100"):
        tables(tmp_path, *rows, picks=("70",))


def test_cells_of_a_csv(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('id,n,c,keys,arm\n007,4,2,"{""7"": 2}",a\n7,4.0,1,,a\n')
    (table,) = read_evaluation(path).tables
    assert table.problems == ("007", "7") and table.c.tolist() == [2, 1] and table.keys == {"007": {"7": 2}}
    path.write_text("id,n,c\np,4,2\nq,4\n")
    with pytest.raises(DataError, match=r"a\.csv:3: 2 cells under 3 columns"):
        read_evaluation(path)


def test_an_array_of_rows_and_a_file_that_nobody_knows(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([GOOD, {"id": "q", "n": 4, "c": 0}], indent=1))
    (table,) = read_evaluation(path).tables
    assert table.c.tolist() == [2, 0]
    path.write_text('{"prompt": "2+2", "reply": "4"}\n')
    with pytest.raises(DataError, match=r"no reader knows a file with the keys prompt, reply\. Rows are counts") as caught:
        read_evaluation(path)
    assert "plugins" not in str(caught.value)


def test_a_file_that_no_reader_takes_names_the_readers_of_plugins(tmp_path: Path) -> None:
    def rows(file: RowFile, choice: Choice) -> FileRows:
        yield 1, {}

    path = tmp_path / "a.json"
    path.write_text('{"prompt": "2+2", "reply": "4"}\n')
    try:
        reader("my_logs", ["prompt", "graded"], ["prompt", "marks"])(rows)
        with pytest.raises(DataError, match=r"do not fit either: my_logs \(needs graded, prompt or marks, prompt\)$"):
            read_evaluation(path)
    finally:
        del READERS["my_logs"]


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("answer", [1, 2], "text or a number"), ("answer", {"a": 1}, "text or a number"), ("text", {"a": 1}, "text, or messages"),
        ("text", 42, "text, or messages"), ("request", {"a": 0}, "text or a whole"), ("request", [0], "text or a whole number"),
        ("request", 0.5, "text or a whole number"), ("cut", "no", "true or false"), ("cut", "false", "true or false"),
        ("cut", 2, "true or false"),
    ],
)  # fmt: skip
def test_a_field_of_a_sample_of_another_type_is_named(field: str, value: Any, expected: str, tmp_path: Path) -> None:
    row = {"id": "p", "correct": True}
    with pytest.raises(DataError) as refused:
        tables(tmp_path, row, row | {field: value})
    assert f"a.jsonl:2: {field} = {value!r}: {expected}" in str(refused.value)


def test_fields_of_a_sample_are_read_in_one_spelling(tmp_path: Path) -> None:
    """Numbers as answers, messages as completions and prompts, missing values of tables."""
    message = [{"role": "user", "content": "2+2"}]
    rows = [
        {"id": "p", "correct": 1, "answer": 42, "cut": 0, "request": 1.0, "text": message, "prompt": message},
        {"id": "p", "correct": 1, "answer": 42.0, "cut": True, "request": "a", "text": "2+2", "prompt": "2+2"},
        {"id": "p", "correct": 1, "answer": float("nan"), "cut": None, "request": float("nan"), "gold": float("nan")},
    ]
    (table,) = tables(tmp_path, *rows)
    assert (table.answers, table.cut) == ((["42", "42", None],), ([False, True, None],))
    assert (table.requests, table.texts) == (([1, "a", None],), (["2+2", "2+2", None],))
    assert table.prompts == {"p": "2+2"} and table.golds == {}


@pytest.mark.parametrize("name", ["model", "model_name", "checkpoint"])
@pytest.mark.parametrize("counts", [False, True])
def test_rows_of_two_policies_in_one_set_are_refused(name: str, counts: bool, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"id": i, **({"n": 4, "c": i % 2} if counts else {"correct": True})} for i in range(4)]
    mixed = [row | {name: "rl" if row["id"] < 2 else "base"} for row in rows]
    with pytest.raises(DataError, match=rf"a\.jsonl:3: {name} = 'base': row 1 has 'rl': samples of two policies in one set"):
        tables(tmp_path, *mixed)
    assert len(tables(tmp_path, *(row | {"arm": row[name]} for row in mixed))) == 2
    assert len(tables(tmp_path, *(row | {name: "rl"} for row in rows))) == 1


@pytest.mark.parametrize("name", ["question", "problem", "dataset", "subset", "subject", "data_source"])
def test_one_id_of_two_subtasks_is_refused(name: str, tmp_path: Path) -> None:
    rows = [{"id": i, "correct": True, name: f"{name} {task}"} for task in "ab" for i in range(3)]
    with pytest.raises(DataError, match=rf"a\.jsonl:4: {name} = '{name} b': an earlier row of problem '0' has '{name} a': one id"):
        tables(tmp_path, *rows)
    assert len(tables(tmp_path, *(row | {"task": row[name]} for row in rows))) == 2
    (table,) = tables(tmp_path, *(row | {"id": f"{row[name]}{row['id']}"} for row in rows))  # other ids in each
    assert len(table.problems) == 6
