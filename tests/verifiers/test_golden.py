"""Verdicts are those of the golden file: a change of behavior needs another version, and another version needs another file."""

from __future__ import annotations

import gzip
import importlib
import pkgutil
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import sage_rlvr.contrib.tasks
import sage_rlvr.tasks
import sage_rlvr.verifiers
from sage_rlvr.contrib.tasks.countdown_steps import CountdownSteps
from sage_rlvr.contrib.tasks.repair import Repair
from sage_rlvr.contrib.tasks.word_problems import WordProblems
from sage_rlvr.errors import ConfigError
from sage_rlvr.plugins import executed
from sage_rlvr.tasks.base import PromptedTask, Task
from sage_rlvr.tasks.countdown import Countdown
from sage_rlvr.tasks.countdown.kept import KeptProblems
from sage_rlvr.verifiers.sandbox import missing
from sage_rlvr.verifiers.versions import _LIMITS, VERSIONS, math_libraries, version_hash
from verifiers import golden
from verifiers.golden import COMMAND, FILE, GoldenRow, changed, judged, load, written

STRIDES = {"math": 41, "repair": 13}  # of the rows that the fast tests judge, where a row takes 20 ms or more


@pytest.fixture(scope="module")
def rows() -> list[GoldenRow]:
    """The stored rows that can be judged here."""
    return judgeable()


def judgeable() -> list[GoldenRow]:
    """The stored rows without those of mathematics under other releases of its libraries, which are another verifier to a store
    too, and without those of programs where the system cannot confine one."""
    head, found = load()
    left_out = {"math"} if head["libraries"] != math_libraries() else set()
    left_out |= {"repair"} if missing() else set()
    return [row for row in found if row.verifier not in left_out]


def assert_unchanged(rows: list[GoldenRow]) -> None:
    found = list(changed(rows))
    assert not found, (
        f"{len(found)} verdicts changed, the first at {found[0]}. Restore it, or raise the verifier's number in VERSIONS "
        f"(src/sage_rlvr/verifiers/versions.py) and rebuild the file with: {COMMAND}"
    )


def test_a_sample_of_the_golden_verdicts_is_unchanged(rows: list[GoldenRow]) -> None:
    by_judge = {name: [row for row in rows if row.judge == name] for name in golden.JUDGES}
    sample = [row for name, some in by_judge.items() for row in some[:: STRIDES.get(name, 1)]]
    assert {row.judge for row in sample} == {row.judge for row in rows}
    assert_unchanged(sample)


def test_another_release_of_a_library_of_mathematics_leaves_the_other_verifiers_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "math_libraries", lambda: {"sympy": "0"})
    assert {row.verifier for row in judgeable()} | {"repair"} == VERSIONS.keys() - {"math"}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_golden_verdicts_are_unchanged(rows: list[GoldenRow]) -> None:
    assert_unchanged(rows)


def test_the_versions_of_the_golden_file_are_those_of_the_code() -> None:
    head, _ = load()
    assert head["versions"] == VERSIONS, f"VERSIONS changed and the golden file did not; rebuild it with: {COMMAND}"


def test_every_version_is_guarded_by_many_rows_of_every_outcome() -> None:
    _, rows = load()
    assert len(rows) >= 10_000 and len({row.line for row in rows}) == len(rows) and FILE.stat().st_size < 500_000
    for name in VERSIONS:
        labels = [row.result[0] for row in rows if row.judge == name and row.result]
        assert len(labels) >= 100 and {"right", "wrong"} <= set(labels), name


def test_the_file_holds_its_rows_and_nothing_else() -> None:
    _, rows = load()
    assert gzip.decompress(written(rows)) == gzip.decompress(FILE.read_bytes())


def test_a_changed_verdict_is_named_by_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = judged([GoldenRow("countdown", [[3, 4], 7, text]) for text in ("3+4", "3*4")])
    assert list(changed(rows)) == []
    monkeypatch.setitem(golden.JUDGES, "countdown", lambda cases: [["right", "right"] for _ in cases])
    with pytest.raises(AssertionError, match=r"1 verdicts changed, the first at countdown of .*3\*4.*Restore it, or raise"):
        assert_unchanged(rows)


