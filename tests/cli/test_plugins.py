"""What a user's own code does wrong is the user's to mend: exit code 2 with file and line, and no fault of this program."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from command import call
from sage_rlvr import plugins, testing
from sage_rlvr.cli.app import FAULT, main
from sage_rlvr.registry import REGISTRIES, registry_of

Run = Callable[..., tuple[int, str]]
GUIDE = '''import sage_rlvr
from dataclasses import dataclass
from typing import ClassVar
import torch
@sage_rlvr.guide
@dataclass(frozen=True)
class Lull(sage_rlvr.Banded):
    """Less of the leash."""
    needs: ClassVar[frozenset[str]] = frozenset({"entropies"})
    depends_on: ClassVar[str] = "state"
    equation: ClassVar[str] = "1 + H"
    q_min: float = 0.6
    q_max: float = 1.4
    def raw_q(self, signals, step, total_steps, key):
        return 1.0 + signals.entropies
'''
TASK = '''import sage_rlvr
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar
from sage_rlvr.verifiers import Verdict
@sage_rlvr.task
@dataclass(frozen=True)
class Ones(sage_rlvr.Task):
    """Say 1."""
    name: ClassVar[str] = "ones"
    def problems(self, split):
        return [SimpleNamespace(problem_id=f"p{n}") for n in range(8)]
    def prompt(self, problem):
        return "1 1 = "
    def verify(self, problem, completion):
        return Verdict("right" if "1" in completion else "wrong", "")
'''


@pytest.fixture
def train(tmp_path: Path, write_recipe: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """train(text of a plugin, words) -> exit code and stderr of `train` with it; registries are as before behind it."""
    before = {kind: dict(registry_of(kind)._parts) for kind in REGISTRIES}
    loaded = dict(plugins._loaded)
    plugins._loaded.clear()
    monkeypatch.setenv(plugins.VARIABLE, "")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)

    def run(text: str, *words: str, recipe: Path | None = None) -> tuple[int, str]:
        (tmp_path / "mine.py").write_text(text, encoding="utf-8")
        words = ("train", str(recipe or write_recipe()), "--plugin", "mine.py", "--run", "run", "--quiet", *words)
        with pytest.raises(SystemExit) as caught:
            main(list(words))
        return int(caught.value.code or 0), ""

    yield run
    plugins._loaded.clear()
    plugins._loaded.update(loaded)
    for kind, parts in before.items():
        registry_of(kind)._parts = parts


def told(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().err.split())


LULL = ("--method.guide", "lull")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("    q_min: float = 0.6\n    q_max: float = 1.4\n", "", "guide 'lull': Lull lacks q_min, q_max; declare q_min: float"),
        ('    equation: ClassVar[str] = "1 + H"\n', "", "Lull lacks equation; declare equation: ClassVar[str]"),
        ("def raw_q", "def raw", "Lull lacks raw_q"),
        ('"state"', '"prefix"', "depends_on = 'prefix': declare what q depends on: nothing, state (the text so far)"),
        ('"state"', '"tokens"', "did you mean 'token'?"),
        ('{"entropies"}', '{"entropy"}', "guide 'lull': needs 'entropy', which is not a signal; did you mean 'entropies'?"),
        ('frozenset({"entropies"})', '"entropies"', "needs = 'entropies': a set of names is expected"),
        (
            "total_steps, key):", "total_steps):",
            "mine.py:14: Lull.raw_q is called with (self, signals, step, total_steps, key): too many positional arguments",
        ),
    ],
)  # fmt: skip
def test_a_declaration_that_cannot_work_is_refused_before_anything_is_read(
    train: Run, capsys: pytest.CaptureFixture[str], old: str, new: str, said: str
) -> None:
    assert old in GUIDE
    assert train(GUIDE.replace(old, new), *LULL)[0] == 2
    assert said in (err := told(capsys)) and err.startswith("ConfigError: plugin mine.py: ") and "Traceback" not in err


def test_a_plugin_imports_the_files_beside_it(train: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "depth_of_lull.py").write_text("DEPTH = 0.6\n", encoding="utf-8")
    text = "from depth_of_lull import DEPTH\n" + GUIDE.replace("q_min: float = 0.6", "q_min: float = DEPTH")
    assert train(text, *LULL, "--dry-run")[0] == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("signals.entropies", "signals.entropy", 15, "AttributeError: 'Signals' object has no attribute 'entropy'; did you mean '"),
        ("1.0 + signals.entropies", '{}["lost"]', 15, "KeyError: 'lost' at `return {}[\"lost\"]`"),
        ("1.0 + signals.entropies", "torch.cat([signals.entropies, signals.mask[:1, :1]])", 15, "RuntimeError: Sizes of tensors"),
    ],
)  # fmt: skip
def test_an_exception_of_a_plugin_names_its_file_and_line(
    train: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path, old: str, new: str, line: int, said: str
) -> None:
    assert old in GUIDE
    assert train(GUIDE.replace(old, new), *LULL)[0] == 2
    err = told(capsys)
    assert f"PluginError: {tmp_path / 'mine.py'}:{line}: {said}" in err, err
    assert "and sage_rlvr.testing.check_guide checks it" in err and "Traceback" not in err and "fault" not in err


def test_the_advice_names_the_check_of_the_kind_at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, train: Run) -> None:
    assert {kind for kind in REGISTRIES if hasattr(testing, f"check_{kind}")} == set(plugins.CHECKED)
    (tmp_path / "parts.py").write_text(
        "import sage_rlvr\nfrom dataclasses import dataclass\n"
        "@sage_rlvr.schedule\n@dataclass(frozen=True)\nclass Late:\n    end: float = 1.0\n"
        "    def __call__(self, step, total_steps):\n        return {}[step]\n"
        "@sage_rlvr.verifier\ndef odd(completion, gold):\n    return {}[gold]\n"
        "def helper():\n    return {}[0]\n"
    )
    plugins.use("parts.py")
    parts = sys.modules[plugins._name(*next(iter(plugins._loaded.items())))]
    advised = {
        "sage_rlvr.testing.check_schedule checks it": lambda: parts.Late()(1, 2),
        "`sage-rlvr audit` checks it in a recipe": lambda: parts.odd("x", "y"),
        "sage_rlvr.testing has a check for each kind of part": parts.helper,
    }
    for advice, use in advised.items():
        with pytest.raises(KeyError) as caught:
            use()
        assert (plugins.blame(caught.value) or "").endswith(f"describes the interface, and {advice}")


def test_what_raw_q_returns_must_be_a_tensor(train: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(GUIDE.replace("1.0 + signals.entropies", "1.0"), *LULL)[0] == 2
    assert "Lull.raw_q must return q as a tensor (B, T), got float 1.0" in told(capsys)


def test_a_fault_of_the_package_stays_one_with_a_plugin_loaded(
    train: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sage_rlvr.training import loop

    assert train(GUIDE, *LULL)[0] == 0  # and the plugin as it stands works
    monkeypatch.delattr(loop, "credit")
    assert train(GUIDE, *LULL, "--run", "other")[0] == FAULT == 70
    assert "NameError" in (err := told(capsys)) and "Traceback" in err and "a bug in sage-rlvr or in mine.py" in err


def test_a_part_that_is_called_with_other_arguments_is_its_authors_to_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, train: Run
) -> None:
    """The error is raised where the part is used: no frame is the plugin's."""
    text = "import json\n\n\nclass Weight:\n    def __call__(self):\n        return json.loads('{')\n"
    (tmp_path / "weights.py").write_text(text)
    plugins.use("weights.py")
    weight = sys.modules[plugins._name(*next(iter(plugins._loaded.items())))].Weight()
    uses = {":5: TypeError: Weight.__call__() takes 1": lambda: weight(1), ":4: AttributeError: ": lambda: weight.legend}
    for said, use in uses.items():
        with pytest.raises((TypeError, AttributeError)) as caught:
            use()
        assert f"weights.py{said}" in (plugins.blame(caught.value) or "")
    with pytest.raises(ValueError, match="Expecting") as caught:
        weight()
    assert plugins.raised_at(caught.value) == "weights.py:6"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            'Verdict("right" if "1" in completion else "wrong", "")', '"1" in completion',
            "task ones: Ones.verify must return a Verdict (sage_rlvr.verifiers), as Verdict('right', 'why')",
        ),
        ('f"p{n}"', '"p"', "task ones, train problems: the id 'p' is there 8 times; ids must differ"),
        ("problem_id=", "number=", "task ones, train problems: 8 have no problem_id"),
        ("def verify(", "def judge(", "task 'ones': Ones lacks verify; a task has name: ClassVar[str], problems(split)"),
        ("def verify(", "def verfy(", "task class Ones: verfy is no member of a task; did you mean verify?"),
        ("(sage_rlvr.Task)", "", "task 'ones': Ones does not inherit sage_rlvr.Task; write class Ones(sage_rlvr.Task)"),
        ('"1 1 = "', 'problem.text', "mine.py:14: AttributeError: 'types.SimpleNamespace' object has no attribute 'text'"),
    ],
)  # fmt: skip
def test_a_task_that_is_wrong_is_its_authors_to_mend(
    train: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path, warm_policy: Path, old: str, new: str, said: str
) -> None:
    recipe = tmp_path / "ones.yaml"
    recipe.write_text(
        f"steps: 1\nmodel: {warm_policy}\ntask: {{name: ones}}\nmethod: {{name: grpo, beta: 0}}\n"
        "rollout: {prompts_per_step: 2, group_size: 4, max_new_tokens: 4}\n"
    )
    assert old in TASK
    assert train(TASK.replace(old, new), recipe=recipe)[0] == 2
    assert said in (err := told(capsys)) and "Traceback" not in err, err
    if "must return" in said:
        assert "got bool" in err and "on problem 'p" in err


