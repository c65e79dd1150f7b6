"""Which score of a file counts: it is named over the whole file, is the same in all files, covers the completions that it was
computed over, and a completion without one is an error until an option says what becomes of it."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from sage_rlvr.api.compare import compare
from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.readers import Choice, CountTable, read_evaluation
from tests.verdicts.readers.write_logs import LOGS

Rows = list[dict[str, Any]]


def lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def parquet(path: Path, rows: Rows) -> Path:
    pytest.importorskip("pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def table(path: Path, **choice: Any) -> CountTable:
    (found,) = read_evaluation(path, choice=Choice(**choice)).tables
    return found


def refused(*paths: Path, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        compare(*map(str, paths), **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def pass1(*paths: Path, **options: Any) -> list[float]:
    """pass@1 of the control and of the arm."""
    found = compare(*map(str, paths), **options).verdicts["verdicts"][0]["pass"]["1"]
    return [round(found[side]["value"], 3) for side in ("control", "arm")]


def samples(**more: Any) -> Rows:
    """4 problems of 4 samples, 6 of 16 right."""
    return [{"id": f"p{i}", "correct": j < i, **more} for i in range(4) for j in range(4)]


# ------------------------------------------------------------------------------------------------------------------
# by name, over the whole file


def trl(accuracy: list[Any], form: list[Any], **more: Any) -> Rows:
    return [
        {"step": 1, "prompt": f"problem {i // 4}", "completion": f"c{i}", "accuracy": a, "format": f, "advantage": 0.1, **more}
        for i, (a, f) in enumerate(zip(accuracy, form, strict=True))
    ]


@pytest.mark.parametrize("where", [[0, 1, 2, 3], [6], range(16), []])
def test_a_reward_is_a_candidate_wherever_it_is_null(where: list[int], tmp_path: Path) -> None:
    """trl writes null for a reward function that returned None."""
    accuracy = [None if i in where else float(i % 2) for i in range(16)]
    path = parquet(tmp_path / "a.parquet", trl(accuracy, [1.0] * 16))
    assert r"2 scores (accuracy, format)" in refused(path, path)
    assert table(path, wanted=("format",)).c.sum() == 16
    if where:
        with pytest.raises(DataError, match=rf"row {where[0] + 1}: accuracy = None: no score \({len(where)} completions"):
            table(path, wanted=("accuracy",))
    assert table(path, wanted=("accuracy",), unscored="wrong").c.sum() == sum(x or 0 for x in accuracy)


def test_scores_inside_an_object_and_in_some_rows_are_candidates(tmp_path: Path) -> None:
    rows: Rows = [{"input": f"q{i}", "output": "t", "score": 1, "step": 1} for i in range(4)]
    nested = lines(tmp_path / "a.jsonl", [*rows[:3], rows[3] | {"metrics": {"acc": 0, "note": "text"}}])
    assert "2 scores (score, metrics/acc)" in refused(nested, nested)
    assert table(nested, wanted=("metrics/acc",), unscored="omit").problems == ("q3",)
    assert table(lines(tmp_path / "b.jsonl", [row | {"pred": "4"} for row in rows])).c.sum() == 4  # text is no score


@pytest.mark.parametrize("name", ["correct", "score"])
def test_a_name_is_used_in_every_file_or_refused_there(name: str, tmp_path: Path) -> None:
    both = lines(tmp_path / "both.jsonl", [row | {"score": int(not row["correct"])} for row in samples()])
    lone = lines(tmp_path / "lone.jsonl", samples())
    if name == "score":
        assert "lone.jsonl: no score has the name score; the file has 1 scores (correct)" in refused(both, lone, correct=name)
        assert "lone.jsonl: no score" in refused(lone, both, correct=name)
    else:
        assert pass1(both, lone, correct=name) == [0.375, 0.375]
    some = lines(tmp_path / "some.jsonl", [r if i != 5 else {"id": r["id"], "correct": True} for i, r in enumerate(
        json.loads(line) for line in both.read_text().splitlines())])  # fmt: skip
    with pytest.raises(DataError, match=r"some\.jsonl:6: score = None: no score \(1 completions in 1 of 4 problems"):
        table(some, wanted=("score",))


def test_counts_have_no_other_score(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", [{"id": "p", "n": 4, "c": 2}])
    assert "a.jsonl: no score has the name accuracy; the file has 1 scores (correct)" in refused(path, path, correct="accuracy")


def test_both_sides_count_the_same_score(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (LOGS / "lm_eval.jsonl").read_text().splitlines()]
    strict, loose = ([row for row in rows if row["filter"] == name] for name in ("whole", "number"))
    a, b = lines(tmp_path / "a.jsonl", strict), lines(tmp_path / "b.jsonl", loose)
    said = refused(a, b)
    assert "'exact_match,whole' in a" in said and "'exact_match,number' in b" in said and "--correct" in said
    assert pass1(a, b, correct=["exact_match,whole", "exact_match,number"]) == [0.0, 0.5]
    own, graded = lines(tmp_path / "own.jsonl", samples()), lines(tmp_path / "graded.jsonl", [
        {"id": row["id"], "score": int(row["correct"])} for row in samples()])  # fmt: skip
    assert "'correct' in own" in refused(own, graded) and pass1(own, graded, correct=["correct", "score"]) == [0.375, 0.375]
    counts = lines(tmp_path / "counts.jsonl", [{"id": f"p{i}", "n": 4, "c": i} for i in range(4)])
    assert pass1(own, counts) == [0.375, 0.375]  # c is a number of correct completions


# ------------------------------------------------------------------------------------------------------------------
# completions without a score


@pytest.mark.parametrize("value", [None, float("nan")])
def test_completions_without_a_score(value: Any, tmp_path: Path) -> None:
    """p2 has one without; p0 to p3 have 0 to 3 right of 4."""
    a = lines(tmp_path / "a.jsonl", samples())
    b = lines(tmp_path / "b.jsonl", [row | {"correct": value} if i == 8 else row for i, row in enumerate(samples())])
    said = refused(a, b)
    assert "b.jsonl:9: correct = " in said and "1 completions in 1 of 4 problems" in said
    assert "--unscored wrong" in said and "--unscored omit" in said
    assert pass1(a, b, unscored="wrong") == [0.375, 0.312]
    assert pass1(a, b, unscored="omit") == pass1(b, a, unscored="omit") == [0.333, 0.333]  # (0 + 1 + 3) / 12, both without p2
    notes = compare(str(a), str(b), unscored="omit").verdicts["notes"]
    assert any("1 problem left out on both sides" in note and "1 in b" in note for note in notes)
    none = lines(tmp_path / "none.jsonl", [row | {"correct": value} for row in samples()])
    assert "leaves no problem" in refused(a, none, unscored="omit")


def test_counts_without_a_score(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", [{"id": "p", "n": 4, "c": None}, {"id": "q", "n": 4, "c": 2}])
    assert "a.jsonl:1: c = None: no score (4 completions in 1 of 2" in refused(path, path)
    assert table(path, unscored="wrong").c.tolist() == [0, 2] and table(path, unscored="omit").problems == ("q",)


def test_errors_that_inspect_tolerated(tmp_path: Path) -> None:
    log = json.loads((LOGS / "inspect_ai.json").read_text())
    log["samples"][0]["scores"] = None
    log["samples"][1]["scores"]["match"]["value"] = float("nan")
    (path := tmp_path / "a.json").write_text(json.dumps(log))
    with pytest.raises(DataError, match=r"match = None: no score \(2 completions"):
        table(path, wanted=("match",))
    assert table(path, wanted=("match",), unscored="wrong").n.sum() == 16


# ------------------------------------------------------------------------------------------------------------------
# what a score covers


@pytest.mark.parametrize(
    ("name", "n"),
    [("avg@n:n=4", 4), ("avg@n:n=2", 2), ("pass@k:k=1&n=4", 4), ("pass@k:n=4&k=1", 4), ("pass@1:4_samples", 4), ("pass@k:k=1", 8)],
)
def test_a_metric_covers_the_completions_that_it_names(name: str, n: int, tmp_path: Path) -> None:
    rows = [
        {"doc": {"id": str(i), "query": f"q{i}"}, "model_response": {"text": ["t"] * 8}, "metric": {name: 0.5}} for i in range(3)
    ]
    found = table(parquet(tmp_path / "a.parquet", rows))
    assert (found.n.tolist(), found.c.tolist()) == ([n] * 3, [n // 2] * 3)


@pytest.mark.parametrize("name", ["avg@n:n=16", "avg@n", "maj@n:n=8", "pass@k:k=2&n=8", "em"])
def test_a_metric_over_other_completions_is_refused(name: str, tmp_path: Path) -> None:
    row = {"doc": {"id": "0", "query": "q"}, "model_response": {"text": ["t"] * 8}, "metric": {name: 1.0}}
    path = parquet(tmp_path / "a.parquet", [row])
    assert name in refused(path, path) and "a.parquet, row 1" in refused(path, path)


def test_pass_at_1_over_all_repeats_is_a_count(tmp_path: Path) -> None:
    """HumanEval with repeats; after take_first the metric is over one of them."""
    row = json.loads((LOGS / "lm_eval_repeats.jsonl").read_text().splitlines()[0])
    row |= {"metrics": ["pass@1"], "pass@1": 0.75, "filtered_resps": [["a", "b", "c", "d"]]}
    found = table(lines(tmp_path / "a.jsonl", [row]))
    assert (found.n.tolist(), found.c.tolist()) == ([4], [3])
    path = lines(tmp_path / "b.jsonl", [row | {"filtered_resps": ["a"]}])
    assert "4 completions and one pass@1" in refused(path, path)


def test_predictions_without_scores_are_named(tmp_path: Path) -> None:
    row = json.loads((LOGS / "lm_eval.jsonl").read_text().splitlines()[0]) | {"metrics": ["bypass"], "bypass": 999}
    path = lines(tmp_path / "a.jsonl", [row])
    assert "--predict_only" in refused(path, path) and "--right-from" not in refused(path, path)


def test_every_document_has_the_score(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (LOGS / "lm_eval.jsonl").read_text().splitlines()]
    path = lines(tmp_path / "a.jsonl", [row for row in rows if (row["doc_id"], row["filter"]) != (2, "number")])
    assert "doc_id = 2 has no exact_match,number" in refused(path, path, correct="exact_match,number")


# ------------------------------------------------------------------------------------------------------------------
# one id, one problem


@pytest.mark.parametrize("field", ["gold", "prompt"])
def test_one_id_with_two_values_is_refused(field: str, tmp_path: Path) -> None:
    rows = samples(gold="1", prompt="q")
    rows[9][field] = "other"
    path = lines(tmp_path / "a.jsonl", rows)
    assert f"a.jsonl:10: {field} = 'other': an earlier row of problem 'p2' has" in refused(path, path)


def test_subtasks_in_one_file_are_refused(tmp_path: Path) -> None:
    """Their ids, targets and prompts may be equal, but not their documents."""
    row = json.loads((LOGS / "lm_eval.jsonl").read_text().splitlines()[0]) | {"filter": "none"}
    other = row | {"doc": row["doc"] | {"problem": "zwei und zwei"}}
    path = lines(tmp_path / "a.jsonl", [row, other])
    assert "a.jsonl:2: doc_id = 0: another document than in row 1" in refused(path, path)


def test_prompts_of_two_files(tmp_path: Path) -> None:
    """Two templates differ on all problems; ids of different problems on some, or on those of other ids."""

    def file(name: str, prompts: list[str]) -> Path:
        return lines(tmp_path / name, [row | {"prompt": prompts[int(row["id"][1])]} for row in samples()])

    a = file("a.jsonl", ["q0", "q1", "q2", "q3"])
    template = file("template.jsonl", ["Solve q0", "Solve q1", "Solve q2", "Solve q3"])
    assert any("another template" in note for note in compare(str(a), str(template)).verdicts["notes"])
    for prompts in (["q1", "q2", "q3", "q4"], ["q0", "q1", "q2", "other"]):
        assert "the ids mean different problems" in refused(a, file("b.jsonl", prompts))
    with pytest.raises(DataError, match="joined by a comma are training seeds"):
        compare({"base": [str(a), str(template)], "rl": [str(a), str(template)]})


def test_a_sample_of_inspect_occurs_once(tmp_path: Path) -> None:
    log = json.loads((LOGS / "inspect_ai.json").read_text())
    log["samples"].append(log["samples"][0])
    (path := tmp_path / "a.json").write_text(json.dumps(log))
    with pytest.raises(DataError, match="epoch 1 occurs twice"):
        table(path, wanted=("match",))


# ------------------------------------------------------------------------------------------------------------------
# a score that cannot be read is a candidate all the same


@pytest.mark.parametrize("name", ["accuracy", "is_correct", "isCorrect", "Correct", "exact_match", "pass@1"])
@pytest.mark.parametrize("beside", ["score", "correct"])
def test_a_second_score_of_own_rows_is_named(name: str, beside: str, tmp_path: Path) -> None:
    if (beside, name) == ("correct", "Correct"):
        pytest.skip("two spellings of one column are another error")
    rows = [{"id": row["id"], beside: int(row["correct"]), name: int(i % 2)} for i, row in enumerate(samples())]
    path = lines(tmp_path / "a.jsonl", rows)
    assert f"a.jsonl: 2 scores ({beside}, {name}); name the one that stands for correct" in refused(path, path)
    assert table(path, wanted=(beside,)).c.sum() == 6 and table(path, wanted=(name,)).c.sum() == 8
    text = lines(tmp_path / "b.jsonl", [row | {name: str(bool(row[name]))} for row in rows])
    assert f"2 scores ({beside}, {name})" in refused(text, text)
    assert f"b.jsonl:1: {name} = 'False': not a number" in refused(text, text, correct=name)


def test_other_columns_of_own_rows_are_no_scores(tmp_path: Path) -> None:
    rows = [row | {"length": 3, "source_dataset": "x", "passage": "p", "logprob": -1.5} for row in samples()]
    assert table(lines(tmp_path / "a.jsonl", rows)).c.sum() == 6
    alone = [{"id": row["id"], "text": f"t{i}", "accuracy": int(row["correct"])} for i, row in enumerate(samples())]
    assert table(lines(tmp_path / "b.jsonl", alone)).c.sum() == 6  # the only one


@pytest.mark.parametrize("value", ["1.0", "True", [1], [1.0, 0.0]])
def test_scores_that_are_no_plain_numbers_are_candidates(value: Any, tmp_path: Path) -> None:
    dump: Rows = [{"input": f"q{i}", "output": "t", "score": 1, "step": 1, "acc": value, "pred": "4"} for i in range(4)]
    verl = lines(tmp_path / "verl.jsonl", dump)
    assert "2 scores (score, acc)" in refused(verl, verl)
    assert "verl.jsonl:1: acc = " in refused(verl, verl, correct="acc")
    logged: Rows = [row | {"accuracy_reward": value} for row in trl([1.0] * 4, [1.0] * 4)]
    path = parquet(tmp_path / "trl.parquet", logged)
    assert "3 scores (accuracy, format, accuracy_reward)" in refused(path, path)
    rows: Rows = [
        {"doc": {"id": str(i), "query": f"q{i}"}, "model_response": {"text": ["t"]}, "metric": {"em": 1.0, "avg@n": value}}
        for i in range(3)
    ]
    path = parquet(tmp_path / "lighteval.parquet", rows)
    assert "2 metrics (em, avg@n)" in refused(path, path)


def test_two_scores_under_one_name_are_refused(tmp_path: Path) -> None:
    row: dict[str, Any] = {"input": "q", "output": "t", "score": 1, "step": 1}
    for name, rows in {"one": [row | {"m/acc": 1, "m": {"acc": 0}}], "two": [row | {"m/acc": 1}, row | {"m": {"acc": 0}}]}.items():
        path = lines(tmp_path / f"{name}.jsonl", rows)
        for options in ({}, {"correct": "m/acc"}):
            assert f"{name}.jsonl: two scores have the name 'm/acc' ('m/acc' and 'm' > 'acc')" in refused(path, path, **options)
    log = json.loads((LOGS / "inspect_ai.json").read_text())
    for sample in log["samples"]:
        sample["scores"] = {"x/a": {"value": "C"}, "x": {"value": {"a": "I"}}}
    (path := tmp_path / "a.json").write_text(json.dumps(log))
    assert "two scores have the name 'x/a'" in refused(path, path, correct="x/a")


# ------------------------------------------------------------------------------------------------------------------
# logs joined with themselves, other documents, numbers of completions that are not named


def first_rows() -> Rows:
    """The rows of a log of lm-eval after one filter."""
    rows = [json.loads(line) for line in (LOGS / "lm_eval.jsonl").read_text().splitlines()]
    return [row for row in rows if row["filter"] == "number"]


def test_a_log_that_was_joined_with_itself(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", first_rows() * 2)
    assert "a.jsonl:5: doc_id = 0 after the filter number is also in row 1: one log has it once" in refused(path, path)
    own = [row | {"text": f"{row['id']} says {i % 4}"} for i, row in enumerate(samples())]
    twice = lines(tmp_path / "own.jsonl", [row for row in own if row["text"].endswith("0")] * 2)  # 4 problems of 2 samples
    other = lines(tmp_path / "other.jsonl", own)
    notes = compare(str(twice), str(other)).verdicts["notes"]
    assert "the samples of each of 4 problems are one and the same text" in notes[0]
    assert not any("one and the same text" in note for note in compare(a=str(other), b=str(other)).verdicts["notes"])


def test_other_documents_under_equal_ids(tmp_path: Path) -> None:
    """Targets and prompts may be equal, or another template's."""
    rows = first_rows()
    a = lines(tmp_path / "a.jsonl", rows)
    for name, where in (("some", [2]), ("all", range(4))):
        other = [row | {"doc": row["doc"] | {"problem": f"other {i}"}} if i in where else row for i, row in enumerate(rows)]
        b = lines(tmp_path / f"{name}.jsonl", other)
        said = refused(a, b)
        assert "has problem = '" in said and f"as {len(where)} of 4 documents differ there: the ids mean different" in said
    template = [row | {"doc": row["doc"] | {"query": f"Please: {i}"}} for i, row in enumerate(rows)]
    plain = [row | {"doc": row["doc"] | {"query": f"{i}"}} for i, row in enumerate(rows)]
    files = lines(tmp_path / "template.jsonl", template), lines(tmp_path / "plain.jsonl", plain)
    assert pass1(*files) == [0.5, 0.5] and pass1(a, files[0]) == [0.5, 0.5]


