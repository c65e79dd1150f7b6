"""The chance floor beside pass@k in `eval`, `compare`, pages and summaries; a policy that is worse than the guesser is marked."""

from __future__ import annotations

import hashlib
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sage_rlvr.api.compare import Comparison, compare
from sage_rlvr.api.evaluate import eval_lines, eval_rows, store_rows
from sage_rlvr.api.printed import print_results
from sage_rlvr.api.report import report
from sage_rlvr.errors import DataError
from sage_rlvr.evaluation.record import load_record, save_record
from sage_rlvr.evaluation.sample_report import report_lines
from sage_rlvr.evaluation.store import Sample, SampleStore
from sage_rlvr.progress import PlainConsole
from sage_rlvr.render import write_summary
from sage_rlvr.results.read import read_results
from sage_rlvr.tasks.chance import chance_of
from sage_rlvr.tasks.countdown import WORLDS
from sage_rlvr.verdicts.chance import Chance
from sage_rlvr.verdicts.comparisons import compare as comparisons
from sage_rlvr.verdicts.design import Question
from sage_rlvr.verdicts.metric import Metric
from sage_rlvr.verdicts.record import Record
from sage_rlvr.verdicts.row import End
from sage_rlvr.verdicts.text import rows as row_texts
from samples_common import IDENTITY

WORLD = WORLDS["demo"]
PROBLEMS = WORLD.draw("test", 1, 40)
CHANCE = replace(chance_of(WORLD, PROBLEMS) or Chance("values", ()), others=())  # one guesser, of which policies are multiples


def record(name: str, factor: float, where: Path, **more: object) -> str:
    """An exact record of a policy that gives each problem `factor` times the guesser's probability of a right answer."""
    meta = {
        "name": name, "model": name, "world": WORLD.identity, "split": "test", "seed": 1, "sampling": "iid",
        "problem_ids": [p.problem_id for p in PROBLEMS], "versions": {}, "weights": name, "chance": CHANCE.tree(), **more,
    }  # fmt: skip
    rows = [
        np.log(np.full(len(WORLD.solutions(p)), factor * share / len(WORLD.solutions(p))))
        for p, share in zip(PROBLEMS, CHANCE.each, strict=True)
    ]
    return str(save_record(Record(meta, {1.0: rows}), where / f"{name}.npz"))


def folder(where: Path) -> Path:
    """A sweep's folder without runs: a base, a better policy, and one that is worse than the guesser."""
    (where / "evaluations").mkdir(parents=True)
    for name, factor in (("base", 1.5), ("better-s0", 2.0), ("worse-s0", 0.5)):
        record(name, factor, where / "evaluations")
    return where


def test_eval_prints_the_floor_and_marks_what_lies_below(tmp_path: Path) -> None:
    worse, better = (load_record(record(name, factor, tmp_path)) for name, factor in (("worse", 0.5), ("better", 1.5)))
    told, fine = eval_lines(worse, (1, 8)), eval_lines(better, (1, 8))
    level = f"  chance {CHANCE.at(1):<23.3f}{CHANCE.at(8):.3f}"
    assert level in told and level in fine and fine[-1] == "  chance: k guesses of a guesser, uniform over the well-formed answers"
    assert told[2].count("]*") == 2 and "*" not in "".join(fine) and told[-1].endswith("answers; * below chance")
    rows = {row["k"]: row for row in eval_rows(worse, (1, 8))}
    assert rows[8]["chance"] == pytest.approx(CHANCE.at(8)) and rows[8]["below_chance"]
    assert not any(row["below_chance"] for row in eval_rows(better, (1, 8)))


def test_eval_prints_the_exact_pcmd_of_a_policy(tmp_path: Path) -> None:
    """A guesser gives the m right answers of a problem alike: 1 - 1/m, over the problems that have one."""
    guesser = load_record(record("guesser", 1.0, tmp_path))
    wanted = np.mean([1 - 1 / len(rows) for rows in guesser.logps[1.0]])
    assert eval_rows(guesser, (1, 8))[1]["pcmd"] == pytest.approx(wanted) and 0 < wanted < 1
    head, row = eval_lines(guesser, (1, 8))[1:3]
    assert head.endswith("  PCMD") and row[head.index("PCMD") :] == f"{wanted:.3f}"


