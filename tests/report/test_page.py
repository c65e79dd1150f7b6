"""The page of a sweep, a demo, sample stores and a stored summary: what is there is shown, nothing breaks out."""

from __future__ import annotations

import json
import math
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from report.page_common import BREAKOUT, run
from sage_rlvr.api.report import report
from sage_rlvr.cli.app import main
from sage_rlvr.render import Page, report_of
from sage_rlvr.render.markup import escaped
from sage_rlvr.results import tables
from sage_rlvr.results.details import training as measured
from sage_rlvr.results.page import page_of
from sage_rlvr.results.page.training import curves, grids, learning, warnings
from sage_rlvr.results.read import read_results
from sage_rlvr.results.summary import summary_of
from sage_rlvr.verdicts.comparisons import compare
from sage_rlvr.verdicts.findings import findings_of
from sage_rlvr.verdicts.summary_io import plain
from sage_rlvr.verdicts.text import rows as row_texts

ROOT = Path(__file__).parents[2]


class Reader(HTMLParser):
    """What a browser would load, run or open."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[tuple[str, str]] = []
        self.scripts: list[tuple[str, str]] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.handlers: list[str] = []
        self._inside: str | None = None

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for key, value in attrs:
            if key in ("src", "href", "xlink:href", "srcset", "data", "action", "poster") and not value.startswith("#"):
                self.loads.append((tag, value))
            if key.startswith("on"):
                self.handlers.append(key)
            if key == "id":
                self.ids.append(value)
        self._inside = dict(attrs).get("type", "script") if tag == "script" else None

    def handle_data(self, data):
        if self._inside is not None:
            self.scripts.append((self._inside, data))
            self._inside = None


def sections(text: str) -> list[str]:
    return re.findall(r"^## (.+)$", text, re.M)


@pytest.mark.slow
def test_nothing_is_loaded_and_one_script_runs(html: str) -> None:
    reader = Reader()
    reader.feed(html)
    assert reader.loads == [] and reader.handlers == [] and "http" not in html.replace("http-equiv", "")
    assert not {"iframe", "link", "object", "img", "base", "embed"} & set(reader.tags)
    assert [kind for kind, _ in reader.scripts] == ["application/json", "script"]
    assert len(reader.ids) == len(set(reader.ids)) and not re.search(r"url\((?!#)", html)
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html)
    assert policy is not None and "default-src &#39;none&#39;" in policy[1] and "script-src &#39;sha256-" in policy[1]
    assert "unsafe-inline" not in policy[1].split("script-src")[1] and "unsafe-eval" not in policy[1]
    wanted = set(re.findall(r'xlink:href="#([^"]+)"|url\(#([^)]+)\)', html))
    assert {a or b for a, b in wanted} <= set(reader.ids)


@pytest.mark.slow
def test_no_text_breaks_out(html: str) -> None:
    """Arms, problems, samples, reasons, notes and recipes hold the same attack; not one tag of it becomes a tag."""
    assert BREAKOUT not in html and "<img" not in html
    for bad in ("\x00", "\x07", "\u202e", "\u2066", "\ud800", "\u2028"):
        assert bad not in html
    html.encode("utf-8")
    assert "&lt;/script&gt;&lt;script&gt;" in html and "onerror=alert(1)&gt;" in html


@pytest.mark.slow
def test_samples_come_back_as_they_were(html: str) -> None:
    reader = Reader()
    reader.feed(html)
    data = json.loads(reader.scripts[0][1])
    texts = [row["t"] for row in data["rows"]]
    assert BREAKOUT in texts and "\U0001f469\u200d\U0001f52c emoji, ünï" in texts
    assert "[U+0000][U+0007] NUL and bell" in texts and "[U+D800] half a pair" in texts
    assert any("[U+202E]sdrawkcab[U+202C]" in text for text in texts)
    first = data["rows"][0]
    assert [data["spellings"][i] for i in first["k"]] == ["a", BREAKOUT, "<eos>"]
    assert first["e"] == [0.1, None, 2.0] and first["q"] == [1.0, 1.3, 0.7] and first["b"] == 1e9
    assert sorted({row["x"] for row in data["rows"] if "x" in row}) == [1_000_000]
    turns = [[1, f"a{BREAKOUT}", 1], [0, f"it gave [U+202E]{BREAKOUT}", 1], [1, "done", 1]]
    assert [row["u"] for row in data["rows"] if "u" in row] == [turns] * 6


@pytest.mark.slow
def test_the_page_has_answer_scores_pictures_samples_and_the_rest_is_folded(page: Page, html: str) -> None:
    head = html[html.index("<h1>") :]
    order = [head.index(mark) for mark in ("</h1>\n<p>", "<table", "<svg", '<h2 id="samples"', '<details class="section">')]
    assert order == sorted(order) and head.count("<h2") == head.count('<details class="section">') + 1
    text = page.markdown("figures")
    question, answer, facts, scores = (text.splitlines()[i] for i in (2, 4, 6, 8))
    assert question.startswith("*Do no KL and SAGE") and "differ from GRPO?" in question
    assert answer == escaped(page.answer) and "training seeds per arm" in facts
    assert scores.startswith("| arm | pass@1 | pass@8 | pass@64 | pass@256 |") and "raw KL" not in scores
    pictures = next(line for line in text.splitlines() if line.startswith("!["))
    assert pictures.startswith("![pass@1 against") and "![pass@k of each policy]" in pictures
    assert sections(text)[0] == "Samples"


@pytest.mark.slow
def test_every_row_is_on_the_page_as_everywhere(folders: Path) -> None:
    results = read_results(folders / "demo")
    text = Page(report_of(results)).markdown()
    rows = compare(results)
    assert rows and escaped(row_texts.answer(rows)) in text
    for row in rows:
        assert escaped(row_texts.sentence(row)) in text


@pytest.mark.slow
def test_the_sections_of_a_sweep(page: Page) -> None:
    text = page.markdown("figures")
    for name in (
        "Results", "T = 0.3 and T = 1", "The base with power tempering", "Scores", "On away",
        "Differences over k", "Training", "Support: kept, gained, lost", "Kinds of right answers",
        "Distinct right answers", "Samples", "Runs", "Run cards",
    ):  # fmt: skip
        assert name in sections(text)
    assert "## Differences at equal pass@1\n\n![pass@256 at equal pass@1" in text
    assert "added: GRPO, beta 0.1 (GRPO at beta 0.1" in text and "no time" in text
    keys = {
        "frontier",
        "passk",
        "differences-1",
        "gap-1",
        "training_reward_mean",
        "support",
        "structure_operators",
        "distinct",
    }
    assert keys <= set(page.figures)
    outside = re.sub(r"(`{3,})text\n.*?\n\1", "", text, flags=re.S)  # cards are fenced
    assert "<" not in re.sub(r"<br>|<details><summary>|</summary>|</details>|< ", "", outside)
    for block in outside.split("\n\n"):
        if block.startswith("| "):
            assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


@pytest.mark.slow
def test_samples_alone_make_a_page(folders: Path) -> None:
    page = Page(report_of(read_results(*sorted((folders / "stores").iterdir())), shown=1))
    text = page.markdown("figures")
    assert "From samples: sums" in text and "there is no exact evaluation" in text
    assert {"passk-sums", "differences-sums-1", "distinct-sums"} <= set(page.figures)
    assert "GRPO at T = 0.3" in page.looks and "Reasoning patterns among right samples" in text
    assert "of 18 stores" in text or "This page has" in text


@pytest.mark.slow
def test_a_stored_summary_is_enough() -> None:
    page = Page(report_of(read_results(ROOT / "lab" / "experiments" / "2026-11-21_table1")))
    text = page.markdown("figures")
    assert {"frontier", "passk", "support"} <= set(page.figures) and "| GRPO | 6 of 6 |" in text
    assert "there is no run directory, so there are no training curves." in text
    assert not {"Samples", "Run cards", "Distinct right answers"} & set(sections(text))  # one list says what is not here
    absent = text.split("## Not on this page")[1]
    assert absent.count("\n- ") == 9 and "a summary has no frontiers of single training seeds" in absent
    assert "sampled tokens, M" in text and page.answer in page.markdown().replace("\\", "")


def test_a_stored_summary_of_samples_alone_has_its_base_and_its_picture() -> None:
    page = Page(report_of(read_results(ROOT / "lab" / "experiments" / "2026-11-24_long_answers")))
    text = page.markdown("figures")
    assert "passk-countdown-steps" in page.figures and {"base", "GRPO + strong Branch"} <= set(page.looks)
    assert "on countdown_steps" in page.answer and page.answer in text.replace("\\", "")


@pytest.mark.parametrize(
    ("place", "odd", "words"),
    [
        ("arms.grpo.pass", None, ("compare",)),
        ("arms.grpo.pass.1", {}, ("report", "--format", "md", "-o", "page.md")),
        ("arms.grpo.pass.1.low", [[]], ("report", "--format", "md", "-o", "page.md")),
        ("arms.grpo.dead", {}, ("report", "--format", "md", "-o", "page.md")),
    ],
)
def test_a_stored_summary_of_another_shape_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    place: str, odd: object, words: tuple[str, ...],
) -> None:  # fmt: skip
    tree = json.loads((ROOT / "lab" / "experiments" / "2026-11-21_table1" / "summary.json").read_text("utf-8"))
    home, (*path, last) = tree, place.split(".")
    for key in path:
        home = home[key]
    home[last] = odd
    (tmp_path / "summary.json").write_text(json.dumps(tree), "utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        main([words[0], ".", *words[1:]])
    assert caught.value.code == 2 and "DataError: summary.json: " in capsys.readouterr().err


def test_an_arm_with_samples_alone_is_sampled_and_not_not_run() -> None:
    arms = {key: {"label": key.upper()} for key in "ab"}
    found = {"seeds": [0, 1], "ks": [1], "base": None, "arms": arms, "sampled": [{"policy": "A", "seeds": [0]}], "chance": {}}
    made = tables.scores(found)
    assert [row[:3] for row in made.rows] == [("A", "1 of 2", "sampled"), ("B", "0 of 2", "not run")]
    assert made.notes == (tables.SAMPLES, "No chance floor known.")


@pytest.mark.slow
def test_the_page_is_made_of_the_summary_alone(folders: Path, tmp_path: Path) -> None:
    """Of the file, or of the results that it was made of."""
    values = report_of(read_results(folders / "demo"), shown=0)
    text = json.dumps(values["summary"], allow_nan=False)
    assert page_of(json.loads(text)) == values
    (tmp_path / "summary.json").write_text(text, encoding="utf-8")
    again = report_of(read_results(tmp_path), shown=0)
    apart = {name for name in values if again[name] != values[name]}
    assert apart == {"summary", "sources"} and again["summary"] == values["summary"] | {"sources": [str(tmp_path)]}


@pytest.mark.slow
def test_a_report_writes_its_summary_and_none_over_that_of_another_sweep(folders: Path, tmp_path: Path) -> None:
    page = report(folders / "demo", out=tmp_path / "page.md", format="md", show=0)
    assert json.loads((tmp_path / "summary.json").read_text("utf-8")) == page.summary
    (tmp_path / "design.json").write_text("{}", encoding="utf-8")
    report(folders / "sweep", out=tmp_path / "page.md", format="md", show=0)
    assert json.loads((tmp_path / "summary.json").read_text("utf-8")) == page.summary


def test_nothing_to_compare_is_said(folders: Path) -> None:
    page = Page(report_of(read_results(folders / "sweep" / "evaluations" / "base.npz")))
    assert page.answer.startswith("Nothing is compared") and "power" in page.markdown()


def test_a_guide_that_did_nothing_is_said_beside_its_results() -> None:
    idle, active = ({"active_first": x, "active_last": x, "q_first": 1.0, "q_last": 1.0} for x in (0.0, 0.2))
    arms = {"token": {"label": "SAGE-Token", "dose": idle}, "branch": {"label": "SAGE-Branch", "dose": active}}
    (said,) = warnings({"arms": arms})
    assert said.startswith("SAGE-Token: q differed from 1 on 0.0%")


@pytest.mark.slow
def test_what_a_run_warned_of_stands_beside_it(folders: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folders / "demo", tmp_path / "demo"))
    file = next(folder.glob("runs/*/run.json"))
    warning = {"kind": "guide/clamped_frac", "step": 9, "message": "Branch is clamped everywhere"}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"warnings": [warning]}))
    results = read_results(folder)
    (kept,) = summary_of(results, findings_of(results))["warnings"]
    assert kept == warning | {"arm": kept["arm"], "seed": 0}
    text = Page(report_of(results)).markdown()
    assert "<br>warned: guide/clamped_frac |" in text
    said = f"{kept['arm']}, seed 0, warned at step 9 (guide/clamped_frac): Branch is clamped everywhere"
    assert f"- {escaped(said)}" in text


@pytest.mark.slow
def test_a_sweep_keeps_its_design_beside_a_store_of_another_arm(folders: Path) -> None:
    alone = read_results(folders / "sweep")
    both = read_results(folders / "sweep", folders / "stores" / "SAGE-sums-T1-s0", folders / "stores" / "base-sums-T1-s0")
    assert both.design.arms[:-1] == alone.design.arms and both.design.control == "GRPO" and both.design.extra_arms == ("SAGE",)
    rows = compare(both)
    asked = [row for row in rows if row.family == "primary"]
    assert asked == [row for row in compare(alone) if row.family == "primary"]
    assert {(row.a, row.b, row.task) for row in rows if "SAGE" in (row.a, row.b)} == {("SAGE", "base", "sums")}
    assert "SAGE" not in summary_of(both, findings_of(both))["arms"] and "From samples: sums" in Page(report_of(both)).markdown()


def test_a_stored_summary_stays_beside_stores(folders: Path) -> None:
    results = read_results(ROOT / "lab" / "experiments" / "2026-11-21_table1", folders / "stores" / "base-sums-T1-s0")
    stored = read_results(ROOT / "lab" / "experiments" / "2026-11-21_table1")
    assert results.k == 256 and len(compare(results)) == len(compare(stored))


def test_training_curves_survive_uneven_and_missing_runs() -> None:
    rows = [{"step": 0, "reward/mean": 0.5, "optimizer/grad_norm": math.inf}, {"step": 1, "reward/mean": 0.25}]
    logged = measured.curves({"GRPO": [run("GRPO", 0, rows), run("GRPO", 1, rows[:1])], "no KL": [run("no KL", 0, [])]})
    found = curves(plain(logged))
    assert found is not None and set(found["runs"]) == {"GRPO"} and found["metrics"][0] == "reward/mean"
    assert any("Not recorded in any run" in note for note in found["notes"]) and curves({}) is None


def test_the_facts_of_an_arm_say_what_it_cost() -> None:
    """Two epochs of two mini-batches, in each step that kept something: 8 and 4 optimizer steps."""
    rows = [{"step": 0, "loss": 0.1, "rollout/tokens": 1e6}, {"step": 1, "loss": 0.1, "rollout/tokens": 2e6}]
    updates = {"epochs": 2, "minibatches": 2}
    short = [rows[0], {"step": 1, "rollout/tokens": 2e6}]
    said = measured._facts([run("DARS", seed, one, updates=updates) for seed, one in enumerate((rows, short))])
    assert said.startswith("training seeds 0, 1; 3.00 M sampled tokens per seed; 6 optimizer steps per seed")
    assert "optimizer" not in measured._facts([run("base", 0, [])])


@pytest.mark.slow
def test_grids_and_learning_curves_are_found_by_configuration(folders: Path) -> None:
    results = read_results(folders / "demo")
    them = tables.evaluated(summary_of(results, findings_of(results)))
    names = [name for name in them if name != "base"]
    configs = {name: {"a": i // 2, "b": i % 2} for i, name in enumerate([*names, "not run"])}
    (grid,) = grids(measured.grids(configs), them, 256)
    assert (grid["row_key"], grid["column_key"]) == ("a", "b") and len(grid["first"]) == 3
    assert grid["said"].endswith("1, 1: not run") and measured.grids(dict(list(configs.items())[:3])) == []
    lines = measured.learning({name: {"steps": 5 * i} for i, name in enumerate(names, start=1)}, names)
    found = learning(lines, them, "base", 256)
    assert found is not None and [steps for steps, *_ in found["lines"][names[-1]]] == [5, 10, 15]
    assert measured.learning({name: {"steps": 5} for name in names}, names) == {} and learning({}, them, "base", 256) is None


@pytest.mark.slow
def test_the_command_writes_what_it_was_asked_for(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    html, text, demo = tmp_path / "out" / "page.html", tmp_path / "out", str(folders / "demo")
    with pytest.raises(SystemExit) as done:
        main(["report", demo, "-o", str(html), "--title", "<b>Ours</b>"])
    said = capsys.readouterr().out
    assert done.value.code == 0 and str(html) in said
    assert said.splitlines()[-1].startswith("One run of each: about these checkpoints, not about methods. Against GRPO, ")
    page = html.read_text(encoding="utf-8")
    assert "&lt;b&gt;Ours&lt;/b&gt;" in page and not re.search(r"https?:", page)
    with pytest.raises(SystemExit) as done:
        main(["report", demo, "-o", str(text), "--format", "md", "--png", str(tmp_path / "figures")])
    assert done.value.code == 0
    assert "](../figures/passk.png)" in (text / "report.md").read_text(encoding="utf-8")
    assert (tmp_path / "figures" / "passk.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit) as done:
        main(["report", demo, "--k", "1"])
    assert done.value.code == 2 and "k >= 2" in " ".join(capsys.readouterr().err.split())
