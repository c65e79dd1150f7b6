"""Small mistakes of a first day, each answered with the next step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command import call
from sage_rlvr.api import start
from sage_rlvr.config import TrainConfig, decode, dump, load_config, parse_yaml, read_recipe
from sage_rlvr.errors import ConfigError
from sage_rlvr.training.counts import footprint, probe
from sage_rlvr.training.counts.footprint import fit_line
from sage_rlvr.training.counts.probe import Cost

Capture = pytest.CaptureFixture[str]


def told(capsys: Capture, *words: str) -> str:
    """The error of a command."""
    assert call(*words) == 2
    return " ".join(capsys.readouterr().err.split())


# ---- LoRA by PEFT's names


def test_an_adapter_by_the_names_of_peft(tmp_path: Path) -> None:
    recipe = tmp_path / "lora.yaml"
    recipe.write_text("base: countdown/base\nmethod: no_kl\nengine: {name: trl, lora: {r: 4, lora_alpha: 16, lora_dropout: 0.1}}\n")
    lora = load_config(TrainConfig, recipe).engine.lora
    assert lora is not None and (lora.rank, lora.alpha, lora.dropout) == (4, 16, 0.1)
    typed = load_config(TrainConfig, "grpo", [("engine.name", "trl"), ("engine.lora", "{r: 8}")]).engine.lora
    assert typed is not None and typed.rank == 8


def test_both_names_of_one_setting_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"engine\.lora\.r = 8: the same setting as 'rank'"):
        load_config(TrainConfig, "grpo", [("engine.name", "trl"), ("engine.lora", "{r: 8, rank: 4}")])


@pytest.mark.parametrize("key", ["q", "ra", "use_dora"])
def test_an_unknown_key_of_an_adapter_is_no_learning_rate(key: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(TrainConfig, "grpo", [("engine.name", "trl"), ("engine.lora", f"{{{key}: 8}}")])
    assert "optimizer.lr" not in str(error.value) and "Keys here: rank, alpha, dropout, target_modules" in str(error.value)


# ---- eval of a recipe


@pytest.mark.parametrize("name", ["mine.yaml", "words/base", "maxrl"])
def test_eval_of_a_recipe_names_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("base: countdown/base\nmethod: no_kl\n")
    said = told(capsys, "eval", name)
    stem = Path(name).stem
    assert f"{name}: that is a {'method' if name == 'maxrl' else 'recipe'}; evaluate its run: sage-rlvr eval runs/{stem}-s0" in said
    assert "by_samples" not in said and told(capsys, "eval", name, "--samples", "2") == said


# ---- parts of one's own

GUIDE = "import sage_rlvr\n@sage_rlvr.guide\ndef mine(signals, step, total_steps, key):\n    return signals.old_logps.exp()\n"
ADVANTAGE = "import sage_rlvr\n@sage_rlvr.advantage\ndef mine(rewards):\n    return rewards\n"
CLASS = """import sage_rlvr
from dataclasses import dataclass
@sage_rlvr.{kind}
@dataclass(frozen=True)
class Mine:
    def __call__(self, *given):
        return given[0]
