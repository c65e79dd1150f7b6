"""Data sets of every usual shape, from files and the Hub, every bad one refused with its place, and golds."""

# ruff: noqa: E402  (what needs TRL is imported after importorskip)

from __future__ import annotations

import csv
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")  # the extra that brings datasets and pyarrow
datasets = pytest.importorskip("datasets")


from byte_tokenizer import byte_tokenizer
from sage_rlvr.config import DataConfig
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.tasks.chat import dry_render, fit_tokenizer
from sage_rlvr.tasks.golds import check_golds
from sage_rlvr.tasks.prompts import FORMATS
from sage_rlvr.tasks.rows import DataRows, DataSource, facts
from sage_rlvr.training.trl.run import load
from sage_rlvr.verifiers.pool import Pool
from training.trl_runs.data_common import quiet, said

ASKED = [{"role": "user", "content": "Solve: 1+1. End with Answer: N."}]


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """write(rows, "name.ext") -> the path of a file that holds them."""

    def to(rows: list[dict[str, Any]], name: str = "rows.jsonl") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".parquet":
            datasets.Dataset.from_list(rows).to_parquet(str(path))
        elif path.suffix == ".csv":
            with open(path, "w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, list(rows[0]))
                writer.writeheader()
                writer.writerows(rows)
        elif path.suffix == ".json":
            path.write_text(json.dumps(rows), encoding="utf-8")
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    return to


def made(path: Path, **more: Any) -> list[dict[str, Any]]:
    """The rows that `load` makes of a file, without the check of the golds, which has tests of its own."""
    options = {name: more.pop(name) for name in ("solutions",) if name in more}
    return load(DataConfig(path=str(path), allow_unverifiable=True, **more), say=quiet, **options).to_list()


# ---- shapes

SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # a row, and what becomes of it under the format sage
    "id, problem, answer": ({"id": "a-1", "problem": "1+1?", "answer": "2"}, {"id": "a-1", "answer": "2"}),
    "question, a number": ({"question": "1+1?", "answer": 2}, {"id": "0", "answer": "2"}),
    "a whole float": ({"question": "1+1?", "answer": 2.0}, {"answer": "2"}),
    "a float": ({"question": "1+1?", "ground_truth": 2.5}, {"answer": "2.5"}),
    "GSM8K": ({"question": "1+1?", "answer": "One and one.\n#### 2"}, {"answer": "2", "solution": "One and one."}),
    "MATH": (
        {"problem": "1+1?", "level": "1", "solution": r"Not \boxed{2}. So \boxed{\frac{4}{2}}."},
        {"answer": r"\frac{4}{2}", "solution": r"Not \boxed{2}. So \boxed{\frac{4}{2}}."},
    ),
    "MATH-500": (
        {"problem": "1+1?", "solution": "Two.", "answer": "2", "unique_id": "u/1.json"},
        {"id": "u/1.json", "answer": "2", "solution": "Two."},
    ),
    "OpenMathReasoning-mini": (
        {"problem": "1+1?", "expected_answer": "2", "problem_source": "x", "generated_solution": "<think>Two.</think>"},
        {"answer": "2", "solution": "<think>Two.</think>"},
    ),
    "DAPO-Math-17k-Processed": (
        {
            "prompt": "1+1?",
            "solution": "2",
            "data_source": "math_dapo",
            "source_prompt": ASKED,
            "reward_model": {"ground_truth": "2", "style": "rule"},
            "extra_info": {"index": "9a"},
        },
        {"answer": "2"},
    ),
    "a bare prompt and its solution": ({"prompt": "1+1?", "solution": "34"}, {"answer": "34"}),
    "a conversation": ({"prompt": [{"role": "user", "content": "1+1?"}], "answer": "2"}, {"answer": "2"}),
    "parts of text": (
        {"prompt": [{"role": "user", "content": [{"type": "text", "text": "1+1"}, {"type": "text", "text": "?"}]}],
         "answer": "2"},
        {"answer": "2"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("suffix", ["jsonl", "json", "parquet"])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_of_every_usual_shape(shape: str, suffix: str, write: Any):
    row, wanted = SHAPES[shape]
    path = write([row], f"rows.{suffix}")
    (found,) = made(path, solutions="solution" in wanted)
    assert found == {"id": "0", "prompt": said("1+1?")} | wanted


def test_csv_is_text_and_numbers_alike(write: Any):
    path = write([{"id": 7, "problem": 'Say "a,\nb"', "answer": 2}], "rows.csv")
    assert made(path) == [{"id": "7", "prompt": said('Say "a,\nb"'), "answer": "2"}]


def test_verls_rows_under_their_own_prompts_and_under_ours(write: Any):
    row = {
        "data_source": "gsm8k",
        "prompt": ASKED,
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "extra_info": {"index": 0, "question": "1+1?", "split": "train"},
    }
    path = write([row], "train.parquet")
    assert made(path, prompt="as_is") == [{"id": "0", "prompt": ASKED, "answer": "2"}]
    assert made(path, prompt="boxed")[0]["prompt"] == said(ASKED[0]["content"], "boxed")
    bare = made(path, problem_column="extra_info.question", answer_column="reward_model.ground_truth")
    assert bare[0]["prompt"] == said("1+1?") and bare[0]["answer"] == "2"


def test_the_format_decides_between_a_bare_problem_and_a_prompt(write: Any):
    path = write([{"problem": "1+1?", "prompt": ASKED, "answer": "2"}])
    assert made(path)[0]["prompt"] == said("1+1?")
    assert made(path, prompt="as_is")[0]["prompt"] == ASKED


def test_take_cuts_before_a_bad_row_is_even_read(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"problem": "1+1?", "answer": "2"}\n{"problem": "2+2?", "answer": "4"}\nnot JSON\n')
    assert len(made(path, take=2)) == 2
    with pytest.raises(DataError, match=r"rows\.jsonl:3: cannot be read as JSON"):
        made(path)


def test_take_cuts_a_saved_data_set_and_names_its_splits(tmp_path: Path):
    rows = datasets.Dataset.from_list([{"problem": f"{i}?", "answer": i} for i in range(5)])
    rows.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict({"test": rows}).save_to_disk(str(tmp_path / "more"))
    assert [row["answer"] for row in made(tmp_path / "one", take=3)] == ["0", "1", "2"]
    assert len(made(tmp_path / "more", split="test")) == 5
    with pytest.raises(ConfigError, match="has the splits test"):
        made(tmp_path / "more")


def test_a_folder_is_read_by_its_split_shard_after_shard(write: Any, tmp_path: Path):
    for shard in (1, 0):
        write([{"problem": f"{shard}?", "answer": shard}], f"set/data/train-0000{shard}-of-00002.parquet")
    write([{"problem": "t?", "answer": 9}], "set/data/test-00000-of-00001.parquet")
    assert [row["answer"] for row in made(tmp_path / "set")] == ["0", "1"]
    assert [row["answer"] for row in made(tmp_path / "set", split="test")] == ["9"]
    assert len(facts(DataSource.of(DataConfig(path=str(tmp_path / "set"))))) == 2
    with pytest.raises(ConfigError, match=r"the split 'validation'.*test-00000"):
        made(tmp_path / "set", split="validation")


def test_lines_named_json_are_read_as_lines(tmp_path: Path):
    path = tmp_path / "rows.json"
    path.write_text('{"problem": "1+1?", "answer": "2"}\n{"problem": "2+2?", "answer": "4"}\n')
    assert [row["answer"] for row in made(path)] == ["2", "4"]


def test_the_facts_of_a_file_are_its_content(write: Any):
    path = write([{"problem": "1+1?", "answer": "2"}])
    before = facts(DataSource.of(DataConfig(path=str(path))))
    write([{"problem": "1+1?", "answer": "3"}])
    assert facts(DataSource.of(DataConfig(path=str(path)))) != before
    assert facts(DataSource.of(DataConfig(path="owner/name", revision="abc"))) == {"owner/name": "abc"}


# ---- the Hub


def test_the_hub_is_asked_for_what_the_recipe_says_and_for_no_code(monkeypatch: pytest.MonkeyPatch):
    asked: dict[str, Any] = {}

    def fake(path: str, *args: Any, **options: Any) -> Any:
        asked.update(options, path=path, args=args)
        return datasets.Dataset.from_list([{"problem": f"{i}?", "answer": i} for i in range(9)])

    monkeypatch.setattr(datasets, "load_dataset", fake)
    data = DataConfig(path="owner/name", subset="en", split="test", revision="abc", take=2)
    assert len(load(data, say=quiet)) == 2
    assert asked == {"path": "owner/name", "args": ("en",), "split": "test", "revision": "abc"}


def test_what_the_hub_refuses_names_the_request(monkeypatch: pytest.MonkeyPatch):
    def fake(*_: Any, **__: Any) -> Any:
        raise ValueError("Unknown split \"cots\". Should be one of ['cot'].")

    monkeypatch.setattr(datasets, "load_dataset", fake)
    with pytest.raises(
        ConfigError, match=r"'owner/name' \(subset None, split 'cots', revision None\).*one of \['cot'\]"
    ):
        load(DataConfig(path="owner/name", split="cots"), say=quiet)


# ---- what is refused


@pytest.mark.parametrize(
    ("row", "place", "why"),
    [
        ({"problem": "1+1?", "answer": None}, "column answer", "the answer is missing"),
        ({"problem": "1+1?", "answer": "  "}, "column answer", "the answer is missing"),
        ({"problem": "1+1?"}, "column answer", "the answer is missing"),
        ({"problem": "1+1?", "answer": float("nan")}, "column answer", "the answer is missing"),
        ({"problem": "1+1?", "answer": ["2", "3"]}, "column answer", "the answer is a list of 2"),
        ({"problem": "1+1?", "answer": True}, "column answer", "bool"),
        ({"problem": " ", "answer": "2"}, "column problem", "empty"),
        ({"problem": None, "answer": "2"}, "column problem", "missing"),
        ({"problem": 3, "answer": "2"}, "column problem", "no text"),
        ({"problem": [], "answer": "2"}, "column problem", "list of messages is empty"),
        ({"problem": ["1+1?"], "answer": "2"}, "column problem", "no message"),
        ({"problem": [{"role": "user", "content": ""}], "answer": "2"}, "column problem", "user's message is empty"),
        ({"problem": [{"role": "user", "content": [{"type": "image"}]}], "answer": "2"}, "column problem", "images"),
        ({"problem": [{"role": "system", "content": "x"}, *ASKED], "answer": "2"}, "column problem", "as_is"),
    ],
)  # fmt: skip
def test_a_bad_row_is_named(row: dict[str, Any], place: str, why: str, write: Any):
    path = write([{"problem": "0+0?", "answer": "0"}, row])
    with pytest.raises(DataError, match=rf"1 of 2 rows.*\n.*rows\.jsonl:2, {place}: .*{why}"):
        made(path)


def test_many_bad_rows_make_one_message(write: Any):
    path = write([{"problem": "1+1?", "answer": None}] * 20)
    with pytest.raises(DataError, match="20 of 20 rows") as refusal:
        made(path)
    assert "and 12 more" in str(refusal.value) and len(str(refusal.value)) < 1500


def test_ids_differ_and_none_is_missing(write: Any):
    rows = [{"id": i, "problem": "1+1?", "answer": "2"} for i in (1, 2, 1)]
    with pytest.raises(DataError, match=r"rows\.jsonl:3, column id: '1' is there already at .*rows\.jsonl:1"):
        made(write(rows))
    with pytest.raises(DataError, match=r"rows\.jsonl:2, column id: the id is missing"):
        made(write([rows[0], {"problem": "1+1?", "answer": "2"}]))


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        ({"task": "1+1?", "answer": "2"}, {}, r"no column for the problem \(its columns: task, answer\); accepted are problem"),
        ({"problem": "1+1?", "golden": "2"}, {}, "no column for the answer .* did you mean 'golden'.* accepted are answer, gold"),
        ({"problem": "1+1?", "golden": "2"}, {"answer_column": "goldn"}, "no such column .* did you mean 'golden'"),
        ({"problem": "a?", "question": "b?", "answer": "2"}, {}, r"problem and question .* differ at .*:1; .*problem_column"),
        ({"problem": "a?", "answer": "2", "ground_truth": "3"}, {}, r"answer and ground_truth .* differ at .*:1"),
        ({"problem": "a?", "answer": "2"}, {"solutions": True}, "one column of worked solutions .* found none"),
    ],
)  # fmt: skip
def test_a_column_that_is_missing_or_could_be_two(
    row: dict[str, Any], options: dict[str, Any], message: str, write: Any
):
    path = write([row])
    with pytest.raises(ConfigError, match=message) as refusal:
        made(path, **options)
    assert str(path) in str(refusal.value)


def test_two_columns_that_agree_are_one(write: Any):
    assert made(write([{"problem": "a?", "answer": 2, "ground_truth": "2"}]))[0]["answer"] == "2"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.zip", "PK", r"\.zip are not supported \(archives are not unpacked\)"),
        ("rows.jsonl", "", "has no rows"),
        ("rows.jsonl", "[1, 2]\n", r"rows\.jsonl:1: list instead of a mapping"),
        ("rows.json", '{"a": 1}', "expected a list of rows"),
        ("rows.json", '[{"a": }]', r"rows\.json: cannot be read as JSON"),
        ("rows.csv", "problem,answer\na,b,1\n", "the number of fields differs"),
        ("rows.csv", "problem,answer\na\n", "the number of fields differs"),
        ("rows.parquet", "PAR1 torn", "not a Parquet file"),
    ],
)
def test_files_that_cannot_be_read(name: str, content: str, message: str, tmp_path: Path):
    (tmp_path / name).write_text(content)
    with pytest.raises((ConfigError, DataError), match=message):
        made(tmp_path / name)


