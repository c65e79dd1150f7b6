"""`compare` on what people have: columns of other names, texts without scores, one file, other problems on one side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sage_rlvr.api.compare import compare
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.verdicts.readers import Choice, read_evaluation
from sage_rlvr.verdicts.readers.named import fields_of
from sage_rlvr.verdicts.readers.rows import CountTable
from tests.cli.test_compare_rows import PUBLISHED, counts, run, samples, write
from tests.verdicts.readers.write_logs import LOGS, RIGHT, answer

Capture = pytest.CaptureFixture[str]
FOUR = {problem: sum(right) for problem, right in RIGHT.items()}


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")


def table(path: str, fields: str) -> CountTable:
    (found,) = read_evaluation(Path(path), choice=Choice(fields=fields_of(fields))).tables
    return found


def solved(found: CountTable) -> dict[str, int]:
    return dict(zip(found.problems, found.c.tolist(), strict=True))


def foreign(problem: str, right: list[int]) -> list[dict[str, Any]]:
    """One row per completion, under names of nobody."""
    return [{"question_id": problem, "passed_tests": bool(one), "status": "pass" if one else "timeout", "n_tokens": 5,
             "response": answer(problem, one), "target": str(eval(problem))} for one in right]  # fmt: skip


def listed(problem: str, right: list[int], inner: bool) -> dict[str, Any]:
    """One row per problem."""
    texts = [answer(problem, one) for one in right]
    return {"uid": problem, "graded_list": [float(one) for one in right], "gt": str(eval(problem)),
            "outputs": [{"text": text} for text in texts] if inner else texts}  # fmt: skip


# ------------------------------------------------------------------------------------------------------------------
# columns of other names


def test_one_policy_reads_alike_in_every_shape() -> None:
    """Rows per completion, lists per problem, lists of objects, one document: the same counts, texts and golds."""
    rows = write("rows.jsonl", *(row for problem, right in RIGHT.items() for row in foreign(problem, right)))
    flat = write("flat.jsonl", *(listed(*item, inner=False) for item in RIGHT.items()))
    deep = write("deep.jsonl", *(listed(*item, inner=True) for item in RIGHT.items()))
    Path("whole.json").write_text(json.dumps({"run": 1, "results": [listed(*item, inner=False) for item in RIGHT.items()]}))
    shapes = [
        table(rows, "id=question_id,correct=passed_tests,text=response,gold=target"),
        table(rows, "id=question_id,correct=status=pass,text=response,gold=target"),
        table(flat, "id=uid,score=graded_list,text=outputs,gold=gt"),
        table(deep, "id=uid,score=graded_list,text=outputs/text,gold=gt"),
        table("whole.json", "id=results/uid,score=results/graded_list,text=results/outputs,gold=results/gt"),
    ]
    for one in shapes:
        assert (solved(one), one.texts, one.golds) == (FOUR, shapes[0].texts, shapes[0].golds)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("id=question_id,correct=is_right", "rows.jsonl: --fields correct=is_right: no row has a value there; its columns are"),
        ("id=question_id,correct=status", "rows.jsonl:1: status = 'pass': true, false or a number is expected"),
        ("id=nested,correct=passed_tests", "rows.jsonl: --fields id=nested: no row has"),
    ],
)
def test_a_column_is_used_in_every_file_or_refused_there(fields: str, said: str, capsys: Capture) -> None:
    rows = write("rows.jsonl", *(row for problem, right in RIGHT.items() for row in foreign(problem, right)))
    code, _, err = run(capsys, rows, rows.replace("rows", "./rows"), "--fields", fields)
    assert code == 2 and said in err


def test_a_list_of_another_length_and_one_text_for_all_are_refused() -> None:
    row = listed("2+2", [1, 0, 1], inner=False)
    short = write("short.jsonl", row, row | {"outputs": row["outputs"][:2]})
    with pytest.raises(DataError, match=r"short.jsonl:2: outputs has 2 values where there are 3"):
        table(short, "id=uid,score=graded_list,text=outputs")
    one = write("one.jsonl", row, row | {"outputs": "a text"})
    with pytest.raises(DataError, match=r"one.jsonl:2: outputs is one text, and there are 3 completions"):
        table(one, "id=uid,score=graded_list,text=outputs")
    mean = write("mean.jsonl", row | {"solved": True})
    with pytest.raises(DataError, match=r"mean.jsonl, row 1: outputs has 3 texts, and there is one correct"):
        table(mean, "id=uid,correct=solved,text=outputs")
    alone = write("alone.jsonl", row | {"solved": True, "outputs": [r"\boxed{4}"]})
    assert table(alone, "id=uid,correct=solved,text=outputs").texts == ([r"\boxed{4}"],)


@pytest.mark.parametrize(
    ("right", "wrong", "word"),
    [(True, False, "true"), (True, False, "1"), (1, 0, "1.0"), (1.0, 0.0, "1"), ("pass", "PASS", "pass")],
)
def test_the_word_that_means_correct_may_be_a_truth_value_or_a_number(right: Any, wrong: Any, word: str) -> None:
    rows = write("words.jsonl", *({"q": f"q{i}", "is": one} for i in range(2) for one in (right, wrong, wrong)))
    assert solved(table(rows, f"id=q,correct=is={word}")) == {"q0": 1, "q1": 1}
    read = Choice(fields=fields_of("id=q,correct=is=other"))
    assert "no completion has is = other, so all are wrong" in read_evaluation(Path(rows), choice=read).notes[0]
    missing = write("nan.jsonl", {"q": "q", "is": right}, {"q": "q", "is": float("nan")})
    with pytest.raises(DataError, match=r"no score \(1 completions"):
        table(missing, f"id=q,correct=is={word}")


def test_names_of_other_columns_keep_their_meaning() -> None:
    """A file of two arms stays one of two arms, and a model that changes is found, though --fields name neither."""
    rows = [{"qid": f"q{i}", "ok": 1, "arm": arm} for arm in ("a", "b") for i in range(2)]
    found = read_evaluation(Path(write("arms.jsonl", *rows)), choice=Choice(fields=fields_of("id=qid,correct=ok")))
    assert [one.group.arm for one in found.tables] == ["a", "b"]
    assert len(read_evaluation(Path("arms.jsonl"), choice=Choice(fields=fields_of("id=qid,correct=ok,arm="))).tables) == 1
    bare = write("bare.jsonl", *({"qid": f"q{i}", "response": "x", "temperature": 1} for i in range(2)))
    with pytest.raises(DataError, match="0 scores"):  # a temperature is no score
        table(bare, "id=qid,text=response")
    models = write("models.jsonl", *({"qid": "q", "ok": 1, "model": model} for model in "ab"))
    with pytest.raises(DataError, match="samples of two policies in one set"):
        table(models, "id=qid,correct=ok")


@pytest.mark.parametrize(
    "words", ["correct=x", "id=a,correct=b,score=c", "id=a,n=b", "id=a,id=b", "id", "id=a,wrong=b", "id=a,correct="]
)
def test_fields_that_mean_nothing_are_refused(words: str) -> None:
    with pytest.raises(ConfigError, match="--fields"):
        fields_of(words)


def test_an_unknown_file_gets_a_command_that_works(capsys: Capture) -> None:
    """The proposal is never used by itself: the exit code is 2. Typed, it reads what the row says."""
    rows = write("rows.jsonl", *(row for problem, right in RIGHT.items() for row in foreign(problem, right)))
    flat = write("flat.jsonl", *(listed(*item, inner=True) for item in RIGHT.items()))
    words = [("rows.jsonl", rows, "id=question_id,correct=passed_tests,text=response,gold=target"),
             ("flat.jsonl", flat, "id=uid,correct=graded_list,text=outputs/text,gold=gt")]  # fmt: skip
    for name, path, fields in words:
        code, _, err = run(capsys, path, path)
        assert code == 2 and f"if that is right: sage-rlvr compare {name} OTHER --fields {fields}" in err
        assert solved(table(path, fields)) == FOUR
    texts = write("texts.jsonl", *({"idx": i, "output": "x", "answer": "4"} for i in range(3)))
    assert "--fields id=idx,text=output,gold=answer --judge boxed" in run(capsys, texts, texts)[2]
    assert "if that is right" not in run(capsys, write("none.jsonl", {"a": 1, "b": "x"}), texts)[2]


# ------------------------------------------------------------------------------------------------------------------
# texts without scores


def test_a_judge_marks_what_the_program_marked(capsys: Capture) -> None:
    """lm-eval's repeats, which have one score for four texts; inspect's log, judged against its own scorer."""
    for log, place in (("lm_eval_repeats.jsonl", "last_number"), ("inspect_ai.json", "last_number"), ("verl.jsonl", "anywhere")):
        found = compare(str(LOGS / log), judge=place).results
        assert found.table.rows[0].values.tolist() == list(FOUR.values())
        assert any(f"--judge {place} marked 7 of 16 completions right" in note for note in found.notes)
    code, out, err = run(capsys, f"a={LOGS / 'lm_eval_repeats.jsonl'}", f"b={LOGS / 'inspect_ai.json'}", "--judge", "last_number")
    assert code == 2 and "different problems" in err, out


def test_what_a_judge_marked_is_told(capsys: Capture) -> None:
    texts = ["\\boxed{4}", "no box", "\\boxed{5}", None]
    rows = write("rows.jsonl", *({"id": f"p{i}", "text": text, "gold": "so 2+2=4\n#### 4"} for i in range(6) for text in texts))
    code, _, err = run(capsys, rows, "--judge", "boxed")
    assert code == 2 and "rows.jsonl:4: text = None: no score (6 completions in 6 of 6 problems have none)" in err
    code, out, err = run(capsys, rows, "--judge", "boxed", "--unscored", "wrong")
    assert code == 0 and "marked 6 of 24 completions right; 6 have no answer at its place, 6 have no text" in out, err
    assert "pass@1: 0.250" in out and "majority of 4 (maj@4): 0.500" in out  # 4 and 5 have a vote each
    silent = [{"id": "p", "arm": arm, "gold": "4", "text": text} for arm, text in (("a", None), ("b", texts[0]))]
    code, out, err = run(capsys, write("silent.jsonl", *silent), "--judge", "boxed", "--unscored", "wrong")
    assert code == 0 and "silent.jsonl: --judge boxed marked 1 of 2 completions right; 1 have no text" in out, err
    bare = write("bare.jsonl", {"id": "p", "text": "4"})
    assert "bare.jsonl: --judge boxed: problem 'p' has no gold" in run(capsys, bare, "--judge", "boxed")[2]
    assert "counts have no texts to judge" in run(capsys, write("c.jsonl", *counts([1])), "--judge", "boxed")[2]


@pytest.mark.slow
def test_a_function_of_a_file_is_run_because_it_is_named(capsys: Capture) -> None:
    Path("my.py").write_text(
        "def score(completion, row):\n    return row['answer'] in completion\n"
        "def fails(completion, row):\n    return row['nothing']\n"
    )
    pairs = [(problem, one) for problem, right in RIGHT.items() for one in right]
    rows = write("rows.jsonl", *({"id": name, "text": answer(name, one), "gold": str(eval(name))} for name, one in pairs))
    found = compare(rows, judge="my.py:score").results
    assert found.table.rows[0].values.tolist() == list(FOUR.values())
    code, _, err = run(capsys, rows, "--judge", "my.py:fails")
    assert code == 2 and "rows.jsonl: --judge my.py:fails: on problem '2+2'" in err and "raised KeyError" in err
    for judge, said in (("my.py:nothing", "defines no 'nothing'"), ("box", "unknown; choose one of boxed")):
        code, _, err = run(capsys, rows, "--judge", judge)
        assert code == 2 and said in err


def test_the_exact_text_is_the_gold() -> None:
    """Spaces and a final period do not count."""
    rows = write("rows.jsonl", *({"id": "p", "text": text, "gold": "Paris"} for text in ("Paris", " Paris\n", "London", "Paris.")))
    assert compare(rows, judge="exact_match").results.table.rows[0].values.tolist() == [3]


# ------------------------------------------------------------------------------------------------------------------
# one file, and other problems on one side


@pytest.mark.slow
def test_one_file_is_described_by_itself(capsys: Capture) -> None:
    """The published counts of the base: pass@1 .604 and pass@128 .891, pass^8 .386, as `compare` of two files prints them."""
    code, out, err = run(capsys, PUBLISHED / "base.jsonl")
    assert code == 0 and "base solves 60.4 % of 1,060 problems at the first try, and 89.1 % in 128 (128 samples each)." in out, err
    assert "pass@1: 0.604 [0.576, 0.633]" in out and "all of 8 right (pass^8): 0.386 [0.360, 0.412]" in out
    assert "in 128 samples 116 of 1,060 problems never solved, 182 always" in out
    tree = json.loads(run(capsys, PUBLISHED / "base.jsonl", "--json")[1])
    (policy,) = tree["policies"]
    seen = policy["detectable"]["1"]
    assert policy["simultaneous"] and 0.002 < seen["same"] < 0.014 < seen["unrelated"] < 0.1  # beside its RL run: .014
    for one in policy["pass"].values():
        assert 0 <= one["low"] <= one["value"] <= one["high"] <= 1
    assert run(capsys, PUBLISHED / "base.jsonl", "--fail-on", "loss")[0] == 2


@pytest.mark.parametrize("option", [("--to", "eee", "out"), ("--log-to", "tensorboard=out"), ("--github-summary",)])
def test_one_file_is_not_written_for_other_programs(option: tuple[str, ...], capsys: Capture, monkeypatch: Any) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "out")
    code, _, err = run(capsys, write("a.jsonl", *counts([1, 2])), *option)
    assert code == 2 and f"{option[0]}: of a comparison, and there is one policy" in err and not Path("out").exists()


def test_one_file_of_copies_and_with_chance(capsys: Capture) -> None:
    rng = np.random.default_rng(3)
    rows = [row | {"text": f"{row['id']} {row['correct']}"} for row in samples(rng.integers(0, 9, 12))]
    code, out, _ = run(capsys, write("rows.jsonl", *rows), "--chance", "0.25")
    assert code == 0 and "chance floor 0.250" in out
    code, out, _ = run(capsys, write("greedy.jsonl", *({"id": f"p{i}", "correct": i % 2 == 0, "text": "t"} for i in range(30)
                                                       for _ in range(8))))  # fmt: skip
    assert code == 0 and "all texts are equal on 30 of 30 problems" in out


def test_common_problems(capsys: Capture) -> None:
    one, two = write("a.jsonl", *counts([1, 2, 3, 4, 5, 6])), write("b.jsonl", *counts([2, 3, 4, 5]))
    code, _, err = run(capsys, one, two)
    assert code == 2 and "2 only in a" in err and "pass --common" in err
    code, out, err = run(capsys, one, two, "--common")
    assert code == 0 and "--common: 4 problems on all sides, which the verdict is about; left out 2 of 6 in a" in out, err
    whole = run(capsys, write("first.jsonl", *counts([1, 2, 3, 4])), two)[1]
    scores = [text.split(f"pass@1: {arm} ")[1].split("pass@8")[0] for text, arm in ((out, "a"), (whole, "first"))]
    assert scores[0] == scores[1]
    other = write("c.jsonl", *({"id": "z", "n": 8, "c": 1} for _ in range(1)))
    assert "--common leaves no problem" in run(capsys, one, other, "--common")[2]


# ------------------------------------------------------------------------------------------------------------------
# folders


def test_a_folder_of_trl_is_joined_by_prompt(capsys: Capture) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for run_, lift in (("base", 0), ("rl", 1)):
        Path(run_, "completions").mkdir(parents=True)
        for step in (1, 2, 10):
            rows = [
                {"step": step, "prompt": p, "completion": f"{run_} {step} {i} {p}", "right": float(min(1, one + lift * (i == 0))),
                 "advantage": 0.1}
                for p, right in RIGHT.items() for i, one in enumerate(right)
            ]  # fmt: skip
            pq.write_table(pa.Table.from_pylist(rows), Path(run_, "completions", f"completions_{step:05d}.parquet"))
    code, out, err = run(capsys, "base/completions", "rl/completions")
    assert code == 0 and "n = 12" in out and "completions of training batches" in out and "`PassAtK`" in out, err
    found = read_evaluation(Path("base/completions"))
    assert solved(found.tables[0]) == {problem: 3 * c for problem, c in FOUR.items()}
    assert found.tables[0].texts is not None and found.tables[0].texts[0][-1] == "base 10 3 2+2"  # by step, not by name
    assert solved(read_evaluation(Path("base/completions"), ["10"]).tables[0]) == FOUR
    rows[5]["right"] = float("nan")
    pq.write_table(pa.Table.from_pylist(rows), "base/completions/completions_00002.parquet")
    assert "completions_00002.parquet, row 6: right = nan" in run(capsys, "base/completions", "rl/completions")[2]


def test_seeds_of_sampling_in_a_folder_are_samples() -> None:
    Path("nemo").mkdir()
    for seed in range(4):
        write(f"nemo/output-rs{seed}.jsonl", *(
            {"problem": problem, "generation": answer(problem, right[seed]), "expected_answer": str(eval(problem)),
             "predicted_answer": None, "symbolic_correct": bool(right[seed])} for problem, right in RIGHT.items()
        ))  # fmt: skip
    assert solved(read_evaluation(Path("nemo")).tables[0]) == FOUR


# ------------------------------------------------------------------------------------------------------------------
# logs of programs, beyond one good row


def changed(name: str, change: Any) -> Path:
    rows = [json.loads(line) for line in (LOGS / name).read_text().splitlines()]
    change(rows)
    return Path(write(name, *rows))


def test_every_eval_ever_has_samples_apart_from_its_aggregate() -> None:
    aggregate = {"schema_version": "0.3.0", "evaluation_id": "e", "evaluation_results": [],
                 "detailed_evaluation_results": {"format": "jsonl", "file_path": "data/x_samples.jsonl"}}  # fmt: skip
    Path("eee.json").write_text(json.dumps(aggregate))
    with pytest.raises(DataError, match=r"no counts of problems; pass its samples, data/x_samples\.jsonl"):
        read_evaluation(Path("eee.json"))
    two = changed("every_eval_ever.jsonl", lambda rows: rows.extend([row | {"evaluation_result_id": "sums.f1"} for row in rows]))
    with pytest.raises(DataError, match=r"2 results \(sums.exact, sums.f1\)"):  # else twice as many samples
        read_evaluation(two)
    assert solved(read_evaluation(two, choice=Choice(("sums.exact",))).tables[0]) == FOUR
    failed = changed("every_eval_ever.jsonl", lambda rows: rows[2].update(error="timeout"))
    with pytest.raises(DataError, match=r"every_eval_ever.jsonl:3: is_correct = None: no score"):
        read_evaluation(failed)


def test_rollouts_of_training_are_said_or_refused() -> None:
    batch = changed("tinker.jsonl", lambda rows: [row.update(split="train") for row in rows])
    with pytest.raises(DataError, match="a training batch, whose groups have no number"):
        read_evaluation(batch, choice=Choice(("final_reward",)))
    work = {"run": {"type": "train", "id": "r", "work": {"type": "train", "step": 7}}}
    found = read_evaluation(changed("verifiers_traces.jsonl", lambda rows: [row.update(work) for row in rows]),
                            choice=Choice(("rewards/sum",)))  # fmt: skip
    assert found.tables[0].group.step == 7 and "episodes of training batches" in found.notes[0]


def test_an_episode_without_traces_is_a_completion_without_a_score() -> None:
    path = changed("verifiers_traces.jsonl", lambda rows: rows[4].update(traces=[], ok=False))
    with pytest.raises(DataError, match=r"verifiers_traces.jsonl:5: rewards/sum = None: no score \(1 completions in 1 of 4"):
        read_evaluation(path, choice=Choice(("rewards/sum",)))
    found = read_evaluation(path, choice=Choice(("rewards/sum",), unscored="wrong")).tables[0]
    assert found.n.tolist() == [4] * 4 and solved(found)["2+3"] == 1


def test_evalplus_counts_a_sample_that_passes_all_tests() -> None:
    found = read_evaluation(LOGS / "evalplus.json", choice=Choice(("plus",)))
    assert solved(found.tables[0]) == {problem: sum(right[1:]) for problem, right in RIGHT.items()}


def test_a_failed_rollout_of_verifiers_has_no_score() -> None:
    path = changed("verifiers.jsonl", lambda rows: rows[1].update(error={"type": "Timeout"}))
    with pytest.raises(DataError, match=r"verifiers.jsonl:2: reward = None: no score"):
        read_evaluation(path, choice=Choice(("reward",)))


def test_scores_per_sample_of_lighteval() -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = pq.read_table(LOGS / "lighteval_avg.parquet").to_pylist()
    for row, right in zip(rows, RIGHT.values(), strict=True):
        row["metric"] = {"em": [float(one) for one in right]}
    pq.write_table(pa.Table.from_pylist(rows), "details.parquet")
    found = read_evaluation(Path("details.parquet")).tables[0]
    assert list(solved(found).values()) == list(FOUR.values()) and found.right is not None
    assert found.right[1].tolist() == [True, False, True, False]


def test_a_judge_reads_one_result_of_every_eval_ever() -> None:
    two = changed("every_eval_ever.jsonl", lambda rows: rows.extend([row | {"evaluation_result_id": "sums.f1"} for row in rows]))
    found = compare(str(two), judge="last_number").results.table.rows[0]
    assert (found.n, found.values.tolist()) == (4, list(FOUR.values()))
    both = changed("every_eval_ever.jsonl", lambda rows: rows[1]["input"].update(reference=["4", "four"]))
    with pytest.raises(DataError, match=r"2: input.reference has 2 golds"):
        compare(str(both), judge="last_number")
    more = {"evaluation_result_id": "sums.f1"}, {"evaluation_name": "other", "evaluation_result_id": "other.f1"}
    three = changed("every_eval_ever.jsonl", lambda rows: rows.extend([row | one for one in more for row in rows]))
    tables = compare(str(three), judge="last_number").results.table.rows
    assert {row.task: row.values.tolist() for row in tables} == {task: list(FOUR.values()) for task in ("sums", "other")}


def test_one_policy_with_training_seeds_and_temperatures(capsys: Capture) -> None:
    rows = [row | {"temperature": heat} for heat, c in ((0.5, [4, 8, 2, 5]), (1.0, [3, 6, 1, 2])) for row in counts(c)]
    code, out, err = run(capsys, write("heats.jsonl", *rows))
    assert code == 0 and "T = 0.5: heats solves 59.4 %" in out and "T = 1: heats solves 37.5 %" in out, err
    seeds = [write(f"s{i}.jsonl", *counts([i, 3, 4, 8])) for i in range(3)]
    code, out, err = run(capsys, f"grpo={','.join(seeds)}")
    assert code == 0 and "95 % interval at each k" in out, err
