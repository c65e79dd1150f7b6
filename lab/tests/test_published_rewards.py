"""`python -m lab published-rewards`: its rows, its table, and packages that are missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab import published_rewards
from lab.__main__ import main
from lab.published_rewards import ROWS, SETS, Found, found_in, page, table
from sage_rlvr.contrib.audit import Check, RewardAudit
from sage_rlvr.verifiers.golds import gold_of

FIGURES = {
    "form": r"\boxed{5}", "golds": (19, 20), "accepts": (3, 240), "rejects": (7, 60), "floor": (2, 20), "order": True,
    "milliseconds": 1.0, "ours": 2.0, "failed": (0, 700), "hostile": (1, 29),
}  # fmt: skip
AUDIT = RewardAudit("reward a:b", "read as ...", (Check("golds paid", 19, 20, bar=True),), FIGURES)
ROW = r"| one 1.0 | `\boxed{5}` | 19 of 20 | 3 of 240 | 7 of 60 | 2 of 20 | 0.5 | 0 of 700 | 1 of 29 | same |"


@pytest.mark.parametrize("name", SETS)
def test_the_rows_are_golds_that_the_audit_reads(name: str) -> None:
    golds = [row["answer"] for row in SETS[name]()]
    assert len(golds) >= ROWS and all(gold_of(gold)[0] == gold for gold in golds)
    assert golds == [row["answer"] for row in SETS[name]()]


def test_a_line_per_reward_and_the_page_with_what_was_found() -> None:
    lines = table([("one 1.0", AUDIT)])
    assert lines[-1] == ROW and lines[0].count("|") == ROW.count("|")
    text = page(lines, [AUDIT])
    assert text.startswith("# Audits of published rewards") and ROW in text and "| golds paid | 19 of 20 | 95.00 % |" in text


def test_packages_are_looked_for_without_importing_them() -> None:
    found = found_in("pytest", None)
    assert isinstance(found, Found) and found.version == pytest.__version__ and (found.folder / "__init__.py").is_file()
    assert found_in("no_such_package_here", None) is None


def test_the_command_names_what_is_missing_and_audits_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(published_rewards, "audit_reward", lambda *_, **__: AUDIT)
    monkeypatch.setattr(published_rewards, "found_in", lambda name, python: Found(Path(), "1.0", None) if name == "trl" else None)
    assert main(["published-rewards", "--out", str(tmp_path / "page.md")]) == 0
    said = capsys.readouterr()
    assert said.out.count("TRL `accuracy_reward` 1.0") == 2 and ROW.partition("|")[2].partition("|")[2] in said.out
    assert "verl is missing" in said.err and "--pythons lighteval=venv/bin/python" in said.err
    for words in ("tlr=x", "trl", "trl=", "sage_rlvr=x"):
        assert main(["published-rewards", "--pythons", words]) == 2
        assert f"--pythons {words}: write PACKAGE=PYTHON" in capsys.readouterr().err