def test_bytes_that_are_no_text_name_their_file(tmp_path: Path):
    (tmp_path / "rows.jsonl").write_bytes(b'{"problem": "\xff"}\n')
    with pytest.raises(DataError, match=r"rows\.jsonl:1: not UTF-8 text"):
        made(tmp_path / "rows.jsonl")


def test_a_path_that_is_not_there_names_its_neighbor(write: Any, tmp_path: Path):
    write([{"problem": "1+1?", "answer": "2"}], "train.jsonl")
    with pytest.raises(ConfigError, match=r"did you mean .*train\.jsonl"):
        made(tmp_path / "trian.jsonl")


# ---- golds


def rows_of(golds: list[str]) -> DataRows:
    return DataRows("set", [{} for _ in golds], [f"set:{i}" for i in range(len(golds))])


@pytest.fixture(scope="module")
def pool() -> Any:
    with Pool(workers=1, seconds=20) as made:
        yield made


def test_golds_that_cannot_be_read_are_listed_and_refused_above_one_percent(pool: Pool):
    golds = ["1", r"\frac{1}{2}", "np.arcsin(10/13)", r"2\pi"]
    with pytest.raises(
        DataError, match=r"1 of 4 golds \(25\.0%\).*\n  set:2: 'np\.arcsin.*gold cannot be parsed"
    ) as error:
        check_golds(rows_of(golds), golds, allow_unverifiable=False, say=quiet, pool=pool)
    assert "data.allow_unverifiable true" in str(error.value)
    lines: list[str] = []
    allowed = check_golds(rows_of(golds), golds, allow_unverifiable=True, say=lines.append, pool=pool)
    assert allowed == {2: "gold cannot be parsed"} and "set:2" in lines[0]
    many = golds + ["7"] * 96  # 1 of 100
    assert list(check_golds(rows_of(many), many, say=quiet, pool=pool)) == [2]


