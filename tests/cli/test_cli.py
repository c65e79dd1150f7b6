"""The command line: every command once, and every bad input answered with the value, its place and the next step."""

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

from sage_rlvr import runs
from sage_rlvr.cli import app as cli
from sage_rlvr.cli.app import main
from sage_rlvr.cli.compare import print_table
from sage_rlvr.cli.session import Session
from sage_rlvr.cli.train import Train
from sage_rlvr.config import TrainConfig, dump, load_config
from sage_rlvr.errors import DataError
from sage_rlvr.evaluation import record as records
from sage_rlvr.evaluation.record import Record, load_record
from sage_rlvr.models import folders
from sage_rlvr.models import policy as engine_base
from sage_rlvr.models.policy import load_policy
from sage_rlvr.results import Results
from sage_rlvr.results.tables import scores
from sage_rlvr.runs import RunDir, read_metrics
from sage_rlvr.stats.passk import pass_at_k

Recipe = Callable[..., Path]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Default paths such as runs/ land in a folder of the test."""
    monkeypatch.chdir(tmp_path)


def call(*words: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main([str(word) for word in words])
    return int(caught.value.code or 0)


def said(capsys: Capture) -> tuple[str, str]:
    """(stdout, stderr) with white space made even."""
    captured = capsys.readouterr()
    return " ".join(captured.out.split()), " ".join(captured.err.split())


def refused(capsys: Capture, *words: object) -> str:
    code = call(*words)
    err = said(capsys)[1]
    assert code == 2, err
    assert "Traceback" not in err
    return err


# ---- what works


def test_train_eval_and_compare(write_recipe: Recipe, tmp_path: Path, warm_policy: Path, capsys: Capture) -> None:
    for arm, method in {"grpo": "{name: grpo}", "free": "{name: no_kl}"}.items():
        assert call("train", write_recipe(method, name=f"{arm}.yaml")) == 0
        out, err = said(capsys)
        assert "minimize" in err and f"done: 2 steps, policy in runs/{arm}-s0/policy" in err
        assert call("eval", f"runs/{arm}-s0", "--problems", 8, "--ks", 1, 4, "--sample", 50) == 0
        out, _ = said(capsys)
        assert "8 test problems (draw law), exact" in out and "pass@4" in out and "(99.9 % interval" in out and "they agree" in out
        assert load_record(f"runs/{arm}-s0/evaluation-test.npz").problems == 8
    world = tmp_path / "grpo.yaml"
    assert (
        call("eval", warm_policy, "--world", world, "--problems", 8, "--temperatures", 0.5, 1.0, "--out", "base.npz")
        == 0
    )
    said(capsys)
    assert call("compare", "base=base.npz", "runs/free-s0", "GRPO=runs/grpo-s0", "--k", 16, "--out", "page") == 0
    out, _ = said(capsys)
    assert "free-s0" in out and "GRPO" in out and re.search("better|worse|tied", out)
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
    assert "nothing was left to do: all 3 steps were there" in said(capsys)[1]
    err = refused(capsys, "train", recipe, "--optimizer.lr", "1e-5", "--steps", 3)
    assert "holds another run" in err and "optimizer.lr: 0.001 -> 1e-05" in err and "--fork" in err
    assert call("train", recipe, "--optimizer.lr", "1e-5", "--steps", 3, "--fork", "--quiet") == 0
    said(capsys)
    for more in ((), ("--fork",)):
        err = refused(capsys, "train", recipe, "--optimizer.lr", "1e-5", "--steps", 2, *more)
        assert "3 steps are there already" in err and "name another directory" in err
    shutil.copytree("runs/recipe-s0/checkpoints/step-000003", "runs/recipe-s0/checkpoints/step-000099")
    with pytest.warns(UserWarning, match="its manifest is that of step 3"):
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
    assert "the key 'method' is missing" in refused(capsys, "show", shared)


def test_doctor(warm_policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(folders, "embedded_policy", lambda: warm_policy)
    assert call("doctor") == 0
    out, _ = said(capsys)
    assert torch.__version__ in out and "log-probs agree" in out and "the CPU path works" in out
    assert "log-probs (float32, of bfloat16 weights) differ from float32's by" in out
    assert call("doctor", "--model", warm_policy, "--recipe", "grpo", "--gpus", "1", "8") == 0
    assert f"model {warm_policy}" in (counted := said(capsys)[0]) and "tokens generated at most" in counted
    assert "count from 1 on" in refused(capsys, "doctor", "--model", warm_policy, "--gpus", "0")
    monkeypatch.setattr(folders, "embedded_policy", lambda: tmp_path / "gone")
    assert call("doctor") == 2
    out, _ = said(capsys)
    assert "embedded policy is missing" in out and "sage-rlvr sft" in out and "does not work" in out


def test_help_answers_without_torch(capsys: Capture) -> None:
    assert call("--help") == 0
    out, _ = said(capsys)
    for command in ("demo", "sft", "train", "eval", "compare", "show", "study anchor", "doctor"):
        assert command in out


# ---- bad recipes


def test_a_recipe_of_another_verb(write_recipe: Recipe, tmp_path: Path, capsys: Capture) -> None:
    rl, base, tuned = write_recipe(), tmp_path / "base.yaml", tmp_path / "tuned.yaml"
    base.write_text("steps: 3\nbatch_size: 4\nworld: {counts: {2: 1.0}}\n")
    tuned.write_text("model: owner/name\nepochs: 2\ndata: {path: rows.jsonl}\nengine: {name: trl}\n")
    for command in (["sft"], ["sft", "--dry-run"]):
        err = refused(capsys, *command, rl)
        assert f"{rl}: this is an RL recipe; run it with: sage-rlvr train {rl}" in err
    for recipe in (base, tuned):
        assert f"an SFT recipe; run it with: sage-rlvr sft {recipe}" in refused(capsys, "train", recipe)
        assert f"run it with: sage-rlvr sft {recipe}" in refused(capsys, "import-config", recipe)
    assert "the design of a sweep; run it with: sage-rlvr sweep" in refused(capsys, "train", "designs/tier1")
    assert f"already a recipe of this package (method, rollout, world); run it with: sage-rlvr train {rl}" in refused(
        capsys, "import-config", rl
    )
    base.write_text("steps: 3\nworld: {counts: {2: 1.0}}\n")  # nothing of SFT alone: an RL recipe without its method
    assert "method" in refused(capsys, "train", base)


def test_help_of_sft_names_both_of_its_jobs(capsys: Capture) -> None:
    assert call("sft", "--help") == 0
    assert "fine-tune an existing model" in said(capsys)[0]


def test_an_unknown_key(write_recipe: Recipe, capsys: Capture) -> None:
    err = refused(capsys, "train", write_recipe(more="rolout: {group_size: 4}\n"))
    assert "rolout" in err and "did you mean 'rollout'?" in err and "recipe.yaml:7" in err
    err = refused(capsys, "train", write_recipe(), "--optimizer.learning_rate", "1e-4")
    assert "--optimizer.learning_rate" in err and "unknown key" in err and "lr" in err
    assert "did you mean 'rollout.group_size'?" in refused(capsys, "train", write_recipe(), "--group_size", 4)


def test_a_wrong_type(write_recipe: Recipe, capsys: Capture) -> None:
    err = refused(capsys, "train", write_recipe(), "--rollout.group_size", "many")
    assert "rollout.group_size" in err and "expected a whole number" in err and "'many'" in err
    err = refused(capsys, "show", write_recipe(more="engine: {threads: 1.0}\n"))
    assert "engine.threads" in err and "write 1" in err


def test_a_missing_recipe(write_recipe: Recipe, capsys: Capture) -> None:
    write_recipe()
    err = refused(capsys, "train", "recpie.yaml")
    assert "no such file" in err and "did you mean recipe.yaml?" in err
    assert "folder nowhere does not exist" in refused(capsys, "train", "nowhere/a.yaml")
    assert "no such file" in refused(capsys, "show", "a.yaml") and not Path("runs").exists()


def test_a_missing_model(write_recipe: Recipe, tmp_path: Path, capsys: Capture) -> None:
    recipe = write_recipe(model=tmp_path / "no-model")
    err = refused(capsys, "train", recipe, "--quiet")
    assert "no config.json in" in err and "no-model" in err and "Hub id" in err
    err = refused(capsys, "eval", "nobody/no-such-model", "--world", recipe)
    assert "nobody/no-such-model" in err and "could not be loaded" in err
    for words in (("train", "repair/grpo", "--quiet"), ("eval", "runs/repair-base", "--task", "repair", "--samples", "2")):
        assert "is made first: sage-rlvr sft repair/sft --out runs/repair-base" in refused(capsys, *words)


def test_a_damaged_model(write_recipe: Recipe, tmp_path: Path, warm_policy: Path, capsys: Capture) -> None:
    folder = tmp_path / "damaged"
    folder.mkdir()
    for file in warm_policy.iterdir():
        content = file.read_bytes()
        (folder / file.name).write_bytes(content[:1000] if file.suffix == ".safetensors" else content)
    err = refused(capsys, "train", write_recipe(model=folder), "--quiet")
    assert str(folder) in err and "could not be loaded" in err
    (folder / "config.json").write_text('{"model_type": "no-such-type"}')
    assert "could not be loaded" in refused(capsys, "train", write_recipe(model=folder), "--run", "other", "--quiet")


def test_a_home_folder_is_found(warm_policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(warm_policy.parent))
    assert load_policy(f"~/{warm_policy.name}")[0].config.hidden_size == 32


def test_a_guide_without_beta(write_recipe: Recipe, capsys: Capture) -> None:
    for base in ("{name: grpo, beta: 0}", "{name: no_kl}", "dr_grpo"):
        err = refused(capsys, "train", write_recipe(f"{{name: sage, base: {base}}}"))
        assert "a guide needs beta > 0" in err and "beta=0.05" in err and "recipe.yaml:4" in err


def test_a_cancelling_guide(write_recipe: Recipe, capsys: Capture) -> None:
    method = "{name: sage, base: {name: grpo, beta: 0.05, estimator: k2}, guide: branch}"
    for command in ("train", "show"):
        err = refused(capsys, command, write_recipe(method))
        assert "CancellingGuide" in err and "Branch cancels" in err and "estimator='k3'" in err


# ---- bad arguments


def test_unknown_arguments(write_recipe: Recipe, capsys: Capture) -> None:
    err = refused(capsys, "eval", "embedded", "--problem", 3)
    assert "--problem" in err and "eval" in err and "--help" in err
    assert "--steps" in refused(capsys, "compare", "a.npz", "b.npz", "--steps", 3)
    assert "no such argument" in refused(capsys, "doctor", "--fast", "yes")
    assert "value is missing" in refused(capsys, "train", write_recipe(), "--seed")
    assert "'more'" in refused(capsys, "train", write_recipe(), "more")


def test_k_beyond_n() -> None:
    with pytest.raises(DataError, match=r"n = 4, c = 1, k = 8: .*draw more samples"):
        pass_at_k(4, 1, 8)


@pytest.mark.slow
def test_compare_refuses_unequal_problems(write_recipe: Recipe, warm_policy: Path, capsys: Capture) -> None:
    world = write_recipe()
    for name, problems, seed in (("a", 5, 1), ("b", 6, 1), ("c", 5, 2)):
        words = ("--problems", problems, "--seed", seed, "--out", f"{name}.npz")
        assert call("eval", warm_policy, "--world", world, *words) == 0
    assert call("eval", warm_policy, "--world", world, "--problems", 5, "--temperatures", 0.5, "--out", "cold.npz") == 0
    said(capsys)
    assert "differ in problem_ids" in refused(capsys, "compare", "x=a.npz", "y=b.npz")
    err = refused(capsys, "compare", "x=a.npz", "y=c.npz")
    assert "differ in seed: 2 against 1" in err and "--seed" in err
    assert "at least two arms" in refused(capsys, "compare", "a.npz")
    assert "no such evaluation" in refused(capsys, "compare", "a.npz", "z.npz")
    Path("mine").mkdir()
    Path("mine/run.json").write_text("{}", encoding="utf-8")
    assert "mine/run.json: without config" in refused(capsys, "compare", "a.npz", "mine")
    assert "two of its records are of the same weights" in refused(capsys, "compare", "x=a.npz", "y=a.npz,a.npz", "z=a.npz")
    assert "temperature 1" in refused(capsys, "compare", "x=cold.npz", "y=cold.npz")
    assert "has no temperature 1" in refused(capsys, "compare", "x=a.npz", "y=cold.npz")
    assert "two arms are called 'x'; write NAME=a.npz for" in refused(capsys, "compare", "x=a.npz", "x=a.npz")
    Path("torn.npz").write_bytes(Path("a.npz").read_bytes()[:200])
    assert "torn.npz is damaged" in refused(capsys, "compare", "a.npz", "torn.npz")


def test_bad_worlds_and_sizes(write_recipe: Recipe, warm_policy: Path, capsys: Capture) -> None:
    err = refused(capsys, "eval", warm_policy, "--world", "countdown-9")
    assert "countdown-9" in err and "countdown-4" in err
    err = refused(capsys, "eval", warm_policy, "--world", write_recipe(), "--problems", 5000, "--draw", "census")
    assert "5000 test problems" in err and "this world has" in err
    assert "temperature" in refused(capsys, "eval", warm_policy, "--world", write_recipe(), "--temperatures", 0.0)
    assert "k = 0" in refused(capsys, "eval", warm_policy, "--world", write_recipe(), "--problems", 3, "--ks", 0)
    assert "problems" in refused(capsys, "eval", warm_policy, "--world", write_recipe(), "--problems", 0)


def test_an_unfinished_run_has_nothing_to_evaluate(write_recipe: Recipe, capsys: Capture) -> None:
    config = load_config(TrainConfig, write_recipe())
    RunDir.open("half", dump(config)).close()
    assert "has not finished" in refused(capsys, "eval", "half")


def test_a_damaged_run_record_is_refused(warm_policy: Path, capsys: Capture) -> None:
    Path("torn").mkdir()
    for text in ("{", "[]", '{"kind": "train"}'):
        Path("torn/run.json").write_text(text)
        err = refused(capsys, "eval", "torn")
        assert "run.json" in err and ("--world" in err or "damaged" in err), err


def test_the_world_of_an_sft_recipe(tmp_path: Path, warm_policy: Path, capsys: Capture) -> None:
    recipe = tmp_path / "sft.yaml"
    recipe.write_text("steps: 3\nworld: {counts: {2: 1.0}, max_number: 7}\n")
    assert call("eval", warm_policy, "--world", recipe, "--problems", 4) == 0
    place = f"runs/evaluations/{warm_policy.name}-sft-test.npz"  # of each world a record of its own
    assert load_record(place).meta["world"]["max_number"] == 7


def test_a_world_beside_a_task_without_worlds_is_refused_by_samples_too(warm_policy: Path, capsys: Capture) -> None:
    for more in ((), ("--samples", 2)):
        err = refused(capsys, "eval", warm_policy, "--task", "countdown_steps", "--world", "demo", "--problems", 2, *more)
        assert "--world demo with --task countdown_steps: either says what is evaluated; leave one of them out" in err


def test_a_cross_check_needs_temperature_one(write_recipe: Recipe, warm_policy: Path, capsys: Capture) -> None:
    words = ("eval", warm_policy, "--world", write_recipe(), "--problems", 3, "--temperatures", 0.5)
    err = refused(capsys, *words, "--sample", 8)
    assert "--sample 8" in err and "1.0 among --temperatures (here 0.5)" in err
    assert "--sample -1" in refused(capsys, *words, 1.0, "--sample", -1)


def test_a_place_that_cannot_be_written(write_recipe: Recipe, warm_policy: Path, capsys: Capture) -> None:
    Path("file").write_text("")
    Path("folder").mkdir()
    words = ("eval", warm_policy, "--world", write_recipe(), "--problems", 3)
    for place in ("file/e.npz", "folder"):
        err = refused(capsys, *words, "--out", place)
        assert f"{place}: cannot write a record of an evaluation" in err, err
    assert call(*words, "--out", "a.npz") == 0 and call(*words, "--out", "b.npz") == 0
    said(capsys)
    assert "cannot write a report" in refused(capsys, "compare", "x=a.npz", "y=b.npz", "--k", 4, "--out", "file")
    assert not list(Path().rglob("*.partial*"))


def test_a_full_disk_under_an_evaluation(
    write_recipe: Recipe, warm_policy: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def full(path: Path, **arrays: object) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(records.np, "savez_compressed", full)
    err = refused(capsys, "eval", warm_policy, "--world", write_recipe(), "--problems", 3, "--out", "new/e.npz")
    assert "the disk is full" in err and "new/e.npz" in err
    assert list(Path("new").iterdir()) == []  # nothing half-written stays


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
    assert "cannot hold a run" in refused(capsys, "train", write_recipe(), "--run", "file")


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
    for folder in ("tier1", "cold"):
        table = scores(Results.read(Path(__file__).parents[2] / "docs" / "results" / folder).stored or {})
        screen = Console(file=io.StringIO(), width=width)
        print_table(Session(out=screen), table)
        body = screen.file.getvalue().splitlines()  # type: ignore[attr-defined]
        shown = [line for line in body if "in a wider terminal" not in line and "page" not in line]
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
    assert call("compare", "base=base.npz", "GRPO=g0.npz,g1.npz,g2.npz", "--k", 4, "--out", "page") == 0
    out, _ = said(capsys)
    assert "over 3 training seeds" in out and "hold these problems fixed" in out and "Holm" in out
    page = Path("page/report.html").read_text(encoding="utf-8")
    assert all(Path("page", link).is_file() for link in re.findall(r'<a href="([^#"]+)"', page))
    assert len(json.loads(Path("page/summary.json").read_text())["arms"]["GRPO"]["pass_by_seed"]) == 3
