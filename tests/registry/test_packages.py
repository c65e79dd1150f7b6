"""Parts from entry points of packages: they are in a run's identity, and a broken package ends no command and empties no list."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from command import call
from sage_rlvr import plugins
from sage_rlvr.errors import ConfigError
from sage_rlvr.registry import REGISTRIES, registry_of

SMALL = ["--steps", "2", "--rollout.prompts_per_step", "2", "--rollout.group_size", "4", "--quiet"]
GUIDE = """
from dataclasses import dataclass
from typing import ClassVar
import sage_rlvr
import torch

@dataclass(frozen=True)
class Scaled(sage_rlvr.Banded):
    '''A guide with one q everywhere.'''

    needs: ClassVar[frozenset[str]] = frozenset()
    depends_on: ClassVar[str] = "state"
    equation: ClassVar[str] = "ratio"
    ratio: float = FACTOR
    q_min: float = 0.1
    q_max: float = 9.0

    def raw_q(self, signals, step, total_steps, key):
        return torch.where(signals.positions >= 2, self.ratio, 1.0)
"""
Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """(package, version, text of its module, entry points "kind name=object") -> its folder, on the path like an installed one."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv(plugins.VARIABLE, "")
    monkeypatch.chdir(tmp_path)
    before = {kind: dict(registry_of(kind)._parts) for kind in REGISTRIES}
    modules: list[str] = []

    def installed(package: str, version: str, text: str, *points: str) -> Path:
        place = tmp_path / f"{package}-{version}"
        info = place / f"{package}-{version}.dist-info"
        info.mkdir(parents=True)
        (place / f"{package}.py").write_text(text)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        groups = (point.partition(" ") for point in points)
        lines = [f"[sage_rlvr.{kind}s]\n{rest.replace('=', f'= {package}:')}\n" for kind, _, rest in groups]
        (info / "entry_points.txt").write_text("".join(lines))
        sys.path.insert(0, str(place))
        modules.append(package)
        return place

    def forget() -> None:
        for module in modules:
            sys.modules.pop(module, None)
            plugins._packages.pop(module, None)
        for kind, parts in before.items():
            registry_of(kind)._parts = dict(parts)

    installed.forget = forget  # type: ignore[attr-defined]
    yield installed
    forget()


def guide(factor: float) -> str:
    return GUIDE.replace("FACTOR", str(factor))


@pytest.mark.slow
def test_a_part_of_another_package_or_version_is_another_run(
    install: Install, tmp_path: Path, warm_policy: Path, capsys: pytest.CaptureFixture[str]
):
    words = ["train", "countdown/sage_branch", "--model", str(warm_policy), "--run", "run", "--method.guide", "scaled", *SMALL]
    one = install("extra_one", "1.0", guide(2.0), "guide scaled=Scaled")
    assert call(*words) == 0
    facts = json.loads(Path("run/run.json").read_text())["data"]["packages"]
    assert facts["scaled"] | {"sha256": ""} == {"package": "extra_one", "version": "1.0", "sha256": ""}
    assert len(facts["scaled"]["sha256"]) == 64
    assert call(*words) == 0  # the same again
    capsys.readouterr()

    install.forget()  # type: ignore[attr-defined]
    (one / "extra_one.py").write_text(guide(3.0))
    assert call(*words) == 2
    assert "data.packages.scaled.sha256" in capsys.readouterr().err

    install.forget()  # type: ignore[attr-defined]
    sys.path.remove(str(one))
    install("extra_two", "1.0", guide(2.0), "guide scaled=Scaled")
    assert call(*words) == 2
    assert 'data.packages.scaled.package: "extra_one" -> "extra_two"' in capsys.readouterr().err


def test_two_packages_with_one_part_name_are_refused(install: Install):
    install("extra_one", "1.0", guide(2.0), "guide scaled=Scaled")
    install("extra_two", "2.0", guide(3.0), "guide scaled=Scaled")
    with pytest.raises(
        ConfigError,
        match=r"'scaled' is declared by several packages: extra_one 1.0 .* and extra_two 2.0 .*Uninstall all but one",
    ):
        registry_of("guide")["scaled"]