def test_a_mean_that_names_no_number_of_completions(tmp_path: Path) -> None:
    def file(name: str, values: list[float]) -> Path:
        rows: Rows = [
            {"doc": {"id": str(i), "query": f"q{i}"}, "model_response": {"text": ["t"] * 16}, "metric": {"pass@1": value}}
            for i, value in enumerate(values)
        ]
        return parquet(tmp_path / name, rows)

    some = file("a.parquet", [0.25, 0.5, 0.0])
    said = refused(some, some)
    assert "a.parquet, row 1: 16 completions and pass@1" in said and "multiples of 1/4" in said
    assert table(file("b.parquet", [0.25, 0.5, 0.0625])).n.tolist() == [16] * 3  # 1/16 is none of fewer


def test_pass_at_1_is_over_the_completions_that_the_filter_kept(tmp_path: Path) -> None:
    row = json.loads((LOGS / "lm_eval_repeats.jsonl").read_text().splitlines()[0]) | {"metrics": ["pass@1"], "pass@1": 0.5}
    found = table(lines(tmp_path / "a.jsonl", [row | {"filtered_resps": [["a", "b"]]}]))
    assert (found.n.tolist(), found.c.tolist()) == ([2], [1])
    path = lines(tmp_path / "b.jsonl", [row | {"filtered_resps": ["a"]}])
    assert "4 completions and one pass@1" in refused(path, path) and "--judge boxed" not in refused(path, path)


