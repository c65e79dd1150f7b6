"""The base install: what compares, reports and plans runs where no module of the extra `train` can be imported."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from frozen import folders
from sage_rlvr import extras
from sage_rlvr.cli.app import main

ROOT = Path(__file__).resolve().parents[2]
Ran = dict[str, tuple[int, str, str]]
BLOCKED = {*extras.EXTRAS["train"], "huggingface_hub", "trl", "verl", "vllm"}
SCRIPT = """
import contextlib, io, json, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

BLOCKED, commands = map(json.loads, sys.argv[1:])
sys.meta_path.insert(0, Blocked())
from sage_rlvr.cli.app import main

found = []
for words in commands:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(words)
        except SystemExit as ended:
            code = ended.code
    found.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(found))
"""


PAIR = "GRPO=GRPO-sums-T1-s0 SAGE=SAGE-sums-T1-s0"
COMPARING = (
    "--help", "--version", "doctor", "recipes", "recipes copy countdown/sft own.yaml", "verify countdown 1",
    "plan --problems 50", f"compare {PAIR}", f"report {PAIR} -o pair.html", "samples SAGE-sums-T1-s0", "audit repair",
)  # fmt: skip
NAMED = ("show sage_branch", "train grpo", "eval embedded", "parts branch", "push run owner/name", "import-config a.yaml")
NAMED += ("doctor grpo",)
MISSPELLED = ("train grop", "show grop", "doctor grop", "train sag --task words")
GATE = "eval SAGE-sums-T1-s0 --gate"
LISTED = ("parts", "parts guides", "parts tasks", "parts brunch", "parts nosuch", "methods", "methods entropy")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the shipped stores."""
    return folders.write_stores(tmp_path_factory.mktemp("stores"))


@pytest.fixture(scope="module")
def ran(place: Path) -> Ran:
    """(exit code, stdout, stderr) of each command, all in one process that lacks the extra."""
    commands = [*COMPARING, *NAMED, *MISSPELLED, GATE, *LISTED]
    words = [sys.executable, "-c", SCRIPT, json.dumps(sorted(BLOCKED)), json.dumps([one.split() for one in commands])]
    done = subprocess.run(words, cwd=place, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT / "src")})
    assert done.returncode == 0, done.stderr
    return dict(zip(commands, map(tuple, json.loads(done.stdout)), strict=True))


@pytest.mark.slow
def test_commands_that_compare_need_no_torch(ran: Ran, place: Path) -> None:
    for words in COMPARING:
        code, out, err = ran[words]
        assert code == 0, (words, out, err)
        assert words.startswith("recipes copy") or out, words
    assert (place / "pair.html").stat().st_size > 50_000


@pytest.mark.slow
def test_the_gate_reads_a_store_without_torch(ran: Ran) -> None:
    code, _, err = ran[GATE]
    assert code == 2 and "no chance floor is known for sums" in " ".join(err.split())


@pytest.mark.slow
@pytest.mark.parametrize("words", ["parts", "parts guides", "parts tasks"])
def test_parts_are_listed_by_name(words: str, ran: Ran, capsys: pytest.CaptureFixture[str]) -> None:
    """In the order of names.py; what needs torch lacks its sentence, and a line says how to get it."""
    code, out, err = ran[words]
    with pytest.raises(SystemExit):
        main(words.split())
    whole = capsys.readouterr().out.splitlines()
    assert code == 0 and [line[:26].rstrip() for line in out.splitlines()] == [line[:26].rstrip() for line in whole]
    if words == "parts tasks":
        assert out.splitlines() == whole and err == ""
    else:
        assert err.startswith("what these parts do is known with torch; ")


@pytest.mark.slow
def test_a_command_that_needs_the_extra_names_it(ran: Ran) -> None:
    for words in NAMED:
        code, out, err = ran[words]
        assert (code, out) == (2, ""), (words, err)
        advice = r"sage-rlvr [\w-]+ needs \w+, which is not installed; "
        assert re.search(advice + re.escape(extras.install("train")) + r".*\n\Z", err), words


