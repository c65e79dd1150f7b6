"""`sage-rlvr report` from files: folders, runs, records and stores become one page, and what is missing is said."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sage_rlvr.cli.app import main
from sage_rlvr.cli.found import gather
from sage_rlvr.cli.report import _distinct, _labels, _pairs, study_of
from sage_rlvr.errors import DataError
from sage_rlvr.evaluation.record import Record, load_record, save_record
from sage_rlvr.report import Result, arm_from_logps, book, markdown
from sage_rlvr.report.parts import Browser, Page, Part, Picture, Tabular
from sage_rlvr.stats.samples.structure import class_masses
from sage_rlvr.stats.support import reachable
from sage_rlvr.tasks.countdown.expressions import solve
from samples_common import IDENTITY, evaluate

LABELS = {"grpo": "GRPO", "no_kl": "no KL", "placebo": "Placebo"}
PROBLEMS = ["1-2-3=6", "2-3-4=24", "1-1-5=5", "2-2-3=7", "1-4-4=4", "2-3-5=10", "1-3-6=18", "2-4-5=3"]
WEIGHTS = hashlib.sha256(b"w").hexdigest()  # of the file that `run` writes
WORLD = {"name": "countdown", "counts": {"3": 1.0}, "max_number": 9, "min_target": 1, "max_target": 30}


def record(path: Path, name: str, lift: float, seed: int = 0, split: str = "test", weights: str = WEIGHTS) -> Path:
    """Exact log-probs of every right completion of `PROBLEMS` under a made-up policy, at two temperatures."""
    rng = np.random.default_rng(seed)
    sizes = [len(solve([int(n) for n in p.split("=")[0].split("-")], int(p.split("=")[1]))) for p in PROBLEMS]
    rows = [np.minimum(rng.normal(-5 + lift, 0.3, size), -3) for size in sizes]
    meta = {
        "name": name, "model": "embedded" if name == "base" else name, "world": WORLD, "split": split, "seed": 1,
        "draw": "law", "problem_ids": PROBLEMS, "versions": {"numpy": "2"}, "weights": weights,
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    return save_record(Record(meta, {1.0: rows, 0.5: [row - 0.1 for row in rows]}), path)


def run(folder: Path, seed: int, steps: int = 3, done: int | None = None) -> Path:
    """A run directory as training leaves it, without its weights."""
    (folder / "policy").mkdir(parents=True)
    (folder / "policy" / "config.json").write_text("{}")
    (folder / "policy" / "model.safetensors").write_bytes(b"w")
    config = {"seed": seed, "steps": steps, "method": {"name": "grpo", "beta": 0.05}}
    facts = {"kind": "train", "config": config, "versions": {"numpy": "2"}, "git": {"commit": "c0ffee"}}
    (folder / "run.json").write_text(json.dumps(facts))
    rows = [
        {"step": i, "reward/mean": 0.1 * i, "policy/entropy": 1.0, "time/step_s": 0.5, "rollout/tokens": 100.0}
        for i in range(steps if done is None else done)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Two arms of three seeds, one of one seed, and one that did not get far."""
    folder = tmp_path / "sweep"
    record(folder / "evaluations" / "base.npz", "base", 0.0)
    for seed in range(3):
        for i, stem in enumerate(("no_kl", "grpo")):
            run(folder / "runs" / f"{stem}-s{seed}", seed)
            record(folder / "evaluations" / f"{stem}-s{seed}.npz", f"{stem} s{seed}", 0.5 + i, 10 * seed + i)
    run(folder / "runs" / "placebo-s0", 0)
    record(folder / "evaluations" / "placebo-s0.npz", "placebo s0", 0.7)
    run(folder / "runs" / "placebo-s1", 1, done=1)
    return folder


def test_a_folder_becomes_one_study(sweep: Path) -> None:
    study = study_of([str(sweep)], LABELS, k=8)
    assert [arm.name for arm in study.results[0].arms] == ["base", "GRPO", "no KL"]
    assert [result.seed for result in study.results] == [0, 1, 2]
    assert "Placebo: evaluated with training seed 0 alone, so it stands in no comparison here." in study.left_out
    states = {(r.arm, r.seed): r.state for r in study.runs}
    assert states["Placebo", 1] == "1 of 3 steps" and states["Placebo", 0] == "trained and evaluated"
    grpo = next(r for r in study.runs if (r.arm, r.seed) == ("GRPO", 1))
    assert grpo.commit == "c0ffee"
    assert study.structure is not None and set(study.structure.classes) == {"operators", "trees"}
    assert len(study.structure.classes["trees"]["GRPO"]) == 3 and len(study.structure.classes["trees"]["base"]) == 1