def test_a_gold_too_long_to_be_an_answer_is_not_right_against_itself(pool: Pool):
    golds = ["x + " * 400 + "1"]
    found = check_golds(rows_of(golds), golds, allow_unverifiable=True, say=quiet, pool=pool)
    assert "more than 1000 characters" in found[0]


def test_the_golds_are_checked_where_rows_are_loaded(write: Any):
    path = write([{"problem": "a?", "answer": "np.arcsin(10/13)"}])
    with pytest.raises(DataError, match=r"rows\.jsonl:1: 'np\.arcsin"):
        load(DataConfig(path=str(path)), say=quiet)
    assert len(load(DataConfig(path=str(path), allow_unverifiable=True), say=quiet)) == 1


def test_whole_numbers_start_no_worker():
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("a worker was asked")

    pool = Pool(workers=1)
    pool.submit = never  # type: ignore[method-assign]
    assert check_golds(rows_of(["1", "-20", "+3"]), ["1", "-20", "+3"], pool=pool) == {}


# ---- the real sets, where they are


@pytest.mark.skipif("SAGE_RLVR_DATA" not in os.environ, reason="SAGE_RLVR_DATA names no folder with the data sets")
@pytest.mark.parametrize(
    ("name", "count", "unreadable"),
    [
        ("aime_2024_2025", 60, 0),
        ("amc23", 40, 0),
        ("dapo_math_2000", 2000, 0),
        ("math500", 500, 0),
        ("minerva", 272, 6),
    ],
)
def test_the_real_sets_load(name: str, count: int, unreadable: int):
    path = Path(os.environ["SAGE_RLVR_DATA"]) / f"{name}.jsonl"
    data, lines = DataConfig(path=str(path), prompt="boxed"), []
    if unreadable > 0.01 * count:
        with pytest.raises(DataError, match=f"{unreadable} of {count} golds"):
            load(data, say=quiet)
    found = load(replace(data, allow_unverifiable=True), say=lines.append)
    assert found.column_names == ["id", "prompt", "answer"] and len(found) == count
    tokenizer = byte_tokenizer()
    fit_tokenizer(tokenizer, FORMATS["boxed"])
    assert not dry_render(tokenizer, found, FORMATS["boxed"], 1 << 20, say=quiet).too_long
