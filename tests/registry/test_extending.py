"""Parts from outside: docs/extending.md is executed as it stands, and every surface knows what it registers."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.torch import load_file

from command import call
from sage_rlvr import plugins
from sage_rlvr.config import TrainConfig, decode, dump, load_config
from sage_rlvr.errors import ConfigError
from sage_rlvr.evaluation.guidance import teacher_named
from sage_rlvr.registry import REGISTRIES, registry_of
from sage_rlvr.tasks.base import Task
from sage_rlvr.tasks.teachers import hint_of
from sage_rlvr.verifiers import Verdict

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r'```\w+ title="([^"]+)"\n(.*?)```', re.DOTALL)
SMALL = ["--steps", "2", "--rollout.prompts_per_step", "2", "--rollout.group_size", "4"]


PAGES = ("extending.md", "howto/bring_your_own.md")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the files of both pages and of examples/parts; registries, plugins and environment are as before behind it."""
    shutil.copytree(ROOT / "examples" / "parts", tmp_path, dirs_exist_ok=True)
    for page in PAGES:
        for name, text in BLOCK.findall((ROOT / "docs" / page).read_text(encoding="utf-8")):
            (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(plugins.VARIABLE, "")
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = {kind: dict(registry_of(kind)._parts) for kind in REGISTRIES}
    loaded = dict(plugins._loaded)
    plugins._loaded.clear()
    yield tmp_path
    plugins._loaded.clear()
    plugins._loaded.update(loaded)
    for kind, parts in before.items():
        registry_of(kind)._parts = parts


def flat(text: str) -> str:
    return " ".join(text.split())


def test_a_guide_and_a_method_of_a_plugin_train(
    folder: Path, warm_policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = folder / "run"
    assert call("train", "my_recipe.yaml", "--run", str(run), "--model", str(warm_policy), *SMALL) == 0
    facts = json.loads((run / "run.json").read_text())
    assert list(facts["config"]["plugins"]) == ["my_parts.py"]
    assert facts["config"]["plugins"].items() <= plugins.loaded().items()
    assert facts["config"]["method"]["guide"]["name"] == "late"
    assert call("show", "my_recipe.yaml") == 0
    assert "1 + ratio * H_t" in capsys.readouterr().out


@pytest.mark.slow
def test_a_changed_plugin_is_another_run(folder: Path, warm_policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "my_recipe.yaml", "--run", "run", "--model", str(warm_policy), *SMALL]
    assert call(*words) == 0
    (folder / "my_parts.py").write_text((folder / "my_parts.py").read_text() + "\n# changed\n")
    done = subprocess.run(
        [sys.executable, "-m", "sage_rlvr", *words],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), plugins.VARIABLE: ""},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2 and "plugins.my_parts.py" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "name"),
    [("composed", "signs"), ("remembering", "above_before"), ("floored", "floored"), ("common", "common")],
)
def test_a_method_of_parts_trains(folder: Path, warm_policy: Path, recipe: str, name: str) -> None:
    config = load_config(TrainConfig, folder / f"{recipe}.yaml")
    assert config.method.name == name and decode(TrainConfig, dump(config)) == config
    assert call("train", f"{recipe}.yaml", "--run", "run", "--model", str(warm_policy), *SMALL) == 0
    kept = folder / "run" / "checkpoints" / "step-000002" / "parts.safetensors"
    assert kept.exists() is (recipe not in ("composed", "common"))
    if recipe == "remembering":
        rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
        mean = 0.2 * rows[0]["reward/mean"]
        assert [row["advantage/mean"] for row in rows] == pytest.approx([mean, 0.8 * mean + 0.2 * rows[1]["reward/mean"]])
        assert load_file(kept)["advantage.AboveBefore.mean"] == rows[1]["advantage/mean"]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["sums.yaml", "roots.yaml"])