"""


RULE = "a registered function makes parts of this kind from options of a recipe, and"
LACKS = "Mine lacks equation, which `describe` and `show` print; declare equation: ClassVar[str] ="


def inherits(kind: str, symbol: str, rest: str = "__call__") -> str:
    """What is said of a class that does not inherit its kind."""
    base = f"sage_rlvr.core.{kind}"
    declared = f'equation: ClassVar[str] = "{symbol} as one line of text" and {rest}'
    return f"Mine does not inherit {base}; write class Mine({base}), with {declared}"


OWN = CLASS.format(kind="advantage").replace("Mine", "Mine(sage_rlvr.core.Advantage)")
CASES = {
    "guide": (GUIDE, f"{RULE} signals, key are no options; declare a class for the rule: @dataclass(frozen=True), sage_rlvr.Ban"),
    "advantage": (ADVANTAGE, f"{RULE} rewards is no option; declare a class for the rule: @dataclass(frozen=True), sage_rlvr.core"),
    "class of an advantage": (CLASS.format(kind="advantage"), inherits("Advantage", "A")),
    "advantage without an equation": (OWN, f'{LACKS} "A as'),
    "advantage with a slip": (
        OWN.replace("Advantage):", "Advantage):\n    takes_group_men = True"),
        "advantage class Mine: takes_group_men is no member of an advantage; did you mean takes_group_mean?",
    ),
    "surrogate": (CLASS.format(kind="surrogate"), inherits("Surrogate", "the loss of a token", "__call__")),
    "reduction": (CLASS.format(kind="reduction"), "Mine does not inherit sage_rlvr.core.Reduction; write class Mine(sage_"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_part_that_cannot_work_says_what_to_declare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, case: str
) -> None:
    monkeypatch.setenv("SAGE_RLVR_PLUGINS", "")
    text, words = CASES[case]
    (tmp_path / "own_part.py").write_text(text)
    assert words in told(capsys, "show", "grpo", "--plugin", str(tmp_path / "own_part.py"))


# ---- show, doctor, recipes


@pytest.mark.slow
def test_show_of_rows_prints_no_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text(json.dumps({"problem": "1 + 1", "answer": "2"}) + "\n")
    assert call("show", "grpo", "--task", "rows.jsonl", "--model", "embedded") == 0
    out = capsys.readouterr().out
    assert "name: jsonl" in out and "world:" not in out and "countdown" not in out.lower()
    shown, _, _ = out.partition("\n\n")
    Path("again.yaml").write_text(shown)
    assert decode(TrainConfig, parse_yaml(shown)) == load_config(TrainConfig, "again.yaml")
    assert call("show", "grpo") == 0 and "world:" in capsys.readouterr().out


def test_doctor_counts_settings_without_a_method_with_grpo(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    asked = []

    def probed(config: TrainConfig, say: object, base: object) -> Cost:
        asked.append((config.method.name, None if config.task is None else config.task.name, config.rollout.max_new_tokens))
        raise ConfigError("no room")

    monkeypatch.setattr(probe, "probe", probed)
    for recipe in ("rows/base", "real/base"):
        assert call("doctor", recipe, "--model", "embedded") == 0
    assert asked == [("grpo", "countdown_chat", 512), ("grpo", "countdown_chat", 24)]
    assert "doctor: rows/base has no method: counted with grpo" in capsys.readouterr().err
    assert "this is an SFT recipe" in told(capsys, "doctor", "real/sft")


@pytest.mark.parametrize(("words", "saved"), [(["doctor", "--model", "embedded"], False), (["train", "grpo"], True)])
def test_only_what_keeps_its_work_says_so_after_ctrl_c(
    words: list[str], saved: bool, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def stopped(*args: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(footprint, "footprint_lines", stopped)
    monkeypatch.setattr(start, "start", stopped)
    assert call(*words) == 130
    err = capsys.readouterr().err
    assert err.endswith("continues\n") == saved and "interrupted" in err
    assert err.startswith("doctor: ") != saved  # said before torch is imported


def test_doctor_takes_a_recipe_by_position_and_says_what_fits(capsys: Capture) -> None:
    assert call("doctor", "grpo") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "model embedded, from its config.json" in out and " GB at the peak, fits in the " in out
    assert fit_line(3 * 10**9, 2 * 10**9, "a GPU").startswith("about 3.0 GB at the peak, does NOT fit in the 2 GB of a GPU")


def test_recipes_without_a_method_say_how_they_are_trained(capsys: Capture) -> None:
    assert call("recipes", "words") == 0
    assert "NAME/base has the settings of a task and no method: sage-rlvr train METHOD --task NAME" in " ".join(
        capsys.readouterr().err.split()
    )
    said = told(capsys, "train", "words/base")
    assert "has no method: pass --method NAME, or train a method with these settings: sage-rlvr train METHOD --task words" in said


# ---- generators of reasoning-gym


def test_a_generator_of_reasoning_gym_is_a_task_by_name(capsys: Capture) -> None:
    config = read_recipe("grpo", [("model", "owner/name")], task="reasoning_gym:leg_counting")
    assert dump(config)["task"]["dataset"] == "leg_counting" and config.rollout.max_new_tokens == 512
    said = told(capsys, "audit", "no_such_task")
    assert "reasoning_gym:NAME" in said
    assert "reasoning_gym:NAME" in told(capsys, "train", "grpo", "--task", "no_such_task")


# ---- eval of rows of one's own

GRADED = """model: embedded
steps: 1
task: {name: jsonl, file: rows.jsonl, reward: graded.py:score}
rollout: {prompts_per_step: 1, group_size: 2, max_new_tokens: 5}
method: {name: grpo, beta: 0.0}
"""


@pytest.mark.slow
def test_eval_on_training_rows_says_so_and_the_base_gets_the_length_of_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text('{"prompt": "2 3 6="}\n')
    Path("graded.py").write_text("def score(completion, row):\n    return float('*' in completion)\n")
    Path("graded.yaml").write_text(GRADED)
    assert call("train", "graded.yaml", "--run", "run", "--quiet") == 0 and call("eval", "run", "--samples", "2") == 0
    assert "rows: the rows that this run was trained on" in capsys.readouterr().err
    assert call("eval", "embedded", "--task", "graded.yaml", "--samples", "2") == 0
    assert "of 5 tokens" in capsys.readouterr().out