def test_a_file_is_not_rebuilt_over_a_change_without_a_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(golden, "FILE", tmp_path / "verdicts.json.gz")
    rows = judged([GoldenRow("countdown", [[3, 4], 7, text]) for text in ("3+4", "3*4")])
    monkeypatch.setattr("verifiers.golden_rows.cases", lambda: iter(rows))
    assert "2 rows" in golden.build()
    monkeypatch.setitem(golden.JUDGES, "countdown", lambda cases: [["right", "right"] for _ in cases])
    with pytest.raises(SystemExit, match=r"changed from .*'wrong', 'value'.* raise VERSIONS\['countdown'\]"):
        golden.build()
    monkeypatch.setitem(VERSIONS, "countdown", VERSIONS["countdown"] + 1)
    assert "2 rows" in golden.build() and load()[0]["versions"]["countdown"] == VERSIONS["countdown"]


# ---- what is recorded


def tasks_of(kind: type[Task]) -> set[type[Task]]:
    """The classes below a class, of this package."""
    found = {one for one in kind.__subclasses__() if one.__module__.startswith("sage_rlvr.")}
    return found.union(*map(tasks_of, found))


def test_every_task_of_the_package_names_the_version_of_its_verifier() -> None:
    for package in (sage_rlvr.tasks, sage_rlvr.contrib.tasks):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    found = tasks_of(Task)
    unnamed = {kind.__name__ for kind in found if kind._verifier_version is Task._verifier_version}
    assert len(found) >= 11 and unnamed == {PromptedTask.__name__, KeptProblems.__name__}  # bases of others


@pytest.mark.parametrize(("verifier", "place"), [(name, place) for name, places in _LIMITS.items() for place in places])
def test_another_limit_is_another_verifier(verifier: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = version_hash(verifier)
    module, _, name = place.partition(":")
    monkeypatch.setattr(f"{module}.{name}", getattr(importlib.import_module(module), name) + 1)
    assert version_hash(verifier) != before


@pytest.mark.parametrize(
    ("task", "place"),
    [
        (CountdownSteps, f"{CountdownSteps.__module__}.LONGEST"),
        (WordProblems, f"{WordProblems.__module__}.LONGEST"),
        (Repair, f"{Repair.__module__}.POOL_SECONDS"),
    ],
)
def test_another_limit_of_a_task_of_contrib_is_another_verifier(
    task: Callable[[], Task], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = task().verifier_hash
    monkeypatch.setattr(place, 1)
    assert task().verifier_hash != before


def test_every_limit_of_a_verifier_is_hashed() -> None:
    assert _LIMITS.keys() == VERSIONS.keys()
    hashed = {place for places in _LIMITS.values() for place in places}
    named = {
        f"{sage_rlvr.verifiers.__name__}.{path.stem}:{name}"
        for path in Path(*sage_rlvr.verifiers.__path__).glob("*.py")
        for name in re.findall(r"^(MAX_\w+|LONGEST) = ", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert len(named) >= 8 and not named - hashed, "limits that decide verdicts; add them to _LIMITS (verifiers/versions.py)"


def test_a_task_outside_of_the_package_is_known_by_its_source_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])

    def mine(text: str, name: str = "mine") -> str:
        path = tmp_path / f"{name}_{len(list(tmp_path.iterdir()))}.py"
        path.write_text(f"from sage_rlvr.tasks.countdown import Countdown\n{text}")
        return str(executed(path, path.stem).Mine().verifier_hash)

    verify = "    def verify(self, problem, completion):\n        return {}(super().verify(problem, completion))\n"
    shipped = Countdown().verifier_hash
    found = [mine("class Mine(Countdown):\n" + verify.format(by)) for by in ("", "id")]
    found.append(mine("Mine = Countdown\n"))
    assert found[2] == shipped and len(set(found)) == 3
    assert all(re.fullmatch(rf"{shipped}-source-[0-9a-f]{{16}}", one) for one in found[:2])


def test_a_class_without_source_is_refused() -> None:
    mine = type("Mine", (Countdown,), {"__module__": "nowhere"})
    with pytest.raises(ConfigError, match=r"task Mine: Python has no source of nowhere.*write the class in a file"):
        assert mine().verifier_hash


def test_a_version_hash_names_verifier_version_and_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    before = version_hash("math", seconds=5.0)
    assert re.fullmatch(rf"math-v{VERSIONS['math']}-[0-9a-f]{{16}}", before)
    assert version_hash("math", seconds=5.0) == before != version_hash("math", seconds=6.0)
    monkeypatch.setattr("sage_rlvr.verifiers.versions.math_libraries", lambda: {"sympy": "0"})
    assert version_hash("math", seconds=5.0) != before
    monkeypatch.setitem(VERSIONS, "math", 99)
    assert version_hash("math", seconds=5.0).startswith("math-v99-")
    with pytest.raises(KeyError):
        version_hash("unknown")
