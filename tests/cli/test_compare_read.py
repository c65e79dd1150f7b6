"""`compare` as a reader sees it: what stands above the verdict, headings of several arms, one problem."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sage_rlvr.cli import main

Capture = pytest.CaptureFixture[str]
SHARED = "they share sampling seeds"


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")


def out_of(capsys: Capture, *words: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(["compare", *words, "--full"])
    said = capsys.readouterr()
    assert not stop.value.code, said.err
    return said.out


def write(name: str, rows: list[dict[str, Any]]) -> str:
    Path(name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return name


def texts(seed: int, form: str, shared: float = 0.0) -> list[dict[str, Any]]:
    """40 problems of 8 answers from 0 to 9, a share of them drawn with the same seed on both sides. form: of the text."""
    own, both = np.random.default_rng(seed), np.random.default_rng(0)
    rows = []
    for i in range(40):
        for j in range(8):
            common, answer, picks = both.integers(10), own.integers(10), both.random() < shared
            answer = int(common if picks else answer)
            text = form.format(answer="abcdefghij"[answer], place=j, row=8 * i + j)
            rows.append({"id": f"p{i}", "correct": answer < 4, "text": text})
    return rows


@pytest.mark.parametrize("form", ["{answer}", "{answer} (sample {place})", "#{row}: {answer}", "step 1: {answer} ({place})"])
def test_shared_seeds_are_told_behind_a_plain_verdict(form: str, capsys: Capture) -> None:
    out = out_of(capsys, write("a.jsonl", texts(1, form, 0.5)), write("b.jsonl", texts(2, form, 0.5)))
    assert SHARED in out and out.index(SHARED) > out.index("pass@1: ")


@pytest.mark.parametrize("form", ["{answer}", "{answer} (sample {place})", "#{row}: {answer}", "step 1: {answer} ({place})"])
def test_the_number_of_a_sample_in_its_text_is_no_shared_seed(form: str, capsys: Capture) -> None:
    out = out_of(capsys, write("a.jsonl", texts(1, form)), write("b.jsonl", texts(2, form)))
    assert SHARED not in out and "read twice" not in out


def test_each_of_several_arms_has_a_heading(capsys: Capture) -> None:
    names = [write(f"{name}.jsonl", [{"id": f"p{i}", "n": 8, "c": c} for i in range(9)]) for c, name in enumerate("abc", 1)]
    lines = out_of(capsys, *names).splitlines()
    assert [lines[lines.index(f"{arm} against a:") + 1].startswith("pass@1: a 0.125") for arm in "bc"] == [True, True]
    assert "b against a:" not in out_of(capsys, *names[:2])


@pytest.mark.slow
def test_one_problem_has_no_interval(capsys: Capture) -> None:
    names = [write(f"{name}.jsonl", [{"id": "p", "n": 8, "c": c, "keys": {"x": c}}]) for c, name in enumerate("ab", 1)]
    out = out_of(capsys, *names, "--support", "--out", "page")
    page = Path("page/report.html").read_text()
    assert not [line for line in (out + page).splitlines() if "inf to" in line or "[-inf" in line]
    assert not re.findall(r"(?<![\d.,])1 (?:problems|rows)", out)


def test_a_comparison_names_what_a_reader_can_pass(capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main(["compare", "--help"])
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "the control first: PATH" in said and "The largest k of pass@k" in said


def test_a_file_is_one_training_seed(capsys: Capture) -> None:
    for name, more in (("b", 0), ("r", 1)):
        write(f"{name}.jsonl", [{"id": f"p{i}", "n": 8, "c": (i + more) % 9} for i in range(20)])
    with pytest.raises(SystemExit) as stop:
        main(["compare", "base=b.jsonl", "rl=r.jsonl,r.jsonl,./r.jsonl"])
    assert stop.value.code == 2 and "r.jsonl was passed twice" in capsys.readouterr().err