@pytest.mark.slow
def test_methods_are_listed_without_torch_and_a_misspelled_one_is_answered(ran: Ran, capsys: pytest.CaptureFixture[str]) -> None:
    """The names are those that the registry knows; what a method does, its paper and its engines are left out."""
    listed, few = ran["methods"], ran["methods entropy"]
    with pytest.raises(SystemExit):
        main(["methods"])
    whole = capsys.readouterr().out.splitlines()
    assert listed[0] == few[0] == 0 and 3 < len(few[1].splitlines()) < len(whole)
    assert [line[:16].rstrip() for line in listed[1].splitlines()] == [line[:16].rstrip() for line in whole]
    for code, out, err in (ran[words] for words in MISSPELLED):
        assert (code, out) == (2, "") and "torch" not in err and re.search(r"did you mean '(grpo|sage)'", err), err


@pytest.mark.slow
def test_a_misspelled_part_is_answered_without_torch(ran: Ran) -> None:
    near, none = ran["parts brunch"], ran["parts nosuch"]
    assert (near[0], none[0]) == (2, 2) and "near it: branch" in " ".join(near[2].split())
    assert all("unknown part" in err and "sage-rlvr parts needs torch" not in err for _, _, err in (near, none))


@pytest.mark.slow
def test_a_name_or_job_of_the_package_that_needs_the_extra_names_it(tmp_path: Path) -> None:
    calls = ["Branch", "train('grpo')", "train('grpo', task='words')", "evaluate('embedded')", "demo()"]
    code = "import sys; sys.modules['torch'] = None; import sage_rlvr\n"
    code += "".join(f"try: sage_rlvr.{call}\nexcept ModuleNotFoundError as error: print(error)\n" for call in calls)
    words = {"cwd": tmp_path, "capture_output": True, "text": True, "env": {"PYTHONPATH": str(ROOT / "src")}}
    done = subprocess.run([sys.executable, "-c", code], **words)
    advice = "needs torch, which is not installed; run, in the clone: "
    advice += "pip install -c constraints.txt -e '.[train]' (without a GPU first: "
    for call, line in zip(calls, done.stdout.splitlines(), strict=True):
        assert line.startswith(f"sage_rlvr.{call.partition('(')[0]} {advice}"), done.stderr


def test_the_extras_are_those_of_pyproject() -> None:
    """Each module of `EXTRAS` comes with its extra, or with a package of it (accelerate and datasets with TRL)."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {extra: {module_of(line) for line in lines} for extra, lines in project["optional-dependencies"].items()}
    assert names.pop("dev") and names.keys() == extras.EXTRAS.keys()
    for extra, modules in extras.EXTRAS.items():
        assert names[extra] - {"sage_rlvr"} <= {*modules}, extra
        assert {*modules} - names[extra] <= {"accelerate", "datasets"}, extra
        assert extra == "train" or "sage_rlvr" in names[extra], f"{extra} is on top of train"
    assert not {module_of(line) for line in project["dependencies"]} & BLOCKED


def test_the_cpu_build_of_torch_is_the_tested_version_wherever_it_is_named() -> None:
    (tested,) = re.findall(r"^torch==(.*)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    named = {"the messages": extras.CPU_TORCH}
    named |= {str(page): page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]}
    found = {place: set(re.findall(r"torch==([\w.]*\w)", text)) for place, text in named.items()}
    assert {place for place, versions in found.items() if versions} > {"the messages"}
    assert not {place: versions for place, versions in found.items() if versions - {tested}}


def module_of(requirement: str) -> str:
    name = re.match(r"[\w-]+", requirement)
    assert name
    return {"TransferQueue": "transfer_queue", "hydra-core": "hydra"}.get(name[0], name[0].replace("-", "_"))


def test_an_installed_module_that_fails_otherwise_is_no_missing_extra() -> None:
    assert extras.advice(ModuleNotFoundError("torch._gone", name="torch._gone")) is None
    assert extras.advice(ModuleNotFoundError("numpy", name="numpy")) is None
    assert extras.advice(ModuleNotFoundError("torch", name="torch")) is None  # it is installed here


def test_doctor_reports_an_incomplete_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sage_rlvr.cli.doctor.missing", lambda extra: ["jaxtyping"])
    with pytest.raises(SystemExit) as ended:
        main(["doctor"])
    out = capsys.readouterr().out
    assert ended.value.code == 2 and "incomplete: no jaxtyping" in out and "pip install -c constraints.txt -e '.[train]'" in out
