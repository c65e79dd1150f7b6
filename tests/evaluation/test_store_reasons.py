"""Samples that earned nothing: the first lines of a store's report and of a page, with golds and without, on old stores too."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from command import call
from sage_rlvr.evaluation.judged import elsewhere_in, reasons_of
from sage_rlvr.evaluation.sample_report import report_lines
from sage_rlvr.evaluation.sampling import choose
from sage_rlvr.evaluation.store import Sample, SampleStore, prompt_hash
from sage_rlvr.render import Page, report_of
from sage_rlvr.results.read import read_results
from sage_rlvr.tasks import task_named
from sage_rlvr.tasks.unanswered import read_at
from samples_common import IDENTITY

N = 4
GOLDS = {f"p{i}": str(i) for i in range(10)}


@pytest.fixture
def task(tmp_path: Path) -> Any:
    rows = [{"id": name, "problem": f"Which number is {gold}?", "answer": gold} for name, gold in GOLDS.items()]
    (tmp_path / "my.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return choose(task_named(str(tmp_path / "my.jsonl")))


def filled(folder: Path, verdict: str, reason: str, finish: str = "stop", prompt: str = "boxed", limit: int = 64) -> SampleStore:
    """Ten problems, four samples each of one verdict; every text ends with a number, the gold's in every other sample."""
    law = IDENTITY.decoding | {"max_new_tokens": limit}
    identity = replace(IDENTITY, task="my", prompt=prompt, chunk_size=N, decoding=law)
    store = SampleStore.open(folder, identity)
    store.commit([
        Sample(
            problem=name, sample=i, seed=identity.seed_of(name, i), prompt_hash=prompt_hash(name),
            text=f"After {i} steps it must be {int(gold) + i % 2}.",
            verdict=verdict, reason=reason, finish=finish,  # type: ignore[arg-type]
        )
        for name, gold in GOLDS.items() for i in range(N)
    ])  # fmt: skip
    return store


def test_the_first_line_names_the_place_that_would_have_found_the_answers(tmp_path: Path, task: Any) -> None:
    store = filled(tmp_path / "s", "wrong", "no answer")
    lines = report_lines(store, location=read_at(task.task), judge=task.judge_at)
    assert lines[0].startswith(r"no answer in \boxed{} in 40 of 40 completions")
    assert "of 40 such texts 40 have one as the last number, 20 of them right: set answer_in: last_number" in lines[0]
    assert any(line.startswith("no answer  100.0%") for line in lines)
    without = report_lines(store)[0]
    assert "40 have one as the last number (not judged there)" in without
    assert reasons_of(store).unanswered == 40


@pytest.mark.parametrize(
    ("verdict", "reason", "finish", "first"),
    [
        ("wrong", "value", "length", "40 of 40 completions were cut at the length limit, before they ended: raise --max"),
        ("undecided", "took longer than 5 s", "stop", "40 of 40 completions are undecided and earn 0 (took longer than 5 s: 40)"),
        ("wrong", "not an expression", "stop", "no answer (not an expression: 40) in 40 of 40 completions"),
        ("wrong", "value", "stop", "my: 10 problems"),
        ("right", "right", "stop", "my: 10 problems"),
    ],
)
def test_what_most_samples_failed_by_is_the_first_line(tmp_path: Path, verdict: str, reason: str, finish: str, first: str) -> None:
    store = filled(tmp_path / "s", verdict, reason, finish, prompt="countdown")
    assert report_lines(store)[0].startswith(first)


def test_other_places_are_looked_at_in_samples_of_all_problems_and_never_in_cut_ones(tmp_path: Path) -> None:
    store = filled(tmp_path / "s", "wrong", "no answer")
    seen: list[str] = []

    def judge(pairs: Any, reading: Any) -> list[Any]:
        seen.extend(problem for problem, _ in pairs)
        return [task_verdict] * len(pairs)

    from sage_rlvr.verifiers import Verdict

    task_verdict = Verdict("wrong", "value")
    found = elsewhere_in(store, judge=judge)
    assert found is not None and found.right == 0 and set(seen) == set(GOLDS)
    assert elsewhere_in(filled(tmp_path / "cut", "wrong", "no answer", finish="length")) is None
    assert elsewhere_in(filled(tmp_path / "own", "wrong", "no answer", prompt="countdown")) is None


@pytest.mark.slow
def test_a_page_begins_with_it(tmp_path: Path) -> None:
    filled(tmp_path / "s", "wrong", "no answer").close()
    page = Page(report_of(read_results(f"mine={tmp_path / 's'}")))
    first = [line for line in page.markdown().splitlines() if line][1]
    assert first.startswith("> **mine") and "no answer in 40 of 40 completions" in first and "answer_in: last" in first
    html = page.html()
    assert html.index("no answer in 40 of 40") < html.index("Nothing is compared") < html.index("<h2 ")
    (row,) = page.values["summary"]["sampled"]
    assert (row["no_answer_frac"], row["cut_frac"], row["undecided_frac"]) == (1.0, 0.0, 0.0)
    assert "100.0%" in page.markdown() and page.values["summary"]["failed"] == list(page.values["failed"])


def test_compare_and_samples_say_it_first(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    filled(tmp_path / "a", "wrong", "no answer").close()
    filled(tmp_path / "b", "right", "right").close()
    assert call("samples", "a") == 0
    assert capsys.readouterr().out.startswith("no answer in 40 of 40")
    call("compare", "a=a", "b=b")
    assert capsys.readouterr().out.startswith("a, my: no answer in 40 of 40")


@pytest.mark.slow
def test_verify_of_a_file_and_an_audit_name_the_place(tmp_path: Path, capsys: Any) -> None:
    rows = [{"completion": f"It is {i}.", "answer": str(i)} for i in range(4)]
    (tmp_path / "said.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert call("verify", "--file", tmp_path / "said.jsonl") == 0
    out = capsys.readouterr().out
    assert out.startswith(r"no answer in \boxed{} in 4 of 4")
    assert "4 of them right: set answer_in: last_number" in " ".join(out.split())
    (tmp_path / "my.jsonl").write_text("".join(json.dumps({"problem": f"{i}?", "answer": str(i)}) + "\n" for i in range(4)))
    assert call("audit", tmp_path / "my.jsonl", "--template", "boxed", "--answer-in", "tag") == 2
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("format 'boxed': perfect answer: no answer in <SOLUTION> in 4 of 4") and "set answer_in: boxed" in out
    assert "(4 no answer)" in out