def test_a_reward_that_raises_names_its_line(
    tmp_path: Path, train: Run, capsys: pytest.CaptureFixture[str], warm_policy: Path
) -> None:
    (tmp_path / "rewards.py").write_text("def score(completion, row):\n    return row['nowhere']\n")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1 1=", "key": "1"}\n{"prompt": "2 2=", "key": "2"}\n')
    recipe = tmp_path / "rows.yaml"
    recipe.write_text(
        f"steps: 1\nmodel: {warm_policy}\ntask: {{name: jsonl, file: rows.jsonl, reward: rewards.py:score}}\n"
        "method: {name: grpo, beta: 0}\nrollout: {prompts_per_step: 2, group_size: 4, max_new_tokens: 4}\n"
    )
    assert train("", recipe=recipe)[0] == 2
    assert "reward rewards.py:score: on row '0' of rows.jsonl it raised KeyError: 'nowhere' (line 2)" in told(capsys)


# ---- what a name, an option or a docstring of one's own is told

METHOD = '''import sage_rlvr
from sage_rlvr.core import Anchor, Clip, LeaveOneOut, Method, TokenMean
from sage_rlvr.errors import refuse
@sage_rlvr.method
def loo_token(*, beta: float = 0.0, clip: float = 0.2) -> Method:
    """Leave-one-out, one mean over tokens.

    beta: weight of the leash
    clip: how far a ratio goes
    """
    refuse((clip < 0.5, "clip: too narrow"))
    return Method("loo_token", LeaveOneOut(), Clip(clip, clip), Anchor(beta), TokenMean())
'''


