"""Methods by name: each command resolves as recorded, a task and a file of rows give the settings, wrong names are answered.

`python tests/config/test_named_methods.py` writes recipe_hashes.json anew, after a key of recipes was added or renamed on purpose.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from pathlib import Path

import pytest

from sage_rlvr.cli.app import main
from sage_rlvr.config import TrainConfig, dump, load_config, read_recipe
from sage_rlvr.errors import ConfigError
from sage_rlvr.methods import METHODS
from sage_rlvr.recipes import locate, named_methods, tasks_with_base

HASHES = Path(__file__).with_name("recipe_hashes.json")  # "train maxrl --task words" -> hash of its resolved configuration


def hash_of(words: list[str]) -> str:
    """Of the resolved configuration of a command: train NAME [--task TASK], sft NAME, offline NAME."""
    command, name, *rest = words
    config = dump(read_recipe(name, command=command, task=rest[1] if rest else None))
    config.pop("plugins", None)  # those that other tests have loaded
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Random in the loss is noise only", "ignore:.*the part of q that depends on the batch")
def test_every_command_resolves_as_recorded() -> None:
    recorded = json.loads(HASHES.read_text())
    assert len(recorded) == 96
    assert {words: hash_of(shlex.split(words)) for words in recorded} == recorded


@pytest.mark.slow
@pytest.mark.parametrize("task", [None, "words"])
def test_every_method_trains_by_its_name(task: str | None) -> None:
    """sage, whose guide and base have defaults, too; compose is GRPO of parts."""
    wanted = read_recipe("grpo", task=task).task  # type: ignore[union-attr]
    for name in METHODS:
        config = read_recipe(name, command="train", task=task)
        assert isinstance(config, TrainConfig) and config.task == wanted


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


def test_a_shipped_warm_up_is_cut_to_a_short_run_and_a_written_one_is_an_error(tmp_path: Path) -> None:
    """A value that the user wrote stays: on the command line, in a recipe, and beside the steps of a recipe over a shipped base."""
    rows, own = tmp_path / "mine.jsonl", tmp_path / "own.yaml"
    rows.write_text('{"problem": "1+1", "answer": "2"}\n')
    own.write_text(f"base: rows/base\nmodel: my/model\nsteps: 3\ntask: {{name: jsonl, file: {rows}}}\nmethod: grpo\n")

    def warmup(steps: int, *more: tuple[str, str]) -> int:
        edits = [("model", "my/model"), ("steps", str(steps)), *more]
        return int(dump(read_recipe("grpo", edits, task=str(rows)))["optimizer"]["warmup_steps"])

    twice = ("updates", "{epochs: 2}")
    assert [warmup(1), warmup(2), warmup(10), warmup(11), warmup(5, twice), warmup(6, twice)] == [0, 1, 5, 10, 5, 10]
    assert load_config(TrainConfig, own).optimizer.warmup_steps == 1
    with pytest.raises(ConfigError, match=r"--optimizer\.warmup_steps = 10: must be below the run's 2 optimizer steps"):
        warmup(2, ("optimizer.warmup_steps", "10"))
    own.write_text(own.read_text() + "optimizer: {warmup_steps: 10}\n")
    with pytest.raises(ConfigError, match=r"own\.yaml:6: optimizer\.warmup_steps = 10: must be below the run's 3 optimizer steps"):
        load_config(TrainConfig, own)


def test_a_reward_on_the_command_line_is_that_of_the_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, reward = tmp_path / "mine.jsonl", tmp_path / "mine.py"
    rows.write_text('{"problem": "1+1", "answer": "2"}\n')
    reward.write_text("def score(completion, row):\n    return 1.0\n")
    words = ["train", "grpo", "--model", "my/model", "--dry-run", "--reward", f"{reward}:score"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--task", str(rows)])
    assert ended.value.code == 0 and f"\n  reward: {reward}:score\n" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(words)  # the generated problems have a verifier of their own
    assert ended.value.code == 2 and f"{reward}:score: a reward function judges rows" in capsys.readouterr().err


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
    HASHES.write_text(json.dumps({words: hash_of(shlex.split(words)) for words in json.loads(HASHES.read_text())}, indent=1) + "\n")