def test_a_record_of_other_weights_is_left_out(sweep: Path) -> None:
    (sweep / "runs" / "grpo-s1" / "policy" / "model.safetensors").write_bytes(b"trained further")
    study = study_of([str(sweep)], LABELS, k=8)
    assert "GRPO, seed 1: its record is of other weights than the run has now; evaluate it again." in study.left_out
    assert [arm.name for arm in study.results[0].arms] == ["base", "no KL"]
    assert {r.state for r in study.runs if (r.arm, r.seed) == ("GRPO", 1)} == {"trained, not evaluated"}


def test_pairs_follow_the_usual_controls_and_the_sweeps_own(sweep: Path) -> None:
    assert study_of([str(sweep)], LABELS, k=8).results[0].pairs == (("GRPO", "no KL"),)
    arms = [{"name": "grpo", "label": "Plain"}, {"name": "no_kl", "label": "Free", "why": "a control that was added"}]
    cells = [{"arm": "grpo", "seed": s, "status": "complete"} for s in range(4)]
    facts = {"tier": "tier 9", "arms": arms, "cells": cells, "control": "grpo", "left_out": ["more seeds: no time"]}
    (sweep / "matrix.json").write_text(json.dumps(facts))
    study = study_of([str(sweep)], LABELS, k=8)
    assert [arm.name for arm in study.results[0].arms] == ["base", "Plain", "Free"]
    assert study.title == "Tier 9: what RL widened, and what it only sharpened"
    assert study.results[0].pairs == (("Free", "Plain"),) and "more seeds: no time" in study.left_out
    assert {r.state for r in study.runs if r.seed == 3} == {"complete"}
    assert any("a control that was added" in r.equation for r in study.runs if r.arm == "Free")


def test_every_arm_is_held_against_the_sweeps_control() -> None:
    names = ["base", "GRPO", "SAGE-Branch", "Placebo", "SAGE-Token", "SAGE-Token placebo", "GRPO, beta 0.1"]
    arms = tuple(
        arm_from_logps(name, {1.0: [np.log([0.1])]}, trained=name != "base", base=[np.log([0.1])], k=8)
        for name in names
    )
    result = Result(arms=arms, problems=1, base="base", k=8, ks=(1, 8))
    pairs = set(_pairs(result, "GRPO", added=["SAGE-Token placebo", "GRPO, beta 0.1"]))
    held = {(name, "GRPO") for name in ("SAGE-Branch", "Placebo", "SAGE-Token", "GRPO, beta 0.1")}
    assert pairs == held | {("SAGE-Branch", "Placebo"), ("SAGE-Token", "SAGE-Token placebo")}


def test_the_classes_are_those_of_the_scored_completions(sweep: Path) -> None:
    found = load_record(sweep / "evaluations" / "base.npz")
    labels = _labels(found)
    assert labels is not None
    masses = class_masses(found.logps[1.0], labels["operators"])
    assert set(labels["operators"][1]) >= {"**"} and sum(m.sum() for m in masses.values()) == pytest.approx(
        sum(np.exp(row).sum() for row in found.logps[1.0])
    )
    other = replace(found, logps={1.0: [row[:1] for row in found.logps[1.0]]})
    assert _labels(other) is None
    assert _distinct([found], (1, 8))[0] == pytest.approx([np.mean(reachable(found.logps[1.0], k)) for k in (1, 8)])


def test_named_records_and_other_splits(tmp_path: Path) -> None:
    base = record(tmp_path / "base.npz", "base", 0.0)
    files = [str(record(tmp_path / f"g{s}.npz", f"g{s}", 1.0, s)) for s in range(3)]
    away = record(tmp_path / "v.npz", "g9", 1.0, split="validation")
    found = gather([str(base), f"Mine={','.join(files)}", f"Mine={away}"], LABELS)
    assert list(found.arms) == ["Mine"] and sorted(found.arms["Mine"].records) == [0, 1, 2]
    assert found.notes == ["Mine: a record of the validation problems is left out, the report is of test."]
    study = study_of([f"A={files[0]}", f"B={files[1]}"], LABELS, k=8)
    assert study.results[0].base == "A"
    assert "No evaluation of the base was given; A takes its place as the control." in study.left_out


