"""Every reader: reads a log that its own program wrote (write_logs.py), finds it by content, and names a row that cannot be
used."""

from __future__ import annotations

import gzip
import json
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.verdicts.readers import READERS, Choice, EvaluationFile, RowFile, read_evaluation, reader, reader_of
from tests.verdicts.readers.write_logs import LOGS, RIGHT

Tree = Any
FOUR = {problem: (4, sum(right)) for problem, right in RIGHT.items()}
FIRST = {problem: (1, right[0]) for problem, right in RIGHT.items()}
NUMBERED = {str(i): value for i, value in enumerate(FOUR.values())}
NUMBERED_FIRST = {str(i): value for i, value in enumerate(FIRST.values())}


@dataclass(frozen=True)
class Log:
    """A log and what it holds. breaks: makes a row of the log (number `row`) unusable; field: what the error then names."""

    name: str
    reader: str
    counts: dict[str, tuple[int, int]]
    breaks: Callable[[Tree], None]
    names: str
    row: int = 1
    correct: tuple[str, ...] = ()
    right_from: float | None = None


def put(*keys: Any, value: Any) -> Callable[[Tree], None]:
    """A function that sets tree[key]... to a value."""

    def change(tree: Tree) -> None:
        for key in keys[:-1]:
            tree = tree[key]
        tree[keys[-1]] = value

    return change


NAN = float("nan")
CASES = [
    Log("counts.jsonl", "counts", FOUR, put("c", value=9), "c = 9"),
    Log("counts.csv", "counts", FOUR, put("n", value="many"), "n = 'many'"),
    Log("counts.parquet", "counts", FOUR, put("c", value=-1), "c = -1"),
    Log("samples.jsonl", "samples", FOUR, put("correct", value="yes"), "correct = 'yes'", row=3),
    Log("samples.csv", "samples", FOUR, put("correct", value="yes"), "correct = 'yes'", row=3),
    Log("samples.parquet", "samples", FOUR, put("id", value=""), "id = ''", row=3),
    Log(
        "lm_eval.jsonl", "lm_eval", NUMBERED_FIRST, put("exact_match", value=NAN), "exact_match,number = nan",
        correct=("exact_match,number",),
    ),
    Log(
        "inspect_ai.eval", "inspect_ai", FOUR, put("scores", value=None), "match = None", row=4, correct=("match",)
    ),
    Log(
        "inspect_ai.json", "inspect_ai", FOUR, put("scores", value=None), "match = None", row=1, correct=("match",)
    ),
    Log("lighteval.parquet", "lighteval", NUMBERED_FIRST, put("metric", "em", value=NAN), "em = nan", correct=("em",)),
    Log("lighteval_avg.parquet", "lighteval", NUMBERED, put("metric", "avg@n:n=4", value=0.3), "avg@n:n=4 = 0.3"),
    Log("verl.jsonl", "verl", FOUR, put("score", value=NAN), "score = nan", row=7, correct=("score",), right_from=1.0),
    Log("trl.parquet", "trl", FOUR, put("correct", value=NAN), "correct = nan", row=5, correct=("correct",)),
    Log("evalplus.json", "evalplus", FOUR, put("eval", "2+3", 1, "base_status", value=None), "base_status = None", row=0,
        correct=("base",)),
    Log("every_eval_ever.jsonl", "every_eval_ever", FOUR, put("evaluation", "is_correct", value=None), "is_correct = None", row=3),
    Log("livecodebench.json", "livecodebench", FOUR, put("graded_list", value=[True]), "output_list has 4 values"),
    Log("nemo_skills.jsonl", "nemo_skills", {f"{problem}=": value for problem, value in FIRST.items()},
        put("symbolic_correct", value="x"), "symbolic_correct = 'x'"),
    Log("qwen_math.jsonl", "qwen_math", NUMBERED, put("score", value=[True, None, True, True]), "score = None"),
    Log("sharpening_tax.jsonl", "sharpening_tax", FOUR, put("pass_flags", value=[]), "pass_flags is an empty list"),
    Log("tinker.jsonl", "tinker", NUMBERED, put("group_idx", value=None), "group_idx = None", row=5,
        correct=("trajectory_metrics/correct",)),
    Log("verifiers.jsonl", "verifiers", NUMBERED, put("reward", value=NAN), "reward = nan", row=6, correct=("reward",)),
    Log("verifiers_traces.jsonl", "verifiers_traces", FOUR, put("traces", 0, "ok", value=False), "rewards/sum = None", row=6,
        correct=("rewards/sum",)),
    Log("remax.jsonl.gz", "remax", {"a": (4, 2), "b": (4, 0)}, put("checkpoints", value=3), "", row=2),
]  # fmt: skip


