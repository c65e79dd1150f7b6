"""Comparisons in the forms of other programs: Every Eval Ever, GitHub, model cards, trackers."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import sage_rlvr
from command import call
from sage_rlvr.api.card import with_results
from sage_rlvr.api.trackers import scores_logged, targets_of
from sage_rlvr.errors import ConfigError
from sage_rlvr.results.writers.eee import place_of

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((Path(__file__).parent / "every_eval_ever" / "eval.schema.json").read_text())
"""Of every-eval-ever 0.3.0, MIT (LICENSE beside it)."""
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name, rate in (("base", 0.2), ("rl", 0.5)):
        rows = [{"id": f"p{i}", "n": 8, "c": int(c), "task": "sums", "temperature": 0.6, "chance": 0.25}
                for i, c in enumerate(rng.binomial(8, rate, 30))]  # fmt: skip
        Path(f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


# ---- Every Eval Ever


def test_a_file_of_every_eval_ever_per_policy_with_k_and_intervals(capsys: Capture) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    assert call("compare", "Qwen/Q3=base.jsonl", "rl.jsonl", "--to", "eee", "out") == 0
    capsys.readouterr()
    trees = {file: json.loads(file.read_text()) for file in Path("out").rglob("*.json")}
    found = {tree["model_info"]["id"]: (file, tree) for file, tree in trees.items()}
    assert {name: file.parent.as_posix() for name, (file, _) in found.items()} == {
        "Qwen/Q3": "out/data/sage-rlvr/Qwen/Q3", "rl": "out/data/sage-rlvr/unknown/rl"
    }  # fmt: skip
    for _, tree in found.values():
        jsonschema.Draft7Validator(SCHEMA).validate(tree)
        metrics = [one["metric_config"] for one in tree["evaluation_results"]]
        assert [one["metric_parameters"] for one in metrics] == [{"k": k} for k in (1, 2, 4, 8)]
    score = found["rl"][1]["evaluation_results"][0]["score_details"]
    scores = sage_rlvr.compare("base.jsonl", "rl.jsonl").scores
    own = next(row for row in scores if (row["policy"], row["k"]) == ("rl", 1))
    interval = score["uncertainty"]["confidence_interval"]
    assert (score["score"], interval["lower"], interval["upper"]) == (own["pass"], own["low"], own["high"])
    details = {key: score["details"][key] for key in ("samples_per_problem", "chance_floor", "compared_with")}
    assert details == {"samples_per_problem": "8", "chance_floor": "0.25", "compared_with": "Qwen/Q3"}
    assert score["details"]["verdict"].startswith("sums: rl ")


def test_no_name_of_a_policy_leaves_the_folder() -> None:
    for name in ("../../etc/x", "a/b/c", "..", "/", "a\\b:c", " . "):
        assert not {"", ".", ".."} & {*place_of(name)} and not {"/", "\\"} & {*"".join(place_of(name))}, name


# ---- GitHub


def test_the_summary_of_a_step_gets_verdict_and_table(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    assert call("compare", "missing.jsonl", "rl.jsonl", "--github-summary") == 2  # said before anything is read
    assert "$GITHUB_STEP_SUMMARY is not set; GitHub Actions sets it in every step" in " ".join(capsys.readouterr().err.split())
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    Path("summary.md").write_text("before\n")
    assert call("compare", "base.jsonl", "rl.jsonl", "--github-summary") == 0
    text = Path("summary.md").read_text()
    assert text.startswith("before\n**sums: rl ") and "| sums, 95 % intervals | pass@1 | pass@8 |" in text
    assert text.count("\n| ") == 6 and "| chance floor | 0.250 | 0.900 |" in text and "\n- Counts do not show" in text


@pytest.mark.slow
def test_the_step_of_the_action_passes_verdict_files_and_exit_code_on(tmp_path: Path) -> None:
    """Its script as GitHub starts it, with this package installed already."""
    step = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"][0]
    assert step["run"] == '"$GITHUB_ACTION_PATH/.ci/compare"'
    shim = tmp_path / "bin" / "sage-rlvr"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} -m sage_rlvr "$@"\n')
    shim.chmod(0o755)
    given = {"ARMS": "  base.jsonl\n\nthe rl=rl.jsonl\n", "OPTIONS": "--fail-on\npass@8\n"}
    given |= {"PICTURE": "new/p.svg", "JSON": "v.json", "PACKAGE": ""}
    assert given.keys() == step["env"].keys()
    home = {"GITHUB_ACTION_PATH": str(ROOT), "GITHUB_OUTPUT": "output", "GITHUB_STEP_SUMMARY": "summary.md"}
    home |= {"PATH": f"{shim.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src")}
    for arms, code in ((given["ARMS"], 0), ("rl.jsonl\nbase.jsonl", 3), ("rl.jsonl\nnone.jsonl", 2)):
        Path("output").unlink(missing_ok=True)
        env = os.environ | home | given | {"ARMS": arms}
        done = subprocess.run(["bash", "-c", step["run"]], env=env, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        output = Path("output").read_text()
        assert f"\nexit-code={code}\npicture=new/p.svg\njson=v.json\n" in output
        if code != 2:
            assert json.loads(Path("v.json").read_text())["verdicts"][0]["sentence"] == output.splitlines()[1]
    assert Path("new/p.svg").read_bytes().startswith(b"<?xml") and Path("summary.md").read_text().count("95 % intervals") == 2
    hostile = Path("rl.jsonl").read_text().replace('{"', '{"arm": "rl\\n::add-mask::e", "')
    Path("hostile.jsonl").write_text(hostile)
    for arms, code in (("base.jsonl\nhostile.jsonl", 0), ("base.jsonl\n--plugin\nrl.jsonl", 2)):
        env = os.environ | home | given | {"ARMS": arms}
        done = subprocess.run(["bash", "-c", step["run"]], env=env, capture_output=True, text=True)
        assert done.returncode == code and (code == 0 or "--plugin is an option" in done.stderr)
        if code == 0:  # the runner obeys no command between the first line and the last
            first, *inside, last = done.stdout.splitlines()
            assert f"::{first.removeprefix('::stop-commands::')}::" == last and not any(line[:2] == "::" for line in inside)


# ---- a model card

CARD = "---\ntags:\n- sage-rlvr\n---\n\n# What this policy was trained on\n\n{}\n"


def test_a_card_has_the_results_that_the_hub_displays() -> None:
    from huggingface_hub import ModelCard

    from sage_rlvr.models.hashes import NO_RESULTS

    found = sage_rlvr.compare("base.jsonl", "rl.jsonl")
    once = with_results(CARD.format(NO_RESULTS), found.results, found.findings, "rl")
    card = ModelCard(once)
    assert [(one.metric_type, one.metric_args["k"]) for one in card.data.eval_results] == [(f"pass@{k}", k) for k in (1, 2, 4, 8)]
    first, own = card.data.eval_results[0], next(row for row in found.scores if (row["policy"], row["k"]) == ("rl", 1))
    assert first.metric_value == round(own["pass"], 4)
    assert first.metric_args["interval"] == [round(own["low"], 4), round(own["high"], 4)]
    assert first.metric_args["base"] == "base" and first.metric_args["n"] == 8 and first.dataset_name == "sums"
    assert "| rl − base |" in once and NO_RESULTS not in once and "- sage-rlvr" in once and "# What this policy" in once
    assert with_results(once, found.results, found.findings, "rl") == once  # again: no second evaluation
    three = sage_rlvr.compare("base.jsonl", "rl.jsonl", other="rl.jsonl")
    with pytest.raises(ConfigError, match="expected two evaluations, of the base and of this policy; got base, rl, other"):
        with_results(CARD, three.results, three.findings, "rl")


# ---- trackers


def test_tensorboard_has_scores_verdict_and_picture(capsys: Capture) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert call("compare", "base.jsonl", "rl.jsonl", "--log-to", "tensorboard=board") == 0
    assert "logged tensorboard board" in " ".join(capsys.readouterr().out.split())
    events = EventAccumulator("board")
    events.Reload()
    own = {row["k"]: row for row in sage_rlvr.compare("base.jsonl", "rl.jsonl").scores if row["policy"] == "rl"}
    assert events.Scalars("compare/rl/pass@8")[0].value == pytest.approx(own[8]["pass"])
    assert events.Scalars("compare/rl/pass@1/low")[0].value == pytest.approx(own[1]["low"])
    assert events.Images("compare/passk")[0].encoded_image_string.startswith(b"\x89PNG")
    (text,) = events.Tensors("compare/verdict/text_summary") if "compare/verdict/text_summary" in events.Tags()["tensors"] else (
        events.Tensors("compare/verdict"))  # fmt: skip
    assert b"rl - base" in text.tensor_proto.string_val[0].replace("−".encode(), b"-")


def test_wandb_offline_has_scores_verdict_and_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    assert call("compare", "base.jsonl", "rl.jsonl", "--log-to", "wandb=mine/rl-s0") == 0
    (run,) = Path("wandb").glob("offline-run-*-rl-s0")
    (written,) = run.glob("run-*.wandb")
    data = written.read_bytes()
    assert b"compare/rl/pass@8" in data and b"compare/verdict" in data and list(run.rglob("compare/passk_*.png"))


def test_trackio_has_scores_verdict_and_picture(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    code = "from sage_rlvr.cli import main; main(['compare', 'base.jsonl', 'rl.jsonl', '--log-to', 'trackio=mine/rl-s0'])"
    env = os.environ | {"TRACKIO_DIR": str(tmp_path / "trackio"), "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with closing(sqlite3.connect(tmp_path / "trackio" / "mine.db")) as stored:
        ((name, text),) = stored.execute("select run_name, metrics from metrics").fetchall()
    logged = json.loads(text)
    assert name == "rl-s0" and {"compare/rl/pass@8", "compare/verdict", "compare/passk"} <= logged.keys()
    assert (tmp_path / "trackio" / "media" / logged["compare/passk"]["file_path"]).read_bytes().startswith(b"\x89PNG")


def test_names_of_scores_have_task_and_temperature_only_if_there_are_several() -> None:
    row = {"policy": "rl", "task": "a", "temperature": 1.0, "k": 1, "pass": 0.5, "low": 0.25, "high": 0.75}
    assert scores_logged([row]) == {"compare/rl/pass@1": 0.5, "compare/rl/pass@1/low": 0.25, "compare/rl/pass@1/high": 0.75}
    assert "compare/b/rl/pass@1" in scores_logged([row, row | {"task": "b"}])
    assert "compare/T=0.6/rl/pass@1/low" in scores_logged([row, row | {"temperature": 0.6}])


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("wandb=run", r"--log-to wandb=run: expected wandb=\[ENTITY/\]PROJECT/RUN"),
        ("trackio=a/b/c", "expected trackio=PROJECT/RUN"),
        ("tensorboard=", "expected wandb="),
        ("mlflow=a/b", "expected wandb="),
        ("nowhere", "or a run directory"),
    ],
)
def test_another_word_is_refused_with_the_forms(word: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        targets_of(word)


def test_a_run_directory_names_its_trackers(monkeypatch: pytest.MonkeyPatch) -> None:
    from sage_rlvr.api import trackers

    monkeypatch.setattr(trackers, "find_spec", lambda name: None if name == "wandb" else name)
    Path("runs/mine").mkdir(parents=True)
    config: dict[str, Any] = {"steps": 40, "report_to": ["tensorboard", "trackio"]}
    Path("runs/mine/run.json").write_text(json.dumps({"config": config}))
    assert [(one.tracker, one.place, one.step) for one in targets_of("runs/mine")] == [
        ("tensorboard", "runs/mine/tensorboard", 40), ("trackio", "sage-rlvr/runs-mine", 40)
    ]  # fmt: skip
    Path("runs/mine/run.json").write_text(json.dumps({"config": config | {"report_to": []}}))
    with pytest.raises(ConfigError, match="this run was reported to no tracker"):
        targets_of("runs/mine")
    with pytest.raises(ConfigError, match="wandb is not installed; run: pip install wandb"):
        targets_of("wandb=a/b")
    shutil.rmtree("runs")