def test_golds_are_compared_as_values(tmp_path: Path) -> None:
    def file(name: str, gold: Any) -> Path:
        return lines(tmp_path / name, samples(gold=gold))

    whole, number, none = file("a.jsonl", "18"), file("b.jsonl", 18.0), file("c.jsonl", None)
    assert pass1(whole, number) == pass1(whole, none) == pass1(file("d.jsonl", "None"), none) == [0.375, 0.375]
    assert "has the gold '18' in a" in refused(whole, file("e.jsonl", 18.5))
    rows = first_rows()
    null = lines(tmp_path / "null.jsonl", [row | {"target": None} for row in rows])
    assert table(null).golds == {} and pass1(null, lines(tmp_path / "log.jsonl", rows)) == [0.5, 0.5]


def test_a_row_without_a_temperature_among_others(tmp_path: Path) -> None:
    rows = samples(temperature=0.7)
    del rows[4]["temperature"]
    path = lines(tmp_path / "a.jsonl", rows)
    assert "a.jsonl:5: no temperature, and T = 0.7 in " in refused(path, path)
    log = first_rows()
    heated = [json.loads(json.dumps(row)) for row in log]
    for row in log:
        del row["arguments"]["gen_args_0"]["arg_1"]["temperature"]
    path = lines(tmp_path / "b.jsonl", [*heated[:2], log[2], heated[3]])
    assert "b.jsonl:3: no temperature, and T = 0.7 in " in refused(path, path)
    both = lines(tmp_path / "both.jsonl", [*samples(arm="x", temperature=1.0), *samples(arm="y")])
    assert compare(str(both)).verdicts["verdicts"][0]["temperature"] == 1.0  # another set of samples


