"""Methods by name: each former recipe resolves as it did, a task and a file of rows give the settings, wrong names are answered.

`python tests/config/test_named_methods.py` writes recipe_hashes.json anew, where a key of recipes was added or renamed on purpose.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from pathlib import Path

import pytest

from sage_rlvr.cli.app import main
from sage_rlvr.config import TrainConfig, dump, read_recipe
from sage_rlvr.errors import ConfigError
from sage_rlvr.methods import METHODS
from sage_rlvr.recipes import locate, named_methods, tasks_with_base

ROOT = Path(__file__).parents[2]
HASHES = Path(__file__).with_name("recipe_hashes.json")
COMMANDS: dict[str, str] = json.loads((ROOT / "lab" / "renames" / "recipes.json").read_text())
LISTED = {old: shlex.split(now)[1:] for old, now in COMMANDS.items() if now.startswith("sage-rlvr ")}


def hash_of(words: list[str]) -> str:
    """Of the resolved configuration of a command: train NAME [--task TASK], sft NAME, offline NAME."""
    command, name, *rest = words
    config = dump(read_recipe(name, command=command, task=rest[1] if rest else None))
    config.pop("plugins", None)  # those that other tests have loaded
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]


@pytest.mark.filterwarnings("ignore:Random in the loss is noise only", "ignore:.*the part of q that depends on the batch")
def test_every_former_recipe_resolves_as_it_did() -> None:
    """67 of the 96 hashes are those of the recipe files before they went. 21 were written anew when keys were renamed (046c2ac),
    four when sibling methods got options (e4f5631), and four when two kinds of parts, null there, became extras. The names
    erank, sft_oracle, nll_correct and dars_marginal_value stand for those they had."""
    wanted = json.loads(HASHES.read_text())
    assert len(wanted) == len(LISTED) == 96
    assert {old: hash_of(words) for old, words in LISTED.items()} == wanted


@pytest.mark.parametrize("task", [None, "words"])
def test_every_method_trains_by_its_name(task: str | None) -> None:
    """sage, whose guide and base have defaults, too; compose is GRPO of parts."""
    for name in METHODS:
        config = read_recipe(name, command="train", task=task)
        assert isinstance(config, TrainConfig) and config.task == read_recipe("grpo", task=task).task  # type: ignore[union-attr]


@pytest.mark.filterwarnings("ignore:Random in the loss is noise only", "ignore:.*what q takes from the batch")
@pytest.mark.parametrize("task", [None, "words", "steps", "repair", "knights"])
def test_a_guided_arm_has_the_beta_of_its_baseline(task: str | None) -> None:
    """Else a comparison with it would be one of two betas."""
    guided = ("sage_branch", "sage_token", "sage_random", "placebo", "sage_rarity", "sage_rarity_placebo", "branch_ratio1")
    baseline = dump(read_recipe("grpo", task=task))["method"]
    for name in (*guided, "branch_ratio1_placebo"):
        method = dump(read_recipe(name, task=task))["method"]
        assert method["base"]["name"] == "grpo" and method["base"]["beta"] == baseline["beta"], name


def test_the_settings_of_a_task_go_before_those_of_all_tasks() -> None:
    assert dump(read_recipe("branch_ratio1", task="steps"))["method"]["guide"]["q_max"] == 4.0
    assert dump(read_recipe("branch_ratio1"))["method"]["guide"]["q_max"] != 4.0
    assert dump(read_recipe("rlpr"))["method"]["given"] == 0.5
    assert dump(read_recipe("rlpr", task="knights"))["method"]["given"] == 0.0
    assert read_recipe("sage_branch", task="repair") and "sage_branch" in named_methods("repair")
    assert locate("maxrl").name == "maxrl"
    assert locate("maxrl", "words").name == locate("words/maxrl").name == "words-maxrl"


def test_a_task_is_named_as_its_family_or_as_eval_names_it() -> None:
    families = tasks_with_base()
    assert families["words"] == families["word_problems"] == "words" and families["knights_and_knaves"] == "knights"
    assert read_recipe("grpo", task="word_problems") == read_recipe("grpo", task="words")


def test_a_recipe_of_ones_own_gives_the_settings_and_is_a_base(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("steps: 7\nmethod: {name: grpo, beta: 0.5}\n")
    config = read_recipe("maxrl", task=str(mine))
    assert isinstance(config, TrainConfig) and (config.steps, config.method.name) == (7, "maxrl")
    assert locate("maxrl", str(mine)).name == "mine-maxrl"
    child = tmp_path / "child.yaml"
    child.write_text("base: sage_branch\nsteps: 9\n")
    assert dump(read_recipe(child)) == dump(read_recipe("sage_branch")) | {"steps": 9}


def test_a_file_of_rows_is_a_task(tmp_path: Path) -> None:
    rows = tmp_path / "mine.jsonl"
    rows.write_text(json.dumps({"problem": "1+1", "answer": "2"}) + "\n")
    config = dump(read_recipe("maxrl", task=str(rows), edits=[("model", "my/model")]))
    assert config["task"]["file"] == str(rows) and config["model"] == "my/model" and config["method"]["name"] == "maxrl"
    with pytest.raises(ConfigError, match="--model"):
        read_recipe("maxrl", task=str(rows))


def test_a_file_of_rows_gets_the_settings_for_a_pretrained_model(
    tmp_path: Path, tiny_policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All methods the same ones, the guided with the beta of their baseline; the dry run names them."""
    rows = tmp_path / "mine.jsonl"
    rows.write_text("".join(json.dumps({"problem": f"1+{n}", "answer": str(n + 1)}) + "\n" for n in range(8)))
    edits = [("model", str(tiny_policy))]
    found = {name: dump(read_recipe(name, task=str(rows), edits=edits)) for name in ("grpo", "sage_branch", "dapo")}
    for config in found.values():
        assert config["optimizer"]["lr"] == 5e-6 and config["optimizer"]["warmup_steps"] == 10
        assert config["engine"]["device"] == "auto" and config["engine"]["threads"] is None
        assert config["updates"]["skip_without_signal"] == "at_start"
        assert {**config, "method": None} == {**found["grpo"], "method": None}
    assert found["sage_branch"]["method"]["base"]["beta"] == found["grpo"]["method"]["beta"]
    with pytest.raises(SystemExit) as ended:
        main(["train", "grpo", "--task", str(rows), "--model", str(tiny_policy), "--dry-run"])
    line = "# settings: rows/base, those for a pretrained model, because the task is a file of rows\n"
    assert ended.value.code == 0 and capsys.readouterr().out.startswith(line)


def test_the_option_to_skip_stands_in_no_recipe_that_does_not_set_it() -> None:
    """So that recorded runs and the hashes above stay what they are."""
    assert "skip_without_signal" not in dump(read_recipe("grpo"))["updates"]
    changed = dump(read_recipe("grpo", edits=[("updates.skip_without_signal", "always")]))
    assert changed["updates"]["skip_without_signal"] == "always"


@pytest.mark.parametrize(
    ("name", "task", "said"),
    [
        ("maxlr", None, "did you mean 'maxrl'"),
        ("maxlr", "words", "unknown method; did you mean 'maxrl'"),
        ("grpo", "word", "--task 'word': no settings to train with; did you mean 'words'"),
        ("mine.yaml", "words", "omit --task"),
    ],
)
def test_a_wrong_name_is_answered(name: str, task: str | None, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_recipe(name, task=task)
    assert said in str(caught.value)


if __name__ == "__main__":
    HASHES.write_text(json.dumps({old: hash_of(words) for old, words in LISTED.items()}, indent=1) + "\n")
