"""The page of `browse`: every completion is on it, at its problem and step, whatever its text."""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chromium import Chromium, executable
from sage_rlvr.api.browse import browse
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.evaluation.store import PromptAndGold, SampleStore
from sage_rlvr.render import browse as writer
from samples_common import SMALL, draw

HOSTILE = '</script><script>window.bad = 1</script><img src=x onerror="window.bad = 2">&lt;\u2028\u202e'


def rows_of(page: Path) -> dict[tuple[str, str, object], list[tuple[str, str | None]]]:
    """(prompt or name, run, step) -> (code, text) of each completion, as the page's script reads them."""
    text = page.read_text("utf-8")
    data = json.loads(re.search(r'id="samples-data">(.*?)</script>', text, re.DOTALL)[1])
    entries = data["texts"]
    if entries is None:
        entries = []
        for number, start in enumerate(data["starts"]):
            assert start == len(entries)
            part = (page.parent / data["folder"] / f"{number:04}.js").read_text("ascii")
            assert not set("<>&") & set(part)
            head = f'sageRlvrTexts("{data["id"]}",{number},'
            assert part.startswith(head)
            entries += json.loads(part.removeprefix(head).removesuffix(");"))
    found = {}
    for problem, column, codes, entry, _ in data["cells"]:
        name, about, _, asked = data["problems"][problem]
        arm, step = data["columns"][column]
        key = entries[asked]["prompt"] or name or about, data["arms"][arm], step
        found[key] = [(code, row[0]) for code, row in zip(codes, entries[entry], strict=True)]
    return found


texts = st.one_of(st.text(max_size=30), st.sampled_from([HOSTILE, "", "\x00", "\ud800"]))
completions = st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0, 20, 400]), st.booleans(), texts), min_size=1, max_size=30)


