"""What the command line refuses: bad recipes and bad arguments, each with its place and the next step."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from command import call, refused, said
from sage_rlvr.config import TrainConfig, dump, load_config
from sage_rlvr.errors import DataError
from sage_rlvr.evaluation import record as records
from sage_rlvr.evaluation.record import load_record
from sage_rlvr.models.policy import load_policy
from sage_rlvr.runs import RunDir
from sage_rlvr.verdicts.stats.passk import pass_at_k

Recipe = Callable[..., Path]
Capture = pytest.CaptureFixture[str]


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
    assert "the design of a sweep; run it with: sage-rlvr sweep" in refused(capsys, "train", "designs/table1")
    base.write_text("steps: 3\nworld: {counts: {2: 1.0}}\n")  # nothing of SFT alone: an RL recipe without its method
    assert "method" in refused(capsys, "train", base)


def test_help_of_sft_names_both_of_its_jobs(capsys: Capture) -> None:
    assert call("sft", "--help") == 0
    assert "fine-tunes an existing" in said(capsys)[0]


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


@pytest.mark.slow
def test_a_missing_model(write_recipe: Recipe, tmp_path: Path, capsys: Capture) -> None:
    recipe = write_recipe(model=tmp_path / "no-model")
    err = refused(capsys, "train", recipe, "--quiet")
    assert "no config.json in" in err and "no-model" in err and "Hub id" in err
    err = refused(capsys, "eval", "nobody/no-such-model", "--world", recipe)
    assert "nobody/no-such-model" in err and "could not be loaded" in err
    for words in (("train", "repair/grpo", "--quiet"), ("eval", "runs/repair-base", "--task", "repair", "--samples", "2")):
        assert "train this policy first: sage-rlvr sft repair/sft --out runs/repair-base" in refused(capsys, *words)


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
    assert "mine/run.json: config is missing" in refused(capsys, "compare", "a.npz", "mine")
    assert "two of its records have the same weights" in refused(capsys, "compare", "x=a.npz", "y=a.npz,a.npz", "z=a.npz")
    assert "temperature 1" in refused(capsys, "compare", "x=cold.npz", "y=cold.npz")
    assert "has no temperature 1" in refused(capsys, "compare", "x=a.npz", "y=cold.npz")
    assert "two arms have the name 'x'; pass NAME=a.npz for" in refused(capsys, "compare", "x=a.npz", "x=a.npz")
    Path("torn.npz").write_bytes(Path("a.npz").read_bytes()[:200])
    assert "torn.npz is damaged" in refused(capsys, "compare", "a.npz", "torn.npz")


def test_bad_worlds_and_sizes(write_recipe: Recipe, warm_policy: Path, capsys: Capture) -> None:
    err = refused(capsys, "eval", warm_policy, "--world", "countdown-9")
    assert "countdown-9" in err and "countdown-4" in err
    err = refused(capsys, "eval", warm_policy, "--world", write_recipe(), "--problems", 5000, "--sampling", "without-replacement")
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
        assert "--world demo with --task countdown_steps: both define the problems; omit one of them" in err


def test_a_cross_check_needs_temperature_one(write_recipe: Recipe, warm_policy: Path, capsys: Capture) -> None:
    words = ("eval", warm_policy, "--world", write_recipe(), "--problems", 3, "--temperatures", 0.5)
    err = refused(capsys, *words, "--cross-check", 8)
    assert "--cross-check 8" in err and "1.0 among --temperatures (here 0.5)" in err
    assert "--cross-check -1" in refused(capsys, *words, 1.0, "--cross-check", -1)


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
