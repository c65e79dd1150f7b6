"""Verdicts are those of the golden file: a change of behavior needs another version, and another version needs another file."""

from __future__ import annotations

import gzip
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import sage_rlvr.tasks
from sage_rlvr.tasks.base import Asked, Task
from sage_rlvr.tasks.countdown.kept import KeptProblems
from sage_rlvr.verifiers.sandbox import missing
from sage_rlvr.verifiers.versions import VERSIONS, math_libraries, version_hash
from verifiers import golden
from verifiers.golden import COMMAND, FILE, GoldenRow, changed, judged, load, written

STRIDE = 13  # of the rows that the fast tests judge


@pytest.fixture(scope="module")
def rows() -> list[GoldenRow]:
    """The stored rows, without those of programs where the system cannot confine one. Skips under other releases of the libraries
    of mathematics, which are another verifier to a store too."""
    head, found = load()
    if head["libraries"] != math_libraries():
        pytest.skip(f"the golden verdicts are those of {head['libraries']}, and here is {math_libraries()}")
    return [row for row in found if row.judge != "repair"] if missing() else found


def assert_unchanged(rows: list[GoldenRow], stride: int) -> None:
    found = list(changed(rows[::stride], stride=stride))
    assert not found, (
        f"{len(found)} verdicts changed, the first at {found[0]}. Restore it, or raise the verifier's number in VERSIONS "
        f"(src/sage_rlvr/verifiers/versions.py) and rebuild the file with: {COMMAND}"
    )


def test_a_sample_of_the_golden_verdicts_is_unchanged(rows: list[GoldenRow]) -> None:
    assert len(rows[::STRIDE]) >= 900
    assert_unchanged(rows, STRIDE)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_golden_verdicts_are_unchanged(rows: list[GoldenRow]) -> None:
    assert_unchanged(rows, 1)


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
    with pytest.raises(AssertionError, match=r"1 verdicts changed, the first at row 2, countdown of .*3\*4.*Restore it, or raise"):
        assert_unchanged(rows, 1)


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


def test_no_task_of_the_package_is_known_by_its_source() -> None:
    for module in pkgutil.walk_packages(sage_rlvr.tasks.__path__, "sage_rlvr.tasks."):
        importlib.import_module(module.name)
    by_source = {kind.__name__ for kind in tasks_of(Task) if kind.verifier_hash is Task.verifier_hash}
    assert len(tasks_of(Task)) >= 11 and by_source == {Asked.__name__, KeptProblems.__name__}  # bases of others


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