def test_a_guesser_is_not_below_itself(tmp_path: Path) -> None:
    guesser = load_record(record("guesser", 1.0, tmp_path))
    assert not any(row["below_chance"] for row in eval_rows(guesser, (1, 2, 8, 64, 256)))


def test_where_no_floor_is_known_that_is_printed(tmp_path: Path) -> None:
    unknown = load_record(record("a", 1.0, tmp_path, world={"name": "elsewhere"}, chance=None))
    assert eval_lines(unknown, (8,))[-1] == "  no chance floor known" and "chance" not in eval_rows(unknown, (8,))[0]
    record("b", 0.5, tmp_path, world={"name": "elsewhere"}, chance=None)
    text = repr(compare(str(tmp_path / "a.npz"), str(tmp_path / "b.npz")))
    assert "Chance: no chance floor known." in text and "below chance" not in text


def test_a_damaged_floor_is_refused_with_the_file(tmp_path: Path) -> None:
    path = record("a", 1.0, tmp_path, chance={"law": "other", "each": [1]})
    with pytest.raises(DataError, match=re.escape(path) + ".*no chance floor"):
        load_record(path)


def full_text(found: Comparison) -> str:
    """What `compare --full` prints."""
    console = PlainConsole(file=io.StringIO(), width=200, no_color=True)
    print_results(console, found.results, found.findings)
    return console.file.getvalue()


def test_compare_has_the_floor_in_table_sentences_and_notebook(tmp_path: Path) -> None:
    found = compare(better=record("better", 1.5, tmp_path), worse=record("worse", 0.5, tmp_path), k=8)
    text, level = full_text(found), f"{CHANCE.at(8):.3f}"
    assert level in repr(found) and "below chance" in repr(found)
    (row,) = (line for line in text.splitlines() if line.split()[:1] == ["chance"])
    assert row.split()[1:] == [f"{CHANCE.at(1):.3f}", level]
    assert "worse vs better, pass@8: lower" in text and f"; chance {level}; worse below chance)" in text
    assert "below chance: a lower pass@k than that" in text and "k guesses of a guesser, uniform over" in text
    assert f"pass@8, chance {level}: " in found.answer
    many = next(row for row in found.rows if row["metric"] == "pass@8")
    assert (many["chance"], many["below_chance"]) == (pytest.approx(CHANCE.at(8)), "worse")
    assert level in found._repr_html_() and "below chance" in found._repr_html_()
    full = row_texts.sentence(next(one for one in found.comparisons if one.metric == Metric(k=8)))
    assert f"; chance {level}; worse below chance)" in full
    assert "chance" not in row_texts.sentence(next(one for one in found.comparisons if one.metric == Metric(k=1)))


@pytest.mark.slow
def test_the_page_and_its_summary_keep_the_floor_without_the_task(tmp_path: Path) -> None:
    path, level = folder(tmp_path / "sweep"), f"{CHANCE.at(256):.3f}"
    text = report(path, format="md").markdown("figures")
    assert "| chance |" in text and f"chance {level}" in text and "below chance" in text
    assert "The gray area is below chance." in text
    write_summary(path)
    alone = tmp_path / "alone"
    alone.mkdir()
    (path / "summary.json").rename(alone / "summary.json")
    results = read_results(alone)
    assert results.chances[""] == CHANCE and not results.records
    kept = {(row.a, row.metric): row for row in comparisons(results)}
    worse = kept["worse", Metric(k=256)]
    assert worse.chance == pytest.approx(CHANCE.at(256)) and worse.below == (True, False)
    assert "below chance" in report(alone).markdown() and "| chance |" in report(alone).markdown()


@pytest.mark.parametrize(("right", "marked"), [(0, True), (8, False)])
def test_a_store_keeps_its_floor_and_a_policy_whose_interval_lies_below_is_marked(
    tmp_path: Path, right: int, marked: bool
) -> None:
    """16 samples of 40 problems where a guess is right half of the time: none right lies below, half right does not."""
    identity = replace(IDENTITY, chunk_size=16)
    with SampleStore.open(tmp_path / "a", identity) as store:
        store.commit([
            Sample(problem=f"p{i}", sample=j, seed=identity.seed_of(f"p{i}", j), prompt_hash="h", text=f"{i} {j}",
                   verdict="right" if j < right else "wrong", reason="r")
            for i in range(40) for j in range(16)
        ])  # fmt: skip
        assert any(line.endswith("no chance floor known") for line in report_lines(store))
        store.note(chance=Chance("values", (0.5,) * 40).tree())
        text = "\n".join(report_lines(store))
        assert ("below chance" in text) is marked and "k guesses, uniform over the values of the answer" in text
        assert [row["below_chance"] for row in store_rows(store)] == [marked] * 5
        assert store_rows(store)[3]["chance"] == pytest.approx(1 - 0.5**8)
    text = report(tmp_path / "a", format="md").markdown("figures")
    assert ("below chance<" in text or "below chance |" in text) is marked and "| chance |" in text