# ------------------------------------------------------------------------------------------------------------------
# keys, columns and members occur once


GOOD = '{"id": "p", "n": 8, "c": 2}'
TWICE = [
    ("a.jsonl", f'{GOOD}\n{{"id": "q", "n": 8, "c": 2, "c": 8}}\n', "a.jsonl:2: cannot be read as JSON: the key 'c' occurs 2"),
    ("a.jsonl", f'{GOOD}\n{{"id": "q", "n": 8, "c": 2, "c" : 8}}\n', "a.jsonl:2: cannot be read as JSON: the key 'c' occurs 2"),
    ("a.jsonl", f'{GOOD}\n{{"id": "q", "n": 8, "c": 2, "\\u0063": 8}}\n', "a.jsonl:2: cannot be read as JSON: the key 'c' occurs"),
    ("a.jsonl", '{"id": "q", "n": 8, "c": 2, "keys": {"a": 1, "a": 1}}\n', "a.jsonl:1: cannot be read as JSON: the key 'a' occurs"),
    ("a.json", f'[{GOOD},\n{{"id": "q", "n": 8, "c": 2, "c": 8}}]', "a.json:2: cannot be read as JSON: the key 'c' occurs 2"),
    ("a.csv", "id,n,c,c\np,8,2,8\n", "a.csv:1: 2 columns have the name 'c'"),
    ("a.csv", 'id,n,c,keys\np,8,2,"{""a"":1,""a"":1}"\n', "a.csv:2: keys: the key 'a' occurs 2"),
    ("a.csv", "id,n,c,C\np,8,2,8\n", "a.csv:2: columns 'c' and 'C'"),
    ("a.csv", "id,n,c, c\np,8,2,8\n", "a.csv:2: columns 'c' and ' c'"),
    ("a.jsonl", '{"id": "q", "correct": true, "Correct": false}\n', "a.jsonl, row 1: columns 'correct' and 'Correct'"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "said"), TWICE)
