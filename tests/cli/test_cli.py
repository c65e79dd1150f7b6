"""The command line: every command once, a bad disk, and what a terminal shows."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console

from command import call, refused, said
from sage_rlvr import runs
from sage_rlvr.api.printed import print_table
from sage_rlvr.cli import app as cli
from sage_rlvr.cli.train import Train
from sage_rlvr.config import TrainConfig, dump, load_config
from sage_rlvr.evaluation import record as records
from sage_rlvr.evaluation.record import load_record
from sage_rlvr.models import folders
from sage_rlvr.models import policy as engine_base
from sage_rlvr.models.policy import load_policy
from sage_rlvr.results.read import read_results
from sage_rlvr.results.tables import scores
from sage_rlvr.runs import RunDir, read_metrics
from sage_rlvr.verdicts.record import Record

Recipe = Callable[..., Path]
Capture = pytest.CaptureFixture[str]


# ---- what works


@pytest.mark.slow  # tests/api/test_api.py calls the same commands beside its functions
def test_train_eval_and_compare(write_recipe: Recipe, tmp_path: Path, warm_policy: Path, capsys: Capture) -> None:
    for arm, method in {"grpo": "{name: grpo}", "free": "{name: no_kl}"}.items():
        assert call("train", write_recipe(method, name=f"{arm}.yaml")) == 0
        out, err = said(capsys)
        assert "minimize" in err and f"done: 2 steps, policy in runs/{arm}-s0/policy" in err
        assert call("eval", f"runs/{arm}-s0", "--problems", 8, "--ks", 1, 4, "--cross-check", 50) == 0
        out, _ = said(capsys)
        assert "8 test problems (sampling iid), exact" in out and "pass@4" in out
        assert "(99.9 % interval" in out and "they agree" in out
        assert load_record(f"runs/{arm}-s0/evaluation-test.npz").problems == 8
    world = tmp_path / "grpo.yaml"
    assert (
        call("eval", warm_policy, "--world", world, "--problems", 8, "--temperatures", 0.5, 1.0, "--out", "base.npz")
        == 0
    )
    said(capsys)
    assert call("compare", "base=base.npz", "runs/free-s0", "GRPO=runs/grpo-s0", "--k", 16, "--out", "page") == 0
    out, _ = said(capsys)
    assert "free-s0" in out and "GRPO" in out and re.search("higher|lower|no significant difference|cannot be told", out)
    assert (tmp_path / "page" / "report.html").exists() and (tmp_path / "page" / "summary.json").exists()


def test_edits_on_the_command_line(write_recipe: Recipe, capsys: Capture) -> None:
    recipe = write_recipe()
    edits = ("--steps", 1, "--optimizer.lr=2e-4", "--rollout.group-size", 2, "--method.beta", 0.1, "--seed", 5)
    assert call("train", recipe, *edits, "--quiet") == 0
    config = json.loads(Path("runs/recipe-s5/run.json").read_text())["config"]
    assert (config["steps"], config["optimizer"]["lr"], config["rollout"]["group_size"]) == (1, 2e-4, 2)
    assert config["method"]["beta"] == 0.1 and config["seed"] == 5
    assert "minimize" not in said(capsys)[1]


@pytest.mark.slow
def test_the_same_command_continues(write_recipe: Recipe, capsys: Capture) -> None:
    recipe = write_recipe()
    assert call("train", recipe, "--steps", 1, "--quiet") == 0
    assert call("train", recipe, "--steps", 3, "--quiet") == 0
    assert [row["step"] for row in read_metrics("runs/recipe-s0")] == [0, 1, 2]
    assert "done: 3 steps" in said(capsys)[1]
    assert call("train", recipe, "--steps", 3, "--quiet") == 0
    assert "nothing to do: all 3 steps were done" in said(capsys)[1]
    err = refused(capsys, "train", recipe, "--optimizer.lr", "1e-5", "--steps", 3)
    assert "contains another run" in err and "optimizer.lr: 0.001 -> 1e-05" in err and "--fork" in err
    assert call("train", recipe, "--optimizer.lr", "1e-5", "--steps", 3, "--fork", "--quiet") == 0
    said(capsys)
    for more in ((), ("--fork",)):
        err = refused(capsys, "train", recipe, "--optimizer.lr", "1e-5", "--steps", 2, *more)
        assert "3 steps are already done" in err and "use another directory" in err
    shutil.copytree("runs/recipe-s0/checkpoints/step-000003", "runs/recipe-s0/checkpoints/step-000099")
    with pytest.warns(UserWarning, match="its manifest is of step 3"):
        assert call("train", recipe, "--optimizer.lr", "1e-5", "--steps", 3, "--quiet") == 0
    assert Path("runs/recipe-s0/policy/config.json").exists()


def test_sft(tmp_path: Path, capsys: Capture) -> None:
    recipe = tmp_path / "sft.yaml"
    recipe.write_text(
        "steps: 3\nbatch_size: 4\nworld: {counts: {2: 1.0}}\nmodel: {hidden: 32, layers: 1, heads: 2, mlp: 32}\n"
    )
    assert call("sft", recipe, "--out", "made/policy", "--steps", 2) == 0
    assert "done: 2 steps, policy in made/policy" in said(capsys)[1]
    model, tokens = load_policy("./made/policy")
    assert model.config.hidden_size == 32
    assert tokens.tokenizer.decode(tokens.encode("12=:")) == "12=:"


def test_show_prints_the_resolved_recipe_and_its_equation(write_recipe: Recipe, capsys: Capture) -> None:
    recipe = write_recipe("{name: sage, guide: {name: branch, ratio: 0.25}}")
    assert call("show", recipe, "--optimizer.lr", "3e-5") == 0
    out, _ = said(capsys)
    assert "lr: 3.0e-05" in out and "ratio: 0.25" in out and "group_size: 4" in out and "warmup_steps: 0" in out
    assert "minimize" in out and "0.05 * k3(pi, q pi_ref)" in out and "forward" in out
    sft = recipe.with_name("sft.yaml")
    sft.write_text("steps: 3\n")
    assert call("show", sft) == 0 and "batch_size: 256" in said(capsys)[0]
    shared = sft.with_name("shared.yaml")
    shared.write_text("steps: 3\nrollout: {group_size: 4}\n")
    assert "has no method" in refused(capsys, "show", shared)


def test_doctor(warm_policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(folders, "embedded_policy", lambda: warm_policy)
    assert call("doctor") == 0
    out, _ = said(capsys)
    assert torch.__version__ in out and "log-probs agree" in out and "the CPU path works" in out
    assert "log-probs in bfloat16 differ from float32's by" in out
    assert call("doctor", "grpo", "--model", warm_policy, "--gpus", "1", "8") == 0
    assert f"model {warm_policy}" in (counted := said(capsys)[0]) and "generated tokens at most" in counted
    assert call("doctor", "grpo", "--gpus", "1", "8", "--memory", "16") == 0
    fitting = re.findall(r"(loop|trl|verl) +(\d) x 16 GB: fits", said(capsys)[0])
    assert fitting == [("loop", "1"), ("trl", "1"), ("trl", "8"), ("verl", "1"), ("verl", "8")]
    assert "each number must be at least 1" in refused(capsys, "doctor", "--model", warm_policy, "--gpus", "0")
    assert "--memory 0: give GB above 0" in refused(capsys, "doctor", "grpo", "--memory", "0")
    assert "--memory 80: name a recipe too" in refused(capsys, "doctor", "--model", warm_policy, "--memory", "80")
    monkeypatch.setattr(folders, "embedded_policy", lambda: tmp_path / "gone")
    assert call("doctor") == 2
    out, _ = said(capsys)
    assert "embedded policy is missing" in out and "sage-rlvr sft" in out and "does not work" in out


def test_help_answers_without_torch(capsys: Capture) -> None:
    assert call("--help") == 0
    out, _ = said(capsys)
    for command in ("demo", "sft", "train", "eval", "compare", "show", "doctor"):
        assert command in out


# ---- a bad disk


def test_a_corrupt_checkpoint(write_recipe: Recipe, capsys: Capture) -> None:
    recipe = write_recipe(steps=3, more="checkpoint: {every: 1}\n")
    assert call("train", recipe, "--quiet") == 0
    newest = Path("runs/recipe-s0/checkpoints/step-000003/model.safetensors")
    newest.write_bytes(newest.read_bytes()[:-7])
    with pytest.warns(UserWarning, match="truncated"):
        assert call("train", recipe, "--quiet") == 0  # falls back to step 2 and makes step 3 again
    for folder in Path("runs/recipe-s0/checkpoints").iterdir():
        (folder / "MANIFEST.json").write_text("{")
    said(capsys)
    with pytest.warns(UserWarning, match="skipped"):
        err = refused(capsys, "train", recipe, "--quiet")
    assert "none of the 2 checkpoints is complete" in err and "another run directory" in err


@pytest.mark.slow
def test_a_full_disk(write_recipe: Recipe, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    recipe = write_recipe(steps=3, more="checkpoint: {every: 1}\n")
    assert call("train", recipe, "--steps", 1, "--quiet") == 0

    def full(path: Path, tensors: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as disk:
        disk.setattr(runs.checkpoints, "_write_tensors", full)
        err = refused(capsys, "train", recipe, "--quiet")
    assert "the disk is full" in err and "Free some space" in err and "untouched" in err
    assert [p.name for p in Path("runs/recipe-s0/checkpoints").iterdir()] == ["step-000001"]
    assert call("train", recipe, "--quiet") == 0  # with space again, the same command continues


def test_two_runs_in_one_directory(write_recipe: Recipe, capsys: Capture) -> None:
    recipe = write_recipe()
    config = load_config(TrainConfig, recipe)
    with RunDir.open("busy", dump(config), data=engine_base.run_facts(config)):
        err = refused(capsys, "train", recipe, "--run", "busy", "--quiet")
    assert "RunLocked" in err and f"process {os.getpid()}" in err and "busy" in err
    assert call("train", recipe, "--run", "busy", "--quiet") == 0


def test_other_weights_are_noticed(
    write_recipe: Recipe, tmp_path: Path, warm_policy: Path, tiny_policy: Path, capsys: Capture
) -> None:
    """The same path, another model behind it: a resume would train something else from where the first stopped."""
    link = tmp_path / "model"
    link.symlink_to(warm_policy)
    recipe = write_recipe(model=link)
    assert call("train", recipe, "--quiet") == 0
    link.unlink()
    link.symlink_to(tiny_policy)
    said(capsys)
    assert "data.model_sha256" in refused(capsys, "train", recipe, "--steps", 4, "--quiet")


def test_a_directory_of_another_kind(write_recipe: Recipe, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot create a run here" in refused(capsys, "train", write_recipe(), "--run", "file")


def test_an_interrupt_before_training_is_no_traceback(
    write_recipe: Recipe, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def interrupted(*words: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(Train, "execute", interrupted)
    assert call("train", write_recipe()) == 130 and "the same command continues" in said(capsys)[1]


def test_a_crash_has_a_code_of_its_own_and_its_traceback(
    write_recipe: Recipe, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def broken(*words: object) -> int:
        raise KeyError("lost")

    monkeypatch.setattr(Train, "execute", broken)
    assert call("train", write_recipe()) == cli.FAULT == 70
    err = said(capsys)[1]
    assert "Traceback" in err and "KeyError: 'lost'" in err and "exit code 70" in err


# ---- what a terminal shows


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_table_fits_its_terminal(width: int) -> None:
    """No cell is cut, every shown value has its interval, and what did not fit is named."""
    for folder in ("2026-11-21_table1", "2026-11-22_temp03"):
        table = scores(read_results(Path(__file__).parents[2] / "lab" / "experiments" / folder).stored or {})
        screen = Console(file=io.StringIO(), width=width)
        print_table(screen, table)
        body = screen.file.getvalue().splitlines()  # type: ignore[attr-defined]
        shown = [line for line in body if "use a wider terminal" not in line and "page" not in line]
        assert not any("…" in line for line in body) and max(len(line.rstrip()) for line in shown) <= width
        for row in table.rows:
            for cell in row[1:4]:  # at 60 columns at least the seeds, pass@1 and pass@8
                assert all(any(part in line for line in shown) for part in cell.split("\n"))
        named = " ".join(" ".join(body).split())
        assert all(" ".join(head.split()) in named or head.split("\n")[0] in named for head in table.header)


@pytest.mark.slow
def test_compare_over_training_seeds(write_recipe: Recipe, warm_policy: Path, tmp_path: Path, capsys: Capture) -> None:
    assert call("eval", warm_policy, "--world", write_recipe(), "--problems", 12, "--out", "base.npz") == 0
    base = load_record("base.npz")
    for s in range(3):
        logps = {t: [row - 0.1 * (s + 1) for row in rows] for t, rows in base.logps.items()}
        records.save_record(Record({**base.meta, "name": "GRPO", "weights": f"g{s}"}, logps), f"g{s}.npz")
    said(capsys)
    assert call("compare", "base=base.npz", "GRPO=g0.npz,g1.npz,g2.npz", "--k", 4, "--full", "--out", "page") == 0
    out, _ = said(capsys)
    assert "over 3 training seeds" in out and "hold these problems fixed" in out and "Holm" in out
    page = Path("page/report.html").read_text(encoding="utf-8")
    assert all(Path("page", link).is_file() for link in re.findall(r'<a href="([^#"]+)"', page))
    assert len(json.loads(Path("page/summary.json").read_text())["arms"]["GRPO"]["pass_by_seed"]) == 3