def remax_rows() -> list[Tree]:
    """A manifest and one run, by the schema of remax-rl 0.1.1: two requests of two completions."""
    prompts = {"a": {"draws": [["x", None], [None, "y"]]}, "b": {"draws": [[None, None], [None, None]]}}
    after = {"a": {"draws": [["x", "x"], ["x", "x"]]}, "b": {"draws": [["z", None], [None, None]]}}
    run = {
        "domain": "sums", "level": "level1", "scale": "tiny", "method": "grpo", "seed": 3, "record_kind": "cell",
        "checkpoints": {"0": {"prompts": prompts}, "9": {"prompts": after}},
    }  # fmt: skip
    return [{"record_kind": "manifest", "protocol": "p", "primary": {}, "parent_cache": {}, "schema": 1}, run]


def own_rows(name: str) -> list[Tree]:
    if name.startswith("counts"):
        return [{"id": problem, "n": n, "c": c} for problem, (n, c) in FOUR.items()]
    return [{"id": problem, "correct": bool(one)} for problem, right in RIGHT.items() for one in right]


def rows_of(log: Log, folder: Path) -> list[Tree]:
    """The rows of a log as trees."""
    if log.reader in ("counts", "samples"):
        return own_rows(log.name)
    if log.reader == "remax":
        return remax_rows()
    if log.name.endswith(".jsonl"):
        return [json.loads(line) for line in (LOGS / log.name).read_text().splitlines()]
    if log.name.endswith(".json"):
        tree = json.loads((LOGS / log.name).read_text())
        return tree if isinstance(tree, list) else [tree]
    import pyarrow.parquet as pq

    return pq.read_table(LOGS / log.name).to_pylist()


def written(log: Log, rows: list[Tree], folder: Path) -> Path:
    """Rows in the container of the log."""
    path = folder / log.name
    if log.name.endswith(".parquet"):
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows), path)
    elif log.name.endswith(".csv"):
        head = list(rows[0])
        path.write_text(
            "\n".join([",".join(head), *(",".join(str(row[name]) for name in head) for row in rows)]) + "\n"
        )
    elif log.name.endswith(".json"):
        path.write_text(json.dumps(rows if log.reader == "livecodebench" else rows[0]))
    else:
        text = "".join(json.dumps(row) + "\n" for row in rows)
        path.write_bytes(gzip.compress(text.encode()) if log.name.endswith(".gz") else text.encode())
    return path


@pytest.fixture(params=CASES, ids=lambda log: log.name)
def log(request: pytest.FixtureRequest) -> Log:
    found: Log = request.param
    return found


@pytest.fixture
def path(log: Log, tmp_path: Path) -> Path:
    """The log: that of its program, or written here for formats without a program."""
    kept = LOGS / log.name
    return kept if kept.exists() else written(log, rows_of(log, tmp_path), tmp_path)


def read(log: Log, path: Path) -> EvaluationFile:
    return read_evaluation(path, choice=Choice(log.correct, log.right_from))


def counts(found: EvaluationFile) -> dict[str, tuple[int, int]]:
    table = found.tables[0]
    return dict(zip(table.problems, zip(table.n.tolist(), table.c.tolist(), strict=True), strict=True))


def test_every_reader_has_a_log() -> None:
    assert {log.reader for log in CASES} == set(READERS)


def test_the_counts_are_those_that_the_program_wrote(log: Log, path: Path) -> None:
    found = read(log, path)
    assert (found.format, counts(found)) == (log.reader, log.counts)