def test_the_answer_of_a_design_that_asks_about_the_base_has_its_numbers(tmp_path: Path) -> None:
    """The verdict; then pass@k of the base and of each arm with difference, interval and floor, and pass@1."""
    results = read_results(folder(tmp_path / "sweep"))
    asked = tuple(Question(a=arm, b="base", metric=Metric(k=k)) for k in (256, 1) for arm in ("better", "worse"))
    results = replace(results, design=replace(results.design, questions=asked))
    rows = comparisons(results)
    text = row_texts.answer(rows, results)
    by_k = {row.metric.k: row for row in rows if row.a == "worse" and row.metric.at == "temperature"}
    start, _, numbers = text.partition("\n\n")
    assert start.count("better") == start.count("worse: no (pass@1 lower, pass@256 lower)") == 1
    assert numbers.startswith(f"pass@256, chance {CHANCE.at(256):.3f}: base {by_k[256].comparison.mean_b:.3f}; ")
    assert re.search(rf"lower: worse {by_k[256].comparison.mean_a:.3f} \(−0\.\d+, −0\.\d+ to −0\.\d+; worse below chance\)", text)
    assert f" pass@1: base {by_k[1].comparison.mean_b:.3f}; " in text
    assert {row.family for row in rows if row.b == "base" and row.metric.at == "temperature"} == {"primary"}


@pytest.mark.parametrize(
    ("first", "last", "word"),
    [
        (End.HIGHER, End.LOWER, "no, it narrowed (pass@1 higher, pass@64 lower)"),
        (End.CANNOT, End.LOWER, "no (pass@64 lower)"),
        (End.LOWER, End.HIGHER, "yes (pass@1 lower, pass@64 higher)"),
        (End.HIGHER, End.LOWER_BEFORE, "cannot be told (pass@1 higher)"),
        (End.NO_DIFFERENCE, End.NO_DIFFERENCE, "no significant difference"),
    ],
)
def test_only_what_holds_after_correction_at_the_largest_k_answers(first: End, last: End, word: str) -> None:
    assert row_texts._gained(first, last, 64) == word


def test_a_question_about_another_arm_keeps_the_usual_answer(tmp_path: Path) -> None:
    results = read_results(folder(tmp_path / "sweep"))
    asked = (Question(a="worse", b="better", metric=Metric(k=256)),)
    results = replace(results, design=replace(results.design, questions=asked))
    assert "Did RL widen" not in row_texts.answer(comparisons(results), results)


def test_compare_prints_which_arm_the_other_was_trained_from(tmp_path: Path) -> None:
    """By the hashes in run.json and in the record or the store; nothing where they differ or are unknown."""
    base = record("base", 1.0, tmp_path, weights="aaa bbb")

    def run(name: str, start: str | None) -> str:
        where = tmp_path / name
        (where / "policy").mkdir(parents=True)
        data = {} if start is None else {"data": {"model_sha256": start}}
        (where / "run.json").write_text(json.dumps({"config": {"steps": 1}, **data}))
        return record(name, 2.0, tmp_path, model=str(where / "policy"))

    said = "grpo was trained from base (the hashes of the weights are equal)."
    assert said in full_text(compare(base=base, grpo=run("grpo", "aaa bbb")))
    other_way = said.replace("grpo", "base").replace("from base", "from grpo")
    assert other_way not in full_text(compare(base=base, grpo=run("g2", "aaa bbb")))
    for name, start in (("other", "ccc"), ("unknown", None)):
        assert "trained from" not in full_text(compare(base=base, other=run(name, start)))


def test_a_store_of_the_starting_point_is_known_by_its_revision() -> None:
    from sage_rlvr.results.read import digest_of

    assert digest_of("a b") == hashlib.sha256(b"a b").hexdigest() and digest_of("hub:x") == "hub:x"
