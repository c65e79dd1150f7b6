"""Every command that a message suggests: it parses, and those that a tiny run can follow are run."""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from byte_tokenizer import byte_tokenizer
from command import call
from conftest import tiny_llama
from sage_rlvr import errors, plugins
from sage_rlvr.cli.app import COMMANDS, command_of, parse
from sage_rlvr.config import OfflineConfig, SftConfig, TrainConfig, dump, load_config
from sage_rlvr.models import folders as policies
from sage_rlvr.recipes import find, locate
from sage_rlvr.runs import RunDir

Recipe = Callable[..., Path]
PACKAGE = Path(errors.__file__).parent
MENTION = re.compile(r"(?<!of )sage-rlvr ((?:export |recipes (?=copy))?[a-z][a-z-]+)([^`.,;:()]*)")


@pytest.fixture
def suggested(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The words of every command that was suggested meanwhile."""
    found: list[list[str]] = []
    real = shlex.join

    def join(words: list[str]) -> str:
        found.append(list(words)[1:])
        return real(words)

    monkeypatch.setattr(errors.shlex, "join", join)
    return found


def follow(suggested: list[list[str]], *words: object) -> list[str]:
    """Call what is refused with a suggestion, and run it, the first where one stands for each kind of task. Returns its words."""
    suggested.clear()
    assert call(*words) == 2
    command, *others = [one for one in suggested if "--help" not in one]
    assert call(*command) == 0, command
    assert not [one for one in others if parse(one)[2]]
    return command


def test_recipes_of_another_command(write_recipe: Recipe, suggested: list[list[str]]) -> None:
    Path("two words").mkdir()
    rl = write_recipe(steps=1).rename("two words/rl.yaml")
    sft = Path("two words/sft.yaml")
    sft.write_text(
        "steps: 1\nbatch_size: 4\nworld: {counts: {2: 1.0}}\nmodel: {hidden: 32, layers: 1, heads: 2, mlp: 32}\n"
    )
    assert follow(suggested, "sft", rl) == ["train", str(rl)]
    assert follow(suggested, "train", sft) == ["sft", str(sft)]


@pytest.mark.slow
def test_runs_without_an_evaluation(write_recipe: Recipe, suggested: list[list[str]]) -> None:
    recipe = write_recipe(steps=1)
    for seed in (0, 1):
        assert call("train", recipe, "--seed", seed, "--quiet") == 0
    assert call("eval", "runs/recipe-s0", "--problems", 300) == 0
    assert follow(suggested, "compare", "runs/recipe-s0", "runs/recipe-s1") == ["eval", "runs/recipe-s1"]
    assert call("compare", "runs/recipe-s0", "runs/recipe-s1") == 0  # and so the first command works


def soon_silent(folder: Path) -> None:
    """A tiny policy of bytes that ends nearly every completion at once: all its hidden states are one vector."""
    tokenizer = byte_tokenizer()
    changes = {"vocab_size": len(tokenizer), "max_position_embeddings": 4096, "eos_token_id": tokenizer.eos_token_id}
    model = tiny_llama(tie_word_embeddings=False, **changes)
    with torch.no_grad():
        model.get_input_embeddings().weight[:] = 1.0
        model.lm_head.weight[:] = 0.0
        state = model.model(torch.tensor([[0]])).last_hidden_state[0, 0]
        model.lm_head.weight[tokenizer.eos_token_id] = 8 * state / state.norm() ** 2
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def test_a_run_on_rows_is_evaluated_by_samples(write_recipe: Recipe, suggested: list[list[str]]) -> None:
    rows = Path("rows.jsonl")
    rows.write_text("".join(json.dumps({"prompt": f"What is {a}?", "answer": str(a)}) + "\n" for a in (1, 2)))
    config = dump(load_config(TrainConfig, write_recipe())) | {"data": {"path": str(rows), "prompt": "as_is"}}
    RunDir.open("run", config).close()
    soon_silent(Path("run/policy"))
    assert follow(suggested, "eval", "run")[:4] == ["eval", "run", "--samples", "64"]


@pytest.mark.slow
def test_a_report_that_compares_nothing_says_what_to_give(
    write_recipe: Recipe, suggested: list[list[str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "_loaded", {})  # of earlier tests in this process: a run records what is loaded
    config = dump(load_config(TrainConfig, write_recipe())) | {"model": "embedded"}
    for name in ("one", "two"):
        RunDir.open(name, config).close()
    RunDir.open("other", config | {"model": "a/b"}).close()
    Path("mine.py").write_text("")
    RunDir.open("rows", config | {"data": {"path": "rows.jsonl"}}).close()
    RunDir.open("own", config | {"task": {"name": "mine"}, "plugins": {"mine.py": "0"}}).close()
    for given, wanted in (
        (["one"], [["eval", "one"], ["report", "one", "embedded"]]),
        (["one", "two"], [["eval", "one"]]),
        (["other"], [["eval", "other"], ["report", "other", "RUN"]]),
        (["rows"], [["eval", "rows", "--samples", "64"], ["report", "rows", "RUN"]]),
        (["own"], [["eval", "own", "--samples", "64", "--plugin", "mine.py"], ["report", "own", "RUN"]]),
    ):
        suggested.clear()
        assert call("report", *given) == 0
        made = [command for command in suggested if command[1] != "RUN"]  # the page's own, which know no run
        assert made == wanted
        assert all(not parse([w for w in command if w not in ("--plugin", "mine.py")])[2] for command in made)
        assert "Nothing is compared" in capsys.readouterr().out
    suggested.clear()
    assert call("report", "one", "embedded") == 2
    assert suggested == [["eval", "embedded"]]


def test_a_base_at_one_temperature_is_evaluated_at_more(write_recipe: Recipe, suggested: list[list[str]]) -> None:
    from sage_rlvr.render import Page, report_of
    from sage_rlvr.results.read import read_results

    assert call("eval", "embedded", "--problems", 6, "--out", "base.npz") == 0
    suggested.clear()
    text = Page(report_of(read_results("base.npz"))).markdown()
    assert "no frontier. Evaluate it at more with: sage-rlvr eval embedded --frontier" in text
    assert ["eval", "embedded", "--frontier"] in suggested and not any(parse(command)[2] for command in suggested)


def test_a_recipe_is_no_design_of_a_sweep(suggested: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    for name, command in (("grpo", "train"), ("sft", "sft"), ("countdown/dr_grpo", "train")):
        suggested.clear()
        assert call("sweep", name, "--dry-run") == 2
        [words] = suggested
        assert words == [command, name] and "a recipe, but not one of designs" in capsys.readouterr().err
        assert locate(words[1]).file.is_file()
    assert call("sweep", "grpoo") == 2
    assert "no such file, nor a shipped recipe" in capsys.readouterr().err


def test_a_mistyped_option(suggested: list[list[str]]) -> None:
    assert call("recipes", "--unheard-of", "3") == 2
    assert call(*suggested[-1]) == 0 and suggested[-1] == ["recipes", "--help"]


def test_work_that_is_too_long_for_a_test_parses(
    tmp_path: Path, write_recipe: Recipe, monkeypatch: pytest.MonkeyPatch, suggested: list[list[str]]
) -> None:
    RunDir.open("half", dump(load_config(TrainConfig, write_recipe()))).close()
    assert call("eval", "half") == 2
    monkeypatch.setattr(policies, "embedded_policy", lambda: tmp_path / "gone")
    assert call("eval", "embedded") == 2
    assert [command[0] for command in suggested] == ["train", "sft"]
    for command in suggested:
        assert not parse(command)[2]


@pytest.mark.slow
def test_the_commands_of_a_shipped_script_parse_and_a_second_start_only_compares(tmp_path: Path) -> None:
    """recipes/repair/guided.sh with a stub for the program: every command is one of ours and its recipe takes the values
    that are given; what is marked as done is not done again."""
    script = Path(__file__).parents[2] / "recipes" / "repair" / "guided.sh"
    stub, log = tmp_path / "stub", tmp_path / "log"
    stub.write_text(f'#!/usr/bin/env bash\nprintf "%s\\0" "$@" >> {log}\nprintf "\\n" >> {log}\n')
    stub.chmod(0o755)

    def commands() -> list[list[str]]:
        log.write_text("")
        environment = {**os.environ, "SAGE_RLVR": str(stub), "SEEDS": "0 1"}
        subprocess.run(["bash", str(script), str(tmp_path / "out")], env=environment, check=True, capture_output=True)
        return [line.split("\0")[:-1] for line in log.read_text().splitlines()]

    first = commands()
    assert [one[0] for one in first].count("train") == 4 and len(first) == 31
    kinds = {"train": TrainConfig, "sft": SftConfig, "offline": OfflineConfig}
    for words in first:
        _, _, rest = parse(words)
        values = [(key.removeprefix("--"), value) for key, value in zip(rest[::2], rest[1::2], strict=True)]
        if words[0] in kinds:
            load_config(kinds[words[0]], find(words[1]), values)
        else:
            assert not values
    assert [one[0] for one in commands()] == ["compare"] * 3


def texts(nodes: Sequence[ast.AST]) -> list[str]:
    """Every string of the code that is no docstring; f-strings with {} for their fields."""
    joined = [n for n in nodes if isinstance(n, ast.JoinedStr)]
    left_out = {id(n) for one in joined for n in ast.walk(one)} | {id(n.value) for n in nodes if isinstance(n, ast.Expr)}
    found = [n for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    plain = [str(n.value) for n in found if id(n) not in left_out]
    return plain + ["".join(v.value if isinstance(v, ast.Constant) else "{}" for v in n.values) for n in joined]


def options_of(command: str) -> set[str]:
    """What a command takes, as it is typed."""
    kind = command_of(command) if command in COMMANDS else None
    names = {f.name.rstrip("_").replace("_", "-") for f in fields(kind)} if kind else set()
    return {"--help", *(f"--{name}" for name in names), *(f"--no-{name}" for name in names)}


@functools.cache
def sources() -> dict[Path, tuple[ast.AST, ...]]:
    """The nodes of each file of the package that names a command or suggests one."""
    files = {path: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
    return {path: tuple(ast.walk(ast.parse(text))) for path, text in files.items() if re.search(r"sage-rlvr|suggest\(", text)}


@pytest.mark.slow
def test_commands_with_arguments_are_made_by_suggest_alone() -> None:
    """A message may name a command; one with arguments is quoted for the shell by `errors.suggest`."""
    for path, nodes in sources().items():
        for text in texts(nodes):
            for command, rest in MENTION.findall(text):
                assert command in COMMANDS, f"{path.name}: {text}"
                assert not re.search(r"\{|[A-Z]{3}", rest), f"{path.name}: write it with errors.suggest: {text}"
                options = {word for word in rest.split() if word.startswith("--")}
                assert options <= options_of(command), f"{path.name}: {text}"


def test_templates_suggest_as_the_code_does() -> None:
    """A command with arguments is made by `suggest`, which a template has too; what it is given parses."""
    made = []
    for path in sorted(PACKAGE.rglob("*.j2")):
        text = path.read_text(encoding="utf-8")
        for command, rest in MENTION.findall(text):
            bare = command in COMMANDS and not re.search(r"--|\{|[A-Z]{3}", rest)
            assert bare, f"{path.name}: write it with suggest: {command}{rest}"
        made += [ast.literal_eval(f"({words},)") for words in re.findall(r"\bsuggest\(([^()]*)\)", text)]
    assert len(made) >= 2
    for words in made:
        assert not parse([str(word) for word in words])[2], words


def test_what_suggest_is_given_are_commands_with_their_options() -> None:
    """As far as the words are written in the code."""
    for path, nodes in sources().items():
        calls = [n for n in nodes if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "suggest"]
        for one in calls:
            words = [w.value if isinstance(w, ast.Constant) else None for w in one.args]
            if not words or not isinstance(words[0], str):
                continue
            name = words[0] if words[0] in COMMANDS else f"{words[0]} {words[1]}"
            assert name in COMMANDS, f"{path.name}: {words}"
            options = {w for w in words if isinstance(w, str) and w.startswith("--")}
            assert options <= options_of(name), f"{path.name}: {words}"