@pytest.mark.parametrize("wrong", ["data.txt", "data.csv", "data", "data.npz.jsonl"])
def test_a_log_is_found_by_its_content_under_any_name(log: Log, path: Path, wrong: str, tmp_path: Path) -> None:
    moved = tmp_path / "moved" / wrong
    moved.parent.mkdir()
    shutil.copy(path, moved)
    assert reader_of(RowFile(moved)).name == log.reader and counts(read(log, moved)) == log.counts


def test_a_row_that_cannot_be_used_is_named(log: Log, path: Path, tmp_path: Path) -> None:
    if log.reader == "remax":
        pytest.skip("released by its authors; the counts are checked, not its schema")
    if log.name == "inspect_ai.eval":
        broken, place = broken_archive(path, tmp_path), "broken.eval, samples/2+3_epoch_1.json"
    else:
        rows = rows_of(log, tmp_path)
        log.breaks(rows[0]["samples"][log.row] if log.name == "inspect_ai.json" else rows[log.row])
        broken = written(log, rows, tmp_path)
        number = log.row + 1 + log.name.endswith(".csv")
        place = f"{log.name}:{number}" if log.name.endswith((".jsonl", ".csv")) else f"{log.name}, row {number}"
    with pytest.raises(DataError) as refused:
        read(log, broken)
    assert place in str(refused.value) and log.names in str(refused.value)


def broken_archive(path: Path, folder: Path) -> Path:
    """The inspect log with a sample that has no score; packed by a method that Python's zipfile can write."""
    source = RowFile(path)
    broken = folder / "broken.eval"
    with zipfile.ZipFile(broken, "w") as archive:
        for name in ("header.json", "samples/"):
            for number, tree in source.trees(name):
                if source.members[number] == "samples/2+3_epoch_1.json":
                    tree["scores"] = None
                archive.writestr(source.members[number], json.dumps(tree))
    return broken


# ------------------------------------------------------------------------------------------------------------------
# what stands for correct is named and never guessed


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("lm_eval.jsonl", "2 scores (metric,filter) (exact_match,number, exact_match,whole)"), ("inspect_ai.json", "2 scorers "
            "(match"),
        ("verl.jsonl", "2 scores (score, acc)"),
        ("lighteval.parquet", "2 metrics (em, qem)"), ("trl.parquet", "2 scores (correct, short)"),
    ],
)  # fmt: skip
def test_one_of_several_scores_has_to_be_named(name: str, said: str) -> None:
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    with pytest.raises(DataError) as refused:
        read_evaluation(LOGS / name)
    assert said in str(refused.value) and "--correct " in str(refused.value)


def test_a_graded_score_needs_a_threshold_or_another_name() -> None:
    with pytest.raises(DataError) as refused:
        read_evaluation(LOGS / "verl.jsonl", choice=Choice(("score",)))
    assert "verl.jsonl:6: score = -1.0" in str(refused.value) and "--right-from" in str(refused.value)
    assert "--correct acc" in str(refused.value)
    assert counts(read_evaluation(LOGS / "verl.jsonl", choice=Choice(("acc",)))) == FOUR


def test_another_filter_gives_other_counts() -> None:
    assert {c for _, c in counts(read_evaluation(LOGS / "lm_eval.jsonl", choice=Choice(("exact_match,whole",)))).values()} == {
        0
    }


def test_several_completions_with_one_score_have_a_next_step() -> None:
    with pytest.raises(DataError) as refused:
        read_evaluation(LOGS / "lm_eval_repeats.jsonl", choice=Choice(("exact_match,number",)))
    assert "4 completions and one exact_match,number: texts without scores" in str(refused.value)
    assert "--judge boxed" in str(refused.value)