def test_what_occurs_twice_is_refused(name: str, text: str, said: str, tmp_path: Path) -> None:
    (path := tmp_path / name).write_text(text)
    assert said in refused(path, path)


def test_a_column_of_parquet_and_a_member_of_an_archive_occur_once(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    columns = [pa.array(["p"]), pa.array([8]), pa.array([2]), pa.array([8])]
    pq.write_table(pa.Table.from_arrays(columns, names=["id", "n", "c", "c"]), path := tmp_path / "a.parquet")
    assert "2 columns have the name 'c'" in refused(path, path)
    log = json.loads((LOGS / "inspect_ai.json").read_text())
    with zipfile.ZipFile(archived := tmp_path / "a.eval", "w") as archive:
        archive.writestr("header.json", json.dumps({"status": "success"}))
        with pytest.warns(UserWarning, match="Duplicate name"):
            for _ in range(2):
                archive.writestr("samples/1_epoch_1.json", json.dumps(log["samples"][0]))
    with pytest.raises(DataError, match=r"the archive has 'samples/1_epoch_1\.json' more than once"):
        table(archived)


@pytest.mark.parametrize("keys", [{"a": True}, {"a": 0}, {"a": 1.0}, ["a"]])
def test_answers_are_counted_by_whole_numbers(keys: Any, tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", [{"id": "p", "n": 8, "c": 2, "keys": keys}, {"id": "q", "n": 8, "c": 2}])
    assert "a.jsonl:1: keys = " in refused(path, path)


# ------------------------------------------------------------------------------------------------------------------
# fields of logs


def inspect_log(change: dict[str, Any]) -> str:
    log = json.loads((LOGS / "inspect_ai.json").read_text())
    log["samples"][2] |= change
    return json.dumps(log)


@pytest.mark.parametrize("field", ["id", "epoch", "target", "scores", "output", "limit"])
@pytest.mark.parametrize("value", [2.5, True, "x", [3], {"a": 1}])
def test_a_field_of_another_type_is_read_or_named(field: str, value: Any, tmp_path: Path) -> None:
    """No type of a field ends in another error than one that names the row and the field."""
    (path := tmp_path / "a.json").write_text(inspect_log({field: value}))
    try:
        table(path, wanted=("match",))
    except DataError as error:
        assert ("row 3: " in str(error) and field in str(error)) or ("gold = " in str(error) and field == "target")
        return
    assert (field, type(value)) in {("id", str), ("target", str), ("limit", dict), ("output", dict)}


@pytest.mark.parametrize("name", ["lm_eval.jsonl", "verl.jsonl", "trl.parquet", "lighteval.parquet", "lighteval_avg.parquet"])
@pytest.mark.parametrize("value", [None, 2.5, True, "x", [3], [["a"]], {"a": 1}, "gone"])
def test_any_field_of_any_log(name: str, value: Any, tmp_path: Path) -> None:
    """Each field of the second row in turn: the file is read, or one sentence names the file."""
    if name.endswith(".parquet"):
        pq = pytest.importorskip("pyarrow.parquet")
        rows = pq.read_table(LOGS / name).to_pylist()
    else:
        rows = [json.loads(line) for line in (LOGS / name).read_text().splitlines()]
    chosen = {"lm_eval.jsonl": "exact_match,number", "verl.jsonl": "acc", "trl.parquet": "correct", "lighteval.parquet": "em"}
    for field in rows[1]:
        changed = {key: one for key, one in rows[1].items() if key != field} | ({} if value == "gone" else {field: value})
        path = lines(tmp_path / "a.jsonl", [rows[0], changed, *rows[2:]])
        try:
            read_evaluation(path, choice=Choice(tuple(filter(None, [chosen.get(name)]))))
        except DataError as error:
            assert "a.jsonl" in str(error) and "\n" not in str(error)


# ------------------------------------------------------------------------------------------------------------------
# sizes


def test_sizes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With small limits: the program's own take 256 MiB to reach."""
    assert "n = 1000000000: more than 1,000,000 samples" in refused(
        *[lines(tmp_path / "n.jsonl", [{"id": "p", "n": 10**9, "c": 5}])] * 2
    )
    for name in ("DOCUMENT", "VALUES", "BLANK", "ROWS"):
        monkeypatch.setattr(f"sage_rlvr.verdicts.readers.file.{name}", 1000)
    monkeypatch.setattr("sage_rlvr.verdicts.readers.evaluation.ROWS", 1000)
    monkeypatch.setattr("sage_rlvr.safe_io.UNPACKED", 100_000)
    row = b'{"id": "p", "correct": true}\n'
    for name, data, said in (
        ("document.json.gz", b"[\n" + b",\n".join([row.strip()] * 100) + b"]", "a JSON document of more than 1,000 bytes"),
        ("values.jsonl.gz", row + b'{"id": "p", "x": [' + b"[]," * 2000 + b"[]]}\n", "more than 1,000 values in one JSON text"),
        ("rows.jsonl.gz", row * 2000, "more than 1,000 rows"),
        ("rows.csv.gz", b"id,correct\n" + b"p,1\n" * 2000, "more than 1,000 rows"),
        ("blank.jsonl.gz", b"\n" * 5000 + row, "more than 1,000 blank lines"),
        ("between.jsonl.gz", row + b" \n" * 5000 + row, "more than 1,000 blank lines"),
        ("bytes.jsonl.gz", b'{"id": "p", "correct": true, "text": "' + b"x" * 10**7 + b'"}\n' + row, "unpacks to more than"),
    ):
        (path := tmp_path / name).write_bytes(gzip.compress(data))
        assert said in refused(path, path), name


@pytest.mark.parametrize("text", [b"id,n,c\np0,8,2\rp1,8,3\n", b"id,n,c\rp0,8,2\rp1,8,3\r", b"id,n,c\np\xff,8,2\n"])
def test_a_csv_that_cannot_be_read_names_its_line(text: bytes, tmp_path: Path) -> None:
    (path := tmp_path / "a.csv").write_bytes(text)
    assert "a.csv:" in refused(path, path)


def test_a_small_archive_that_unpacks_to_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sage_rlvr.safe_io.UNPACKED", 100_000)
    with zipfile.ZipFile(path := tmp_path / "a.eval", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", "{}")
        archive.writestr("samples/1.json", " " * 10**6)
    assert "the archive unpacks to 1,000,002 bytes" in refused(path, path)


# ------------------------------------------------------------------------------------------------------------------
# advice


def test_a_missing_file_is_named_whatever_the_options(tmp_path: Path) -> None:
    for options in ({"correct": "x"}, {"right_from": 0.5}, {"unscored": "wrong"}, {"samples": 4}, {"chance": 0.5}):
        assert "nowhere.jsonl: no such file or folder" in refused(Path("nowhere.jsonl"), Path("nor_here.jsonl"), **options)


def test_the_keys_of_a_document_that_nobody_knows_are_named(tmp_path: Path) -> None:
    (path := tmp_path / "results.json").write_text('{"results": {}, "config": {}}')
    assert "no reader knows a file with the keys config, results" in refused(path, path)


# ------------------------------------------------------------------------------------------------------------------
# scores of own rows: inside objects, of other names, equal to the one that counts


def beside(path: Path, extra: Any) -> Path:
    """Samples with another column or object, made of whether the row is correct and its number."""
    return lines(path, [row | extra(bool(row["correct"]), i) for i, row in enumerate(samples())])


def test_a_score_inside_an_object_of_own_rows_is_a_candidate(tmp_path: Path) -> None:
    path = beside(tmp_path / "a.jsonl", lambda right, i: {"metrics": {"accuracy": i % 2, "length": 7}})
    assert "2 scores (correct, metrics/accuracy)" in refused(path, path)
    assert table(path, wanted=("metrics/accuracy",)).c.sum() == 8 and table(path, wanted=("correct",)).c.sum() == 6
    assert "1 scores" not in refused(path, path, correct="metrics/length")  # any number can be named
    lone = lines(tmp_path / "b.jsonl", [{"id": row["id"], "text": "t", "m": {"acc": row["correct"]}} for row in samples()])
    assert table(lone).c.sum() == 6  # the only one


@pytest.mark.parametrize(
    "name",
    ["ISCORRECT", "is_equiv", "verified", "resolved", "valid", "ok", "label", "judge", "result", "outcome", "win", "f1"],
)
def test_other_names_of_scores(name: str, tmp_path: Path) -> None:
    other = beside(tmp_path / "a.jsonl", lambda right, i: {name: i % 2})
    assert f"2 scores (correct, {name})" in refused(other, other)
    assert table(other, wanted=(name,)).c.sum() == 8
    same = beside(tmp_path / "b.jsonl", lambda right, i: {name: float(right)})
    assert table(same).c.sum() == 6  # one score under two names


@pytest.mark.parametrize("value", ["gpt-4", 72, [1]])
@pytest.mark.parametrize("name", ["label", "judge", "result", "outcome", "valid"])
def test_a_name_that_may_mean_something_else_needs_truth_values(name: str, value: Any, tmp_path: Path) -> None:
    path = beside(tmp_path / "a.jsonl", lambda right, i: {name: value if i else 1})
    assert table(path).c.sum() == 6
    lone = lines(tmp_path / "b.jsonl", [{"id": "p", "text": "t", name: 1}])
    assert "nothing says whether the row is correct" in refused(lone, lone)


def test_two_scores_in_different_rows_are_two(tmp_path: Path) -> None:
    rows = [{"id": row["id"], "text": "t", ("accuracy", "reward")[i % 2]: 1} for i, row in enumerate(samples())]
    path = lines(tmp_path / "a.jsonl", rows)
    assert "2 scores (accuracy, reward)" in refused(path, path)
    path = lines(tmp_path / "b.jsonl", [{"id": "p", "score": 1}, {"id": "p", "reward": 0}])
    assert "2 scores (score, reward)" in refused(path, path)


def test_columns_of_logs_that_are_equal_in_all_rows_are_one_score(tmp_path: Path) -> None:
    """verl writes the reward beside the score where a reward function returns both."""
    dump: Rows = [{"input": f"q{i}", "output": "t", "score": i % 2, "step": 1, "reward": float(i % 2)} for i in range(4)]
    equal = lines(tmp_path / "a.jsonl", dump)
    assert table(equal).c.sum() == 2 and table(equal, wanted=("reward",)).c.sum() == 2
    differs = lines(tmp_path / "b.jsonl", [*dump[:3], dump[3] | {"reward": 0.0}])
    assert "2 scores (score, reward)" in refused(differs, differs)


@pytest.mark.parametrize("value", ["Infinity", "-Infinity"])
def test_an_infinite_score_is_no_score(value: str, tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", ['{"id": "p", "score": 1}', f'{{"id": "p", "score": {value}}}'])
    with pytest.raises(DataError, match=r"a\.jsonl:2: score = -?inf: no score"):
        table(path, right_from=0.5)
    assert table(path, right_from=0.5, unscored="wrong").c.tolist() == [1]


def test_a_sample_that_inspect_invalidated_has_no_score(tmp_path: Path) -> None:
    log = json.loads((LOGS / "inspect_ai.json").read_text())
    log["samples"][2]["invalidation"] = {"timestamp": "2026-01-01", "author": "me", "reason": "tool broke"}
    (path := tmp_path / "a.json").write_text(json.dumps(log))
    with pytest.raises(DataError, match=r"row 3: match = None: no score \(1 completions"):
        table(path, wanted=("match",))


def test_seeds_with_one_sample_of_each_problem_may_be_of_sampling(tmp_path: Path) -> None:
    def note(n: int) -> bool:
        rows = [{"id": f"p{i}", "correct": (i + j + s) % 3 == 0, "seed": s} for s in range(8) for i in range(20) for j in range(n)]
        path = lines(tmp_path / f"{n}.jsonl", rows)
        other = lines(tmp_path / f"other{n}.jsonl", [row | {"correct": (i * 7) % 5 == 0} for i, row in enumerate(rows)])
        return any("8 training seeds with one sample of each" in one for one in compare(str(path), str(other)).verdicts["notes"])

    assert note(1) and not note(2)


# ------------------------------------------------------------------------------------------------------------------
# sound inputs


def test_files_without_a_common_task_name_both(tmp_path: Path) -> None:
    a, b = (lines(tmp_path / f"{task}.jsonl", samples(task=task)) for task in ("aime", "math"))
    assert "no task in common: 'aime' (aime), 'math' (math); evaluate both on one task" in refused(a, b)
    both = lines(tmp_path / "both.jsonl", [*samples(task="aime"), *samples(task="math")])
    assert len(compare(str(both), str(a)).verdicts["verdicts"]) == 1  # one in common


@pytest.mark.parametrize(
    ("one", "other"), [("18", "18.0"), ("0", "0 "), ("0", "$0$"), (18, "18.00"), ("1,000", "1000"), ("x", "$x$")]
)
def test_golds_of_one_meaning_are_one(one: Any, other: Any, tmp_path: Path) -> None:
    a, b = (lines(tmp_path / f"{name}.jsonl", samples(gold=gold)) for name, gold in (("a", one), ("b", other)))
    assert pass1(a, b) == [0.375, 0.375]
    rows = samples(gold=one)
    rows[1]["gold"] = other
    assert table(lines(tmp_path / "c.jsonl", rows)).n.sum() == 16
    assert "has the gold" in refused(a, lines(tmp_path / "d.jsonl", samples(gold="18.5")))


def test_an_empty_target_of_scored_rows_is_no_gold(tmp_path: Path) -> None:
    """Tasks such as IFEval have no target."""
    found = table(lines(tmp_path / "a.jsonl", [row | {"target": ""} for row in first_rows()]))
    assert found.golds == {} and len(found.problems) == 4


@pytest.mark.parametrize(("right", "wrong"), [("yes", "no"), ("true", "False"), ("1", "0"), ("1.0", "0.0"), ("C", "I")])
def test_texts_that_inspect_takes_for_numbers(right: str, wrong: str, tmp_path: Path) -> None:
    log = json.loads((LOGS / "inspect_ai.json").read_text())
    for i, sample in enumerate(log["samples"]):
        sample["scores"] = {"match": {"value": wrong if i else right}}
    (path := tmp_path / "a.json").write_text(json.dumps(log))
    assert table(path).c.sum() == 1


def test_truth_values_and_separators_of_a_csv(tmp_path: Path) -> None:
    (path := tmp_path / "a.csv").write_text("id,correct\np,TRUE\np,FALSE\n")
    assert table(path).c.tolist() == [1]
    for mark, name in ((";", ";"), ("\t", "a tab")):
        path.write_text(f"id{mark}correct\np{mark}1\n")
        assert f"a.csv:1: the cells are separated by {name}; save the file as CSV with commas" in refused(path, path)


def test_n_beside_a_score_may_number_the_samples(tmp_path: Path) -> None:
    found = table(lines(tmp_path / "a.jsonl", [row | {"n": i % 4} for i, row in enumerate(samples())]))
    assert (found.n.tolist(), found.c.tolist()) == ([4] * 4, [0, 1, 2, 3])


def test_a_prompt_of_messages_is_that_of_its_text(tmp_path: Path) -> None:
    a = lines(tmp_path / "a.jsonl", [row | {"prompt": f"q {row['id']}"} for row in samples()])
    b = lines(tmp_path / "b.jsonl", [row | {"prompt": [{"role": "user", "content": f"q {row['id']}"}]} for row in samples()])
    assert not any("template" in note for note in compare(str(a), str(b)).verdicts["notes"])
