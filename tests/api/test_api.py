"""The Python API on a tiny world: each function gives what its command gives, and its result reads well."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sage_rlvr
from command import call
from sage_rlvr.api import tables
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.evaluation.record import load_record
from sage_rlvr.runs import comparable, file_sha256, read_metrics

Recipe = Callable[..., Path]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def same_runs(one: Path, other: Path) -> bool:
    """Equal weights, metrics (but for times) and configuration."""
    weights = [file_sha256(path / "policy" / "model.safetensors") for path in (one, other)]
    configs = [json.loads((path / "run.json").read_text())["config"] for path in (one, other)]
    rows = [[comparable(row) for row in read_metrics(path)] for path in (one, other)]
    return weights[0] == weights[1] and configs[0] == configs[1] and rows[0] == rows[1]


@pytest.mark.slow
def test_train_evaluate_compare_and_report_are_the_commands(write_recipe: Recipe, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = write_recipe()
    run = sage_rlvr.train(recipe, run="api", seed=3, quiet=True)
    assert call("train", recipe, "--run", "shell", "--seed", 3, "--quiet") == 0
    assert same_runs(Path("api"), Path("shell"))
    assert run.finished and (run.steps, run.total, run.before) == (2, 2, 0) and len(run.rows) == 2
    assert repr(run).startswith("Run api: 2 of 2 steps, policy in api/policy\nstep 1  loss ")
    assert "<table>" in run._repr_html_() and list(run.to_frame()["step"]) == [0, 1]
    assert sage_rlvr.train(recipe, run="api", seed=3, quiet=True).before == 2  # again: nothing is left to do

    capsys.readouterr()
    found = sage_rlvr.evaluate(run, problems=8, ks=(1, 4), quiet=True)
    assert call("eval", "shell", "--problems", 8, "--ks", 1, 4) == 0
    printed = capsys.readouterr().out
    assert repr(found).replace("api", "shell") == printed.strip()
    records = [load_record(path) for path in (found.path, Path("shell/evaluation-test.npz"))]
    assert all((a == b).all() for a, b in zip(records[0].logps[1.0], records[1].logps[1.0], strict=True))
    assert [(row["temperature"], row["k"]) for row in found.rows] == [(1.0, 1), (1.0, 4)]
    assert all(row["low"] <= row["pass"] <= row["high"] for row in found.rows) and len(found.to_frame()) == 2

    base = sage_rlvr.evaluate(str(run.config.model), world=str(recipe), problems=8, out="base.npz", quiet=True)
    compared = sage_rlvr.compare(base=base, trained=run, k=4)
    assert call("compare", "base=base.npz", "trained=api", "--k", 4) == 0
    said = capsys.readouterr().out
    assert compared.answer and compared.answer in said and compared.answer in repr(compared)
    assert {(row["a"], row["b"]) for row in compared.rows} == {("trained", "base")}
    assert repr(sage_rlvr.compare({"base": "base.npz", "trained": ["api"]}, k=4)) == repr(compared)
    assert "<svg" in compared._repr_html_() and list(compared.to_frame()["k"]) == [1, 2, 4] * 2

    page = sage_rlvr.report(base, run, out="page.html", k=4)
    assert call("report", "base.npz", "api", "-o", "shell.html", "--k", 4) == 0
    assert Path("page.html").read_text() == Path("shell.html").read_text() and page.written == [Path("page.html")]
    assert page.answer in repr(page) and page._repr_html_().startswith("<iframe") and len(page.to_frame()) == len(page.rows) > 0


def test_a_method_by_name_or_as_an_object_takes_settings(warm_policy: Path, write_recipe: Recipe) -> None:
    small: dict[str, Any] = {
        "model": str(warm_policy), "steps": 1,
        "world": {"counts": {2: 1.0}, "max_number": 12, "max_target": 144, "train_problems": 60},
        "rollout": {"prompts_per_step": 2, "group_size": 4, "max_new_tokens": 8}, "quiet": True,
    }  # fmt: skip
    named = sage_rlvr.train("sage_branch", run="named", edits={"method.guide.threshold": 0.5}, **small)
    method = sage_rlvr.sage(sage_rlvr.grpo(beta=0.05), sage_rlvr.Branch(threshold=0.5))
    made = sage_rlvr.train(method, run="made", **small)
    assert same_runs(named.path, made.path)
    assert sage_rlvr.train(method, **small).path == Path("runs/grpo_branch-s0")
    assert sage_rlvr.train("maxrl", task=str(write_recipe()), steps=1, quiet=True).path == Path("runs/recipe-maxrl-s0")


def test_sft_makes_a_policy(write_recipe: Recipe) -> None:
    Path("sft.yaml").write_text(
        "steps: 2\nbatch_size: 4\nworld: {counts: {2: 1.0}, max_number: 12, max_target: 144}\n"
        "model: {hidden: 16, layers: 1, heads: 2, mlp: 32}\n"
    )
    run = sage_rlvr.sft("sft.yaml", out="policy", quiet=True)
    assert run.path == Path("runs/sft") and run.policy == Path("policy") and run.finished
    assert call("sft", "sft.yaml", "--run", "shell", "--out", "other", "--quiet") == 0
    assert file_sha256(Path("policy/model.safetensors")) == file_sha256(Path("other/model.safetensors"))


def test_samples_are_an_evaluation_too(warm_policy: Path, write_recipe: Recipe) -> None:
    options: dict[str, Any] = {"world": str(write_recipe()), "problems": 2, "samples": 8, "quiet": True}
    found = sage_rlvr.evaluate(warm_policy, store="api", **options)
    words = ("--world", options["world"], "--problems", 2, "--samples", 8, "--store", "shell", "--quiet")
    assert call("eval", warm_policy, *words) == 0
    from sage_rlvr.evaluation.store import SampleStore

    assert SampleStore.open("api").digest() == SampleStore.open("shell").digest()
    assert [row["k"] for row in found.rows] == [1, 2, 4, 8] and found.rows[0]["n"] == 8 and "n = 8 samples" in repr(found)


def test_errors_are_those_of_the_command(write_recipe: Recipe, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = write_recipe()
    with pytest.raises(ConfigError, match=r"steps = -1: must be above 0") as caught:
        sage_rlvr.train(recipe, steps=-1)
    assert call("train", recipe, "--steps", -1) == 2
    assert str(caught.value).split("steps = ")[1] in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"unknown option 'sample'; did you mean 'samples'"):
        sage_rlvr.evaluate("embedded", sample=3)
    with pytest.raises(ConfigError, match=r"stepz"):
        sage_rlvr.train(recipe, stepz=1)
    with pytest.raises(DataError, match="compare: no arms; pass at least two"):
        sage_rlvr.compare()
    assert call("compare") == 2 and "compare: no arms" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="pass at least one folder, run, record or store"):
        sage_rlvr.report()


def test_a_frame_without_pandas_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    some = tables.Rows()
    some.rows = [{"a": 1}]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match="pip install pandas"):
        some.to_frame()


def test_importing_the_jobs_loads_no_torch() -> None:
    code = "import sys, sage_rlvr; sage_rlvr.train, sage_rlvr.compare; print('torch' in sys.modules, 'matplotlib' in sys.modules)"
    source = str(Path(sage_rlvr.__file__).parents[1])
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": source})
    assert ran.stdout.split() == ["False", "False"]