def test_what_a_log_has_besides_counts() -> None:
    (inspect,) = read_evaluation(LOGS / "inspect_ai.json", choice=Choice(("match",))).tables
    assert (inspect.group.task, inspect.group.temperature) == ("sums", 0.7) and inspect.golds["2+2"] == "4"
    assert inspect.texts is not None and inspect.texts[1][1] == "The answer is 6."
    assert inspect.cut is not None and [sum(map(bool, row)) for row in inspect.cut] == [0, 0, 0, 1]
    (verl,) = read_evaluation(LOGS / "verl.jsonl", choice=Choice(("acc",))).tables
    assert verl.group.step == 20 and verl.golds["4+5"] == "9"
    (lm_eval,) = read_evaluation(LOGS / "lm_eval.jsonl", choice=Choice(("exact_match,number",))).tables
    assert lm_eval.group.temperature == 0.7 and lm_eval.golds["0"] == "4"


def test_remax_has_an_arm_before_and_after_per_run(tmp_path: Path) -> None:
    log = next(log for log in CASES if log.reader == "remax")
    before, after = read(log, written(log, remax_rows(), tmp_path)).tables
    assert (before.group.arm, before.group.task, before.group.seed) == ("grpo, before", "tiny/sums/level1", 3)
    assert after.group.arm == "grpo" and after.c.tolist() == [4, 1]
    assert after.answers is not None and after.answers[1] == ["z", None, None, None]
    assert after.requests is not None and after.requests[0] == [0, 0, 1, 1]


def test_a_stranger_adds_a_reader_by_a_decorator(tmp_path: Path) -> None:
    @reader("my_log", ("question", "passed"), about="mine")
    def my_log(file: Any, choice: Any) -> Any:
        for number, tree in file.rows():
            yield number, {"id": tree["question"], "correct": tree["passed"]}

    try:
        path = tmp_path / "mine"
        path.write_text('{"question": "a", "passed": true}\n{"question": "a", "passed": false}\n')
        found = read_evaluation(path)
        assert (found.format, counts(found)) == ("my_log", {"a": (2, 1)})
    finally:
        del READERS["my_log"]


def entries(monkeypatch: pytest.MonkeyPatch, **homes: str) -> None:
    """Installed packages that declare these readers; "name__2" declares "name" again."""
    made = [metadata.EntryPoint(name.partition("__")[0], home, "sage_rlvr.readers") for name, home in homes.items()]
    monkeypatch.setattr(metadata, "entry_points", lambda group: [one for one in made if one.group == group])


def test_an_installed_package_adds_a_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_others.py").write_text(
        "from sage_rlvr.verdicts.readers import reader\n\n@reader('theirs', ('question', 'passed'))\ndef theirs(file, choice):\n"
        "    for number, tree in file.rows():\n        yield number, {'id': tree['question'], 'correct': tree['passed']}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    entries(monkeypatch, theirs="of_others:theirs", broken="nowhere_at_all:reader", wrong="json:dumps")
    (path := tmp_path / "log").write_text('{"question": "a", "passed": true}\n')
    try:
        with pytest.warns(UserWarning, match=r"reader '(broken|wrong)' .* not loaded: (ModuleNotFound|Type)Error") as told:
            assert read_evaluation(path).format == "theirs"
        assert {str(one.message).split("'")[1] for one in told} == {"broken", "wrong"}
    finally:
        del READERS["theirs"]
    entries(monkeypatch, samples="of_others:theirs", samples__2="another:theirs")
    with pytest.raises(ConfigError, match="'samples' is declared by several packages: of_others:theirs and another:theirs"):
        read_evaluation(path)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (lambda file, choice: None, "returned None"),
        (lambda file, choice: (tree for _, tree in file.rows()), r"yield \(number of the row, row\), .* it gave {'ques"),
    ],
)
def test_what_a_reader_yields_is_checked(tmp_path: Path, rows: Any, words: str) -> None:
    (path := tmp_path / "mine").write_text('{"question": "a", "passed": true}\n')
    reader("my_log", ("question", "passed"))(rows)
    try:
        with pytest.raises(DataError, match=f"the reader my_log must .*{words}"):
            read_evaluation(path)
    finally:
        del READERS["my_log"]


def test_a_reader_takes_the_file_and_the_choice() -> None:
    with pytest.raises(ConfigError, match=r"reader my_log: .* is called with \(file, choice\): too many positional"):
        reader("my_log", ("question",))(lambda file: file.rows())  # type: ignore[arg-type, misc]
    assert "my_log" not in READERS
