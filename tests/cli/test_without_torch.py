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


def run(place: Path, *commands: str) -> list[tuple[int, str, str]]:
    """(exit code, stdout, stderr) of each command, all in one process that lacks the extra."""
    words = [sys.executable, "-c", SCRIPT, json.dumps(sorted(BLOCKED)), json.dumps([one.split() for one in commands])]
    done = subprocess.run(words, cwd=place, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT / "src")})
    assert done.returncode == 0, done.stderr
    return [tuple(one) for one in json.loads(done.stdout)]


def test_commands_that_compare_need_no_torch(tmp_path: Path) -> None:
    folders.write_stores(tmp_path)
    pair = "GRPO=GRPO-sums-T1-s0 SAGE=SAGE-sums-T1-s0"
    commands = (
        "--help", "--version", "doctor", "recipes", "recipes copy countdown/sft own.yaml", "verify countdown 1",
        "plan --problems 50", f"compare {pair}", f"report {pair} -o pair.html", "samples SAGE-sums-T1-s0", "audit repair",
    )  # fmt: skip
    for words, (code, out, err) in zip(commands, run(tmp_path, *commands), strict=True):
        assert code == 0, (words, out, err)
        assert words.startswith("recipes copy") or out, words
    assert (tmp_path / "pair.html").stat().st_size > 50_000


def test_the_gate_reads_a_store_without_torch(tmp_path: Path) -> None:
    folders.write_stores(tmp_path)
    ((code, _, err),) = run(tmp_path, "eval SAGE-sums-T1-s0 --gate")
    assert code == 2 and "no chance floor is known for sums" in " ".join(err.split())


def test_parts_are_listed_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the order of names.py; what needs torch lacks its sentence, and a line says how to get it."""
    every, guides, tasks = run(tmp_path, "parts", "parts guides", "parts tasks")
    for words, (code, out, err) in {("parts",): every, ("parts", "guides"): guides, ("parts", "tasks"): tasks}.items():
        with pytest.raises(SystemExit):
            main(list(words))
        whole = capsys.readouterr().out.splitlines()
        assert code == 0 and [line[:26].rstrip() for line in out.splitlines()] == [line[:26].rstrip() for line in whole]
        if words == ("parts", "tasks"):
            assert out.splitlines() == whole and err == ""
        else:
            assert err.startswith("what these parts do is known with torch; ")


def test_a_command_that_needs_the_extra_names_it(tmp_path: Path) -> None:
    commands = ("show sage_branch", "train grpo", "eval embedded", "parts branch")
    commands += ("push run owner/name", "import-config a.yaml", "doctor grpo")
    for words, (code, out, err) in zip(commands, run(tmp_path, *commands), strict=True):
        assert (code, out) == (2, ""), (words, err)
        advice = r"sage-rlvr [\w-]+ needs \w+, which is not installed; "
        assert re.search(advice + re.escape(extras.install("train")) + r".*\n\Z", err), words


def test_methods_are_listed_without_torch_and_a_misspelled_one_is_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The names are those that the registry knows; what a method does, its paper and its engines are left out."""
    misspelled = ("train grop", "show grop", "doctor grop", "train sag --task words")
    listed, few, *wrong = run(tmp_path, "methods", "methods entropy", *misspelled)
    with pytest.raises(SystemExit):
        main(["methods"])
    whole = capsys.readouterr().out.splitlines()
    assert listed[0] == few[0] == 0 and 3 < len(few[1].splitlines()) < len(whole)
    assert [line[:16].rstrip() for line in listed[1].splitlines()] == [line[:16].rstrip() for line in whole]
    for code, out, err in wrong:
        assert (code, out) == (2, "") and "torch" not in err and re.search(r"did you mean '(grpo|sage)'", err), err


def test_a_misspelled_part_is_answered_without_torch(tmp_path: Path) -> None:
    near, none = run(tmp_path, "parts brunch", "parts nosuch")
    assert (near[0], none[0]) == (2, 2) and "near it: branch" in " ".join(near[2].split())
    assert all("unknown part" in err and "sage-rlvr parts needs torch" not in err for _, _, err in (near, none))


def test_a_name_of_the_package_that_needs_the_extra_names_it() -> None:
    code = "import sys; sys.modules['torch'] = None; import sage_rlvr\n"
    code += "try: sage_rlvr.Branch\nexcept ModuleNotFoundError as error: print(error)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": str(ROOT / "src")})
    advice = "pip install -c constraints.txt -e '.[train]' (without a GPU first: "
    assert done.stdout.startswith(f"sage_rlvr.Branch needs torch, which is not installed; run, in the clone: {advice}"), done.stderr


@pytest.mark.parametrize("call", ["train('grpo')", "train('grpo', task='words')", "evaluate('embedded')", "demo()"])
def test_a_job_of_the_package_that_needs_the_extra_names_it(call: str, tmp_path: Path) -> None:
    code = "import sys; sys.modules['torch'] = None; import sage_rlvr\n"
    code += f"try: sage_rlvr.{call}\nexcept ModuleNotFoundError as error: print(error)"
    words = {"cwd": tmp_path, "capture_output": True, "text": True, "env": {"PYTHONPATH": str(ROOT / "src")}}
    done = subprocess.run([sys.executable, "-c", code], **words)
    name = call.partition("(")[0]
    assert done.stdout.startswith(f"sage_rlvr.{name} needs torch, which is not installed; run, in the clone: "), done.stderr


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
