"""Relative paths start at the recipe's folder, typed ones at the working directory, and a run knows them as absolute paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sage_rlvr.config import TrainConfig, decode, dump, load_config, read_recipe
from sage_rlvr.errors import ConfigError
from sage_rlvr.recipes import shipped
from sage_rlvr.runs import RunDir
from sage_rlvr.sweeps.design import load_design
from sage_rlvr.sweeps.resolve import resolve
from sage_rlvr.training.problems import files_of

REWARD = "def score(completion, row):\n    return 1.0\n"
ROW = '{"prompt": "1 1=", "answer": "1"}\n'
RECIPE = """
steps: 1
model: policy
task: {name: jsonl, file: data/rows.jsonl, reward: rewards.py:score}
method: {name: grpo, beta: 0}
rollout: {prompts_per_step: 1}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a recipe and its files; the working directory is another one."""
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    for folder in (home / "data", home / "policy", elsewhere / "data"):
        folder.mkdir(parents=True)
    (home / "data/rows.jsonl").write_text(ROW)
    (home / "rewards.py").write_text(REWARD)
    (home / "recipe.yaml").write_text(RECIPE)
    monkeypatch.chdir(elsewhere)
    return home


def task_of_record(config: TrainConfig) -> dict[str, Any]:
    found: dict[str, Any] = dump(config)["task"]
    return found


def test_paths_of_a_recipe_start_at_its_folder(home: Path) -> None:
    config = read_recipe("../home/recipe.yaml")
    assert task_of_record(config)["file"] == str(home / "data/rows.jsonl")
    assert task_of_record(config)["reward"] == f"{home / 'rewards.py'}:score"
    assert config.model == str(home / "policy")
    assert decode(TrainConfig, dump(config)) == config


def test_typed_paths_start_at_the_working_directory(home: Path) -> None:
    config = read_recipe("../home/recipe.yaml", [("task.test_file", "held.jsonl"), ("model", "data")])
    assert task_of_record(config)["test_file"] == str(Path.cwd() / "held.jsonl")
    assert task_of_record(config)["file"] == str(home / "data/rows.jsonl")
    assert config.model == str(Path.cwd() / "data")
    config = read_recipe("grpo", task="rows.jsonl", edits=[("model", "owner/name")])
    assert task_of_record(config)["file"] == str(Path.cwd() / "rows.jsonl")
    config = read_recipe("../home/recipe.yaml", settings={"task": {"file": "python.jsonl"}})
    assert task_of_record(config)["file"] == str(Path.cwd() / "python.jsonl")


def test_a_path_of_a_base_starts_at_the_folder_of_the_base(home: Path) -> None:
    (home.parent / "child.yaml").write_text("base: home/recipe.yaml\ntask: {test_file: held.jsonl}\n")
    config = read_recipe("../child.yaml")
    assert task_of_record(config)["file"] == str(home / "data/rows.jsonl")
    assert task_of_record(config)["test_file"] == str(home.parent / "held.jsonl")


def test_hub_ids_names_and_registered_rewards_are_no_paths(home: Path) -> None:
    (home / "embedded").mkdir()
    text = RECIPE.replace("rewards.py:score", "exact").replace("model: policy", "model: embedded\nbase_model: owner/policy")
    (home / "recipe.yaml").write_text(text.replace("data/rows.jsonl", "openai/gsm8k"))
    config = read_recipe("../home/recipe.yaml")
    assert (config.model, config.base_model) == ("embedded", "owner/policy")
    assert task_of_record(config)["reward"] == "exact"
    assert task_of_record(config)["file"] == "openai/gsm8k"


def test_paths_of_shipped_recipes_start_at_the_working_directory(home: Path) -> None:
    """They name runs, such as runs/words-base, which lie where the user works."""
    for name, file in shipped("words", "knights", "repair", "steps").items():
        text = file.read_text()
        config = read_recipe(name) if "model: runs/" in text and "method" in text else None
        assert config is None or str(config.model).startswith("runs/"), name
    assert load_config(TrainConfig, "words/base", [("method", "no_kl")]).model == "runs/words-base"


def test_a_missing_file_is_an_error_with_the_folder_and_the_rule(home: Path) -> None:
    (home / "data/rows.jsonl").unlink()
    Path("rows.jsonl").write_text(ROW)
    with pytest.raises(ConfigError) as told:
        files_of(read_recipe("../home/recipe.yaml"))
        list(read_recipe("../home/recipe.yaml").task.problems("train"))
    assert f"no such file or folder in {home / 'data'}; relative paths of a recipe start at its folder" in str(told.value)
    assert f"there is a {Path.cwd() / 'rows.jsonl'} in the working directory" in str(told.value)
    (home / "rewards.py").unlink()
    with pytest.raises(ConfigError, match=rf"no file rewards\.py in {home}; relative paths of a recipe start at its folder"):
        read_recipe("../home/recipe.yaml")


def test_a_missing_plugin_names_the_folder(home: Path) -> None:
    (home / "recipe.yaml").write_text(f"plugins: [nowhere.py]\n{RECIPE}")
    with pytest.raises(ConfigError, match=rf"was looked for in {home}: plugins of a recipe start at its folder"):
        read_recipe("../home/recipe.yaml")


def test_edits_of_a_design_start_at_its_folder(home: Path) -> None:
    design = home / "design.yaml"
    design.write_text(
        "title: small\nseeds: [0]\ncontrol: a\nbase: {task.file: data/rows.jsonl}\n"
        "arms: {a: recipe.yaml, b: {recipe: recipe.yaml, edits: {method.beta: 0.1, task.test_file: held.jsonl}}}\n"
    )
    arms, _ = resolve(load_design(design), design)
    assert task_of_record(arms[0].config)["file"] == str(home / "data/rows.jsonl")
    assert task_of_record(arms[1].config)["test_file"] == str(home / "held.jsonl")


def start(run: Path, recipe: Path) -> None:
    config = read_recipe(recipe)
    with RunDir.open(run, dump(config), data={"model_sha256": "of the weights", "data": files_of(config)}):
        pass


def test_a_run_resumes_from_another_directory_and_after_a_move(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = home / "run"
    start(run, Path("../home/recipe.yaml"))
    monkeypatch.chdir(home)
    start(run, Path("recipe.yaml"))
    moved = home.parent / "moved"
    home.rename(moved)
    monkeypatch.chdir(moved)
    start(moved / "run", Path("recipe.yaml"))


@pytest.mark.parametrize("file", ["data/rows.jsonl", "rewards.py"])
def test_a_moved_run_with_other_contents_is_another_run(home: Path, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    start(home / "run", Path("../home/recipe.yaml"))
    moved = home.parent / "moved"
    home.rename(moved)
    monkeypatch.chdir(moved)
    (moved / file).write_text((moved / file).read_text() * 2)
    with pytest.raises(ConfigError, match="this directory contains another run"):
        start(moved / "run", Path("recipe.yaml"))


def test_another_function_of_a_moved_file_is_another_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "rewards.py").write_text(REWARD + REWARD.replace("score", "other"))
    start(home / "run", Path("../home/recipe.yaml"))
    moved = home.parent / "moved"
    home.rename(moved)
    monkeypatch.chdir(moved)
    (moved / "recipe.yaml").write_text(RECIPE.replace(":score", ":other"))
    with pytest.raises(ConfigError, match=r"task\.reward"):
        start(moved / "run", Path("recipe.yaml"))