def test_a_method_of_ones_own_where_a_recipe_is_expected(
    train: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(METHOD, recipe=Path("loo_token"))[0] == 2
    assert told(capsys) == "ConfigError: loo_token: method: clip: too narrow"  # of its defaults
    assert call("train", "loo_token", "--plugin", "mine.py", "--method.clip", "0.6", "--dry-run") == 0
    capsys.readouterr()
    assert call("train", "loo_tokens") == 2 and "did you mean 'loo_token'" in told(capsys)


def test_parts_lists_the_options_of_a_factory_that_refuses_its_defaults(
    train: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(METHOD)
    assert call("parts", "loo_token", "--plugin", "mine.py") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "its defaults are refused, so give other ones: clip: too narrow" in out
    assert "beta 0 may be: a number weight of the leash clip 0.2 may be: 0.5 <= x <= 1 how far a ratio goes" in out


def test_parts_of_an_unknown_name_lists_the_nearest(train: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("parts", "surprise") == 2
    assert (err := told(capsys)).startswith("ConfigError: unknown part 'surprise'; near it: surrogate, ")
    assert err.endswith("`sage-rlvr parts` lists all. A part of your own needs --plugin FILE.py") and len(err) < 250


def test_a_mistyped_override_beside_a_guide_is_the_command_lines(train: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(GUIDE, *LULL, "--method.depht", "1", recipe=Path("grpo"))[0] == 2
    assert told(capsys).startswith("ConfigError: --method.depht = 1: unknown key. Keys here: clip_low, ")
    assert train(GUIDE, *LULL, "--method.betta", "1", recipe=Path("grpo"))[0] == 2
    assert told(capsys).startswith("ConfigError: --method.betta = 1: unknown key; did you mean 'beta'?")


# ---- rows of one's own


def test_rows_without_a_policy_that_spells_them_or_examples_are_told_the_ways(
    train: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "How many?", "answer": "1"}\n')
    (tmp_path / "rl.yaml").write_text(
        "steps: 1\nmodel: embedded\ntask: {name: jsonl, file: rows.jsonl, reward: exact}\nmethod: {name: grpo, beta: 0}\n"
        "rollout: {prompts_per_step: 1, group_size: 2}\n"
    )
    (tmp_path / "sft.yaml").write_text("steps: 1\ntask: {name: jsonl, file: rows.jsonl, reward: exact}\n")
    assert call("train", "rl.yaml", "--quiet") == 2
    made = "sage-rlvr sft knights/sft --out runs/knights-base"
    assert "cannot encode the prompts" in (err := told(capsys)) and "OWNER/NAME of the Hub" in err and made in err
    assert call("sft", "sft.yaml") == 2
    assert "Rows (jsonl, math) have none: fine-tune an existing model" in (err := told(capsys)) and made in err
    assert call(*made.split()[1:], "--dry-run") == 0  # what is suggested is there


@pytest.mark.parametrize(("status", "code"), [(0, 2), (7, 7)])
@pytest.mark.parametrize("text", ["import os\n\nos._exit({})\n", "from os import _exit\n\n_exit({})\n"])
def test_a_plugin_that_ends_the_process_is_named(tmp_path: Path, text: str, status: int, code: int) -> None:
    (tmp_path / "ends.py").write_text(text.format(status))
    command = [sys.executable, "-m", "sage_rlvr", "parts", "guides", "--plugin", "ends.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == code and f"ends.py:3: os._exit({status})" in done.stderr


ENDINGS = {  # a plugin that ends the command otherwise, and what is said
    "posix": ("import posix\nposix._exit(0)\n", r"os\._exit\(0\) ended this command before it was done"),
    "exec": ("import os\nos.execv('/x', ['x'])\n", r"line 2: RuntimeError: os\.exec of '/x' would end this command"),
    "ctypes": ("import ctypes\nctypes.CDLL(None).exit(0)\n", "line 2: RuntimeError: exit of the C library would end this command"),
    "no stdout": ("import sys\nsys.stdout = None\n", r"sys\.stdout was set to None by a plugin"),
    "closed stdout": ("import sys\nsys.stdout.close()\n", r"sys\.stdout was closed by a plugin"),
    "closed stderr": ("import sys\nsys.stderr.close()\n", r"sys\.stderr was closed by a plugin"),
    "closed file": ("import os\nos.close(1)\n", r"stdout: cannot be written: .*closed by a plugin"),
    "recursion": ("import sys\nsys.setrecursionlimit(50)\n", r"sys\.setrecursionlimit\(50\) of a plugin"),
}


def with_plugin(folder: Path, text: str, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "mine.py").write_text(text)
    command = [sys.executable, "-m", "sage_rlvr", *words, "--plugin", "mine.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("how", ENDINGS)
def test_a_plugin_cannot_end_a_command_as_if_it_were_done(tmp_path: Path, how: str) -> None:
    text, said = ENDINGS[how]
    done = with_plugin(tmp_path, text, "--version")
    assert done.returncode == 2 and re.search(said, done.stderr) and "Traceback" not in done.stderr


@pytest.mark.parametrize("text", ["sys.stdout = sys.stderr = io.StringIO()", "sys.stdout = sys.stderr = open('other', 'w')"])
def test_output_is_not_lost_where_a_plugin_redirects_its_own(tmp_path: Path, text: str) -> None:
    done = with_plugin(tmp_path, f"import io, sys\n{text}\nprint('of the plugin')\n", "--version")
    assert done.returncode == 0 and done.stdout.startswith("sage-rlvr ") and "of the plugin" not in done.stdout
    refused = with_plugin(tmp_path, f"import io, sys\n{text}\n", "nosuch")
    assert refused.returncode == 2 and "unknown command 'nosuch'" in refused.stderr


@pytest.mark.parametrize("status", [0, 7])
@pytest.mark.parametrize(("words", "code"), [(["--version"], 0), (["nosuch"], 2)])
def test_a_handler_at_the_end_cannot_change_the_exit_code(tmp_path: Path, words: list[str], code: int, status: int) -> None:
    text = f"import atexit, os\natexit.register(os._exit, {status})\n"
    assert with_plugin(tmp_path, text, *words).returncode == (code or status)


def test_a_fork_that_comes_back_does_not_run_the_command(tmp_path: Path) -> None:
    done = with_plugin(tmp_path, "import os\nif pid := os.fork():\n    os.waitpid(pid, 0)\n", "--version")
    assert done.returncode == 0 and done.stdout.count("sage-rlvr") == 1 and "a fork came back into this command" in done.stderr


def test_a_closed_stdout_is_no_fault(tmp_path: Path) -> None:
    command = f"{sys.executable} -m sage_rlvr --version >&-"
    done = subprocess.run(command, shell=True, cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_forks_end_as_they_like(tmp_path: Path) -> None:
    (tmp_path / "forks.py").write_text("import os\nif (pid := os.fork()) == 0:\n    os._exit(0)\nprint(os.waitpid(pid, 0)[1])\n")
    command = [sys.executable, "-m", "sage_rlvr", "--version", "--plugin", "forks.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[0], done.stderr) == (0, "0", "")
