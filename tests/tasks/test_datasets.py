"""One reader of data sets: what train reads, audit, eval and verify read alike, and they say what they took."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from sage_rlvr.contrib.audit import audit, verify_lines
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.tasks.datasets import examples
from sage_rlvr.tasks.math import MathTask
from sage_rlvr.tasks.rows import DataSource

pytestmark = pytest.mark.usefixtures("shared_pool_closed")


def written(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


SHAPES = {
    "prompt and answer": ({"prompt": "1+1?", "answer": "2"}, "problem: prompt; gold: answer"),
    "GSM8K": ({"question": "1+1?", "answer": "One and one.\n#### 2"}, "gold: answer, after ####"),
    "a worked solution": ({"problem": "1+1?", "solution": r"So \boxed{2}."}, r"gold: solution, in the last \boxed{}"),
    "gold": ({"question": "1+1?", "gold": 2.0}, "problem: question; gold: gold"),
    "verl": ({"prompt": [{"role": "user", "content": "1+1?"}], "reward_model": {"ground_truth": "2"}}, "ground_truth"),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_what_trains_is_audited_evaluated_and_verified(shape: str, tmp_path: Path):
    row, said = SHAPES[shape]
    path = written(tmp_path / "own.jsonl", row)
    found = examples(DataSource(path=path))
    assert said in str(found) and found.examples[0].answer == "2"
    (problem,) = MathTask(path).problems()
    assert (problem.text, problem.answer) == ("1+1?", "2")
    assert next(c for c in audit(path, "boxed").checks if c.name.startswith("gold right")).good == 1
    answers = written(tmp_path / "said.jsonl", row | {"completion": r"\boxed{2}"}, row | {"completion": r"\boxed{3}"})
    told = verify_lines(Path(answers), {"answer_in": "boxed", "tag": "SOLUTION"})
    assert told[-1] == "1 right, 1 wrong, 0 undecided"
    gold = said[said.index("gold:") :] if "gold:" in said else said
    assert gold in told[0] and said in audit(path, "boxed").head  # the same words from who verifies and who audits


def test_what_was_taken_is_counted_where_rows_differ(tmp_path: Path):
    rows = [{"question": "a?", "answer": "x\n#### 1"}, {"question": "b?", "answer": "2"}, {"question": "c?", "answer": "3"}]
    found = examples(DataSource(path=written(tmp_path / "own.jsonl", *rows)))
    assert str(found).endswith("3 rows; problem: question; gold: answer, after #### in 1 rows")
    assert [one.answer for one in found.examples] == ["1", "2", "3"]


def test_what_may_never_end_is_no_data_set(tmp_path: Path):
    os.mkfifo(tmp_path / "own.jsonl")
    (tmp_path / "own.parquet").symlink_to("/dev/zero")
    for name in ("own.jsonl", "own.parquet"):
        with pytest.raises(DataError, match=f"{name}: cannot be read: not a regular file"):
            examples(DataSource(path=str(tmp_path / name)))


def test_a_column_that_is_nearly_right_is_named(tmp_path: Path):
    path = written(tmp_path / "own.jsonl", {"question": "a?", "anwser": "2"})
    with pytest.raises(ConfigError, match=r"no column for the answer .*did you mean 'anwser'\?; accepted are answer.*rename it"):
        examples(DataSource(path=path))
