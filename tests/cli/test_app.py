"""What happens round every command: its table, mistyped words, pipes, versions."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import sage_rlvr
from sage_rlvr import plugins
from sage_rlvr.cli.app import COMMANDS, _takes, command_of, main, overview
from sage_rlvr.config import FinetuneConfig, SftConfig, TrainConfig
from sage_rlvr.core.method import METHODS


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    return " ".join(capsys.readouterr().err.split())


def test_version_and_overview(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0 and capsys.readouterr().out == f"sage-rlvr {sage_rlvr.__version__}\n"
    lines = overview().splitlines()
    assert all(any(line.startswith(f"  {name} ") for line in lines) for name in COMMANDS)
    assert max(map(len, lines)) <= 120 and lines[2] == "train:" and [line for line in lines if line == "inspect:"]
    assert "143 after SIGTERM" in lines[-3] and "130 after Ctrl-C" in lines[-3]
    assert "stdout was closed early" in lines[-2] and lines[-2].startswith("1 warnings of `preflight`")
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2 and "COMMAND --help" in capsys.readouterr().out


def test_mistyped_words_get_their_neighbor(capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown command 'trian'; did you mean 'train'?" in refused(capsys, "trian", "recipe.yaml")
    assert "did you mean 'export verl'?" in refused(capsys, "exprt", "vrl")
    assert "choose from export verl" in refused(capsys, "export")
    assert "choose from demo, train" in refused(capsys, "xyz")
    assert "did you mean '--problems'?" in refused(capsys, "eval", "embedded", "--problem", "3")
    assert "did you mean '--dry-run'?" in refused(capsys, "train", "recipe.yaml", "--dry-rnu")
    assert "did you mean '--dry-run'?" in refused(capsys, "train", "recipe.yaml", "--dry-rnu", "--quiet")


def test_no_key_of_a_recipe_is_taken_for_a_mistyped_option() -> None:
    keys = {f.name.replace("_", "-") for schema in (TrainConfig, SftConfig, FinetuneConfig) for f in fields(schema)}
    for name in ("train", "sft", "show"):
        options = [f.name.replace("_", "-") for f in fields(command_of(name))]
        assert not [key for key in keys - set(options) if difflib.get_close_matches(key, options, 1, 0.8)]


def test_plugins_join_before_the_command_and_parts_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine_for_show.py"
    file.write_text(
        "from dataclasses import dataclass\nimport sage_rlvr\n\n\n@sage_rlvr.method\ndef toy_for_show():\n"
        "    \"\"\"GRPO under another name.\"\"\"\n    return sage_rlvr.grpo()\n"
    )
    monkeypatch.setenv("SAGE_RLVR_PLUGINS", "")
    monkeypatch.setattr(plugins, "_loaded", {})
    with pytest.raises(SystemExit) as caught:
        main(["parts", "method", "--plugin", str(file)])
    out = capsys.readouterr().out
    del METHODS["toy_for_show"]  # the registry is the process's, and so every later test's
    assert caught.value.code == 0 and "GRPO under another name" in out and "dr_grpo" in out
    assert "a file is missing" in refused(capsys, "parts", "--plugin")
    assert "cannot be read" in refused(capsys, "--plugin=nowhere.py", "parts")


@pytest.mark.parametrize(
    "words",
    [
        *(["train", "grpo", "--run", ""], ["train", "grpo", "--run="], ["sft", "sft", "--run-dir", ""], ["demo", "--out="]),
        *(["train", "grpo", "--run_dir", ""], ["report", "run", "-o", ""]),
    ],
)
def test_an_empty_path_is_not_the_current_folder(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "'': the path is empty" in refused(capsys, *words)


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--help"], ["eval", "--help"], ["plan", "--problems", "100"]])
def test_a_pipe_without_a_reader_ends_quietly(words: list[str]) -> None:
    """What `| head` does: the reader goes before everything is written."""
    package = Path(sage_rlvr.__file__).parents[1]
    code = f"import sys; sys.path.insert(0, {str(package)!r}); from sage_rlvr.cli.app import main; main({words!r})"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), said) == (1, "")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that takes nothing")
@pytest.mark.parametrize("words", [["--help"], ["eval", "--help"], ["recipes"], ["plan", "--problems", "100"]])
def test_a_full_stdout_is_told(words: list[str]) -> None:
    package = Path(sage_rlvr.__file__).parents[1]
    code = f"import sys; sys.path.insert(0, {str(package)!r}); from sage_rlvr.cli.app import main; main({words!r})"
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2 and done.stderr.startswith("stdout: cannot be written: No space left"), done
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that takes nothing")
def test_a_full_stderr_is_one_sentence_on_stdout(tmp_path: Path) -> None:
    package = Path(sage_rlvr.__file__).parents[1]
    words = ["train", "grpo", "--task", "countdown", "--model", "embedded", "--steps", "1", "--optimizer.warmup_steps", "0"]
    code = f"import sys; sys.path.insert(0, {str(package)!r}); from sage_rlvr.cli.app import main; main({words!r})"
    for stdout in (subprocess.PIPE, None):
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run(
                [sys.executable, "-c", code], cwd=tmp_path, stdout=stdout or full, stderr=full, text=True, check=False
            )
        assert done.returncode == 2
        assert stdout is None or "stderr: cannot be written: No space left" in done.stdout


def test_the_help_of_eval_names_every_generator_and_where_guides_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    from sage_rlvr.registry import registry_of

    with pytest.raises(SystemExit):
        main(["eval", "--help"])
    said = " ".join(capsys.readouterr().out.replace("\u2502", " ").split())
    assert set(registry_of("generator")) <= set(said.replace(",", " ").replace(";", " ").split())
    assert "`sage-rlvr parts guides`" in said
    with pytest.raises(SystemExit):
        main(["parts", "guides"])
    assert set(registry_of("guide")) <= set(capsys.readouterr().out.split())


def test_every_part_is_listed_with_its_whole_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["parts"])
    said = capsys.readouterr().out
    assert "r - mean (Dr. GRPO, arXiv 2503.20783): no division" in said
    assert "\n  placebo_weight " in said and "\n  clip_cov                 w_t = 0 at " in said


def test_a_stream_is_tried_without_leaving_anything_in_it(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w+") as file:
        file.write("a\n")
        assert _takes(file) and file.write("b\n")
    assert (tmp_path / "out").read_text() == "a\nb\n"
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as pipe:
        assert _takes(pipe)
    assert os.read(reading, 9) == b""
    os.close(reading)