@pytest.mark.slow
@given(rows=completions, part=st.sampled_from([1, 200, 10**9]))
@example(rows=[(0, 0, True, HOSTILE)] * 3, part=1)
def test_every_completion_is_on_the_page_at_its_problem_and_step(rows: list, part: int) -> None:
    prompts = [f"{HOSTILE} prompt number {i}, and all of them begin alike" for i in range(4)]
    wanted = defaultdict(list)
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "PART", part)
        folder = Path(name, "dumps")
        folder.mkdir()
        by_step = defaultdict(list)
        for problem, step, right, text in rows:
            by_step[step].append({"input": prompts[problem], "output": text, "gts": "1", "score": float(right), "step": step})
            wanted[prompts[problem], "dumps", step].append(("r" if right else "w", text))
        for step, some in by_step.items():
            Path(folder, f"{step}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
        _, written = browse(folder, out=Path(name, "page.html"))
        page = written.page.read_text("utf-8")
        assert rows_of(written.page) == dict(wanted)
    assert "window.bad" not in page.partition('id="samples-data"')[0].replace("&lt;", "")
    assert page.count("<script") == 2 == page.count("</script")


def test_codes_of_completions_and_the_run_of_trls_folder(tmp_path: Path) -> None:
    folder = tmp_path / "grpo" / "completions"
    folder.mkdir(parents=True)
    for step in (5, 10):
        rewards = [None, 1.0] if step == 5 else [0.0, 0.5]
        rows = [
            {"step": step, "prompt": [{"role": "user", "content": "2 + 2?"}], "completion": [{"role": "assistant", "content": "4"}],
             "acc_reward": reward, "advantage": 0.0}
            for reward in rewards
        ]  # fmt: skip
        pq.write_table(pa.Table.from_pylist(rows), folder / f"completions_{step:05}.parquet")
    made, written = browse(tmp_path / "grpo", out=tmp_path / "page.html")
    assert rows_of(written.page) == {
        ("2 + 2?", "grpo", 5): [("n", "4"), ("r", "4")], ("2 + 2?", "grpo", 10): [("w", "4"), ("g", "4")],
    }  # fmt: skip
    assert made.summary().startswith("4 completions, 1 problem, 1 run, 2 steps: 25.0 % right, 25.0 % wrong, 25.0 % without a score")
    (tmp_path / "grpo" / "counts.jsonl").write_text('{"id": "a", "n": 2, "c": 1}\n')  # as PassAtK writes beside its completions
    made, _ = browse(tmp_path / "grpo", out=tmp_path / "page.html", right_from=0.5)
    assert made.skipped == 1
    assert made.counts() == {"r": 2, "w": 1, "u": 0, "n": 1, "g": 0, "cut": 0}


def test_one_step_is_selected_and_cut_completions_are_marked(tmp_path: Path) -> None:
    rows = [{"id": 1, "step": step, "correct": cut, "cut": cut, "text": "x"} for step in (1, 2) for cut in (True, False)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made, written = browse(f"rl={tmp_path}/a.jsonl@2", out=tmp_path / "page.html")
    assert rows_of(written.page) == {("1", "rl", 2): [("R", "x"), ("w", "x")]}
    assert made.counts()["cut"] == 1


def test_a_sample_store_keeps_its_verdicts_cuts_and_odd_texts(tmp_path: Path) -> None:
    rows = [draw(problem, number, SMALL) for problem in ("b", "a") for number in range(2)]
    with SampleStore.open(tmp_path / "store", SMALL) as store:
        store.commit(rows)
        store.describe({"a": PromptAndGold("2 + 2?", "4")})
    _, written = browse(tmp_path, out=tmp_path / "page.html")
    wanted: dict[tuple[str, str, object], list[tuple[str, str | None]]] = defaultdict(list)
    for row in rows:
        code = {"right": "r", "wrong": "w", "undecided": "u"}[row.verdict]
        key = "2 + 2?" if row.problem == "a" else "b", "tiny, T = 1", None
        wanted[key].append((code.upper() if row.finish == "length" else code, row.text))
    assert rows_of(written.page) == dict(wanted)


def test_refusals_name_the_file_and_the_next_step(tmp_path: Path) -> None:
    (tmp_path / "counts.jsonl").write_text('{"id": "a", "n": 2, "c": 1}\n')
    (tmp_path / "empty").mkdir()
    (tmp_path / "step.jsonl").write_text('{"id": "a", "correct": true, "step": 1.5}\n')
    with pytest.raises(DataError, match=r"counts\.jsonl: counts per problem"):
        browse(tmp_path / "counts.jsonl", out=tmp_path / "page.html")
    with pytest.raises(DataError, match="empty: no file of completions"):
        browse(tmp_path / "empty", out=tmp_path / "page.html")
    with pytest.raises(DataError, match=r"step\.jsonl, row 1: step = 1\.5: a whole number"):
        browse(tmp_path / "step.jsonl", out=tmp_path / "page.html")
    with pytest.raises(DataError, match="nothing: no such file"):
        browse(tmp_path / "nothing", out=tmp_path / "page.html")
    (tmp_path / "page_texts").mkdir()
    (tmp_path / "page_texts" / "mine.txt").write_text("keep")
    (tmp_path / "ok.jsonl").write_text('{"id": "a", "correct": true, "text": "x"}\n')
    with pytest.raises(ConfigError, match=r"page_texts has files that are not of a page, such as mine\.txt"):
        browse(tmp_path / "ok.jsonl", out=tmp_path / "page.html")
    assert (tmp_path / "page_texts" / "mine.txt").read_text() == "keep"
    with pytest.raises(ConfigError, match=r"--out .*ok\.jsonl: the page is a file \.html"):
        browse(tmp_path / "ok.jsonl", out=tmp_path / "ok.jsonl")
    assert (tmp_path / "ok.jsonl").read_text().startswith('{"id"')


# ------------------------------------------------------------------------------------------------------------------
# in a browser


@pytest.mark.slow
@pytest.mark.skipif(executable() is None, reason="no Chromium is installed (Debian: apt install chromium)")
@pytest.mark.parametrize("part", [10**9, 3000])
@pytest.mark.parametrize("width", [390, 1200])
def test_in_a_browser_by_keyboard_texts_stay_texts(tmp_path: Path, part: int, width: int) -> None:
    folder = tmp_path / "a #1? dumps"
    folder.mkdir()
    for step in (0, 20):
        rows = [
            {"input": f"{HOSTILE} problem {i}", "output": f"{HOSTILE} needle-{i}-{step}-{j}", "gts": HOSTILE,
             "score": float(j > i), "step": step}
            for i in range(12) for j in range(4)
        ]  # fmt: skip
        (folder / f"{step}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.MonkeyPatch.context() as patch, Chromium(tmp_path / "profile") as browser:
        patch.setattr(writer, "PART", part)
        _, written = browse(folder, out=tmp_path / "a #1? page.html")
        browser.requests.clear()

        def becomes(expression: str) -> None:
            for _ in range(200):
                if browser.run(expression):
                    return
                time.sleep(0.02)
            raise AssertionError(f"{expression}: {browser.messages}")

        browser.show(written.page, width=width)
        becomes("document.querySelectorAll('#f-detail .sample').length == 4")
        assert browser.run("document.documentElement.scrollWidth") <= width
        browser.press("/")
        assert browser.run("document.activeElement.id") == "f-search"
        browser.run("document.activeElement.value = 'NEEDLE-7-20-2'; document.getElementById('f-form').requestSubmit()")
        becomes("document.querySelectorAll('#f-detail mark').length == 1")
        assert browser.run("document.querySelectorAll('#f-detail .sample').length") == 1
        assert browser.run("document.getElementById('f-status').textContent").startswith("1 problem of 12, 4 completions")
        browser.run("document.getElementById('f-search').value = ''; document.getElementById('f-form').requestSubmit()")
        becomes("document.querySelectorAll('#f-table .cell').length == 24")
        browser.run("document.querySelector('.cell[tabindex=\"0\"]').focus()")
        before = browser.run("document.activeElement.id")
        browser.press("ArrowDown")
        assert browser.run("document.activeElement.id") != before
        browser.press("Enter")
        becomes("document.activeElement.id == 'f-title'")
        browser.press("Escape")
        assert browser.run("document.activeElement.className") == "cell"
        assert browser.run("window.bad") is None
        assert browser.run("document.querySelectorAll('main img, main script').length") == 0
        assert browser.messages == []
        assert all(url.startswith(tmp_path.as_uri()) for url in browser.requests)
        assert (len(browser.requests) > 1) == (part == 3000)