def test_a_task_and_a_verifier_of_a_plugin_train_and_are_audited(
    folder: Path, warm_policy: Path, recipe: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call("train", recipe, "--run", "run", "--model", str(warm_policy), "--quiet") == 0
    assert len((folder / "run" / "metrics.jsonl").read_text().splitlines()) == {"sums.yaml": 2, "roots.yaml": 1}[recipe]
    capsys.readouterr()
    assert call("audit", recipe) == 0
    assert "empty" in capsys.readouterr().out
    task = json.loads((folder / "run" / "run.json").read_text())["config"]["task"]
    kind, name = ("verifier", task["reward"]) if "reward" in task else ("task", task["name"])
    monkeypatch.setenv(plugins.VARIABLE, "")
    plugins._loaded.clear()
    del registry_of(kind)[name]
    assert call("eval", "run") == 2
    assert re.search(rf"'{name}'.*was trained with my_\w+\.py: pass it again, --plugin my_", flat(capsys.readouterr().err))


@pytest.mark.slow
def test_an_environment_of_a_plugin_makes_a_base_trains_and_is_evaluated(
    folder: Path, warm_policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from sage_rlvr.evaluation.store import SampleStore

    assert call("sft", "guess_sft.yaml", "--out", "runs/guess-base", "--quiet") == 0
    assert call("train", "guess.yaml", "--run", "run", "--quiet") == 0
    assert len((folder / "run" / "metrics.jsonl").read_text().splitlines()) == 2
    words = ["--plugin", "my_environment.py", "--samples", "64", "--max-new-tokens", "12", "--store", "drawn", "--quiet"]
    assert call("eval", "runs/guess-base", "--task", "guess", *words) == 0
    with SampleStore.open(folder / "drawn") as store:
        rows = store.samples()
    replies = [(who, text) for row in rows for who, text, _ in row.turns or () if who == "environment"]
    assert replies and {text for _, text in replies} <= {"+", "-", "?"}
    assert {row.verdict for row in rows} == {"right", "wrong"}
    assert call("train", "guess.yaml", "--run", "other", "--model", str(warm_policy)) == 2
    assert "cannot encode the prompts of this task" in flat(capsys.readouterr().err)


class Bare(Task):
    """A task without reference answers."""

    name = "t"

    def problems(self, split: str) -> list[Any]:
        return []

    def prompt(self, problem: Any) -> str:
        return ""

    def verify(self, problem: Any, completion: str) -> Verdict:
        return Verdict("wrong", "")


def test_the_teachers_of_the_page_teach(folder: Path) -> None:
    plugins.use("my_teacher.py")
    problem, failed = SimpleNamespace(problem_id="p"), Verdict("wrong", "a reason " * 9)
    for word, wanted in (("my_teacher.py:teach", f"you tried 5, and {failed.reason}"), ("short", failed.reason[:40])):
        assert hint_of(teacher_named(word), Bare(), problem, ["5"], failed) == (wanted.strip(), False)


def test_the_verifier_of_the_page_judges(folder: Path) -> None:
    plugins.use("my_verifier.py")
    judge = registry_of("verifier")["nearest_tenth"]
    said = [judge(text, "1.41").label for text in ("so 1.4", "1.5", "none")] + [judge("1", "x").label]
    assert said == ["right", "wrong", "wrong", "undecided"]


def test_every_kind_is_known_everywhere(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--plugin", "my_parts.py", "parts", "--plugin=more_parts.py"]
    assert call(*words) == 0
    said = capsys.readouterr().out
    for name in ("late", "centered", "signs", "reinforce", "row_sum", "some_right", "halved"):
        assert re.search(rf"^  {name} ", said, re.MULTILINE), name
    assert registry_of("guide").label("late") == "Late"
    config = load_config(TrainConfig, "grpo", [("method.guide", "late")])
    assert config.method.name == "grpo+late"
    with pytest.raises(ConfigError, match="did you mean 'late'"):
        load_config(TrainConfig, "grpo", [("method.guide", "lade")])
    pytest.importorskip("trl")
    from sage_rlvr.training.trl.given import check_kinds

    with pytest.raises(ConfigError, match=r"write guide=Late\(\)"):
        check_kinds("late", None)


def test_the_parts_of_the_page_obey_the_laws(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sage_rlvr import testing
    from sage_rlvr.registry import registry_of

    kinds_here = ("advantage", "surrogate", "reduction", "rollout_plan")
    before = {kind: set(registry_of(kind)) for kind in kinds_here}
    plugins.use("my_parts.py")
    plugins.use("more_parts.py")
    plugins.use("remembering.py")
    plugins.use("floor.py")
    plugins.use("least.py")
    plugins.use("my_extra.py")
    testing.check_guide(registry_of("guide")["late"]())
    testing.check_method(registry_of("method")["centered"]())
    for kind in kinds_here:
        added = set(registry_of(kind)) - before[kind]
        assert added, f"the page adds no {kind}"
        for name in sorted(added):
            getattr(testing, f"check_{kind}")(registry_of(kind)[name]())
    testing.check_schedule(registry_of("schedule")["halved"](0.1))
    for name in ("brief", "common", "near", "surprising", "least", "floor"):
        testing.check_extra(registry_of("extra")[name]())
    assert "check_parts" not in sys.modules


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import nothing_of_that_name", "ModuleNotFoundError"),
        ("import sage_rlvr\n@sage_rlvr.guide\nclass A: ...", "decorate the class A with"),
        ("import sage_rlvr\n@sage_rlvr.method\ndef grpo(): ...", "method 'grpo' is already registered"),
    ],
)
def test_plugins_that_are_refused(folder: Path, text: str, said: str) -> None:
    (folder / "bad.py").write_text(text)
    with pytest.raises(ConfigError, match=r"plugin bad\.py: ") as caught:
        plugins.use("bad.py")
    assert said in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        plugins.use("nowhere.py")


@pytest.mark.slow
def test_a_recipe_with_a_task_shows_no_world_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("show", "sums.yaml") == 0
    assert "right answers on average" not in capsys.readouterr().out
    assert call("show", "grpo") == 0
    assert "right answers on average" in capsys.readouterr().out


def test_a_generator_of_a_plugin_draws(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["eval", "embedded", "--samples", "2", "--problems", "3", "--store", "drawn", "--plugin", "my_generator.py"]
    assert call(*words, "--generator", "ader") == 2
    assert "did you mean 'adder'" in capsys.readouterr().err
    assert call(*words, "--generator", "adder") == 0
    assert "store: drawn" in capsys.readouterr().out
    assert call("parts", "generators") == 0
    assert re.search(r"^  adder +Adds all numbers of the prompt", capsys.readouterr().out, re.MULTILINE)


def test_entry_points(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    (folder / "my_package.py").write_text((folder / "my_parts.py").read_text())
    monkeypatch.syspath_prepend(str(folder))
    entries = [metadata.EntryPoint("late", "my_package:Late", "sage_rlvr.guides")]
    entries += [metadata.EntryPoint("broken", "my_package:Nothing", "sage_rlvr.guides")]
    monkeypatch.setattr(metadata, "entry_points", lambda group: [e for e in entries if e.group == group])
    assert "late" in registry_of("guide") and registry_of("guide")["late"].__name__ == "Late"
    with pytest.raises(ConfigError, match="guide 'broken' of the package"):
        registry_of("guide")["broken"]


@pytest.mark.slow
def test_a_graded_reward_of_the_page_is_right_from_what_the_recipe_says(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from sage_rlvr.evaluation.store import SampleStore

    assert call("train", "graded.yaml", "--run", "runs/graded", "--quiet") == 0
    assert call("eval", "runs/graded", "--samples", "8", "--store", "own", "--quiet") == 0
    with SampleStore.open(folder / "own") as store:
        rows = store.samples()
    held = [json.loads(line) for line in (folder / "held.jsonl").read_text().splitlines()]
    signs = {str(number): row["sign"] for number, row in enumerate(held)}
    assert {row.problem for row in rows} == set(signs)
    paid = {row.reason: row.verdict for row in rows}
    assert all((float(reason.split()[1]) >= 0.6) is (verdict == "right") for reason, verdict in paid.items()) and len(paid) > 1
    capsys.readouterr()
    more = ["--task", "graded.yaml", "--max-new-tokens", "8", "--store", "again", "--quiet"]
    assert call("eval", "runs/graded", "--samples", "8", *more) == 0
    assert "by the reward" not in flat(capsys.readouterr().err)
    assert call("eval", "runs/graded", "--samples", "8", "--task", "held.jsonl", "--quiet") == 2  # these have no golds
    said = flat(capsys.readouterr().err)
    assert "--task held.jsonl: these rows get the template boxed and the mathematics verifier, not the reward" in said
    assert "pass --task RECIPE.yaml, a recipe whose task has that reward and test_file: held.jsonl" in said


def test_the_page_has_every_field_of_the_signals() -> None:
    from sage_rlvr.core.signals import FIELDS

    rows = re.findall(r"^\| (`.+?) \|", (ROOT / "docs" / "extending.md").read_text(encoding="utf-8"), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert {*FIELDS, "positions"} <= named