def test_stores_alone(tmp_path: Path) -> None:
    for name, seed in (("one", 1), ("two", 2)):
        evaluate(tmp_path / name, ["a", "b", "c"], 32, replace(IDENTITY, model=name, seed=seed)).close()
    study = study_of([str(tmp_path / "one"), f"Second={tmp_path / 'two'}"], LABELS, shown=3)
    assert [s.arm for s in study.samples] == ["one", "Second"] and study.results == ()
    first = study.samples[0]
    assert (first.n, len(first.shown), first.task) == (32, 9, "sums") and first.patterns
    assert first.shown[0].text.endswith("\ud800 \x00") and first.shown[0].tokens is None
    assert first.scored is None and first.distinct is not None and first.distinct.shape == (3, 6)


def test_stores_of_unlike_n_are_read_to_the_smallest(tmp_path: Path) -> None:
    for name, n in (("base", 64), ("grpo", 32)):
        evaluate(tmp_path / name, ["a", "b"], n, replace(IDENTITY, model=name)).close()
    study = study_of([str(tmp_path / "base"), str(tmp_path / "grpo")], LABELS, shown=2)
    assert [(s.arm, s.n, len(s.owners)) for s in study.samples] == [("base", 32, 64), ("GRPO", 32, 64)]
    (said,) = study.left_out
    assert said == (
        "sums: the first 32 samples of each problem are read, the most that all stores have (base (base) has 64)."
    )
    assert study.title == "Samples of base and GRPO"
    text = markdown(book(study))
    assert "GRPO vs base, sums pass@32: " in text and said[:40] in text
    assert "## pass@k\n\nFigures alone" in text and "GRPO, sums, proof_by_contradiction: 0 of" in text


def test_stores_stand_beside_exact_records(tmp_path: Path) -> None:
    exact = [f"{name}={record(tmp_path / f'{name}.npz', name, i / 2, i)}" for i, name in enumerate(("base", "grpo"))]
    for task in ("sums", "words"):
        evaluate(tmp_path / task, ["a", "b"], 8, replace(IDENTITY, model="toy", task=task)).close()
    stores = [f"toy={tmp_path / 'sums'}", f"toy={tmp_path / 'words'}"]
    heard: list[str] = []
    study = study_of([*exact, *stores], LABELS, k=8, say=heard.append)
    assert heard == ["2 arms beside the base, 1 of them evaluated exactly"]
    tables = [part.table for part in _section(book(study), "table") if isinstance(part, Tabular)]
    assert [table.rows[0][:3] for table in tables[1:]] == [("toy", "sums", "2 x 32"), ("toy", "words", "2 x 32")]
    assert any("toy: no exact evaluation" in text and "a table of their own" in text for text in study.left_out)


def test_stores_of_two_tasks_have_a_table_each(tmp_path: Path) -> None:
    for name, task in (("one", "sums"), ("two", "words")):
        evaluate(tmp_path / name, ["a", "b"], 8, replace(IDENTITY, model=name, task=task)).close()
    page = book(study_of([str(tmp_path / "one"), str(tmp_path / "two")], LABELS))
    tables = [part.table for part in _section(page, "table") if isinstance(part, Tabular)]
    assert [[row[:2] for row in table.rows] for table in tables] == [[("one", "sums")], [("two", "words")]]
    assert " vs " not in " ".join(page.sentences()) and "different data sets" not in markdown(page)


def test_temperatures_of_one_arm_are_told_apart(tmp_path: Path) -> None:
    items = []
    for t in (1.0, 0.3):
        law = {**IDENTITY.decoding, "temperature": t}
        evaluate(tmp_path / f"t{t}", ["a", "b"], 8, replace(IDENTITY, decoding=law)).close()
        items.append(f"noKL={tmp_path / f't{t}'}")
    page = book(study_of(items, LABELS, shown=1))
    (shown,) = (part for part in _section(page, "samples") if isinstance(part, Browser))
    assert [one["name"] for one in shown.data["sets"]] == ["noKL at T = 1", "noKL at T = 0.3"]


def test_the_later_named_arm_stands_against_the_earlier(tmp_path: Path) -> None:
    files = {n: f"{n}={record(tmp_path / f'{n}.npz', n, i / 2, i)}" for i, n in enumerate(("base", "GRPO", "no KL"))}
    for order in (["GRPO", "no KL"], ["no KL", "GRPO"]):
        study = study_of([files["base"], *(files[name] for name in order)], LABELS, k=8)
        assert study.results[0].pairs == ((order[1], order[0]),)