@pytest.mark.parametrize(
    "text, said",
    [
        ("import sys\n\nsys.exit(0)", "extra_bad.py:3: SystemExit: 0; it must not end the process"),
        ("class Stop(BaseException):\n    pass\n\nraise Stop('here')", "extra_bad.py:4: Stop: here"),
        ("import nowhere_at_all", "extra_bad.py:1: ModuleNotFoundError: No module named 'nowhere_at_all'"),
    ],
)
def test_a_package_that_does_not_load_is_named_and_lists_show_the_rest(
    text: str, said: str, install: Install, capsys: pytest.CaptureFixture[str]
):
    install("extra_bad", "1.0", text, "guide broken=Broken", "method broken_too=Broken", "task broken_task=Broken")
    assert call("show", "countdown/sage_branch", "--method.guide", "broken") == 2
    assert said in " ".join(capsys.readouterr().err.split())
    with pytest.warns(UserWarning, match="part not loaded: guide 'broken' of the package extra_bad 1.0") as caught:
        assert call("parts", "guides") == 0
    assert len(caught) == 1 and "\n" not in str(caught[0].message)
    assert "branch" in capsys.readouterr().out
    for words in (["recipes"], ["parts"], ["parts", "methods"], ["parts", "branch"]):
        assert call(*words) == 0, words
        assert "grpo" in capsys.readouterr().out or words == ["parts", "branch"]


@pytest.mark.parametrize("text", ["import sys\n\nsys.exit(0)\n", "class Stop(BaseException): ...\n\nraise Stop(0)\n"])
def test_a_plugin_that_ends_the_process_is_an_error_with_its_line(
    text: str, install: Install, capsys: pytest.CaptureFixture[str]
):
    Path("bad.py").write_text(text)
    assert call("recipes", "--plugin", "bad.py") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "plugin bad.py: line 3: " in said and ("SystemExit: 0" in said or "Stop: 0" in said)


@pytest.mark.parametrize("raised", ["SystemExit(0)", "GeneratorExit"])
def test_a_part_that_ends_the_process_while_it_trains_is_an_error_with_its_line(
    raised: str, install: Install, warm_policy: Path, capsys: pytest.CaptureFixture[str]
):
    install(
        "extra_one",
        "1.0",
        guide(2.0).replace("        return", f"        raise {raised}\n        return"),
        "guide scaled=Scaled",
    )
    words = ["train", "countdown/sage_branch", "--model", str(warm_policy), "--run", "run", "--method.guide", "scaled", *SMALL]
    assert call(*words) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "PluginError" in said and f"extra_one.py:19: {raised.partition('(')[0]}: " in said and f"at `raise {raised}`" in said


def test_a_plugin_is_known_by_the_files_beside_it_that_it_imports(install: Install):
    Path("helper.py").write_text("FACTOR = 2\n")
    Path("other.py").write_text("OTHER = 1\n")
    Path("mine.py").write_text("import helper\n")
    first = plugins.source_sha256(Path("mine.py").resolve())
    Path("other.py").write_text("OTHER = 2\n")
    assert plugins.source_sha256(Path("mine.py").resolve()) == first
    Path("helper.py").write_text("FACTOR = 3\n")
    assert plugins.source_sha256(Path("mine.py").resolve()) != first


VALUES = ["Part = 42", "Part = 'late'", "Part = None", "import math as Part", "import functools; Part = functools.partial(int)",
          "class A: pass\nPart = A()", "Part = int", "class Part: name = 3"]  # fmt: skip


@pytest.mark.parametrize("text", VALUES)
def test_a_part_that_is_none_is_refused_and_leaves_the_others(
    install: Install, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    install("odd_values", "1.0", text, "guide odd=Part")
    with pytest.raises(ConfigError, match=r"guide .*odd_values"):
        registry_of("guide")["odd"]
    with pytest.warns(UserWarning, match="part not loaded: guide"):
        assert call("parts", "guides") == 0
    assert "branch" in capsys.readouterr().out


@pytest.mark.parametrize("value", [42, "late", None, [1]])
def test_register_refuses_a_value(value: object) -> None:
    with pytest.raises(ConfigError, match="no class and no function"):
        registry_of("guide").register(value, name="odd") if value is not None else registry_of("guide").__setitem__("odd", 3)