def test_no_note_on_frontiers_where_no_arm_has_one(tmp_path: Path) -> None:
    items = []
    for i, name in enumerate(("base", "GRPO")):
        path = record(tmp_path / f"{name}.npz", name, i / 2, i)
        found = load_record(path)
        if i:
            save_record(Record(found.meta, {1.0: found.logps[1.0]}), path)
        items.append(f"{name}={path}")
    parts = _section(book(study_of(items, LABELS, k=8)), "frontier")
    assert len(parts) == 1 and isinstance(parts[0], Picture) and "Thin lines" not in parts[0].caption


def _section(page: Page, key: str) -> tuple[Part, ...]:
    return next(section.parts for section in page.sections if section.key == key)


@pytest.mark.slow
def test_the_verb_writes_what_it_was_asked_for(sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    html, text = tmp_path / "out" / "page.html", tmp_path / "out"
    with pytest.raises(SystemExit) as done:
        main(["report", str(sweep), "-o", str(html), "--k", "8", "--title", "<b>Ours</b>"])
    assert done.value.code == 0 and str(html) in capsys.readouterr().out
    page = html.read_text(encoding="utf-8")
    assert "&lt;b&gt;Ours&lt;/b&gt;" in page and "these methods" in page and not re.search(r"https?:", page)
    with pytest.raises(SystemExit) as done:
        main(["report", str(sweep), "-o", str(text), "--format", "md", "--k", "8", "--png", str(tmp_path / "figures")])
    assert done.value.code == 0
    said = (text / "report.md").read_text(encoding="utf-8")
    assert "](../figures/passk.png)" in said and (tmp_path / "figures" / "passk.png").is_file()
    assert not list(tmp_path.rglob("*.partial"))


def test_refusals_name_the_place_and_the_way_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "compared").mkdir()
    (tmp_path / "compared" / "report.html").write_text("")
    bad = run(tmp_path / "bad", 0)
    (bad / "run.json").write_text("{half")
    sweep = tmp_path / "sweep"
    (sweep / "runs").mkdir(parents=True)
    (sweep / "evaluations").mkdir()
    (sweep / "evaluations" / "a-s0.npz").write_text("")
    (tmp_path / "many" / "a" / "runs").mkdir(parents=True)
    (tmp_path / "matrix.yaml").write_text("seeds: [0]\narms: {a: grpo}\ncontrol: a\n")
    (tmp_path / "recipe.yaml").write_text("method: grpo\nsteps: 3\n")
    (tmp_path / "half.yaml").write_text("{half")
    (tmp_path / "torn.npz").write_text("half")
    for item, words in {
        str(tmp_path / "nowhere"): "no such file or folder",
        str(
            tmp_path / "empty"
        ): f"{tmp_path / 'empty'} holds no runs, evaluations or samples. A report takes folders of",
        str(tmp_path / "many"): f"name one of them: {tmp_path / 'many' / 'a'}",
        str(tmp_path / "matrix.yaml"): f"but a matrix: `sage-rlvr sweep {tmp_path / 'matrix.yaml'}` runs it first",
        str(tmp_path / "recipe.yaml"): f"but a recipe: `sage-rlvr train {tmp_path / 'recipe.yaml'}` runs it first",
        str(tmp_path / "half.yaml"): "half.yaml is no record of an evaluation. A report takes folders of",
        str(bad / "run.json"): f"give its folder: {bad}",
        str(tmp_path / "torn.npz"): "torn.npz is damaged, no .npz archive; make it again with: sage-rlvr eval RUN",
        f"A={tmp_path / 'gone'}": f"{tmp_path / 'gone'} is not there. A report takes",
        f"A={tmp_path / 'gone.npz'}": "no such evaluation",
        str(tmp_path / "compared"): f"compare's page is already there: {tmp_path / 'compared' / 'report.html'}",
        str(bad): "cannot be read",
        f"A={sweep}": "names its arms itself",
        str(sweep / "evaluations"): f"{sweep / 'evaluations'} is a folder of 1 record; give the one above, {sweep}",
    }.items():
        with pytest.raises(DataError, match=re.escape(words)):
            study_of([item], LABELS)
    with pytest.raises(SystemExit) as done:
        main(["report", str(sweep), "--k", "1"])
    assert done.value.code == 2 and "k is 2 or more" in " ".join(capsys.readouterr().err.split())
